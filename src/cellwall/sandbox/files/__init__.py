"""Files below one directory, reached by descriptors only: the file API, archives, inotify."""

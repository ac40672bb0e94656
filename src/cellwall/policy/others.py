"""Files that belong to other people: their homes, and what they keep in shared folders.

The only part of the policy besides links.py that looks at the disk: who owns a file in /tmp is
written nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

_HOMES = ("/home/", "/Users/", "/var/home/", "/export/home/")
_SHARED = ("/tmp/", "/var/tmp/", "/dev/shm/")


def owner_trouble(paths: Iterable[str], *, cwd: str, home: str) -> str:
    """Why one of these paths is somebody else's; '': none is, as far as can be told."""
    near, own = f"{cwd.rstrip('/')}/", f"{home.rstrip('/')}/"
    for path in paths:
        inside = f"{path}/"
        if inside.startswith((near, own)) or near.startswith(inside):
            continue  # the person has chosen to work there
        if _is_others_home(inside, own):
            return "lies in the home folder of another user"
        if inside.startswith(_SHARED) and _is_others_file(path):
            return "belongs to another user, in a folder that all users share"
    return ""


def homes_found(pattern: str) -> Iterator[str]:
    """A path with wildcards in front, as it is where those find the folder that holds homes."""
    names = pattern.split("/")
    for folder in (*_HOMES, "/root/"):
        above = folder.rstrip("/").split("/")
        if len(names) > len(above) and all(map(fnmatchcase, above, names)):
            yield "/".join([*above, *names[len(above) :]])


def _is_others_home(path: str, own: str) -> bool:
    if path.startswith("/root/"):
        return True
    for folder in _HOMES:
        rest = path.removeprefix(folder)
        if rest != path and rest.strip("/"):
            return not own.startswith(f"{folder}{rest.partition('/')[0]}/")
    return False


def _is_others_file(path: str) -> bool:
    """By the nearest folder or file on the way that is there; root's are everybody's."""
    folder = next((each for each in _SHARED if path.startswith(each)), "")
    place = folder.rstrip("/")
    for part in path[len(folder) :].split("/") if folder else ():
        place = f"{place}/{part}"
        try:
            owner = os.lstat(place).st_uid
        except OSError:
            return False  # not there, or not for us: the kernel says so
        if owner not in {os.geteuid(), 0}:
            return True
    return False

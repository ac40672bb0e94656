"""Workspaces: the files that a run works on, and the changes of a copy-on-write run."""

"""The steps of a walk: the entries of one open directory after another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from cellwall.core.errors import WorkspaceError
from cellwall.core.git_names import is_git_layout
from cellwall.sandbox.files.descriptors import path_error
from cellwall.sandbox.files.paths import join
from cellwall.sandbox.files.survey import Survey


@dataclass(frozen=True, slots=True)
class WalkStep:
    """One step of a walk: `name` in the directory `dir_fd`, which is open until the next step."""

    path: str
    name: str
    dir_fd: int
    directory_id: tuple[int, int]
    status: os.stat_result
    in_git_layout: bool = False
    """The directory of this entry has the layout of a git directory."""


def lstat(dir_fd: int, name: str) -> os.stat_result | None:
    """The status of a name, of a symlink itself; None if it does not exist."""
    try:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def bounded_names(fd: int, path: str, most: int) -> list[str]:
    """The names in an open directory, in order; more than `most` is an error."""
    names: list[str] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if len(names) >= most:
                raise _too_many_names(path)
            names.append(entry.name)
    names.sort()
    return names


def names_in(fd: int, path: str, most: int, survey: Survey | None) -> tuple[list[str], int]:
    """The names in an open directory to make steps of, in order, and the number of all names."""
    if survey is None:
        names = bounded_names(fd, path, most)
        return names, len(names)
    try:
        return survey.look(fd, path, max_names=most)
    except OverflowError:
        raise _too_many_names(path) from None


def _too_many_names(path: str) -> WorkspaceError:
    return path_error(path or ".", "CW-WORKSPACE-TOO-LARGE", "holds too many files")


def walk_steps(
    fd: int, path: str, names: list[str], directory_id: tuple[int, int]
) -> Iterator[WalkStep]:
    """One step for each name of an open directory; a name that was removed since is left out."""
    in_git = is_git_layout(names)
    for name in names:
        status = lstat(fd, name)
        if status is not None:
            yield WalkStep(join(path, name), name, fd, directory_id, status, in_git)

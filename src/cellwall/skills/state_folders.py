"""The skill directories of the state directory, and their lock.

$CELLWALL_HOME/skills/approved/NAME/      signed skills; only these can be loaded
$CELLWALL_HOME/skills/quarantine/ID/      proposals that no person has signed yet
$CELLWALL_HOME/skills/lock                shared by readers, exclusive for a writer
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from cellwall.core.errors import CellwallError
from cellwall.skills.folders import closing_fd, open_directory

UNFINISHED = ".new-"
RETIRED = ".old-"
_LOCK_TIMEOUT_S = 10.0
_POLL_INTERVAL_S = 0.01
_ENTRY_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")

Section = Literal["approved", "quarantine"]


class SkillFolders:
    """The skill directories of one user; each use opens them anew and checks the open directory."""

    def __init__(self, home: str) -> None:
        self._home = home

    @contextmanager
    def open_shared(self, part: Section) -> Iterator[int]:
        """The open directory; Cellwall does not change it meanwhile."""
        with self._locked(part, fcntl.LOCK_SH) as folder:
            yield folder

    @contextmanager
    def open_exclusive(self, part: Section) -> Iterator[int]:
        """The open directory under an exclusive lock. Cleans up after an interrupted change."""
        with self._locked(part, fcntl.LOCK_EX) as folder:
            _clean_up(folder)
            try:
                yield folder
            finally:
                _clean_up(folder)
                os.fsync(folder)

    @contextmanager
    def _locked(self, part: Section, kind: int) -> Iterator[int]:
        with (
            _map_state_errors(),
            closing_fd(_own_directory(os.path.join(self._home, "skills"))) as root,
        ):
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            with closing_fd(os.open("lock", flags, 0o600, dir_fd=root)) as lock:
                _wait_for_lock(lock, kind)
                with closing_fd(_own_directory(part, at=root)) as folder:
                    yield folder


def names_in(folder: int) -> list[str]:
    """The entries of a directory, without unfinished ones."""
    return sorted(name for name in os.listdir(folder) if _ENTRY_NAME.fullmatch(name))


def remove_folder(folder: int, name: str) -> None:
    """Rename before deleting: a half-deleted skill must never be taken for a whole one."""
    os.rename(name, UNFINISHED + name, src_dir_fd=folder, dst_dir_fd=folder)
    _discard(folder, UNFINISHED + name)


def _clean_up(folder: int) -> None:
    for name in os.listdir(folder):
        if name.startswith(RETIRED):
            current = name.removeprefix(RETIRED)
            if not _exists(folder, current):  # the replacement was never completed
                os.rename(name, current, src_dir_fd=folder, dst_dir_fd=folder)
                continue
        elif not name.startswith(UNFINISHED):
            continue
        _discard(folder, name)


def _discard(folder: int, name: str) -> None:
    """Delete a directory with its content; a link in its place is removed, never followed."""
    if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
        shutil.rmtree(name, dir_fd=folder)
    else:
        os.unlink(name, dir_fd=folder)


def _exists(folder: int, name: str) -> bool:
    try:
        os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return False
    return True


def _own_directory(name: str, *, at: int | None = None) -> int:
    try:
        os.mkdir(name, 0o700, dir_fd=at)
    except FileExistsError:
        pass
    descriptor = open_directory(name, at=at)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
        os.close(descriptor)
        raise CellwallError(
            "the skills folder is open to other users",
            hint="chmod 700 it and what is in it, and look at every skill before you use it.",
            code="CW-SKILL-STORE-UNSAFE",
        )
    return descriptor


def _wait_for_lock(lock: int, kind: int) -> None:
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise CellwallError(
                    "another process is changing the skills",
                    hint="Try again in a moment.",
                    code="CW-SKILL-BUSY",
                ) from None
            time.sleep(_POLL_INTERVAL_S)
        else:
            return


@contextmanager
def _map_state_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        is_link = error.errno in {errno.ELOOP, errno.ENOTDIR}
        raise CellwallError(
            "the skills folder is not a folder of ours"
            if is_link
            else "the skills folder cannot be read or written",
            hint="Check space and permissions of the Cellwall state folder.",
            code="CW-SKILL-STORE-UNSAFE" if is_link else "CW-STATE",
            detail=str(error),
        ) from error

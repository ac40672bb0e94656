"""What code left behind in a directory it was given to write in, looked at after the run.

Mounts keep code from the protected names that exist. New ones, and files that may not come in at
all, are found here and moved out of the workspace, where nobody runs or obeys them (FS-3, FS-4).
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from cellwall.core.errors import WorkspaceError
from cellwall.core.outcomes import Finding
from cellwall.sandbox.beneath import Beneath, Visit, is_blocked
from cellwall.sandbox.descriptors import (
    ENTRIES_MAX,
    copy_data,
    held,
    open_regular,
    pinned,
    remove_tree,
    replacing,
    unlock,
)
from cellwall.sandbox.protected import Found, Protection, own_treatment
from cellwall.sandbox.refusals import refusal

_LONGEST_WALKED_BYTES = 3000
_SET_ID = stat.S_ISUID | stat.S_ISGID
_PLAIN_DIR = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class BorderRules:
    """What may come in through code's own writing (FS-3); the same numbers as for the file API."""

    max_file_bytes: int
    max_total_bytes: int
    max_files: int
    blocked_extensions: Collection[str] = ()


def settle(
    beneath: Beneath,
    *,
    protection: Protection,
    before: Iterable[Found],
    started_ns: int,
    rules: BorderRules,
    quarantine_dir: str | os.PathLike[str],
    max_entries: int = ENTRIES_MAX,
) -> tuple[Finding, ...]:
    """Move out what may not stay, clear set-id bits, and tell what was found.

    `before` is what `scan` found when the run began, `started_ns` when that was, by
    CLOCK_REALTIME_COARSE: the user's own files of older times are left alone. A workspace of
    more than `max_entries` names raises: behind them anything could be hidden.
    """
    # Known by the directory it is in, not by its path: that one was mounted over during the run.
    # A path alone would let code move `.git` away and plant a new one of the same name.
    known = {(found.path.rpartition("/")[2], found.directory_id) for found in before}
    findings: list[Finding] = []
    settled: set[str] = set()
    used_bytes = count = 0

    stack = ExitStack()
    quarantine = stack.enter_context(_quarantine(quarantine_dir))

    def enter(step: Visit) -> bool:
        if step.path in settled:
            return False
        if len(os.fsencode(step.path)) > _LONGEST_WALKED_BYTES:
            # Beyond what a path can name nobody could look; it must not hide a plant, nor end
            # the look at everything else.
            findings.append(_moved_out(step, quarantine, "is too deep to be looked through"))
            return False
        findings.extend(_opened(step))
        return True

    with stack:
        for step in beneath.visit(max_entries=max_entries, descend=enter):
            used_bytes += step.status.st_blocks * 512
            count += 1
            if own_treatment(protection, step) is not None:
                settled.add(step.path)
                if (step.name, step.directory_id) not in known:
                    findings.append(_moved_out(step, quarantine, "is a protected name"))
            elif step.status.st_ctime_ns >= started_ns:
                findings.extend(_new_file_findings(step, quarantine, rules))
    if used_bytes > rules.max_total_bytes:
        findings.append(
            _finding(f"the workspace holds {used_bytes} bytes, limit {rules.max_total_bytes}")
        )
    if count > rules.max_files:
        findings.append(_finding(f"the workspace holds {count} files, limit {rules.max_files}"))
    return tuple(findings)


def _finding(message: str, *, is_open: bool = False) -> Finding:
    return Finding("workspace", "high" if is_open else "medium", message)


def _new_file_findings(step: Visit, quarantine: int, rules: BorderRules) -> Iterator[Finding]:
    mode = step.status.st_mode
    if stat.S_ISDIR(mode):
        return
    if is_blocked(step.name, rules.blocked_extensions):
        yield _moved_out(step, quarantine, "has a blocked extension")
    elif stat.S_ISREG(mode):
        if mode & _SET_ID:
            yield _cleared(step)
        if step.status.st_size > rules.max_file_bytes:
            yield _finding(f"{step.path!r} is larger than {rules.max_file_bytes} bytes")


def _cleared(step: Visit) -> Finding:
    try:
        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
        with held(os.open(step.name, flags, dir_fd=step.dir_fd)) as node:
            os.chmod(pinned(node), os.fstat(node).st_mode & 0o777)
    except OSError as error:
        return _finding(f"set-id bits could not be cleared: {_said(step, error)}", is_open=True)
    return _finding(f"{step.path!r} had a set-user-id or set-group-id bit; it was cleared")


def _opened(step: Visit) -> Iterator[Finding]:
    # Root reads it anyway; others could be kept from looking by `chmod 0`.
    if os.geteuid() != 0 and step.status.st_mode & 0o500 != 0o500:
        try:
            unlock(step.dir_fd, step.name)
        except OSError as error:
            raise refusal(step.path, error) from error
        yield _finding(f"{step.path!r} was closed to its owner; it was opened")


def _said(step: Visit, error: OSError) -> str:
    return refusal(step.path, error).message


@contextmanager
def _quarantine(path: str | os.PathLike[str]) -> Iterator[int]:
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise WorkspaceError(
            "the quarantine directory cannot be used",
            mend="Check the state directory and its owner.",
            code="CW-QUARANTINE",
            detail=errno.errorcode.get(error.errno or 0, ""),
        ) from error
    with held(fd):
        os.fchmod(fd, 0o700)
        yield fd


def _moved_out(step: Visit, quarantine: int, why: str) -> Finding:
    short = "".join(c if c.isascii() and c.isprintable() else "_" for c in step.name)[:100]
    kept_as = f"{secrets.token_hex(6)}-{short}"
    try:
        try:
            _move(step, quarantine, kept_as)
        except PermissionError:
            # Code can take its own directory's rights away to keep a plant in place.
            os.fchmod(step.dir_fd, stat.S_IMODE(os.fstat(step.dir_fd).st_mode) | 0o700)
            if stat.S_ISDIR(step.status.st_mode):
                unlock(step.dir_fd, step.name)
            _move(step, quarantine, kept_as)
    except OSError as error:
        return _finding(
            f"{step.path!r} {why} and could not be moved out: {_said(step, error)}", is_open=True
        )
    return _finding(f"{step.path!r} {why}; it was moved to quarantine as {kept_as!r}")


def _move(step: Visit, quarantine: int, kept_as: str) -> None:
    try:
        os.rename(step.name, kept_as, src_dir_fd=step.dir_fd, dst_dir_fd=quarantine)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _carry(step.dir_fd, step.name, quarantine, kept_as)


def _carry(dir_fd: int, name: str, target_fd: int, target_name: str) -> None:
    """Copy to another file system, then remove; links are copied as links."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
        _copy_node(dir_fd, name, target_fd, target_name)
        os.unlink(name, dir_fd=dir_fd)
        return
    os.mkdir(target_name, 0o700, dir_fd=target_fd)
    with (
        Beneath(os.open(name, _PLAIN_DIR, dir_fd=dir_fd)) as source,
        Beneath(os.open(target_name, _PLAIN_DIR, dir_fd=target_fd)) as target,
    ):
        for step in source.visit(max_entries=ENTRIES_MAX):
            with target.parent(step.path) as (parent, last):
                if stat.S_ISDIR(step.status.st_mode):
                    os.mkdir(last, 0o700, dir_fd=parent)
                else:
                    _copy_node(step.dir_fd, step.name, parent, last)
    remove_tree(dir_fd, name)


def _copy_node(dir_fd: int, name: str, target_fd: int, target_name: str) -> None:
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    with held(os.open(name, flags, dir_fd=dir_fd)) as node:
        mode = os.fstat(node).st_mode
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink("", dir_fd=node), target_name, dir_fd=target_fd)
        elif stat.S_ISREG(mode):
            with (
                held(open_regular(node)) as data,
                replacing(target_fd, target_name, mode=0o600, owner=None) as fd,
            ):
                copy_data(data, fd)
        # A FIFO, a socket or a device holds nothing to keep.

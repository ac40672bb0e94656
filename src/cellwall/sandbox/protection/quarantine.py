"""The quarantine: files moved out of users' directories, listed, restored or deleted (FS-4).

$CELLWALL_HOME/workspaces/RUN/quarantine   moved out by the check after a run
$CELLWALL_HOME/quarantine/RUN              moved out by a later check, after a run that was killed

Each entry has a random name in the folder of its run; `.records` holds one JSON object a line, with
the original path of each entry and the reason.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cellwall.core.errors import WorkspaceError
from cellwall.sandbox.files.carrying import carry
from cellwall.sandbox.files.descriptors import (
    OPEN_DIRECTORY,
    OPEN_TO_LIST,
    FileKind,
    closing_fd,
    identity_of,
    kind_of,
    make_one_dir,
    proc_path,
    remove_tree,
    translate_os_errors,
    unlock,
    write_all,
)
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.files.walking import WalkStep, lstat
from cellwall.sandbox.protection.host_directory import is_forbidden_root
from cellwall.sandbox.protection.placeholders import exclusive_lock

RECORDS = ".records"
_KEPT_AS = re.compile(r"([0-9a-f]{12})-.*", re.DOTALL)
_MAX_RECORDS_BYTES = 64 * 1024 * 1024
_MAX_ENTRIES = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineEntry:
    """One file or directory that was moved out of a workspace."""

    id: str
    run_id: str
    folder: str
    kept_as: str
    kind: FileKind
    size_bytes: int
    directory: str = ""
    """Its original directory; empty without a record."""
    path: str = ""
    identity: tuple[int, int] | None = None
    reason: str = ""
    moved_s: float = 0.0

    @property
    def place(self) -> str:
        """Its present path."""
        return os.path.join(self.folder, self.kept_as)


@dataclass(frozen=True, slots=True)
class QuarantineOrigin:
    """The user's directory that entries are moved out of."""

    directory: str
    identity: tuple[int, int]

    @classmethod
    def of(cls, fd: int) -> QuarantineOrigin:
        return cls(os.readlink(proc_path(fd)), identity_of(fd))


@contextmanager
def open_quarantine(path: str | os.PathLike[str]) -> Iterator[int]:
    """Open a quarantine folder, created if missing, with mode 0700."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        fd = os.open(path, OPEN_TO_LIST)
    except OSError as error:
        raise WorkspaceError(
            "the quarantine directory cannot be used",
            hint="Check the state directory and its owner.",
            code="CW-QUARANTINE",
            detail=errno.errorcode.get(error.errno or 0, ""),
        ) from error
    with closing_fd(fd):
        os.fchmod(fd, 0o700)
        yield fd


def move_out(step: WalkStep, quarantine: int, *, origin: QuarantineOrigin, why: str) -> str:
    """Move an entry to the quarantine; returns its name there."""
    short = "".join(c if c.isascii() and c.isprintable() else "_" for c in step.name)[:100]
    kept_as = f"{secrets.token_hex(6)}-{short}"
    _record(
        quarantine, kept_as, step.path, origin, why
    )  # first: a crash leaves no entry without a record
    try:
        carry(step.dir_fd, step.name, quarantine, kept_as)
    except PermissionError:
        # Code can remove the permissions of its directory to keep a planted file in place.
        os.fchmod(step.dir_fd, stat.S_IMODE(os.fstat(step.dir_fd).st_mode) | 0o700)
        if stat.S_ISDIR(step.status.st_mode):
            unlock(step.dir_fd, step.name)
        carry(step.dir_fd, step.name, quarantine, kept_as)
    return kept_as


def _record(quarantine: int, kept_as: str, path: str, origin: QuarantineOrigin, why: str) -> None:
    record = {
        "kept_as": kept_as,
        "path": path,
        "directory": origin.directory,
        "identity": origin.identity,
        "reason": why,
        "moved_s": time.time(),
    }
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    # A disk filled by code must not keep a planted file in place.
    with suppress(OSError), closing_fd(os.open(RECORDS, flags, 0o600, dir_fd=quarantine)) as fd:
        # On its own line, even if a full disk truncated the one before. Surrogates are escaped.
        write_all(fd, b"\n" + json.dumps(record).encode() + b"\n")


def entries(home: str) -> tuple[QuarantineEntry, ...]:
    """Every entry in quarantine, the oldest first."""
    entries_found: list[QuarantineEntry] = []
    for run_id, folder in _folders(home):
        with suppress(OSError), closing_fd(os.open(folder, OPEN_TO_LIST)) as fd:
            entries_found += _entries_of(run_id, folder, fd)
    return tuple(sorted(entries_found, key=lambda each: (each.moved_s, each.id)))


def find(home: str, entry_id: str) -> QuarantineEntry:
    """The entry with that id; an unknown id is an error."""
    for entry in entries(home):
        if entry.id == entry_id:
            return entry
    raise WorkspaceError(
        f"no quarantine entry has the id {entry_id[:40]!r}",
        hint="`cellwall quarantine list` shows the entries.",
        code="CW-QUARANTINE-NONE",
    )


def restore(entry: QuarantineEntry) -> None:
    """Move an entry back to its original path; an existing file is not replaced."""
    with (
        _origin(entry) as tree,
        translate_os_errors(entry.path),
        _require_no_runs(tree, entry),
        _folder(entry) as folder,
    ):
        *way, _name = entry.path.split("/")
        for depth in range(1, len(way) + 1):
            with tree.parent("/".join(way[:depth])) as (parent, name):
                if lstat(parent, name) is None:
                    make_one_dir(parent, name)
        with tree.parent(entry.path) as (parent, name):
            if lstat(parent, name) is not None:
                raise WorkspaceError(
                    f"{entry.path[:200]!r} exists in the directory",
                    hint=f"Move that file away, or copy the entry by hand from {entry.place}.",
                    code="CW-ALREADY-EXISTS",
                )
            carry(folder, entry.kept_as, parent, name)
        _drop_if_empty(entry, folder)


def delete(entry: QuarantineEntry) -> None:
    """Remove an entry for good; symlinks are removed, never followed."""
    with translate_os_errors(entry.kept_as), _folder(entry) as folder:
        if entry.kind == "dir":
            remove_tree(folder, entry.kept_as, max_entries=_MAX_ENTRIES)
        else:
            os.unlink(entry.kept_as, dir_fd=folder)
        _drop_if_empty(entry, folder)


def _folders(home: str) -> Iterator[tuple[str, str]]:
    for base, below in ((f"{home}/workspaces", "quarantine"), (f"{home}/quarantine", "")):
        with suppress(FileNotFoundError):
            for run_id in sorted(os.listdir(base)):
                yield run_id, os.path.join(base, run_id, below).rstrip("/")


def _entries_of(run_id: str, folder: str, fd: int) -> Iterator[QuarantineEntry]:
    records = _records(fd)
    for name in sorted(os.listdir(fd)):
        match, status = _KEPT_AS.fullmatch(name), lstat(fd, name)
        if match is None or status is None:
            continue
        bare = QuarantineEntry(
            id=match[1],
            run_id=run_id,
            folder=folder,
            kept_as=name,
            kind=kind_of(status.st_mode),
            size_bytes=status.st_size,
        )
        yield _with_record(bare, records.get(name, {}))


def _with_record(bare: QuarantineEntry, record: Mapping[str, Any]) -> QuarantineEntry:
    try:
        device, inode = map(int, record["identity"])
        return replace(
            bare,
            directory=str(record["directory"]),
            path=str(record["path"]),
            identity=(device, inode),
            reason=str(record["reason"]),
            moved_s=float(record["moved_s"]),
        )
    except (KeyError, TypeError, ValueError):
        return bare  # truncated by a full disk: the entry exists all the same


def _records(fd: int) -> dict[str, Mapping[str, Any]]:
    records: dict[str, Mapping[str, Any]] = {}
    with suppress(OSError):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(RECORDS, flags, dir_fd=fd), "rb") as file:
            for line in file.read(_MAX_RECORDS_BYTES).splitlines():
                with suppress(ValueError, KeyError, TypeError, RecursionError):
                    record = json.loads(line)
                    records[record["kept_as"]] = record
    return records


@contextmanager
def _folder(entry: QuarantineEntry) -> Iterator[int]:
    try:
        fd = os.open(entry.folder, OPEN_TO_LIST)
    except OSError as error:
        raise WorkspaceError(
            f"{entry.id} is not in quarantine any more",
            hint="`cellwall quarantine list` shows the entries.",
            code="CW-QUARANTINE-NONE",
        ) from error
    with closing_fd(fd):
        yield fd


@contextmanager
def _origin(entry: QuarantineEntry) -> Iterator[FileTree]:
    if not entry.path:
        raise _unknown(entry, "its original path is not recorded")
    with FileTree.open(entry.directory) as tree:
        if identity_of(tree.fd) != entry.identity:
            raise _unknown(entry, "its original directory has been moved or replaced")
        yield tree


def _unknown(entry: QuarantineEntry, why: str) -> WorkspaceError:
    return WorkspaceError(
        f"{entry.id} cannot be restored: {why}",
        hint=f"Check it and move it by hand; its path is {entry.place}.",
        code="CW-QUARANTINE-ORIGIN",
    )


@contextmanager
def _require_no_runs(tree: FileTree, entry: QuarantineEntry) -> Iterator[None]:
    """Refuse while a sandbox works in the directory or in one above the path: no mount covers the
    path there, and the check after that run would move the entry out again."""
    directory = os.readlink(proc_path(tree.fd))
    place = Path(directory, entry.path)
    with ExitStack() as stack:
        for folder in map(str, place.parents):
            # No sandbox works in a whole home or /tmp, and other programs lock those.
            if folder != directory and is_forbidden_root(folder):
                continue
            try:
                stack.enter_context(_lock_directory(folder))
            except BlockingIOError:
                raise WorkspaceError(
                    f"a sandbox works in {folder[:200]!r}",
                    hint="End it first: its check would move the file out again.",
                    code="CW-WORKSPACE-BUSY",
                ) from None
            except OSError:  # does not exist yet, or is not readable by this user
                if folder == directory:
                    raise
        yield


@contextmanager
def _lock_directory(directory: str) -> Iterator[None]:
    with closing_fd(os.open(directory, OPEN_DIRECTORY)) as fd, exclusive_lock(fd):
        yield


def _drop_if_empty(entry: QuarantineEntry, folder: int) -> None:
    """With the last entry, remove the records and the folder of a late check. The folder of a
    session, which may be alive, is removed with the session."""
    if set(os.listdir(folder)) <= {RECORDS}:
        with suppress(FileNotFoundError):
            os.unlink(RECORDS, dir_fd=folder)
        if os.path.basename(entry.folder) == entry.run_id:
            with suppress(OSError):
                os.rmdir(entry.folder)

"""Operations on the files of a workspace, and their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal, Protocol

FILE_READS = frozenset({"read", "list", "stat", "exists", "download", "watch", "diff"})
"""Names of file operations that change nothing; every other one counts as a write."""


MEMORY_ROOTS = ("/tmp", "/dev/shm")  # paths inside the sandbox
"""Writable directories of a live sandbox beside /workspace. They lie in the memory of its cell and
end with the cell; the file API starts the cell if there is none."""
SECOND_HOME = "/root"
"""One more, of the second user alone, in a sandbox that has one."""
CELL_ROOTS = (*MEMORY_ROOTS, SECOND_HOME)


def memory_root(path: str, *, second_user: bool = False) -> str | None:
    """The memory directory that a path of the file API begins with; None: the workspace.

    Decided by the first names alone. `..` and links are left to the kernel, which resolves them
    beneath the chosen directory: /tmp/../workspace is refused, not redirected.
    """
    if not path.startswith("/"):
        return None
    names = [name for name in path.split("/") if name not in {"", "."}]
    for root in CELL_ROOTS if second_user else MEMORY_ROOTS:
        first = root.split("/")[1:]
        if names[: len(first)] == first:
            return root
    return None


@dataclass(frozen=True, slots=True)
class FileOperation:
    """One call of the file API on the files of a session (FS-7)."""

    name: Literal[
        "read",
        "write",
        "list",
        "stat",
        "exists",
        "make_dir",
        "move",
        "remove",
        "upload",
        "download",
        "watch",
        "diff",
    ]
    path: str
    content: bytes = b""
    target: str = ""
    source: ByteSource | None = field(default=None, repr=False)
    """For `upload`: a tar stream. For `write`: the content, in place of `content`."""
    sink: ByteSink | None = field(default=None, repr=False)
    """For `download`: the sink of the tar stream. For `read`: of the content, in place of the
    payload."""
    recursive: bool = True
    skip_links: bool = False
    source_bytes: int = 0
    source_sha256: str = ""
    """For `write` from a source: what is judged. Other content is not written."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One directory entry of a workspace."""

    name: str
    path: str
    kind: Literal["file", "dir", "symlink", "other"]
    size_bytes: int
    mode: int
    modified_s: float


class ByteSource(Protocol):
    """Returns chunks of at most `size` bytes; an empty one is the end."""

    def read(self, size: int, /) -> bytes: ...


class ByteSink(Protocol):
    """Accepts chunks, each of them whole."""

    def write(self, data: bytes, /) -> object: ...


@dataclass(frozen=True, slots=True)
class Transfer:
    """The totals of an upload or download; the digest is of the archive as sent."""

    files: int
    directories: int
    content_bytes: int
    archive_bytes: int
    archive_sha256: str

    def to_json(self) -> dict[str, int | str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StreamedFile:
    """The content of a file that went through a source or a sink."""

    content_bytes: int
    content_sha256: str

    def to_json(self) -> dict[str, int | str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ChangedPath:
    """One path that differs from the start of a session. A missing side has no size."""

    kind: Literal["added", "modified", "removed", "mode", "type"]
    path: str
    entry_kind: str
    size_before: int | None
    size_after: int | None
    is_binary: bool
    mark: str
    """Why a person should see it first; empty for an ordinary file."""


@dataclass(frozen=True, slots=True)
class WorkspaceDiff:
    """What a session has changed in its workspace since its start."""

    changes: Sequence[ChangedPath]
    """Programs and instructions first."""
    total: int
    """All changes, also those that were left out of `changes`."""
    text: str
    """In the format of `git diff`, truncated with a note."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """One change in a workspace. `target` is the new path of a moved file.

    `overflow` means that changes were lost: list the directory again.
    """

    kind: Literal["created", "modified", "removed", "moved", "overflow"]
    path: str
    target: str = ""


class Watching(Protocol):
    """An open watch: `fileno` becomes readable when there may be changes to `take`."""

    @property
    def ended(self) -> bool:
        """The watch was stopped, or the watched directory is gone."""

    @property
    def patience_s(self) -> float | None:
        """The interval for `take` without a readable descriptor; None: not needed."""

    def fileno(self) -> int: ...

    def take(self) -> Sequence[FileChange]:
        """The changes since the last call, in order; never blocks."""

    def stop(self) -> None:
        """Wake the waiting reader and end the watch."""

    def close(self) -> None: ...

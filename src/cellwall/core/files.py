"""Types of the file API: streams, transfers, changes (FS-7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


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
        return {
            "files": self.files,
            "directories": self.directories,
            "content_bytes": self.content_bytes,
            "archive_bytes": self.archive_bytes,
            "archive_sha256": self.archive_sha256,
        }


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

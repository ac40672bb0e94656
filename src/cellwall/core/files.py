"""What the file API hands around: streams, what came of them, changes (FS-7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol


class ByteSource(Protocol):
    """Gives bytes in pieces of at most `size`; an empty piece is the end."""

    def read(self, size: int, /) -> bytes: ...


class ByteSink(Protocol):
    """Takes bytes in pieces, each of them whole."""

    def write(self, data: bytes, /) -> object: ...


@dataclass(frozen=True, slots=True)
class Transfer:
    """What an upload brought in or a download took out; the digest is of the archive as sent."""

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
    """One change in a workspace. `target` is where a moved one is now.

    `overflow` means that changes were lost, more than could be told: look anew.
    """

    kind: Literal["created", "modified", "removed", "moved", "overflow"]
    path: str
    target: str = ""


class Watching(Protocol):
    """An open watch: `fileno` becomes readable when there may be something to `take`."""

    @property
    def ended(self) -> bool:
        """Nothing will come any more: it was stopped, or what was watched is gone."""

    @property
    def patience_s(self) -> float | None:
        """How soon to `take` again though nothing is readable; None if there is no need."""

    def fileno(self) -> int: ...

    def take(self) -> Sequence[FileChange]:
        """What happened since, in order; never waits."""

    def stop(self) -> None:
        """Wake up whoever waits, and end."""

    def close(self) -> None: ...

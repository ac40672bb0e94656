"""A caller's own files and iterators as the runtime's streams: bounded pieces, bounded memory."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

import anyio.from_thread

from cellwall.core.errors import BadInput

_COLLECTED_BYTES_MAX = 64 * 1024 * 1024  # as much as `read` gives of one file
_MEND = "Give bytes, a file that is open in binary mode, or an iterator of bytes."


class _OwnErrors:
    """An error of the caller's own object comes back to the caller as it was."""

    def __init__(self) -> None:
        self._error: Exception | None = None

    @contextmanager
    def own_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            if self._error is not None:
                raise self._error from None
            raise

    @contextmanager
    def _theirs(self) -> Iterator[None]:
        # Between two pieces is where a transfer can be ended: by `kill`, or by a deadline of the
        # caller's. The thread it runs in cannot be stopped from outside.
        anyio.from_thread.check_cancelled()
        try:
            yield
        except Exception as error:
            self._error = error
            raise


class Incoming(_OwnErrors):
    """What an upload reads."""

    def __init__(self, source: bytes | BinaryIO | Iterable[bytes]) -> None:
        super().__init__()
        self._read = _reader(source)

    def read(self, size: int, /) -> bytes:
        with self._theirs():
            return self._read(size)


class Outgoing(_OwnErrors):
    """Where a download goes: a file of the caller's, or memory."""

    def __init__(self, to: BinaryIO | None) -> None:
        super().__init__()
        self._to = to
        self._memory = io.BytesIO()

    def write(self, data: bytes, /) -> None:
        if self._to is None and self._memory.tell() + len(data) > _COLLECTED_BYTES_MAX:
            raise BadInput(
                f"the archive is larger than {_COLLECTED_BYTES_MAX} bytes",
                hint="Give a file to write it to: download(path, to=file).",
                code="CW-ARCHIVE-TOO-LARGE",
            )
        with self._theirs():
            target: BinaryIO = self._memory if self._to is None else self._to
            view = memoryview(data)
            while view:
                taken: int | None = target.write(view)
                if taken == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                # A file without a buffer may take less; one that tells nothing took all.
                view = view[len(view) if taken is None else taken :]

    def collected(self) -> bytes:
        return self._memory.getvalue()


def _reader(source: object) -> Callable[[int], bytes]:
    if isinstance(source, bytes | bytearray | memoryview):
        return io.BytesIO(source).read
    read = getattr(source, "read", None)
    if callable(read):
        return lambda size: _checked(read(size))
    if isinstance(source, Iterable) and not isinstance(source, str):
        return _Joined(iter(source)).read
    raise BadInput(
        f"an upload cannot be read from {type(source).__name__:.60}",
        hint=_MEND,
        code="CW-BAD-SOURCE",
    )


class _Joined:
    """Pieces of any size, read in pieces of a wanted one."""

    def __init__(self, pieces: Iterator[object]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def read(self, size: int) -> bytes:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = memoryview(_checked(piece))
        data, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return data


def _checked(piece: object) -> bytes:
    if isinstance(piece, bytes | bytearray | memoryview):
        return bytes(piece)
    raise BadInput(
        f"the source of an upload gave {type(piece).__name__:.60} instead of bytes",
        hint=_MEND,
        code="CW-BAD-SOURCE",
    )

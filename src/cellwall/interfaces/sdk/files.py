"""The files of a sandbox's workspace: the async core (FS-7)."""

from __future__ import annotations

import errno
import io
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Self, cast

import anyio
import anyio.from_thread

from cellwall.core.errors import BadInput
from cellwall.core.files import FileChange, FileEntry, FileOperation, Transfer, Watching
from cellwall.core.text import to_bytes

if TYPE_CHECKING:
    from cellwall.interfaces.sdk.hosts import Host


class AsyncFiles:
    """Files of a sandbox's workspace, reached from outside and never beyond it (FS-1, FS-7)."""

    def __init__(self, host: Host) -> None:
        self._host = host

    async def read(self, path: str) -> str:
        """The file as text, with invalid UTF-8 replaced; see `read_bytes` for the bytes."""
        return (await self.read_bytes(path)).decode("utf-8", "replace")

    async def read_bytes(self, path: str) -> bytes:
        content = await self._do(FileOperation("read", path))
        assert isinstance(content, bytes)  # noqa: S101  # the port returns bytes for "read"
        return content

    async def write(self, path: str, content: str | bytes) -> None:
        data = to_bytes(content, what="the content")
        await self._do(FileOperation("write", path, data))

    async def list(self, path: str = ".") -> Sequence[FileEntry]:
        entries = await self._do(FileOperation("list", path))
        assert isinstance(entries, tuple)  # noqa: S101  # the port's result of "list"
        return entries

    async def stat(self, path: str) -> FileEntry | None:
        entry = await self._do(FileOperation("stat", path))
        assert entry is None or isinstance(entry, FileEntry)  # noqa: S101  # of "stat"
        return entry

    async def exists(self, path: str) -> bool:
        return bool(await self._do(FileOperation("exists", path)))

    async def make_dir(self, path: str) -> None:
        await self._do(FileOperation("make_dir", path))

    async def move(self, path: str, target: str) -> None:
        await self._do(FileOperation("move", path, target=target))

    async def remove(self, path: str) -> None:
        await self._do(FileOperation("remove", path))

    async def upload(self, source: bytes | BinaryIO | Iterable[bytes], path: str = ".") -> Transfer:
        """Extract a tar archive, plain or gzip, below `path`: all of it, or nothing if refused.

        Existing files are replaced. Links, special files, absolute names and `..` are refused, and
        so are archives beyond the limits on size, disk and file count.
        """
        stream = UploadSource(source)
        with stream.own_errors():
            done = await self._do(FileOperation("upload", path, source=stream))
        assert isinstance(done, Transfer)  # noqa: S101  # the port's result of "upload"
        return done

    async def download(
        self, path: str = ".", *, to: BinaryIO | None = None, skip_links: bool = False
    ) -> bytes:
        """The directory `path` as a tar archive; written to `to` in chunks if given.

        With `to` nothing is returned, and after an error the archive in it is incomplete. A link or
        special file in the tree is an error, or skipped with `skip_links`.
        """
        stream = DownloadTarget(to)
        with stream.own_errors():
            await self._do(FileOperation("download", path, sink=stream, skip_links=skip_links))
        return stream.collected()

    def watch(
        self, path: str = ".", *, recursive: bool = True, timeout: float | None = None
    ) -> AsyncWatch:
        """Changes below `path` as they happen: `async for change in sbx.files.watch()`.

        The watch starts with the loop, or with `async with`. A loop ends when nothing has changed
        for `timeout` seconds, when `path` is gone, or with the sandbox.
        """
        operation = FileOperation("watch", path, recursive=recursive)
        return AsyncWatch(self._host, lambda: self._do(operation), timeout_s=timeout)

    async def _do(self, operation: FileOperation) -> object:
        outcome = await self._host.perform(operation)
        if outcome.error is not None:
            raise outcome.error.to_exception()
        return outcome.payload


_COLLECTED_BYTES_MAX = 64 * 1024 * 1024  # as much as `read` gives of one file
_SOURCE_HINT = "Give bytes, a file open in binary mode, or an iterator of bytes."


class _CallerErrors:
    """Raises an exception of the caller's own object to the caller unchanged."""

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
    def _caller_code(self) -> Iterator[None]:
        # A transfer can be cancelled between two chunks, by `kill` or a deadline of the caller; its
        # thread cannot be stopped from outside.
        anyio.from_thread.check_cancelled()
        try:
            yield
        except Exception as error:
            self._error = error
            raise


class UploadSource(_CallerErrors):
    """The bytes of an upload."""

    def __init__(self, source: bytes | BinaryIO | Iterable[bytes]) -> None:
        super().__init__()
        self._read = _reader(source)

    def read(self, size: int, /) -> bytes:
        with self._caller_code():
            return self._read(size)


class DownloadTarget(_CallerErrors):
    """Receives a download: the caller's file, or memory."""

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
        with self._caller_code():
            target: BinaryIO = self._memory if self._to is None else self._to
            view = memoryview(data)
            while view:
                taken: int | None = target.write(view)
                if taken == 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                # A raw file may write less; None means that everything was written.
                view = view[len(view) if taken is None else taken :]

    def collected(self) -> bytes:
        return self._memory.getvalue()


def _reader(source: object) -> Callable[[int], bytes]:
    if isinstance(source, bytes | bytearray | memoryview):
        return io.BytesIO(source).read
    read = getattr(source, "read", None)
    if callable(read):
        return lambda size: _check_bytes(read(size))
    if isinstance(source, Iterable) and not isinstance(source, str):
        return _ChunkReader(iter(source)).read
    raise BadInput(
        f"an upload cannot be read from {type(source).__name__:.60}",
        hint=_SOURCE_HINT,
        code="CW-BAD-SOURCE",
    )


class _ChunkReader:
    """Chunks of any size, read in chunks of a requested size."""

    def __init__(self, pieces: Iterator[object]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def read(self, size: int) -> bytes:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._rest = memoryview(_check_bytes(piece))
        data, self._rest = bytes(self._rest[:size]), self._rest[size:]
        return data


def _check_bytes(piece: object) -> bytes:
    if isinstance(piece, bytes | bytearray | memoryview):
        return bytes(piece)
    raise BadInput(
        f"the source of an upload gave {type(piece).__name__:.60} instead of bytes",
        hint=_SOURCE_HINT,
        code="CW-BAD-SOURCE",
    )


class AsyncWatch:
    """An iterator over `FileChange`; iteration can stop and resume until it is closed."""

    def __init__(
        self,
        host: Host,
        start: Callable[[], Awaitable[object]],
        *,
        timeout_s: float | None,
    ) -> None:
        self._host = host
        self._start = start
        self._timeout_s = timeout_s
        self._ready: deque[FileChange] = deque()
        self._watching: Watching | None = None
        self._lock = threading.Lock()  # `close` may come from another thread
        self._closed = self._in_use = False

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> FileChange:
        change = await self.next_change()
        if change is None:
            raise StopAsyncIteration
        return change

    async def open(self) -> None:
        """Start the watch; an iteration starts it as well."""
        if self._watching is None and not self._closed:
            watching = cast("Watching", await self._start())  # the port's meaning of "watch"
            with self._lock:
                self._watching = watching
            if self.is_ended:  # while it was started
                self.close()

    @property
    def is_ended(self) -> bool:
        """Whether the watch was closed, its directory is gone, or its sandbox has ended."""
        return self._closed or not self._host.alive

    async def next_change(self, timeout_s: float | None = None) -> FileChange | None:
        """The next change; None after the timeout, or when the watch has ended. `timeout_s` counts
        for this call instead of that of the watch."""
        await self.open()
        within_s = self._timeout_s if timeout_s is None else timeout_s
        deadline = None if within_s is None else time.monotonic() + within_s
        while not self._ready:
            watching = self._take()
            if watching is None:
                return None
            try:
                woken = False
                with self._host.waiting():
                    await _readable(watching, deadline)
                    woken = True
                    # The thread itself fills `_ready`, so a cancelled wait loses no change.
                    await anyio.to_thread.run_sync(self._collect, watching)
            finally:
                self._give_back(watching)
            if not woken or (deadline is not None and time.monotonic() >= deadline):
                break
        return self._ready.popleft() if self._ready else None

    def close(self) -> None:
        """End the watch; a loop over it in another task or thread ends, too."""
        with self._lock:
            self._closed = True
            if self._watching is None:
                return
            if self._in_use:
                self._watching.stop()  # the waiting task closes it
            else:
                self._watching.close()

    def _collect(self, watching: Watching) -> None:
        self._ready.extend(watching.take())

    def _take(self) -> Watching | None:
        with self._lock:
            if self._watching is None or self._closed:
                return None
            if self._watching.ended or not self._host.alive:
                self._closed = True
                self._watching.close()
                return None
            self._in_use = True
            return self._watching

    def _give_back(self, watching: Watching) -> None:
        with self._lock:
            self._in_use = False
            if self._closed:
                watching.close()


async def _readable(watching: Watching, deadline: float | None) -> None:
    waits = [] if deadline is None else [max(deadline - time.monotonic(), 0.0)]
    if watching.patience_s is not None:
        waits.append(watching.patience_s)
    with anyio.move_on_after(min(waits, default=None)):
        await anyio.wait_readable(watching.fileno())

"""The files of a sandbox's workspace: the async core and its thin blocking face (FS-7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, BinaryIO

from cellwall.core.errors import CellwallError
from cellwall.core.files import Transfer
from cellwall.core.text import to_bytes
from cellwall.core.types import FileEntry, FileOperation
from cellwall.interfaces.sdk.streams import Incoming, Outgoing
from cellwall.interfaces.sdk.watch import AsyncWatch, Caller, Watch

if TYPE_CHECKING:
    from cellwall.interfaces.sdk.asynchronous import AsyncSandbox


class AsyncFiles:
    """Files of a sandbox's workspace, reached from outside and never beyond it (FS-1, FS-7)."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def read(self, path: str) -> str:
        """The file as text; bytes that are no UTF-8 are replaced. For the bytes: `read_bytes`."""
        return (await self.read_bytes(path)).decode("utf-8", "replace")

    async def read_bytes(self, path: str) -> bytes:
        content = await self._do(FileOperation("read", path))
        assert isinstance(content, bytes)  # noqa: S101  # the port's meaning of "read"
        return content

    async def write(self, path: str, content: str | bytes) -> None:
        data = to_bytes(content, what="the content")
        await self._do(FileOperation("write", path, data))

    async def list(self, path: str = ".") -> Sequence[FileEntry]:
        entries = await self._do(FileOperation("list", path))
        assert isinstance(entries, tuple)  # noqa: S101  # as above
        return entries

    async def stat(self, path: str) -> FileEntry | None:
        entry = await self._do(FileOperation("stat", path))
        assert entry is None or isinstance(entry, FileEntry)  # noqa: S101  # as above
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

        Files of the same name are replaced. Links, special files, absolute names and `..` are
        refused, and so is what exceeds the limits on size, disk and file count.
        """
        stream = Incoming(source)
        with stream.own_errors():
            done = await self._do(FileOperation("upload", path, source=stream))
        assert isinstance(done, Transfer)  # noqa: S101  # as above
        return done

    async def download(
        self, path: str = ".", *, to: BinaryIO | None = None, skip_links: bool = False
    ) -> bytes:
        """What is in the directory `path`, as a tar archive; written to `to` in pieces if given.

        With `to` nothing is returned, and what was written before an error is no whole archive. A
        link or a special file in the tree is an error, or left out with `skip_links`.
        """
        stream = Outgoing(to)
        with stream.own_errors():
            await self._do(FileOperation("download", path, sink=stream, skip_links=skip_links))
        return stream.collected()

    def watch(
        self, path: str = ".", *, recursive: bool = True, timeout: float | None = None
    ) -> AsyncWatch:
        """Changes below `path` as they come: `async for change in sbx.files.watch()`.

        The watch starts with the loop, or with `async with`. A loop ends when nothing has changed
        for `timeout` seconds, when `path` is gone, or with the sandbox.
        """
        operation = FileOperation("watch", path, recursive=recursive)
        return AsyncWatch(self._sandbox, lambda: self._do(operation), timeout_s=timeout)

    async def _do(self, operation: FileOperation) -> object:
        outcome = await self._sandbox.perform_raw(operation)
        if outcome.error is not None:
            raise CellwallError(
                outcome.error.message, hint=outcome.error.hint, code=outcome.error.code
            )
        return outcome.payload


class Files:
    """Files of a sandbox's workspace."""

    def __init__(self, files: AsyncFiles, call: Caller) -> None:
        self._files = files
        self._call = call

    def read(self, path: str) -> str:
        return self._call(lambda: self._files.read(path))

    def read_bytes(self, path: str) -> bytes:
        return self._call(lambda: self._files.read_bytes(path))

    def write(self, path: str, content: str | bytes) -> None:
        self._call(lambda: self._files.write(path, content))

    def list(self, path: str = ".") -> Sequence[FileEntry]:
        return self._call(lambda: self._files.list(path))

    def stat(self, path: str) -> FileEntry | None:
        return self._call(lambda: self._files.stat(path))

    def exists(self, path: str) -> bool:
        return self._call(lambda: self._files.exists(path))

    def make_dir(self, path: str) -> None:
        self._call(lambda: self._files.make_dir(path))

    def move(self, path: str, target: str) -> None:
        self._call(lambda: self._files.move(path, target))

    def remove(self, path: str) -> None:
        self._call(lambda: self._files.remove(path))

    def upload(self, source: bytes | BinaryIO | Iterable[bytes], path: str = ".") -> Transfer:
        """Extract a tar archive, plain or gzip, below `path`: all of it, or nothing if refused."""
        return self._call(lambda: self._files.upload(source, path))

    def download(
        self, path: str = ".", *, to: BinaryIO | None = None, skip_links: bool = False
    ) -> bytes:
        """What is in the directory `path`, as a tar archive; written to `to` in pieces if given."""
        return self._call(lambda: self._files.download(path, to=to, skip_links=skip_links))

    def watch(
        self, path: str = ".", *, recursive: bool = True, timeout: float | None = None
    ) -> Watch:
        """Changes below `path` from now on; a loop ends after `timeout` seconds without any."""
        changes = self._files.watch(path, recursive=recursive, timeout=timeout)
        return Watch(changes, self._call)

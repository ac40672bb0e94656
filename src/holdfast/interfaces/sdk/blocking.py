"""The blocking face of the SDK: the same names, one event loop in a thread behind them all."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Self, TypeVar, Unpack

from anyio.from_thread import BlockingPortal, start_blocking_portal

from holdfast.core.types import FileEntry
from holdfast.interfaces.sdk import asynchronous
from holdfast.interfaces.sdk.asynchronous import AsyncSandbox, Execution, OneShot, TextSink

Result = TypeVar("Result")
_CLEAN_UP_WITHIN_S = 30.0


class _Loop:
    """One event loop for all blocking calls of a process; started by the first, ended at exit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    def call(self, work: Callable[[], Awaitable[Result]]) -> Result:
        with self._lock:
            if self._portal is None:
                self._portal = self._stack.enter_context(start_blocking_portal())
                atexit.register(self._stack.close)
        ended = threading.Event()

        async def tracked() -> Result:
            try:
                return await work()
            finally:
                ended.set()

        future = self._portal.start_task_soon(tracked)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C while we wait: the run is ended and cleaned up before the caller goes on.
            if future.cancel():
                ended.wait(_CLEAN_UP_WITHIN_S)
            raise


_loop = _Loop()


class Commands:
    """Programs in a sandbox."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._commands = sandbox.commands

    def run(
        self,
        command: str | Sequence[str],
        *,
        timeout: float | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        on_stdout: TextSink | None = None,
        on_stderr: TextSink | None = None,
    ) -> Execution:
        """A string is given to the shell, a list is started as it is."""
        return _loop.call(
            lambda: self._commands.run(
                command,
                timeout=timeout,
                envs=envs,
                stdin=stdin,
                on_stdout=on_stdout,
                on_stderr=on_stderr,
            )
        )


class Files:
    """Files of a sandbox's workspace."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._files = sandbox.files

    def read(self, path: str) -> str:
        return _loop.call(lambda: self._files.read(path))

    def read_bytes(self, path: str) -> bytes:
        return _loop.call(lambda: self._files.read_bytes(path))

    def write(self, path: str, content: str | bytes) -> None:
        _loop.call(lambda: self._files.write(path, content))

    def list(self, path: str = ".") -> Sequence[FileEntry]:
        return _loop.call(lambda: self._files.list(path))

    def stat(self, path: str) -> FileEntry | None:
        return _loop.call(lambda: self._files.stat(path))

    def exists(self, path: str) -> bool:
        return _loop.call(lambda: self._files.exists(path))

    def make_dir(self, path: str) -> None:
        _loop.call(lambda: self._files.make_dir(path))

    def move(self, path: str, target: str) -> None:
        _loop.call(lambda: self._files.move(path, target))

    def remove(self, path: str) -> None:
        _loop.call(lambda: self._files.remove(path))


class Sandbox:
    """A workspace with limits and an environment; every command in it is isolated afresh."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox
        self.id = sandbox.id
        self.commands = Commands(sandbox)
        self.files = Files(sandbox)

    @classmethod
    def create(
        cls,
        *,
        profile: str | None = None,
        workspace: str | None = None,
        allow_domains: Sequence[str] = (),
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        memory: str | int | None = None,
        language: str = "python",
        config: str | None = None,
        limits: Mapping[str, float] | None = None,
    ) -> Self:
        """Make a sandbox; use it as a context manager, or call `kill` when done."""

        async def make() -> AsyncSandbox:
            return await AsyncSandbox.create(
                profile=profile,
                workspace=workspace,
                allow_domains=allow_domains,
                envs=envs,
                timeout=timeout,
                memory=memory,
                language=language,
                config=config,
                limits=limits,
            )

        return cls(_loop.call(make))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def run_code(
        self,
        code: str | bytes,
        *,
        language: str | None = None,
        timeout: float | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        on_stdout: TextSink | None = None,
        on_stderr: TextSink | None = None,
    ) -> Execution:
        """Run code in this sandbox's workspace and tell the value of its last expression."""
        return _loop.call(
            lambda: self._sandbox.run_code(
                code,
                language=language,
                timeout=timeout,
                envs=envs,
                stdin=stdin,
                on_stdout=on_stdout,
                on_stderr=on_stderr,
            )
        )

    def kill(self) -> None:
        """End the sandbox; its private workspace is removed."""
        _loop.call(self._sandbox.kill)


def run_code(
    code: str | bytes, *, language: str = "python", **options: Unpack[OneShot]
) -> Execution:
    """One shot: fresh isolation, nothing kept."""
    return _loop.call(lambda: asynchronous.run_code(code, language=language, **options))


def run_command(command: str | Sequence[str], **options: Unpack[OneShot]) -> Execution:
    """One shot: a string is given to the shell, a list is started as it is; nothing is kept."""
    return _loop.call(lambda: asynchronous.run_command(command, **options))

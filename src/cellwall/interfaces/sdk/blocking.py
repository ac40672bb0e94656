"""The blocking facade of the SDK: the names of the async core, each call run to its end."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import (
    Any,
    BinaryIO,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    Unpack,
    overload,
)

from cellwall.core.files import FileChange
from cellwall.core.labels import LabelSet
from cellwall.core.snapshots import NotCarried, WorkspaceSnapshot
from cellwall.interfaces.sdk.asynchronous import AsyncSandbox
from cellwall.interfaces.sdk.commands import (
    COLUMNS,
    ROWS,
    AsyncCommands,
    AsyncProcess,
)
from cellwall.interfaces.sdk.execution import Execution, TextSink
from cellwall.interfaces.sdk.files import AsyncFiles, AsyncWatch
from cellwall.interfaces.sdk.one_shot import build_packages
from cellwall.interfaces.sdk.options import CreateOptions
from cellwall.interfaces.sdk.packages import AsyncPackages
from cellwall.interfaces.sdk.ports import Ports
from cellwall.interfaces.sdk.skills import AsyncSkills
from cellwall.interfaces.sdk.thread_loop import thread_loop

Core = TypeVar("Core")
Params = ParamSpec("Params")
Result = TypeVar("Result")


class _Facade(Generic[Core]):
    """Blocking methods over an object of the async core."""

    def __init__(self, core: Core) -> None:
        self._core = core


def _blocking(
    method: Callable[Concatenate[Any, Params], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Any, Params], Result]:
    """The same method with the same arguments, run to its end in the calling thread."""

    @functools.wraps(method)
    def call(self: _Facade[Any], /, *args: Params.args, **kwargs: Params.kwargs) -> Result:
        return thread_loop.call(lambda: method(self._core, *args, **kwargs))

    return call


class Process(_Facade[AsyncProcess]):
    """A program in the background of a sandbox."""

    def __init__(self, process: AsyncProcess) -> None:
        super().__init__(process)
        self.id = process.id
        self.command = process.command

    info = _blocking(AsyncProcess.info)
    wait = _blocking(AsyncProcess.wait)
    read = _blocking(AsyncProcess.read)
    follow = _blocking(AsyncProcess.follow)
    send_stdin = _blocking(AsyncProcess.send_stdin)
    close_stdin = _blocking(AsyncProcess.close_stdin)
    send_signal = _blocking(AsyncProcess.send_signal)
    resize = _blocking(AsyncProcess.resize)
    kill = _blocking(AsyncProcess.kill)


class Commands(_Facade[AsyncCommands]):
    """Programs in a sandbox."""

    @overload
    def run(
        self,
        command: str | Sequence[str],
        *,
        background: Literal[False] = False,
        timeout: float | None = None,
        envs: Mapping[str, str] | None = None,
        cwd: str = "/workspace",
        user: str | None = None,
        stdin: bytes | str | None = None,
        on_stdout: TextSink | None = None,
        on_stderr: TextSink | None = None,
        output_file: str | BinaryIO | None = None,
    ) -> Execution: ...

    @overload
    def run(
        self,
        command: str | Sequence[str],
        *,
        background: Literal[True],
        envs: Mapping[str, str] | None = None,
        cwd: str = "/workspace",
        user: str | None = None,
        stdin: bytes | str | None = None,
    ) -> Process: ...

    def run(self, command: str | Sequence[str], **options: Any) -> Execution | Process:
        """See `AsyncCommands.run`."""
        started = thread_loop.call(lambda: self._core.run(command, **options))
        return Process(started) if isinstance(started, AsyncProcess) else started

    run.__signature__ = inspect.signature(AsyncCommands.run)  # type: ignore[attr-defined]  # for `help()`

    def terminal(
        self,
        command: str | Sequence[str] = ("/bin/sh", "-i"),
        *,
        rows: int = ROWS,
        columns: int = COLUMNS,
        envs: Mapping[str, str] | None = None,
        cwd: str = "/workspace",
        user: str | None = None,
    ) -> Process:
        """Start a program in the background on a terminal of its own: a shell, an editor."""
        return Process(
            thread_loop.call(
                lambda: self._core.terminal(
                    command, rows=rows, columns=columns, envs=envs, cwd=cwd, user=user
                )
            )
        )

    def connect(self, process: int) -> Process:
        """A program that was started before, by its id."""
        return Process(thread_loop.call(lambda: self._core.connect(process)))

    list = _blocking(AsyncCommands.list)
    kill = _blocking(AsyncCommands.kill)


class Watch:
    """An iterator over `FileChange`; use it as a context manager, or call `close` when done."""

    def __init__(self, changes: AsyncWatch) -> None:
        self._changes = changes
        thread_loop.call(changes.open)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> FileChange:
        change = thread_loop.call(self._changes.next_change)
        if change is None:
            raise StopIteration
        return change

    def close(self) -> None:
        """End the watch; a loop over it in another thread ends, too."""
        self._changes.close()


class Files(_Facade[AsyncFiles]):
    """Files of a sandbox's workspace."""

    read = _blocking(AsyncFiles.read)
    read_bytes = _blocking(AsyncFiles.read_bytes)
    write = _blocking(AsyncFiles.write)
    list = _blocking(AsyncFiles.list)
    stat = _blocking(AsyncFiles.stat)
    exists = _blocking(AsyncFiles.exists)
    make_dir = _blocking(AsyncFiles.make_dir)
    move = _blocking(AsyncFiles.move)
    remove = _blocking(AsyncFiles.remove)
    upload = _blocking(AsyncFiles.upload)
    download = _blocking(AsyncFiles.download)

    def watch(
        self, path: str = ".", *, recursive: bool = True, timeout: float | None = None
    ) -> Watch:
        """Changes below `path` from now on; a loop ends after `timeout` seconds without any."""
        return Watch(self._core.watch(path, recursive=recursive, timeout=timeout))


class Skills(_Facade[AsyncSkills]):
    """Proposals of skills from the workspace; they go to quarantine only."""

    propose = _blocking(AsyncSkills.propose)


class Packages(_Facade[AsyncPackages]):
    """Packages of PyPI and npm, installed by name into the sandbox."""

    install = _blocking(AsyncPackages.install)


_CREATE = inspect.signature(AsyncSandbox.create.__func__)  # type: ignore[attr-defined]  # with `cls`


class Sandbox(_Facade[AsyncSandbox]):
    """A live sandbox: its files, variables and processes stay until it ends."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        super().__init__(sandbox)
        self.id = sandbox.id
        self.commands = Commands(sandbox.commands)
        self.files = Files(sandbox.files)
        self.skills = Skills(sandbox.skills)
        self.packages = Packages(sandbox.packages)
        self.ports = Ports(sandbox.ports)

    @property
    def labels(self) -> LabelSet:
        """What the sandbox has read, and where it can send data, each with its source (POL-9)."""
        return self._core.labels

    @classmethod
    def create(cls, **options: Unpack[CreateOptions]) -> Self:
        """Create a sandbox; use it as a context manager, or call `kill` when done.

        See `AsyncSandbox.create` for the options.
        """
        _CREATE.bind(cls, **options)  # a misspelt option is refused before a build
        build_packages(options)

        async def make() -> AsyncSandbox:
            return await AsyncSandbox.create(**options)

        return cls(thread_loop.call(make))

    create.__func__.__signature__ = _CREATE  # type: ignore[attr-defined]  # for `help()`

    @classmethod
    def connect(cls, sandbox_id: str, *, language: str = "python") -> Self:
        """A sandbox that this or another process of the user created with `keep_alive`.

        The end of a `with` block leaves it alive; `kill` ends it.
        """

        async def find() -> AsyncSandbox:
            return await AsyncSandbox.connect(sandbox_id, language=language)

        return cls(thread_loop.call(find))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        thread_loop.call(self._core.__aexit__)

    @property
    def not_restored(self) -> tuple[NotCarried, ...]:
        """Variables of the snapshot that this sandbox was made from, and that it could not set."""
        return self._core.not_restored

    def fork(
        self, count: int = 1, *, state: bool = True, end_processes: bool = False
    ) -> list[Sandbox]:
        """See `AsyncSandbox.fork`."""
        made = thread_loop.call(
            lambda: self._core.fork(count, state=state, end_processes=end_processes)
        )
        return [Sandbox(each) for each in made]

    @staticmethod
    def list_snapshots(
        *, config: str | None = None, profile: str | None = None
    ) -> list[WorkspaceSnapshot]:
        """The snapshots of this user, the newest first."""
        return thread_loop.call(lambda: AsyncSandbox.list_snapshots(config=config, profile=profile))

    @staticmethod
    def delete_snapshot(
        snapshot_id: str, *, config: str | None = None, profile: str | None = None
    ) -> None:
        """Delete a snapshot, now; sandboxes that were made from it are not affected."""
        thread_loop.call(
            lambda: AsyncSandbox.delete_snapshot(snapshot_id, config=config, profile=profile)
        )

    snapshot = _blocking(AsyncSandbox.snapshot)
    run_code = _blocking(AsyncSandbox.run_code)
    allow_domains = _blocking(AsyncSandbox.allow_domains)
    interrupt = _blocking(AsyncSandbox.interrupt)
    kill = _blocking(AsyncSandbox.kill)

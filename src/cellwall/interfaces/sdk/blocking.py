"""The blocking face of the SDK: the same names, each call run to its end on the spot."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar, Unpack

from cellwall.core.forks import call_in_child
from cellwall.interfaces.sdk import asynchronous
from cellwall.interfaces.sdk.asynchronous import AsyncSandbox, OneShot, prepare_template
from cellwall.interfaces.sdk.commands import Commands
from cellwall.interfaces.sdk.execution import Execution, TextSink
from cellwall.interfaces.sdk.files import Files
from cellwall.interfaces.sdk.skills import Skills
from cellwall.interfaces.sdk.tools import HostFunction

Result = TypeVar("Result")


class _ForkSafeLoop(asyncio.SelectorEventLoop):
    """A loop that a forked child never closes: its epoll set is the parent's as well."""

    def __init__(self) -> None:
        super().__init__()
        self._made_by = os.getpid()

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        # As a default: when the interpreter ends, the names of this module are gone before it.
        if self._made_by == getpid():
            super().__del__()


class _OwnLoop:
    """An event loop that is closed when its thread, and with it this object, ends."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=_ForkSafeLoop)
        self._made_by = os.getpid()
        self.run = self._runner.run

    def __del__(self, getpid: Callable[[], int] = os.getpid) -> None:
        if self._made_by == getpid():
            self._runner.close()


class _ThreadLoop(threading.local):
    """An event loop for each calling thread, made by its first call.

    No other thread is involved, so a call costs little, and Ctrl-C ends the run and cleans up
    before the caller sees it.
    """

    def __init__(self) -> None:
        self._loop = _OwnLoop()

    def call(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            # A notebook, or a coroutine that calls the blocking face: the thread's loop is busy.
            with ThreadPoolExecutor(max_workers=1) as other:
                return other.submit(asyncio.run, work()).result()
        return self._loop.run(work())

    def forget_parent(self) -> None:
        """After a fork: the child makes a loop of its own."""
        self._loop = _OwnLoop()


_loop = _ThreadLoop()
call_in_child(_loop.forget_parent)


class Sandbox:
    """A live sandbox: its files, variables and processes stay until it ends."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox
        self.id = sandbox.id
        self.commands = Commands(sandbox.commands, _loop.call)
        self.files = Files(sandbox.files, _loop.call)
        self.skills = Skills(sandbox.skills, _loop.call)

    @classmethod
    def create(
        cls,
        *,
        profile: str | None = None,
        workspace: str | None = None,
        allow_domains: Sequence[str] = (),
        secrets: Sequence[str] = (),
        envs: Mapping[str, str] | None = None,
        timeout: float | None = None,
        memory: str | int | None = None,
        language: str = "python",
        template: str = "python",
        packages: Sequence[str] = (),
        skills: Sequence[str] = (),
        policy: str | None = None,
        config: str | None = None,
        limits: Mapping[str, float] | None = None,
        tools: Mapping[str, HostFunction] | None = None,
        keep_alive: float | None = None,
    ) -> Self:
        """Make a sandbox; use it as a context manager, or call `kill` when done.

        `packages` (`["requests", "pandas<3"]`) are installed once, with progress on standard
        error, and found again by every later sandbox that asks for the same; read-only inside.
        With `keep_alive` it lives in the user's supervisor, not in this process: any process of
        the user reaches it with `connect(id)`, until nobody has used it for so many seconds.
        """
        # Here, and not in a thread of the loop's: Ctrl-C ends a build at once.
        prepared = prepare_template(packages, template, config, profile)

        async def make() -> AsyncSandbox:
            return await AsyncSandbox.create(
                profile=profile,
                workspace=workspace,
                allow_domains=allow_domains,
                secrets=secrets,
                envs=envs,
                timeout=timeout,
                memory=memory,
                language=language,
                template=prepared,
                skills=skills,
                policy=policy,
                config=config,
                limits=limits,
                tools=tools,
                keep_alive=keep_alive,
            )

        return cls(_loop.call(make))

    @classmethod
    def connect(cls, sandbox_id: str, *, language: str = "python") -> Self:
        """A sandbox that was made with `keep_alive`, by this or another process of the user.

        Leaving a `with` block leaves it alive; `kill` ends it.
        """

        async def find() -> AsyncSandbox:
            return await AsyncSandbox.connect(sandbox_id, language=language)

        return cls(_loop.call(find))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _loop.call(self._sandbox.__aexit__)

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

    def allow_domains(self, domains: Sequence[str]) -> None:
        """From its next connection on the sandbox may reach these, and nothing else."""
        _loop.call(lambda: self._sandbox.allow_domains(domains))

    def interrupt(self) -> bool:
        """Interrupt the code that runs in another thread, as Ctrl-C would; False if none runs."""
        return _loop.call(self._sandbox.interrupt)

    def kill(self) -> None:
        """End the sandbox; its private workspace is removed."""
        _loop.call(self._sandbox.kill)


def run_code(
    code: str | bytes, *, language: str = "python", **options: Unpack[OneShot]
) -> Execution:
    """One shot: fresh isolation, nothing kept."""
    prepared = _prepared(options)
    return _loop.call(lambda: asynchronous.run_code(code, language=language, **prepared))


def run_command(command: str | Sequence[str], **options: Unpack[OneShot]) -> Execution:
    """One shot: a string is given to the shell, a list is started as it is; nothing is kept."""
    prepared = _prepared(options)
    return _loop.call(lambda: asynchronous.run_command(command, **prepared))


def _prepared(options: OneShot) -> OneShot:
    """With the template that holds the packages in their place; see `Sandbox.create`."""
    if "packages" not in options:
        return options
    packages, template = options["packages"], options.get("template", "python")
    config, profile = options.get("config"), options.get("profile")
    prepared = prepare_template(packages, template, config, profile)
    return {**options, "template": prepared, "packages": ()}

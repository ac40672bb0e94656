"""The async core of the SDK. Each call makes an `Action` and hands it to the runtime."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Literal, Self, TypedDict, Unpack

import anyio

from holdfast.core.errors import BadInput
from holdfast.core.languages import canonical
from holdfast.core.limits import Limits
from holdfast.core.text import to_bytes
from holdfast.core.types import (
    Action,
    ErrorInfo,
    FileOperation,
    Outcome,
    OutputSink,
    RunCode,
    RunCommand,
    Status,
)
from holdfast.interfaces.requests import parse_workspace, with_limits
from holdfast.interfaces.sdk.files import AsyncFiles
from holdfast.interfaces.sdk.live import LiveActions
from holdfast.runtime import wiring

TextSink = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Execution:
    """What came of a command or a piece of code."""

    outcome: Outcome = field(repr=False)
    status: Status
    exit_code: int | None
    stdout: str
    stderr: str
    value: object
    text: str | None
    results: Sequence[object]
    error: object
    limit: str | None

    @classmethod
    def of(cls, outcome: Outcome) -> Execution:
        return cls(
            outcome=outcome,
            status=outcome.status,
            exit_code=outcome.exit_code,
            stdout=outcome.stdout,
            stderr=outcome.stderr,
            value=outcome.value,
            text=outcome.text,
            results=outcome.results,
            error=outcome.error if outcome.error is not None else outcome.code_error,
            limit=outcome.limit.value if outcome.limit else None,
        )

    def raise_for_status(self) -> Execution:
        self.outcome.raise_for_status()
        return self


def _sink(on_stdout: TextSink | None, on_stderr: TextSink | None) -> OutputSink | None:
    """Text as it comes. A character cut by a chunk's border waits for its rest."""
    if on_stdout is None and on_stderr is None:
        return None
    import codecs  # noqa: PLC0415  # only for streaming callers

    make = codecs.getincrementaldecoder("utf-8")
    decoders = {"stdout": make("replace"), "stderr": make("replace")}
    callbacks = {"stdout": on_stdout, "stderr": on_stderr}

    def deliver(name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        callback = callbacks[name]
        text = decoders[name].decode(chunk)
        if callback is not None and text:
            callback(text)

    return deliver


class AsyncCommands:
    """Programs in a sandbox."""

    def __init__(self, sandbox: AsyncSandbox) -> None:
        self._sandbox = sandbox

    async def run(
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
        return await self._sandbox.perform(
            RunCommand(_argv(command)),
            timeout=timeout,
            envs=envs,
            stdin=stdin,
            sink=_sink(on_stdout, on_stderr),
        )


class AsyncSandbox:
    """A workspace with limits and an environment; every command in it is isolated afresh."""

    def __init__(
        self,
        house: wiring.House,
        *,
        limits: Limits,
        envs: Mapping[str, str],
        allow_domains: tuple[str, ...],
        language: str,
        stack: AsyncExitStack,
        session_id: str,
    ) -> None:
        self._house = house
        self._limits = limits
        self._envs = envs
        self._allow_domains = allow_domains
        self._language = language
        self._stack = stack
        self._principal = wiring.principal("sdk")
        self._alive = True
        self._live = LiveActions()
        self.id = session_id
        self.commands = AsyncCommands(self)
        self.files = AsyncFiles(self)

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
    ) -> _Creation:
        """A sandbox to be awaited or entered: `async with AsyncSandbox.create() as sbx`."""

        async def make() -> AsyncSandbox:
            house = await anyio.to_thread.run_sync(wiring.shared_house, config, profile)
            own = with_limits(house.limits, timeout=timeout, memory=memory, **(limits or {}))
            stack = AsyncExitStack()
            session_id = stack.enter_context(house.session(parse_workspace(workspace)))
            return cls(
                house,
                limits=own,
                envs=dict(envs or {}),
                allow_domains=tuple(allow_domains),
                language=canonical(language),
                stack=stack,
                session_id=session_id,
            )

        return _Creation(make)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def run_code(
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
        text = _bytes(code, what="the code")
        return await self.perform(
            RunCode(canonical(language or self._language), text),
            timeout=timeout,
            envs=envs,
            stdin=stdin,
            sink=_sink(on_stdout, on_stderr),
        )

    async def kill(self) -> None:
        """End the sandbox and what runs in it; its private workspace is removed.

        Copy-on-write changes are kept.
        """
        self._alive = False
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._live.end)
            await self._stack.aclose()

    async def perform(
        self,
        want: RunCommand | RunCode,
        *,
        timeout: float | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        sink: OutputSink | None = None,
    ) -> Execution:
        limits = with_limits(self._limits, timeout=timeout)
        data = None if stdin is None else _bytes(stdin, what="standard input")
        outcome = await self.perform_raw(
            want, limits=limits, envs=envs or {}, stdin=data, sink=sink
        )
        return Execution.of(outcome)

    def waiting(self) -> AbstractContextManager[None]:
        """For what waits outside of an action: the block is left early when the sandbox ends."""
        return self._live.entered()

    @property
    def alive(self) -> bool:
        return self._alive

    async def perform_raw(
        self,
        want: RunCommand | RunCode | FileOperation,
        *,
        limits: Limits | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        sink: OutputSink | None = None,
    ) -> Outcome:
        """One action through the runtime's steps; the only way anything happens here."""
        if not self._alive:
            raise BadInput(
                "the sandbox was ended", mend="Create a new one.", code="HF-SANDBOX-ENDED"
            )
        action = Action(
            principal=self._principal,
            want=want,
            session_id=self.id,
            limits=limits or self._limits,
            env={**self._envs, **(envs or {})},
            stdin=stdin,
            allow_domains=self._allow_domains,
        )
        done: list[Outcome] = []
        with self._live.entered():  # left early when the sandbox is ended
            done.append(await self._house.runtime.perform(action, sink=sink))
        if done:
            return done[0]
        ended = ErrorInfo(
            "HF-SANDBOX-ENDED", "the sandbox was ended while this ran", "Create a new one."
        )
        return Outcome(status=Status.ERROR, action_id=action.id, error=ended)


class _Creation:
    """Lets `create` be awaited or entered, as people write both."""

    def __init__(self, make: Callable[[], Awaitable[AsyncSandbox]]) -> None:
        self._make = make
        self._sandbox: AsyncSandbox | None = None

    def __await__(self) -> Generator[object, None, AsyncSandbox]:
        return self._make().__await__()

    async def __aenter__(self) -> AsyncSandbox:
        self._sandbox = await self._make()
        return self._sandbox

    async def __aexit__(self, *_: object) -> None:
        if self._sandbox is not None:
            await self._sandbox.kill()


async def run_code(
    code: str | bytes, *, language: str = "python", **options: Unpack[OneShot]
) -> Execution:
    """One shot: fresh isolation, nothing kept."""
    text = _bytes(code, what="the code")
    return await _one_shot(RunCode(canonical(language), text), **options)


async def run_command(command: str | Sequence[str], **options: Unpack[OneShot]) -> Execution:
    """One shot: a string is given to the shell, a list is started as it is; nothing is kept."""
    return await _one_shot(RunCommand(_argv(command)), **options)


class OneShot(TypedDict, total=False):
    """What a one-shot run can be given."""

    profile: str | None
    config: str | None
    workspace: str | None
    allow_domains: Sequence[str]
    envs: Mapping[str, str] | None
    timeout: float | None
    memory: str | int | None
    limits: Mapping[str, float] | None
    stdin: bytes | str | None
    on_stdout: TextSink | None
    on_stderr: TextSink | None


async def _one_shot(want: RunCommand | RunCode, **options: Unpack[OneShot]) -> Execution:
    unknown = options.keys() - OneShot.__annotations__.keys()
    if unknown:
        # A limit that somebody believes to be set must not be dropped in silence.
        raise BadInput(
            f"unknown option: {', '.join(sorted(unknown))}"[:200],
            mend=f"Use: {', '.join(OneShot.__annotations__)}.",
            code="HF-UNKNOWN-OPTION",
        )
    house = wiring.shared_house(options.get("config"), options.get("profile"))
    stdin = options.get("stdin")
    action = Action(
        principal=wiring.principal("sdk"),
        want=want,
        workspace=parse_workspace(options.get("workspace")),
        limits=with_limits(
            house.limits,
            timeout=options.get("timeout"),
            memory=options.get("memory"),
            **(options.get("limits") or {}),
        ),
        env=dict(options.get("envs") or {}),
        stdin=None if stdin is None else _bytes(stdin, what="standard input"),
        allow_domains=tuple(options.get("allow_domains", ())),
    )
    sink = _sink(options.get("on_stdout"), options.get("on_stderr"))
    return Execution.of(await house.runtime.perform(action, sink=sink))


def _bytes(text: str | bytes, *, what: str) -> bytes:
    return to_bytes(text, what=what) if isinstance(text, str) else bytes(text)


def _argv(command: str | Sequence[str]) -> tuple[str, ...]:
    return ("/bin/sh", "-c", command) if isinstance(command, str) else tuple(command)

"""The async core of the SDK. Each call makes an `Action` and hands it to the runtime."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from typing import Self, TypedDict, Unpack

import anyio

from cellwall.core.cancellation import cancelled_by, check_cancelled
from cellwall.core.errors import BadInput
from cellwall.core.languages import canonical
from cellwall.core.outcomes import Outcome
from cellwall.core.packages import parse_request
from cellwall.core.text import to_bytes
from cellwall.core.types import (
    Action,
    OutputSink,
    ProcessOperation,
    RunCode,
    RunCommand,
    SetDomains,
    check_id,
)
from cellwall.interfaces.requests import (
    listed_words,
    named_policy,
    parse_workspace,
    skill_names,
    with_limits,
)
from cellwall.interfaces.sdk.commands import AsyncCommands, Execution, TextSink, argv_of, text_sink
from cellwall.interfaces.sdk.files import AsyncFiles
from cellwall.interfaces.sdk.hosts import Host, LocalHost, Operation
from cellwall.interfaces.sdk.skills import AsyncSkills
from cellwall.interfaces.sdk.tools import HostFunction, ToolBroker
from cellwall.runtime import wiring


class SandboxSpec(TypedDict):
    """The properties of a sandbox, local or in the supervisor."""

    workspace: str | None
    allow_domains: list[str]
    secrets: list[str]
    envs: dict[str, str]
    timeout: float | None
    memory: str | int | None
    limits: dict[str, float]
    template: str
    skills: list[str]
    policy: str | None


class AsyncSandbox:
    """A live sandbox: its files, variables and processes stay until it ends."""

    def __init__(self, host: Host, *, language: str) -> None:
        self._host = host
        self._language = language
        self.id = host.id
        self.commands = AsyncCommands(self)
        self.files = AsyncFiles(self)
        self.skills = AsyncSkills(self)

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
    ) -> _Creation:
        """Create a sandbox; await it or enter it: `async with AsyncSandbox.create() as sbx`.

        `packages` (`["requests", "pandas<3"]`) are installed once, with progress on standard
        error, and reused by later sandboxes with the same packages; read-only inside.
        With `keep_alive` the sandbox lives in the user's supervisor, not in this process: any
        process of the user can `connect(id)`, until it is idle for that many seconds.
        """
        options: SandboxSpec = {
            "workspace": workspace,
            "allow_domains": list(listed_words(allow_domains, "allow_domains")),
            "secrets": list(listed_words(secrets, "secrets")),
            "envs": dict(envs or {}),
            "timeout": timeout,
            "memory": memory,
            "limits": dict(limits or {}),
            "template": template,
            "skills": list(skill_names(skills)),
            "policy": _absolute(policy),
        }

        async def make() -> AsyncSandbox:
            spoken = canonical(language)
            options["template"] = await _template(packages, template, config, profile)
            if keep_alive is not None:
                if tools:
                    raise BadInput(
                        "functions of this process cannot be tools of a sandbox in the supervisor",
                        hint="Create the sandbox without keep_alive.",
                        code="CW-NO-REMOTE-TOOLS",
                    )
                from cellwall.interfaces.supervisor.remote_host import RemoteHost  # noqa: PLC0415  # seldom

                places = {"profile": profile, "config": _absolute(config)}
                options["workspace"] = _absolute(workspace)
                host = await RemoteHost.create(
                    keep_alive_s=keep_alive,
                    options={**dict(options), **places, "language": spoken},
                )
                return cls(host, language=spoken)
            app = await anyio.to_thread.run_sync(wiring.shared_app, config, profile)
            broker = ToolBroker(tools) if tools else None
            return await cls.create_in(app, language=spoken, tools=broker, **options)

        return _Creation(make)

    @classmethod
    async def create_in(
        cls,
        app: wiring.App,
        *,
        workspace: str | None,
        allow_domains: Sequence[str],
        secrets: Sequence[str] = (),
        envs: Mapping[str, str],
        timeout: float | None,
        memory: str | int | None,
        limits: Mapping[str, float],
        template: str,
        skills: Sequence[str],
        policy: str | None = None,
        language: str,
        tools: ToolBroker | None = None,
    ) -> AsyncSandbox:
        """A sandbox of this process, in an open runtime."""
        own = with_limits(app.limits, timeout=timeout, memory=memory, **limits)
        stack = AsyncExitStack()
        session_id = stack.enter_context(app.session(parse_workspace(workspace)))
        host = LocalHost(
            app,
            limits=own,
            envs=dict(envs),
            allow_domains=tuple(allow_domains),
            secrets=tuple(secrets),
            stack=stack,
            session_id=session_id,
            tools=tools,
            template=template,
            skills=skill_names(skills),
            policy=policy,
        )
        try:
            await host.check()
        except BaseException:
            await host.end()
            raise
        return cls(host, language=canonical(language))

    @classmethod
    def connect(cls, sandbox_id: str, *, language: str = "python") -> _Creation:
        """A sandbox that this or another process of the user created with `keep_alive`.

        The end of an `async with` block leaves it alive; `kill` ends it.
        """

        async def make() -> AsyncSandbox:
            from cellwall.interfaces.supervisor.remote_host import RemoteHost  # noqa: PLC0415  # seldom

            check_id(sandbox_id, what="sandbox id")
            return cls(await RemoteHost.connect(sandbox_id), language=canonical(language))

        return _Creation(make)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._host.leave()

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
        """Run code in the workspace and return the value of its last expression."""
        text = to_bytes(code, what="the code")
        return await self.perform(
            RunCode(canonical(language or self._language), text),
            timeout=timeout,
            envs=envs,
            stdin=stdin,
            sink=text_sink(on_stdout, on_stderr),
        )

    async def allow_domains(self, domains: Sequence[str]) -> None:
        """Replace the allowed domains; applies to new connections."""
        wanted = listed_words(domains, "domains")
        (await self.perform_raw(SetDomains(wanted))).raise_for_status()

    async def interrupt(self) -> bool:
        """Interrupt running code, as Ctrl-C would, also from another thread; False if none runs."""
        return bool((await self.perform_raw(ProcessOperation("interrupt"))).payload)

    async def kill(self) -> None:
        """End the sandbox and its processes; its private workspace is removed.

        Copy-on-write changes are kept.
        """
        await self._host.end()

    async def perform(
        self,
        operation: RunCommand | RunCode,
        *,
        timeout: float | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        sink: OutputSink | None = None,
    ) -> Execution:
        data = None if stdin is None else to_bytes(stdin, what="standard input")
        outcome = await self.perform_raw(
            operation, timeout=timeout, envs=envs or {}, stdin=data, sink=sink
        )
        return Execution.of(outcome)

    def waiting(self) -> AbstractContextManager[None]:
        """For a wait outside of an action: the block is left early when the sandbox ends."""
        return self._host.waiting()

    @property
    def alive(self) -> bool:
        return self._host.alive

    async def perform_raw(
        self,
        operation: Operation,
        *,
        timeout: float | None = None,
        envs: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        sink: OutputSink | None = None,
    ) -> Outcome:
        """One action through the runtime's steps; every operation goes this way."""
        return await self._host.perform(
            operation, timeout=timeout, envs=envs or {}, stdin=stdin, sink=sink
        )


class _Creation:
    """The result of `create`, which can be awaited or entered."""

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
            await self._sandbox.__aexit__()


async def run_code(
    code: str | bytes, *, language: str = "python", **options: Unpack[OneShot]
) -> Execution:
    """Run code once in a fresh sandbox; nothing is kept."""
    text = to_bytes(code, what="the code")
    return await _one_shot(RunCode(canonical(language), text), **options)


async def run_command(command: str | Sequence[str], **options: Unpack[OneShot]) -> Execution:
    """Run a command once in a fresh sandbox: a string by the shell, a list directly."""
    return await _one_shot(RunCommand(argv_of(command)), **options)


class OneShot(TypedDict, total=False):
    """The options of `run_code` and `run_command`."""

    profile: str | None
    config: str | None
    workspace: str | None
    allow_domains: Sequence[str]
    secrets: Sequence[str]
    envs: Mapping[str, str] | None
    timeout: float | None
    memory: str | int | None
    limits: Mapping[str, float] | None
    stdin: bytes | str | None
    on_stdout: TextSink | None
    on_stderr: TextSink | None
    tools: Mapping[str, HostFunction] | None
    template: str
    packages: Sequence[str]
    skills: Sequence[str]
    policy: str


async def _one_shot(operation: RunCommand | RunCode, **options: Unpack[OneShot]) -> Execution:
    unknown = options.keys() - OneShot.__annotations__.keys()
    if unknown:
        # A misspelt limit must not be dropped silently.
        raise BadInput(
            f"unknown option: {', '.join(sorted(unknown))}"[:200],
            hint=f"Use: {', '.join(OneShot.__annotations__)}.",
            code="CW-UNKNOWN-OPTION",
        )
    config, profile = options.get("config"), options.get("profile")
    template = await _template(
        options.get("packages", ()), options.get("template", "python"), config, profile
    )
    app = wiring.shared_app(config, profile)
    stdin = options.get("stdin")
    offered = options.get("tools")
    broker = ToolBroker(offered) if offered else None
    action = Action(
        principal=wiring.principal("sdk"),
        operation=operation,
        workspace=parse_workspace(options.get("workspace")),
        limits=with_limits(
            app.limits,
            timeout=options.get("timeout"),
            memory=options.get("memory"),
            **(options.get("limits") or {}),
        ),
        env=dict(options.get("envs") or {}),
        stdin=None if stdin is None else to_bytes(stdin, what="standard input"),
        allow_domains=listed_words(options.get("allow_domains", ()), "allow_domains"),
        secrets=listed_words(options.get("secrets", ()), "secrets"),
        tools=broker.names if broker is not None and isinstance(operation, RunCode) else (),
        template=template,
        skills=skill_names(options.get("skills", ())),
        policy=named_policy(options.get("policy")),
    )
    sink = text_sink(options.get("on_stdout"), options.get("on_stderr"))
    return Execution.of(await app.runtime.perform(action, sink=sink, tools=broker))


async def _template(
    packages: Sequence[str], template: str, config: str | None, profile: str | None
) -> str:
    if not parse_request(packages):
        return template
    is_cancelled, has_begun, has_ended = (threading.Event() for _ in range(3))

    def prepare() -> str:
        has_begun.set()
        try:
            with cancelled_by(is_cancelled.is_set):
                check_cancelled()  # cancelled before the build began
                return prepare_template(packages, template, config, profile)
        finally:
            has_ended.set()

    try:
        return await anyio.to_thread.run_sync(prepare, abandon_on_cancel=True)
    except anyio.get_cancelled_exc_class():
        # A build takes minutes: end its pip now and wait for the cleanup.
        is_cancelled.set()
        if not has_begun.is_set():
            raise
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(has_ended.wait)
        raise


def prepare_template(
    packages: Sequence[str], template: str, config: str | None, profile: str | None
) -> str:
    """The template with the packages; built in this process, also for the supervisor."""
    if not parse_request(packages):
        return template
    from cellwall.interfaces.requests import template_with  # noqa: PLC0415  # seldom

    return template_with(
        packages,
        template,
        config=config,
        profile=profile,
        interface="sdk",
        on_progress=_tell_progress,
    )


def _tell_progress(text: str) -> None:
    """Report the progress of a build on standard error."""
    print(f"cellwall: {text}", file=sys.stderr, flush=True)


def _absolute(path: str | None) -> str | None:
    """Absolute, for a process with another working directory."""
    return None if path is None else os.path.abspath(path)

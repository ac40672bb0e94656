"""The async core of the SDK. Each call makes an `Action` and hands it to the runtime."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Self, TypedDict, Unpack

import anyio

from cellwall.core.cancellation import cancelled_by, check_cancelled
from cellwall.core.errors import BadInput
from cellwall.core.ids import check_id
from cellwall.core.labels import LabelSet
from cellwall.core.languages import canonical
from cellwall.core.packages import parse_request
from cellwall.core.text import to_bytes
from cellwall.core.types import Action, ProcessOperation, RunCode, RunCommand, SetDomains
from cellwall.interfaces.sandbox_options import (
    listed_words,
    named_policy,
    parse_workspace,
    skill_names,
    template_with,
    with_limits,
)
from cellwall.interfaces.sdk.commands import AsyncCommands, Execution, TextSink, argv_of, text_sink
from cellwall.interfaces.sdk.files import AsyncFiles
from cellwall.interfaces.sdk.hosts import Host, SandboxSpec
from cellwall.interfaces.sdk.local_host import LocalHost
from cellwall.interfaces.sdk.packages import AsyncPackages
from cellwall.interfaces.sdk.ports import AsyncPorts
from cellwall.interfaces.sdk.remote_host import RemoteHost
from cellwall.interfaces.sdk.skills import AsyncSkills
from cellwall.interfaces.sdk.tools import HostFunction, ToolBroker
from cellwall.runtime import wiring
from cellwall.runtime.approvals import AnswerQuestion, CallbackApprover
from cellwall.runtime.home import local_principal


class AsyncSandbox:
    """A live sandbox: its files, variables and processes stay until it ends."""

    def __init__(self, host: Host, *, language: str) -> None:
        self._host = host
        self._language = language
        self.id = host.id
        self.commands = AsyncCommands(host)
        self.files = AsyncFiles(host)
        self.skills = AsyncSkills(host)
        self.packages = AsyncPackages(host)
        self.ports = AsyncPorts(host)

    @property
    def labels(self) -> LabelSet:
        """What the sandbox has read, and where it can send data, each with its source (POL-9)."""
        return self._host.labels

    @classmethod
    def create(
        cls,
        *,
        profile: str | None = None,
        workspace: str | None = None,
        allow_domains: Sequence[str] = (),
        registries: Sequence[str] = (),
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
        on_question: AnswerQuestion | None = None,
        keep_alive: float | None = None,
    ) -> _Creation:
        """Create a sandbox; await it or enter it: `async with AsyncSandbox.create() as sbx`.

        `packages` (`["requests", "pandas<3"]`) are installed once, with progress on standard
        error, and reused by later sandboxes with the same packages; read-only inside.
        `registries` (`["pypi", "npm"]`): code may install packages from these, through the
        registry proxy, which shows only packages that pass the checks.
        `on_question` answers the questions of the policy: a plain or async function that takes the
        question (`question.shown` is its text) and returns "once", "session" or "deny".
        With `keep_alive` the sandbox lives in the user's supervisor, not in this process: any
        process of the user can `connect(id)`, until it is idle for that many seconds.
        """
        spec = SandboxSpec(
            workspace=workspace,
            allow_domains=listed_words(allow_domains, "allow_domains"),
            registries=listed_words(registries, "registries"),
            secrets=listed_words(secrets, "secrets"),
            envs=dict(envs or {}),
            timeout=timeout,
            memory=memory,
            limits=dict(limits or {}),
            template=template,
            skills=skill_names(skills),
            policy=_absolute(policy),
        )

        async def make() -> AsyncSandbox:
            known = canonical(language)
            built = replace(spec, template=await _template(packages, template, config, profile))
            if keep_alive is None:
                app = await anyio.to_thread.run_sync(wiring.shared_app, config, profile)
                broker = ToolBroker(tools) if tools else None
                approver = CallbackApprover(on_question) if on_question else None
                return cls(await LocalHost.create(app, built, broker, approver), language=known)
            if tools or on_question:
                raise BadInput(
                    "a sandbox in the supervisor cannot call functions of this process",
                    hint="Create the sandbox without keep_alive, or without tools and on_question.",
                    code="CW-NO-REMOTE-TOOLS",
                )
            host = await RemoteHost.create(
                replace(built, workspace=_absolute(workspace)),
                config=_absolute(config),
                profile=profile,
                keep_alive_s=keep_alive,
            )
            return cls(host, language=known)

        return _Creation(make)

    @classmethod
    def connect(cls, sandbox_id: str, *, language: str = "python") -> _Creation:
        """A sandbox that this or another process of the user created with `keep_alive`.

        The end of an `async with` block leaves it alive; `kill` ends it.
        """

        async def make() -> AsyncSandbox:
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
        outcome = await self._host.perform(
            RunCode(canonical(language or self._language), text),
            timeout=timeout,
            envs=envs,
            stdin=None if stdin is None else to_bytes(stdin, what="standard input"),
            sink=text_sink(on_stdout, on_stderr),
        )
        return Execution.of(outcome)

    async def allow_domains(self, domains: Sequence[str]) -> None:
        """Replace the allowed domains; applies to new connections."""
        operation = SetDomains(listed_words(domains, "domains"))
        (await self._host.perform(operation)).raise_for_status()

    async def interrupt(self) -> bool:
        """Interrupt running code, as Ctrl-C would, also from another thread; False if none runs."""
        return bool((await self._host.perform(ProcessOperation("interrupt"))).payload)

    async def kill(self) -> None:
        """End the sandbox and its processes; its private workspace is removed.

        Copy-on-write changes are kept.
        """
        await self._host.end()


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


class SandboxChoices(TypedDict, total=False):
    """The options of every new sandbox."""

    profile: str | None
    config: str | None
    workspace: str | None
    allow_domains: Sequence[str]
    registries: Sequence[str]
    secrets: Sequence[str]
    envs: Mapping[str, str] | None
    timeout: float | None
    memory: str | int | None
    limits: Mapping[str, float] | None
    tools: Mapping[str, HostFunction] | None
    template: str
    packages: Sequence[str]
    skills: Sequence[str]
    policy: str | None
    on_question: AnswerQuestion | None


class CreateOptions(SandboxChoices, total=False):
    """The options of `Sandbox.create`."""

    language: str
    keep_alive: float | None


class OneShot(SandboxChoices, total=False):
    """The options of `run_code` and `run_command`."""

    stdin: bytes | str | None
    on_stdout: TextSink | None
    on_stderr: TextSink | None


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
        principal=local_principal("sdk"),
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
        registries=listed_words(options.get("registries", ()), "registries"),
        secrets=listed_words(options.get("secrets", ()), "secrets"),
        tools=broker.names if broker is not None and isinstance(operation, RunCode) else (),
        template=template,
        skills=skill_names(options.get("skills", ())),
        policy=named_policy(options.get("policy")),
    )
    sink = text_sink(options.get("on_stdout"), options.get("on_stderr"))
    answer = options.get("on_question")
    approver = CallbackApprover(answer) if answer else None
    return Execution.of(await app.runtime.perform(action, sink=sink, tools=broker, ask=approver))


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

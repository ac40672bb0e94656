"""The async core of the SDK. Each call makes an `Action` and hands it to the runtime."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Self

import anyio

from cellwall.admin import snapshots as admin
from cellwall.core.errors import BadInput
from cellwall.core.ids import check_id
from cellwall.core.labels import LabelSet
from cellwall.core.languages import canonical
from cellwall.core.snapshots import NotCarried, WorkspaceSnapshot
from cellwall.core.text import to_bytes
from cellwall.core.types import ProcessOperation, RunCode, SetDomains
from cellwall.interfaces.sandbox_options import (
    listed_words,
    skill_names,
)
from cellwall.interfaces.sdk import snapshots
from cellwall.interfaces.sdk.commands import AsyncCommands
from cellwall.interfaces.sdk.execution import Execution, TextSink, text_sink
from cellwall.interfaces.sdk.files import AsyncFiles
from cellwall.interfaces.sdk.hosts import Host, SandboxSpec
from cellwall.interfaces.sdk.local_host import LocalHost
from cellwall.interfaces.sdk.one_shot import template_for
from cellwall.interfaces.sdk.packages import AsyncPackages
from cellwall.interfaces.sdk.ports import AsyncPorts
from cellwall.interfaces.sdk.remote_host import RemoteHost
from cellwall.interfaces.sdk.skills import AsyncSkills
from cellwall.interfaces.sdk.tools import HostFunction, ToolBroker
from cellwall.runtime import wiring
from cellwall.runtime.approvals import AnswerQuestion, CallbackApprover
from cellwall.runtime.home import local_principal, state_home


class AsyncSandbox:
    """A live sandbox: its files, variables and processes stay until it ends."""

    def __init__(self, host: Host, *, language: str, recreate: _Recreate | None = None) -> None:
        self._host = host
        self._recreate = recreate
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
        from_snapshot: str | None = None,
        second_user: bool = False,
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
        `from_snapshot`: the id of a snapshot, whose files and plain variables the sandbox has.
        `second_user`: beside `sandbox` there is a user `root`, for `commands.run(…, user="root")`.
        Both are unprivileged, without any capability; file modes keep them apart.
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
            from_snapshot=from_snapshot,
            second_user=second_user,
        )

        async def make(snapshot: str | None) -> AsyncSandbox:
            known = canonical(language)
            built = replace(
                spec,
                from_snapshot=snapshot,
                template=await template_for(packages, template, config, profile),
            )
            if keep_alive is None:
                app = await anyio.to_thread.run_sync(wiring.shared_app, config, profile)
                broker = ToolBroker(tools) if tools else None
                approver = CallbackApprover(on_question) if on_question else None
                local = await LocalHost.create(app, built, broker, approver)
                return cls(local, language=known, recreate=make)
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
            return cls(host, language=known, recreate=make)

        return _Creation(partial(make, from_snapshot))

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

    async def snapshot(
        self,
        name: str = "",
        *,
        ttl: float | None = None,
        state: bool = True,
        end_processes: bool = False,
    ) -> WorkspaceSnapshot:
        """Keep the files, installed packages and plain variables as they are now.

        `not_carried` of the result names what is not in it. Programs go on; they are suspended
        while files are copied. With `end_processes` they end instead, and nothing is copied: the
        snapshot takes the same time for any size. `ttl` in seconds; the configuration has a most.
        """
        return await snapshots.take_snapshot(
            self._host.perform,
            name=name,
            ttl=ttl,
            state=state and self._host.has_run_code,
            end_processes=end_processes,
        )

    async def fork(
        self, count: int = 1, *, state: bool = True, end_processes: bool = False
    ) -> list[AsyncSandbox]:
        """New sandboxes with the options, files and plain variables of this one.

        Options as for `snapshot`. All of them or none: if one cannot be made, the others end.
        """
        snapshots.check_fork(count)
        if self._recreate is None:
            raise BadInput(
                "a connected sandbox can be forked only by the process that created it",
                hint="Take a snapshot, and create sandboxes from it.",
                code="CW-FORK-CONNECTED",
            )
        taken = await snapshots.fork_snapshot(
            self._host.perform, state=state and self._host.has_run_code, end_processes=end_processes
        )
        made: list[AsyncSandbox] = []
        try:
            for _ in range(count):
                made.append(await self._recreate(taken.id))  # noqa: PERF401  # those made so far end below
        except BaseException:
            with anyio.CancelScope(shield=True):
                for each in made:
                    await each.kill()
            raise
        finally:
            await snapshots.remove_fork_snapshot(state_home(os.environ), taken.id)
        return made

    @property
    def not_restored(self) -> tuple[NotCarried, ...]:
        """Variables of the snapshot that this sandbox was made from, and that it could not set."""
        return self._host.not_restored

    @staticmethod
    async def list_snapshots(
        *, config: str | None = None, profile: str | None = None
    ) -> list[WorkspaceSnapshot]:
        """The snapshots of this user, the newest first."""
        app = wiring.shared_app(config, profile)
        return list(admin.list_snapshots(app, owner=""))

    @staticmethod
    async def delete_snapshot(
        snapshot_id: str, *, config: str | None = None, profile: str | None = None
    ) -> None:
        """Delete a snapshot, now; sandboxes that were made from it are not affected."""
        app, who = wiring.shared_app(config, profile), local_principal("sdk")
        delete = partial(admin.delete_snapshot, app, snapshot_id, principal=who, owner="")
        await anyio.to_thread.run_sync(delete)

    async def kill(self) -> None:
        """End the sandbox and its processes; its private workspace is removed.

        Copy-on-write changes are kept.
        """
        await self._host.end()


_Recreate = Callable[[str | None], Awaitable[AsyncSandbox]]
"""Makes a sandbox with the same options from a snapshot."""


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


def _absolute(path: str | None) -> str | None:
    """Absolute, for a process with another working directory."""
    return None if path is None else os.path.abspath(path)

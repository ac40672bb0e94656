"""Steps 7 and 8 of a run: one command or piece of code in a cell, with its egress."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from cellwall.core.network import CellNetwork
from cellwall.core.outcomes import RunResult, Usage
from cellwall.core.ports import ApproverPort, EgressPort, PackagesPort, Reservation, VaultPort
from cellwall.core.sandbox_ports import SandboxPort, Slot, ToolCaller, WorkspaceLease, WorkspacePort
from cellwall.core.skills import Skill
from cellwall.core.telemetry import ActionWatch, Step
from cellwall.core.types import Action, ProcessInfo, WorkspaceMount
from cellwall.runtime.cell_io import CleanedOutput
from cellwall.runtime.egress import open_egress
from cellwall.runtime.metering import UsageMeter
from cellwall.runtime.outcomes import network_hint


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRunner:
    """Runs actions in cells on the files of one lease."""

    vault: VaultPort
    egress: EgressPort
    sandbox: SandboxPort
    slot: Slot
    workspace: WorkspaceLease
    workspaces: WorkspacePort
    sink: CleanedOutput | None
    tools: ToolCaller | None = None
    skills: Sequence[Skill] = ()
    packages: PackagesPort | None
    near: ApproverPort | None
    watch: ActionWatch
    meter: UsageMeter
    held: Reservation
    """Pays for every cell of the action."""

    @property
    def mount(self) -> WorkspaceMount:
        return self.workspace.mount

    @asynccontextmanager
    async def private(self, action: Action, *, is_shown: bool = True) -> AsyncIterator[CellRunner]:
        """The same without the files of the session, its tools and its skills. `is_shown`: the
        caller of the action sees the output."""
        async with self.workspaces.lease(action) as empty:
            sink = self.sink if is_shown else None
            yield replace(self, workspace=empty, tools=None, skills=(), sink=sink)

    async def run(self, action: Action) -> RunResult:
        """The result, with the findings of egress; no connection is open any more."""
        async with open_egress(
            self.vault, self.egress, action, packages=self.packages, near=self.near
        ) as (network, env):
            self.watch.step(Step.RUN)
            run = partial(
                self.sandbox.run,
                action if env == action.env else replace(action, env=env),
                slot=self.slot,
                workspace=self.workspace,
                sink=self.sink,
                tools=self.tools,
                skills=self.skills,
                network=network,
            )
            shown = run if self.sink is None else partial(self.sink.beside, run)
            result = await self._metered(action, network, shown)
        if network is None:
            return result.with_findings(network_hint(result))
        usage = replace(result.usage, sent_bytes=network.take_sent_bytes())
        if action.session_id is None:
            self.held.add(Usage(sent_bytes=usage.sent_bytes))
        findings = (*result.findings, *network.take_findings())
        return replace(result, findings=findings, usage=usage)

    async def _metered(
        self, action: Action, network: CellNetwork | None, run: Callable[[], Awaitable[RunResult]]
    ) -> RunResult:
        """Run, and add what the run has used to the reservation, however it ended (RBAC-4)."""
        with self.meter.running(action, self.held, network):
            if self.sandbox.is_live(action, self.mount):
                result = await run()
                if isinstance(result.payload, ProcessInfo):
                    self.meter.add_program(action, self.held, result.payload.id)
                return result
            started = time.monotonic()
            try:
                result = await run()
            except BaseException:
                # Attack: a client that hangs up, or code that breaks its sandbox, leaves no
                # measurement. The time that the cell ran stands for its processor time.
                took_s = time.monotonic() - started
                self.held.add(Usage(cpu_s=min(took_s, action.limits.cpu_s)))
                raise
            self.held.add(Usage(cpu_s=result.usage.cpu_s))
            return result

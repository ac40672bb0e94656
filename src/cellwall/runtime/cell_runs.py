"""Steps 7 and 8 of a run: one command or piece of code in a cell, with its egress."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from cellwall.core.outcomes import RunResult
from cellwall.core.ports import (
    ApproverPort,
    EgressPort,
    PackagesPort,
    SandboxPort,
    Slot,
    ToolCaller,
    VaultPort,
    WorkspaceLease,
    WorkspacePort,
)
from cellwall.core.telemetry import ActionWatch, Step
from cellwall.core.types import Action, Skill, WorkspaceMount
from cellwall.runtime.cell_io import CleanedOutput
from cellwall.runtime.egress import open_egress
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
                replace(action, env=env),
                slot=self.slot,
                workspace=self.workspace,
                sink=self.sink,
                tools=self.tools,
                skills=self.skills,
                network=network,
            )
            result = await (run() if self.sink is None else self.sink.beside(run))
        if network is None:
            return replace(result, findings=(*result.findings, *network_hint(result)))
        usage = replace(result.usage, sent_bytes=network.take_sent_bytes())
        findings = (*result.findings, *network.take_findings())
        return replace(result, findings=findings, usage=usage)

"""The native sandbox: warm where it can be, cold where it must be, the same walls in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cellwall.core.languages import canonical
from cellwall.core.network import CellNetwork
from cellwall.core.outcomes import Finding, RunResult
from cellwall.core.ports import Slot, ToolCaller, WorkspaceLease
from cellwall.core.skills import Skill
from cellwall.core.types import Action, OutputSink, RunCode, WorkspaceMode, WorkspaceMount
from cellwall.sandbox.linux.cold import ColdPath
from cellwall.sandbox.linux.layers import HostLayers, NativeSettings
from cellwall.sandbox.linux.pool import Pool
from cellwall.sandbox.linux.sessions import Sessions
from cellwall.sandbox.linux.warm import WarmPath
from cellwall.sandbox.run_ledger import RunLedger

_WITHOUT_CGROUP = Finding(
    "weakened",
    "low",
    "this host gave no cgroup: memory and processor time were measured, not enforced by the kernel",
    rule="without-cgroup",
)


class NativeSandbox:
    """The port's implementation; `run` may be called by many tasks at once."""

    def __init__(
        self, settings: NativeSettings, layers: HostLayers, ledger: RunLedger, pool: Pool
    ) -> None:
        self._settings = settings
        self._weakened = () if layers.cgroup.way != "none" else (_WITHOUT_CGROUP,)
        self._cold = ColdPath(settings, layers, ledger)
        self._pool = pool
        self._warm = WarmPath(settings, pool)
        self._sessions = Sessions(settings, layers, ledger, pool)
        self.views = self._sessions.views

    async def run(
        self,
        action: Action,
        *,
        slot: Slot,
        workspace: WorkspaceLease,
        sink: OutputSink | None,
        tools: ToolCaller | None = None,
        skills: Sequence[Skill] = (),
        network: CellNetwork | None = None,
    ) -> RunResult:
        result = await self._run(
            action,
            slot=slot,
            workspace=workspace,
            sink=sink,
            tools=tools,
            skills=skills,
            network=network,
        )
        return replace(result, findings=(*result.findings, *self._weakened))

    async def _run(
        self,
        action: Action,
        *,
        slot: Slot,
        workspace: WorkspaceLease,
        sink: OutputSink | None,
        tools: ToolCaller | None,
        skills: Sequence[Skill],
        network: CellNetwork | None,
    ) -> RunResult:
        if action.session_id is not None and _lives_on(action, workspace.mount):
            return await self._sessions.run(
                action,
                workspace=workspace,
                sink=sink,
                tools=tools,
                skills=skills,
                network=network,
            )
        if self._settings.path != "cold":
            result = await self._warm.run(
                action,
                workspace=workspace,
                sink=sink,
                tools=tools,
                skills=skills,
                network=network,
            )
            if result is not None:
                return result
        return await self._cold.run(
            action,
            slot=slot,
            workspace=workspace,
            sink=sink,
            tools=tools,
            skills=skills,
            network=network,
        )

    async def steer(self, action: Action) -> RunResult:
        return await self._sessions.steer(action)

    def end_session(self, session_id: str) -> None:
        self._sessions.end(session_id)

    def tidy_up(self) -> None:
        self._pool.tidy_up()


def _lives_on(action: Action, mount: WorkspaceMount) -> bool:
    """Code in a language without a live interpreter has a cell of its own, on the same files.

    Not with copy-on-write layers: a second mount of them is undefined to the kernel, and neither
    mount would show all that was written through the other.
    """
    is_python = (
        isinstance(action.operation, RunCode) and canonical(action.operation.language) == "python"
    )
    is_layered = mount.mode is WorkspaceMode.COPY_ON_WRITE
    return is_python or is_layered or not isinstance(action.operation, RunCode)

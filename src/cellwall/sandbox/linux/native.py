"""The sandbox port on Linux: warm where possible, cold otherwise, with the same walls in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cellwall.core.languages import canonical
from cellwall.core.network import CellNetwork
from cellwall.core.outcomes import Finding, RunResult
from cellwall.core.ports import Slot, ToolCaller, WorkspaceLease
from cellwall.core.skills import Skill
from cellwall.core.types import Action, OutputSink, RunCode, WorkspaceMode
from cellwall.sandbox.linux.jobs import RunRequest
from cellwall.sandbox.linux.layers import HostLayers, NativeSettings
from cellwall.sandbox.linux.one_shot import ColdPath, WarmPath
from cellwall.sandbox.linux.pool import Pool
from cellwall.sandbox.linux.sessions import LiveSessions
from cellwall.sandbox.runs import RunLedger

_WITHOUT_CGROUP = Finding(
    "weakened",
    "low",
    "this host gave no cgroup: memory and processor time were measured, not enforced by the kernel",
    rule="without-cgroup",
)


class NativeSandbox:
    """Implements the port `Sandbox`; `run` may be called by many tasks at once."""

    def __init__(
        self, settings: NativeSettings, layers: HostLayers, ledger: RunLedger, pool: Pool
    ) -> None:
        self._settings = settings
        self._weakened = () if layers.cgroup.way != "none" else (_WITHOUT_CGROUP,)
        self._cold = ColdPath(settings, layers, ledger)
        self._pool = pool
        self._warm = WarmPath(settings, pool)
        self._sessions = LiveSessions(settings, layers, ledger, pool)
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
        request = RunRequest(
            action=action,
            slot=slot,
            workspace=workspace,
            sink=sink,
            tools=tools,
            skills=skills,
            network=network,
        )
        result = await self._run(request)
        return replace(result, findings=(*result.findings, *self._weakened))

    async def _run(self, request: RunRequest) -> RunResult:
        if request.action.session_id is not None and _uses_live_cell(request):
            return await self._sessions.run(request)
        if self._settings.path != "cold":
            result = await self._warm.run(request)
            if result is not None:
                return result
        return await self._cold.run(request)

    async def steer(self, action: Action) -> RunResult:
        return await self._sessions.steer(action)

    def end_session(self, session_id: str) -> None:
        self._sessions.end(session_id)

    def tidy_up(self) -> None:
        self._pool.tidy_up()


def _uses_live_cell(request: RunRequest) -> bool:
    """Code in a language without a live interpreter runs in a one-shot cell on the same files.

    Not with copy-on-write layers: a second mount of them is undefined to the kernel, and neither
    mount would show all that was written through the other.
    """
    operation = request.action.operation
    is_python = isinstance(operation, RunCode) and canonical(operation.language) == "python"
    is_layered = request.mount.mode is WorkspaceMode.COPY_ON_WRITE
    return is_python or is_layered or not isinstance(operation, RunCode)

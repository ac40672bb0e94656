"""The native sandbox: warm where it can be, cold where it must be, the same walls in both."""

from __future__ import annotations

from holdfast.core.ports import Slot, WorkspaceLease
from holdfast.core.types import Action, OutputSink, RunResult
from holdfast.sandbox.native.cold import ColdPath
from holdfast.sandbox.native.layers import HostLayers, NativeSettings
from holdfast.sandbox.native.pool import Pool
from holdfast.sandbox.native.warm import WarmPath
from holdfast.sandbox.runs import RunLedger


class NativeSandbox:
    """The port's implementation; `run` may be called by many tasks at once."""

    def __init__(
        self, settings: NativeSettings, layers: HostLayers, ledger: RunLedger, pool: Pool
    ) -> None:
        self._settings = settings
        self._cold = ColdPath(settings, layers, ledger)
        self._warm = WarmPath(settings, pool)

    async def run(
        self, action: Action, *, slot: Slot, workspace: WorkspaceLease, sink: OutputSink | None
    ) -> RunResult:
        if self._settings.path != "cold":
            result = await self._warm.run(action, workspace=workspace, sink=sink)
            if result is not None:
                return result
        return await self._cold.run(action, slot=slot, workspace=workspace, sink=sink)

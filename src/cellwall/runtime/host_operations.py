"""Step (8) of the operations that need no cell: Cellwall itself carries them out, on the host."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import anyio

from cellwall.core.channel_messages import ReceiveMessage, SendReply
from cellwall.core.connections import UseAccount
from cellwall.core.errors import BadInput
from cellwall.core.files import FileOperation, memory_root
from cellwall.core.labels import LabelsPort
from cellwall.core.outcomes import RunResult
from cellwall.core.port_connections import ConnectPort
from cellwall.core.ports import ConnectionsPort, EgressPort, GuardPort, ToolServersPort, VaultPort
from cellwall.core.sandbox_ports import SandboxPort, SnapshotsPort, WorkspacePort
from cellwall.core.snapshots import TakeSnapshot, WorkspaceSnapshot
from cellwall.core.telemetry import ActionWatch, Step
from cellwall.core.tool_servers import CallServerTool
from cellwall.core.types import Action, FetchUrl, ProcessOperation, ServeClient
from cellwall.runtime.egress import hold_client


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOperations:
    """The parts that carry them out."""

    workspaces: WorkspacePort
    sandbox: SandboxPort
    egress: EgressPort
    vault: VaultPort
    guard: GuardPort
    connections: ConnectionsPort | None
    snapshots: SnapshotsPort | None
    labels: LabelsPort

    async def run(  # noqa: PLR0911  # one case for each operation
        self, action: Action, watch: ActionWatch, servers: ToolServersPort | None
    ) -> RunResult | None:
        """The result, which is untrusted; None for an operation that runs in a cell."""
        match action.operation:
            case FileOperation(path=path) if not (
                action.session_id and memory_root(path, second_user=action.second_user)
            ):
                # Opens descriptors beneath the root of the workspace. Other files lie in the
                # memory of the cell, which is started if there is none.
                watch.step(Step.RUN)
                payload = await anyio.to_thread.run_sync(self.workspaces.operate, action)
                return RunResult(None, payload=payload)
            case TakeSnapshot():
                watch.step(Step.RUN)
                payload = await anyio.to_thread.run_sync(self._take_snapshot, action)
                return RunResult(None, payload=payload)
            case ProcessOperation() | ConnectPort():  # of processes that hold their leases already
                watch.step(Step.RUN)
                return await self.sandbox.steer(action)
            case CallServerTool() as call:  # of a server that holds its leases already
                watch.step(Step.RUN)
                return await required_servers(servers).call(action, call)
            case ServeClient() as client:
                # (7) The leases of a run without a cell, until the interface ends it (NET-8).
                watch.step(Step.RUN)
                return await hold_client(self.vault, self.egress, action, client)
            case FetchUrl():
                return await self._fetch(action, watch)
            case UseAccount() as use:
                # (7) By the egress rules. Events are texts of other people.
                watch.step(Step.RUN)
                return await self._known_accounts().use(
                    action, use, vault=self.vault, egress=self.egress
                )
            case ReceiveMessage() | SendReply() as message:
                # Nothing runs: the text itself is the effect, and (9) leaves it without secrets.
                watch.step(Step.RUN)
                text = await anyio.to_thread.run_sync(self.guard.read_message, message)
                return RunResult(None, text=text)
            case _:
                return None

    def _take_snapshot(self, action: Action) -> WorkspaceSnapshot:
        """The labels of the session are those of the snapshot, and of what is made of it."""
        if self.snapshots is None or action.session_id is None:
            raise BadInput("this runtime takes no snapshots")
        return self.snapshots.take(
            action, functools.partial(self.labels.keep_in, action.session_id)
        )

    async def _fetch(self, action: Action, watch: ActionWatch) -> RunResult:
        """(7), (8) The proxy fetches, by the egress rules (NET-4)."""
        watch.step(Step.LEASE)
        async with self.vault.lease(action) as secrets:
            watch.step(Step.RUN)
            page = await self.egress.fetch(action, secrets)
        return RunResult(None, text=page.text, payload=page)

    def _known_accounts(self) -> ConnectionsPort:
        if self.connections is None:
            raise BadInput("this runtime has no connected accounts")
        return self.connections


def required_servers(servers: ToolServersPort | None) -> ToolServersPort:
    """The other MCP servers of the client; raises where the interface has none."""
    if servers is None:
        raise BadInput("this interface serves no other MCP servers", code="CW-MCP-UNKNOWN")
    return servers

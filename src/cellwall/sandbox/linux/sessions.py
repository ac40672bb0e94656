"""The live cells of a runtime, one for each session that has run something."""

from __future__ import annotations

import threading
import time
from functools import partial

import anyio

from cellwall.core.errors import SkillRefused
from cellwall.core.outcomes import RunResult
from cellwall.core.port_connections import ConnectPort
from cellwall.core.sandbox_ports import LiveUsage
from cellwall.core.types import Action, ProcessOperation, RunCode
from cellwall.sandbox.files.merged_view import MergedViews, sandbox_ended
from cellwall.sandbox.linux import jobs
from cellwall.sandbox.linux.cell_actions import CellActions, environment_of
from cellwall.sandbox.linux.jobs import CellRunRequest
from cellwall.sandbox.linux.kernel_memory import UnchargedMemory
from cellwall.sandbox.linux.layers import HostLayers, NativeSettings
from cellwall.sandbox.linux.live_cell import LiveCell
from cellwall.sandbox.linux.live_cell_factory import CellFactory, LiveCellFactory, skill_digests
from cellwall.sandbox.linux.live_session import (
    LiveSession,
    exceeded_limit,
)
from cellwall.sandbox.linux.pool import Pool
from cellwall.sandbox.linux.port_connections import hold_connection
from cellwall.sandbox.linux.process_steering import steer_process
from cellwall.sandbox.run_ledger import RunLedger

_UNUSED_S = 30.0
"""A model takes about as long to write its first code. An unused cell holds a few MB."""


class LiveSessions:
    """`run` and `steer` may be called by many tasks and threads at once."""

    def __init__(
        self,
        settings: NativeSettings,
        layers: HostLayers,
        ledger: RunLedger,
        pool: Pool,
        factory: CellFactory | None = None,
    ) -> None:
        self._settings, self._pool = settings, pool
        self._cell_factory = factory or LiveCellFactory(settings, layers, ledger, pool)
        self.views = MergedViews(self._cell_factory.open_view)
        self._lock = threading.Lock()
        self._sessions: dict[str, LiveSession] = {}
        self._actions = CellActions(settings)
        pool.on_tick(self._check_idle_cells)

    @property
    def count(self) -> int:
        """Live sandboxes that have not ended."""
        return len(self._sessions)

    # --- running

    async def run(self, request: CellRunRequest) -> RunResult:
        session = self._session(request.action)
        session.workspace = request.workspace
        return await self._actions.run(session, await self._cell_of(session, request), request)

    async def open_early(self, request: CellRunRequest) -> None:
        """Open the cell of a session and start its interpreter before the first action."""
        session = self._session(request.action)
        session.workspace = request.workspace
        # As in `_cell_of`: a call meanwhile waits for the lock of the session, and finds the cell.
        await anyio.to_thread.run_sync(partial(self._open, session, request, is_early=True))

    # --- steering

    async def steer(self, action: Action) -> RunResult:
        operation = action.operation
        if isinstance(operation, ConnectPort):
            return await hold_connection(self._session(action), operation)
        assert isinstance(operation, ProcessOperation)  # noqa: S101  # by the contract of the port
        return await steer_process(self._session(action), action, operation)

    def _check_idle_cells(self) -> None:
        """Limits also bind processes that run between calls, and those that no call waits for."""
        with self._lock:
            sessions = list(self._sessions.values())
        for session in sessions:
            self._close_unused(session, now=time.monotonic())
            cell = session.cell
            if cell is None:
                continue
            try:
                limit = exceeded_limit(session, cell)
            except OSError:  # the cell is ending, or cannot be checked: end it in both cases
                cell.end_processes()
                continue
            if limit is not None:
                cell.end_processes(limit)

    # --- cells

    @staticmethod
    def _close_unused(session: LiveSession, *, now: float) -> None:
        cell = session.take_unused_cell(now=now)
        if cell is not None:
            cell.close()

    def close_unused(self, session_id: str) -> None:
        """End a cell that was opened early, if no action has used it."""
        session = self._find(session_id)
        if session is not None:
            self._close_unused(session, now=float("inf"))

    def _session(self, action: Action) -> LiveSession:
        assert action.session_id is not None  # noqa: S101  # only sessions have live cells
        with self._lock:
            return self._sessions.setdefault(action.session_id, LiveSession())

    async def _cell_of(self, session: LiveSession, request: CellRunRequest) -> LiveCell:
        cell = session.use_cell(has_network=request.network is not None)
        if cell is None or not cell.is_alive():
            # The thread is not cancelled: it completes the cell, and the next call finds it.
            cell = await anyio.to_thread.run_sync(partial(self._open, session, request))
        if cell.parts.skills != skill_digests(request.skills):
            # A skill in the cell was removed or replaced since: the session must not go on with an
            # unapproved skill, and the record must not name another one (SKL-1).
            raise SkillRefused(
                "the skills of this sandbox were changed since it began",
                hint="Create a new sandbox.",
                code="CW-SKILL-CHANGED",
            )
        return cell

    def _open(
        self, session: LiveSession, request: CellRunRequest, *, is_early: bool = False
    ) -> LiveCell:
        action = request.action
        with session.lock:
            has_network = request.network is not None
            if has_network:
                self._close_unused(session, now=float("inf"))
            cell = session.cell if is_early else session.use_cell(has_network=has_network)
            if cell is not None:
                if cell.is_alive():
                    return cell
                dead = session.take_cell()
                if dead is not None:
                    dead.close()
            if session.is_ended:
                raise sandbox_ended()
            assert action.session_id is not None  # noqa: S101  # as in `_session`
            with self.views.replacing(action.session_id) as put_view:
                parts = self._cell_factory.open(
                    action, request.mount, request.skills, request.network
                )
                if parts.view is not None:
                    put_view(parts.view)
            cell = LiveCell(parts, max_result_bytes=self._settings.max_result_bytes)
            if is_early:
                try:
                    self._start_early(cell, request)
                except BaseException:
                    cell.close()
                    raise
            session.put_cell(cell, unused_until=time.monotonic() + _UNUSED_S if is_early else None)
            session.uncharged = UnchargedMemory(cell.pids, parts.limits)
            session.has_egress = request.network is not None
            self._pool.stay_awake()
            return cell

    def _start_early(self, cell: LiveCell, request: CellRunRequest) -> None:
        """Start the interpreter that the first code would start. No other call has the cell yet, so
        `turn` need not be held."""
        operation = request.action.operation
        assert isinstance(operation, RunCode)  # noqa: S101  # by the caller
        program, _ = jobs.program_of(request.action, only_deno=self._settings.only_deno)
        cell.interpreter(environment_of(request, program), program, operation)

    def _find(self, session_id: str) -> LiveSession | None:
        with self._lock:
            return self._sessions.get(session_id)

    def cell_of(self, session_id: str) -> LiveCell | None:
        """The cell of a session, if there is one that lives."""
        session = self._find(session_id)
        cell = None if session is None else session.cell
        return cell if cell is not None and cell.is_alive() else None

    def close_cell(self, session_id: str) -> None:
        """End every process of a live sandbox, and wait; the next run gets a new cell."""
        session = self._find(session_id)
        if session is not None:
            with session.lock:
                cell = session.take_cell()
            if cell is not None:
                cell.close()

    def usage(self, session_id: str, *, with_memory: bool) -> LiveUsage:
        session = self._find(session_id)
        if session is None:
            return LiveUsage()
        # A copy: a thread may start another process meanwhile.
        processes = list(session.processes.values())
        running = frozenset(each.id for each in processes if not each.ended.is_set())
        cell = session.cell if with_memory else None
        return LiveUsage(session.cpu_s(), running, None if cell is None else cell.memory_bytes())

    def halt(self, session_id: str) -> None:
        """End every process of a live sandbox; its files stay, and the next run gets a new cell."""
        session = self._find(session_id)
        cell = None if session is None else session.cell
        if cell is not None:
            cell.end_processes()

    def end(self, session_id: str) -> None:
        """End a live sandbox and every process in it."""
        with self._lock:
            session = self._sessions.pop(session_id, None)
        if session is None:
            return
        with session.lock:
            session.is_ended = True
            cell = session.take_cell()
        if cell is not None:
            cell.close()

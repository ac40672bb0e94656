"""What actions of accounts cost: usage of live sandboxes, divided among those who pay (RBAC-4).

A live sandbox is measured as a whole: a program can fork, daemonise and outlive the action that
started it. What the sandbox used since the last reading is paid in equal parts

   (1) by the actions that run in it now, and by those whose background programs run now;
   (2) if there is none, by the last one that ran: what runs is what that action left.

The reading is repeated, so a program without an end is booked as well. Once a budget is used up,
every process of the sandbox is ended. A run whose caller waits for it is left to its own limits,
and the next one is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import anyio

from cellwall.core.errors import CellwallError, Denied, LimitExceeded
from cellwall.core.network import CellNetwork
from cellwall.core.outcomes import EventKind, Outcome, Usage
from cellwall.core.ports import Reservation
from cellwall.core.sandbox_ports import SandboxPort
from cellwall.core.tool_servers import RunServer
from cellwall.core.types import Action, Json
from cellwall.runtime.recording import Recorder

_BOOK_EVERY_S = 1.0
_MIN_CPU_S = 0.02
"""Less is left for the next reading: a booking is a transaction of the database."""


class Unmetered:
    """Implements `QuotaPort` and `Reservation` for users of this machine.

    An action of an account is refused: it would be neither counted nor paid for.
    """

    async def has_room(self, action: Action) -> bool:
        return action.principal.account is None

    async def reserve(self, action: Action) -> Unmetered:
        if action.principal.account is not None:
            raise Denied(
                "this runtime counts no usage, so it serves no accounts",
                hint="Wire the runtime with `App.metered`.",
                code="CW-UNMETERED",
            )
        return self

    def start(self) -> None:
        """Nothing is measured."""

    def add(self, usage: Usage) -> None:
        """Nothing is counted."""

    async def settle(self, outcome: Outcome | None) -> None:
        """Nothing is booked."""

    async def book(self) -> None:
        """Nothing is booked."""


@dataclass(frozen=True, slots=True, eq=False)
class _Payer:
    action: Action
    held: Reservation


@dataclass(slots=True)
class _MeteredSession:
    last: _Payer
    cpu_s: float = 0.0
    sent_bytes: int = 0
    """What was divided so far."""
    network: CellNetwork | None = None
    runs: dict[str, _Payer] = field(default_factory=dict)
    programs: dict[int, _Payer] = field(default_factory=dict)
    owing: set[_Payer] = field(default_factory=set)

    def divide(self, sandbox: SandboxPort, session_id: str, *, min_cpu_s: float = 0.0) -> None:
        """Add what was used since the last call to the reservations of those who pay."""
        used = sandbox.live_usage(session_id, with_memory=False)
        sent_bytes = 0 if self.network is None else self.network.usage.bytes_up
        cpu_s, new_bytes = used.cpu_s - self.cpu_s, sent_bytes - self.sent_bytes
        is_any = cpu_s > 0 or new_bytes > 0
        if is_any and (cpu_s >= min_cpu_s or new_bytes > 0):
            running = [payer for tag, payer in self.programs.items() if tag in used.running]
            payers = {*self.runs.values(), *running} or {self.last}
            share = Usage(cpu_s=max(cpu_s, 0.0) / len(payers), sent_bytes=new_bytes // len(payers))
            for payer in payers:
                payer.held.add(share)
            self.owing |= payers
            self.cpu_s, self.sent_bytes = max(used.cpu_s, self.cpu_s), sent_bytes
        for tag in self.programs.keys() - used.running:
            self.last = self.programs.pop(tag)


class UsageMeter:
    """The live sandboxes of a runtime in which accounts have run something."""

    def __init__(self, sandbox: SandboxPort, recorder: Recorder) -> None:
        self._sandbox, self._recorder = sandbox, recorder
        self._lock = threading.Lock()
        self._sessions: dict[str, _MeteredSession] = {}
        self._ended: set[_Payer] = set()

    def running(
        self, action: Action, held: Reservation, network: CellNetwork | None
    ) -> AbstractContextManager[None]:
        """Measure a run in a live sandbox; its share is added to `held` at the end of the block."""
        session_id = action.session_id
        if action.principal.account is None or session_id is None:
            return nullcontext()
        return self._measured(session_id, action, held, network)

    @contextmanager
    def _measured(
        self, session_id: str, action: Action, held: Reservation, network: CellNetwork | None
    ) -> Iterator[None]:
        payer = _Payer(action, held)
        with self._lock:
            session = self._sessions.setdefault(session_id, _MeteredSession(payer))
            session.divide(self._sandbox, session_id)
            session.runs[action.id] = payer
            session.network = network or session.network
        try:
            yield
        finally:
            with self._lock:
                session.divide(self._sandbox, session_id)
                session.runs.pop(action.id, None)
                session.last = payer

    def add_program(self, action: Action, held: Reservation, program: int) -> None:
        """A background program that the action has started."""
        with self._lock:
            session = self._sessions.get(action.session_id or "")
            if session is not None:
                session.programs[program] = _Payer(action, held)

    def end_session(self, session_id: str) -> None:
        """Before the end of a live sandbox: the rest is booked with the next round."""
        with self._lock:
            session = self._sessions.pop(session_id, None)
            if session is not None:
                session.divide(self._sandbox, session_id)
                self._ended |= session.owing

    async def watch(self) -> None:
        """Book again and again what live sandboxes use."""
        while True:
            await anyio.sleep(_BOOK_EVERY_S)
            await self.book()

    async def book(self) -> None:
        """Book what was used, and end the programs whose budget is used up."""
        with self._lock:
            ended, self._ended = self._ended, set()
            sessions = dict(self._sessions)
        for payer in ended:
            await self._book(payer, self._ended)
        for session_id, session in sessions.items():
            with self._lock:
                session.divide(self._sandbox, session_id, min_cpu_s=_MIN_CPU_S)
                owing, session.owing = session.owing, set()
            for payer in owing:
                refusal = await self._book(payer, session.owing)
                if refusal is not None and _runs_on(session, payer):
                    self._halt(session_id, payer, refusal)

    async def _book(self, payer: _Payer, unbooked: set[_Payer]) -> LimitExceeded | None:
        try:
            await payer.held.book()
        except LimitExceeded as refusal:
            return refusal
        except CellwallError:  # the database does not answer: the next round tries again
            unbooked.add(payer)
        return None

    def _halt(self, session_id: str, payer: _Payer, refusal: LimitExceeded) -> None:
        self._sandbox.halt(session_id)
        message = f"{refusal.message}; the programs of the sandbox were ended"
        body: dict[str, Json] = {"status": "denied", "code": refusal.code, "message": message}
        body["error_code"] = refusal.code
        self._recorder.quietly(payer.action, body, EventKind.DENIAL)


def _runs_on(session: _MeteredSession, payer: _Payer) -> bool:
    """Whether no limit of its own ends what the payer runs: a server, a program without a run."""
    is_run = payer.action.id in session.runs
    return not is_run or isinstance(payer.action.operation, RunServer)

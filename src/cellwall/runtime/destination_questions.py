"""Questions about destinations that no rule names, while their connections wait (NET-9).

Each question is an action of its own, `ReachHost`, which takes all steps of the pipeline: its
role, the rules that deny it, the labels of the session and the approval broker decide, and intent
and outcome are recorded. Code in a cell can cause a question, and cannot answer one.

  (1) connections to one destination share one question, and at most MAX_CONNECTIONS wait
  (2) one question at a time and at most MAX_QUESTIONS in a session: destinations that were
      allowed, and denials
  (3) a denied destination is not asked about again until the action ends
  (4) no action under way, no channel, no answer in time: refused
  (5) with the action end its open questions, and the connections that its answers have allowed

The questions are asked on the loop of the action, whose interface may have a channel of its own;
the egress loop serves other connections meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import anyio

from cellwall.core.errors import EgressRefused
from cellwall.core.network import EgressContext
from cellwall.core.outcomes import Outcome, Status
from cellwall.core.types import Action, ReachHost
from cellwall.runtime.label_scopes import context_of

MAX_QUESTIONS = 20
"""In one session: a flood of names must not become a flood of questions."""
MAX_CONNECTIONS = 64
"""Of one session, while they wait; each holds one of its connection slots."""
_WAIT_MARGIN_S = 5.0
"""After the deadline of the question, for its record."""
_END_TIMEOUT_S = 5.0

_Place: TypeAlias = tuple[str, int]
_Perform: TypeAlias = Callable[[Action], Awaitable[Outcome]]


@dataclass(slots=True)
class _AskedSession:
    """One session: the actions that run in it, and what was asked."""

    askers: dict[str, _DestinationAsker] = field(default_factory=dict)
    """By action."""
    allowed: set[_Place] = field(default_factory=set)
    denial_count: int = 0
    waiting_count: int = 0

    def has_room(self, place: _Place) -> bool:
        return place in self.allowed or len(self.allowed) + self.denial_count < MAX_QUESTIONS


class DestinationQuestions:
    """Implements `DestinationsPort` on the loops of actions, `DestinationConsent` on egress's."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: of a question."""
        self._wait_s = timeout_s + _WAIT_MARGIN_S
        self._sessions: dict[str, _AskedSession] = {}

    def open(self, action: Action, perform: _Perform) -> AbstractAsyncContextManager[None]:
        """Questions are asked while this is open."""
        return self._ask_about(action, perform) if action.asks_destinations else nullcontext()

    @asynccontextmanager
    async def _ask_about(self, action: Action, perform: _Perform) -> AsyncIterator[None]:
        key = action.session_id or action.id
        session = self._sessions.setdefault(key, _AskedSession())
        asker = session.askers[action.id] = _DestinationAsker(action, perform, session)
        try:
            yield
        finally:
            del session.askers[action.id]
            if action.session_id is None:
                self._sessions.pop(key, None)
            await asker.end()

    def end_session(self, session_id: str) -> None:
        self._sessions.pop(session_id, None)

    async def ask(
        self,
        context: EgressContext,
        *,
        host: str,
        port: int,
        method: str,
        withdraw: Callable[[str], Future[None]],
    ) -> None:
        session = self._sessions.get(context.session_id or context.action_id)
        asker = None if session is None else session.askers.get(context.action_id)
        if session is None or asker is None:
            raise _refused(host, port, "no action is under way for which a person could be asked")
        if session.waiting_count >= MAX_CONNECTIONS:
            raise _refused(host, port, "too many connections wait for a person's answer")
        operation = ReachHost(host, port, method, parent=context.action_id)
        question = asker.question(operation, withdraw)
        session.waiting_count += 1
        try:
            # Shielded: another connection may wait for the same answer.
            waiting = asyncio.shield(asyncio.wrap_future(question))
            is_allowed = await asyncio.wait_for(waiting, self._wait_s)
        except TimeoutError:
            raise _refused(host, port, "no person answered in time") from None
        except asyncio.CancelledError:
            if question.cancelled():
                raise _refused(host, port, "the action has ended") from None
            raise
        finally:
            session.waiting_count -= 1
        if not is_allowed:
            raise _refused(host, port, "no person has allowed it")
        if asker.is_ended:  # before `withdraw`, which the caller would not outlive
            raise _refused(host, port, "the action has ended")


class _DestinationAsker:
    """Asks on the loop of one action."""

    def __init__(self, action: Action, perform: _Perform, session: _AskedSession) -> None:
        self._action = action
        self._perform = perform
        self._session = session
        self._loop = asyncio.get_running_loop()
        self._turn = asyncio.Lock()
        self._questions: dict[_Place, Future[bool]] = {}
        """All of the action: those that wait, and those that were answered."""
        self._tasks: set[asyncio.Task[object]] = set()
        self._withdrawals: set[Callable[[str], Future[None]]] = set()
        self.is_ended = False

    def question(
        self, operation: ReachHost, withdraw: Callable[[str], Future[None]]
    ) -> Future[bool]:
        """The question about this destination, perhaps one that was asked before; on the loop of
        egress. Whether the destination is allowed for this action."""
        place = operation.host, operation.port
        found = self._questions.get(place)
        if found is None:
            if len(self._questions) >= MAX_QUESTIONS or not self._session.has_room(place):
                raise _refused(*place, "this session has asked about too many destinations")
            found = self._questions[place] = asyncio.run_coroutine_threadsafe(
                self._ask(operation), self._loop
            )
        self._withdrawals.add(withdraw)
        return found

    async def end(self) -> None:
        """(5) Withdraw the open questions: the caller is gone, which denies. And the answers."""
        self.is_ended = True
        for task in self._tasks:
            task.cancel()
        waiting: set[asyncio.Future[Any]] = set(self._tasks)
        with suppress(RuntimeError):  # egress has ended, and its connections with it
            waiting |= {asyncio.wrap_future(each(self._action.id)) for each in self._withdrawals}
        if waiting:
            with anyio.CancelScope(shield=True):
                await asyncio.wait(waiting, timeout=_END_TIMEOUT_S)

    async def _ask(self, operation: ReachHost) -> bool:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine of the loop runs in a task
        self._tasks.add(task)
        place = operation.host, operation.port
        try:
            async with self._turn:  # (2)
                if self.is_ended or not self._session.has_room(place):
                    return False
                action = self._action
                outcome = await self._perform(
                    Action(
                        principal=action.principal,
                        operation=operation,
                        session_id=action.session_id,
                        policy=action.policy,
                        context=context_of(action),
                    )
                )
                if outcome.status is Status.OK:
                    self._session.allowed.add(place)
                    return True
                self._session.denial_count += 1
                return False
        finally:
            self._tasks.discard(task)


def _refused(host: str, port: int, why: str) -> EgressRefused:
    return EgressRefused(
        f"{host}:{port} is not on the allowlist, and {why}",
        hint=f"To allow it, use `--allow-domain {host}:{port}`.",
        code="CW-NOT-ALLOWED",
    )

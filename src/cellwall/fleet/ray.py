"""The fleet on Ray: its actors are the hosts, its failure detection and its calls are used.

What must survive every process stands in the database: which host has a session, who drains, who is
lost. So several fronts work side by side, and one that starts again has lost nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from random import Random
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.hosts import Held, HostRecord, HostsPort, has_rivals, second_coordinator
from cellwall.core.ids import new_id
from cellwall.fleet.engine import (
    AnswerBroken,
    HostState,
    Place,
    Receive,
    Scope,
    Send,
    Wish,
    call_failed,
    host_lost,
)
from cellwall.fleet.exchanges import Plain, plain_scope
from cellwall.fleet.open_calls import HostGone, OpenCalls
from cellwall.fleet.placement import place_session
from cellwall.fleet.ray_machine import (
    connect,
    disconnect,
    start_host,
    stop_host,
    wait_for_host,
    wait_for_node,
)
from cellwall.fleet.ray_peers import actor_name
from cellwall.fleet.ray_questions import ask_ray, coordinator_id, named_actors
from cellwall.fleet.request_bodies import RequestBodies
from cellwall.fleet.states import state_of

__all__ = [
    "RayFleet",
    "connect",
    "coordinator_id",
    "disconnect",
    "start_host",
    "stop_host",
    "wait_for_host",
    "wait_for_node",
]
_log = logging.getLogger("cellwall.fleet")
_LOOK_EVERY_S = 0.25
_RAY_ANSWERS_WITHIN_S = 0.5
_HANDLE_WITHIN_S = 10.0
_TOLD_S = 2.0
"""A host tells its load at least this often."""
_MAX_KNOWN = 100_000
UNANSWERED = "host-lost"


class RayFleet:
    """Implements `FleetPort`; `watch` must run meanwhile."""

    is_claiming = False

    def __init__(
        self, hosts: HostsPort, *, coordinator: str, lost_after_s: float, bodies: RequestBodies
    ) -> None:
        self._hosts, self._lost_after_s, self._bodies = hosts, lost_after_s, bodies
        self._coordinator, self._is_second = coordinator, False
        self._states: dict[str, HostState] = {}
        self._actors: dict[str, Any] = {}
        self._asking: dict[str, asyncio.Future[Any]] = {}
        self._calls = OpenCalls()
        self._looking = asyncio.Lock()
        self._naming: asyncio.Future[frozenset[str]] | None = None
        self._declaring: dict[str, asyncio.Future[None]] = {}
        self._placed: deque[tuple[float, str]] = deque()
        self._chance = Random()  # noqa: S311  # spreads load, keeps no secret
        self._known: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """Host and incarnation of a session: a host that starts again has none of its sessions."""
        self._looked_at = -_TOLD_S

    async def watch(self) -> None:
        """Follow the hosts, until cancelled. A failed look changes nothing."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                await self.look()
            except (CellwallError, RayError, OSError) as error:
                _log.warning("the hosts were not looked at: %s", type(error).__name__)

    async def look(self) -> None:
        """Who is there: the database tells the leases, and Ray which processes live."""
        async with self._looking:
            await self._look()

    async def _look(self) -> None:
        records = await self._hosts.list_hosts()
        self._is_second = has_rivals(records, self._coordinator, seen_s=self._lost_after_s)
        if self._is_second:  # their processes are unknown to this Ray, and not lost
            self._states = {}
            raise second_coordinator()
        alive = await self._live_names()  # behind the records: a host has its name before it joins
        states = {}
        for record in records:
            if alive is None:
                before = self._states.get(record.id)
                is_gone = (
                    before is not None
                    and before.incarnation == record.incarnation
                    and before.is_lost
                )
            else:
                is_gone = actor_name(record.id, record.incarnation) not in alive
            is_late = record.unseen_s > self._lost_after_s
            is_lost = record.is_lost or is_gone or is_late
            states[record.id] = state_of(record, is_lost=is_lost)
            if is_lost:
                self._actors.pop(record.incarnation, None)
                self._calls.end(record.id)
            if is_late and not record.is_lost and record.incarnation not in self._declaring:
                # Beside the looks: a transaction may wait for a lock that a host which is cut off
                # still has, and the other hosts must be looked at meanwhile.
                self._declaring[record.incarnation] = asyncio.ensure_future(self._declare(record))
        self._states, self._looked_at = states, time.monotonic()

    async def _live_names(self) -> frozenset[str] | None:
        """None where Ray does not answer at once: then the leases decide. Ray's control
        store is one process, which can hang while it tries to reach a machine that is cut off."""
        if self._naming is not None and not self._naming.done():
            return None  # an older question; its answer would miss hosts that have joined since
        self._naming = ask_ray(named_actors)
        await asyncio.wait({self._naming}, timeout=_RAY_ANSWERS_WITHIN_S)
        if not self._naming.done():
            return None
        try:
            return self._naming.result()
        except RayError as error:
            _log.warning("Ray does not tell which hosts live: %s", type(error).__name__)
            return None

    async def _declare(self, record: HostRecord) -> None:
        try:
            after_s = self._lost_after_s
            if await self._hosts.declare_lost(record, unseen_s=after_s, answer=UNANSWERED):
                _log.error("host %s is lost: its sessions have ended", record.id)
        except CellwallError as error:
            _log.warning("host %s was not declared lost: %s", record.id, error.code)
        finally:
            del self._declaring[record.incarnation]

    async def place(self, wish: Wish) -> str:
        await self._look_if_unknown()
        since_s = time.monotonic() - _TOLD_S
        while self._placed and self._placed[0][0] < since_s:
            self._placed.popleft()
        placed = Counter(host_id for _, host_id in self._placed)
        chosen = place_session(tuple(self._states.values()), wish, placed, self._chance)
        self._placed.append((time.monotonic(), chosen.id))
        return chosen.id

    async def standby(self) -> str:
        return await self.place(Wish())  # raises with the reason: every live host is known

    async def release(self, host_id: str) -> None:
        pass

    async def _look_if_unknown(self) -> None:
        """At the first request, and while another coordinator serves: raises then."""
        if not self._states or self._is_second:
            await self.look()

    async def find(self, kind: Held, name: str) -> Place | None:
        await self._look_if_unknown()
        host_id, incarnation = self._known.get(name, ("", ""))
        if self._is_there(host_id) and self._states[host_id].incarnation == incarnation:
            self._known.move_to_end(name)
            return Place(host_id, is_lost=False)
        holder = await self._hosts.find_holder(kind, name)
        if holder is None:
            return None
        is_there = self._is_there(holder.service_id)
        if is_there and not holder.is_ended:
            self._known[name] = holder.service_id, self._states[holder.service_id].incarnation
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        is_lost = holder.is_lost or not is_there
        return Place(holder.service_id, is_lost=is_lost, labels=holder.labels)

    def _is_there(self, host_id: str) -> bool:
        state = self._states.get(host_id)
        return state is not None and not state.is_lost

    async def call(self, host_id: str, scope: Scope, receive: Receive, send: Send) -> None:
        actor = await self._actor(host_id)
        call_id, has_begun, is_whole = new_id("call"), False, False
        async with AsyncExitStack() as held:
            body = await held.enter_async_context(self._bodies.read(scope, receive))
            relay: asyncio.Task[None] | None = None
            try:
                async with self._calls.breakable(host_id):
                    answer = actor.answer.remote(call_id, plain_scope(scope), body)
                    del body  # of which Ray has a copy until the first part of the answer
                    relay = asyncio.ensure_future(_relay(actor, call_id, scope, receive))
                    async for messages in _parts(actor, call_id, answer):
                        await held.aclose()
                        for message in messages:
                            has_begun = True
                            await send(message)
                is_whole = True
            except (RayActorError, HostGone):
                _log.warning("host %s was lost during a call", host_id)
                if has_begun:
                    raise AnswerBroken from None
                raise host_lost(was_sent=True) from None
            except RayError as error:  # without its text, which may be of the request
                _log.error("a call of Ray failed: %s", type(error).__name__)
                if has_begun:
                    raise AnswerBroken from None
                raise call_failed() from None
            finally:
                if relay is not None:
                    if not is_whole:  # the host may still be there, and would wait for this front
                        actor.leave.remote(call_id)
                    relay.cancel()
                    await asyncio.wait({relay})

    async def _actor(self, host_id: str) -> Any:  # noqa: ANN401  # Ray's handle has no type
        state = self._states.get(host_id)
        if state is None:
            await self.look()
            state = self._states.get(host_id)
        if state is None or state.is_lost:
            raise host_lost()
        found = self._actors.get(state.incarnation)
        if found is None:
            found = self._actors[state.incarnation] = await self._handle_of(state)
        return found

    async def _handle_of(self, state: HostState) -> Any:  # noqa: ANN401  # Ray's handle has no type
        """Asked for once at a time, and not waited for without end: Ray's control store may be away
        for minutes, and each question is a thread."""
        name = actor_name(state.id, state.incarnation)
        asking = self._asking.get(name)
        if asking is None:
            asking = self._asking[name] = ask_ray(lambda: ray.get_actor(name))
            asking.add_done_callback(lambda _: self._asking.pop(name, None))
        await asyncio.wait({asking}, timeout=_HANDLE_WITHIN_S)
        if not asking.done():
            raise call_failed(was_sent=False)
        try:
            return asking.result()
        except ValueError:
            raise host_lost() from None
        except RayError as error:
            _log.error("Ray does not tell where a host is: %s", type(error).__name__)
            raise call_failed(was_sent=False) from None

    async def list(self) -> tuple[HostState, ...]:
        if time.monotonic() - self._looked_at > _TOLD_S:
            await self.look()
        return tuple(self._states.values())

    async def lost(self) -> tuple[str, ...]:
        return tuple(state.id for state in await self.list() if state.is_lost)

    async def drain(self, host_id: str, *, is_draining: bool = True) -> None:
        if not await self._hosts.set_draining(host_id, is_draining=is_draining):
            raise _unknown(host_id)
        await self.look()

    async def remove(self, host_id: str) -> None:
        await self.look()
        if host_id not in self._states:
            raise _unknown(host_id)
        if self._is_there(host_id):
            await stop_host(await self._actor(host_id))
        await self._hosts.remove_host(host_id)
        await self.look()

    async def owner_code(self) -> str:
        """Of the sign-in link of the first owner; asks any host."""
        live = [state.id for state in await self.list() if not state.is_lost]
        return str(await (await self._actor(live[0])).owner_code.remote()) if live else ""


async def _parts(
    actor: Any,  # noqa: ANN401  # Ray's handle has no type
    call_id: str,
    answer: Any,  # noqa: ANN401  # Ray's reference has no type
) -> AsyncIterator[Sequence[Plain]]:
    """The messages of one answer. The next ones are asked for when the client has taken those
    before."""
    for number in itertools.count(1):
        part = await answer
        yield part["messages"]
        if part["is_last"]:
            return
        answer = actor.more.remote(call_id, number)


async def _relay(actor: Any, call_id: str, scope: Scope, receive: Receive) -> None:  # noqa: ANN401
    """What the client sends behind the request, one after the other; ends with the connection."""
    end = "websocket.disconnect" if scope["type"] == "websocket" else "http.disconnect"
    while True:
        message = await receive()
        if message["type"] == end or scope["type"] == "websocket":
            with suppress(RayError):  # the call itself tells of it
                await actor.feed.remote(call_id, dict(message))
        if message["type"] == end:
            return


def _unknown(host_id: str) -> BadInput:
    return BadInput(
        f"there is no host {host_id[:60]!r} in the fleet",
        hint="`cellwall fleet status` shows the hosts.",
        code="CW-FLEET-UNKNOWN",
    )

"""The MCP servers of one client: each in a cell of its own, started with the first call (SRV-7).

   (1) judge: only a tool that is offered, which means accepted by a person
   (2) start the server: an action of its own, with its leases, for as long as the server runs
   (3) compare what it lists with the pins; what is new or changed is quarantined
   (4) call; a server that has announced other tools is compared again first

A client's credentials are not known here: a server gets the variables and secrets of its own entry.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.abc
import anyio.to_thread

from cellwall.core.errors import CellwallError, Denied, ServerFailed
from cellwall.core.ids import new_id
from cellwall.core.outcomes import Event, EventKind, Outcome, RunResult
from cellwall.core.ports import ApproverPort
from cellwall.core.tool_servers import CallServerTool, ServerPipe
from cellwall.core.types import Action, Json, Principal, WorkspaceMode
from cellwall.core.verdict import Decision, Verdict
from cellwall.mcp_servers.definitions import ToolSet
from cellwall.mcp_servers.pins import compare, usable
from cellwall.runtime.live_server import LiveServer, end_servers, new_connection
from cellwall.runtime.offered_tools import Offer, OfferedServers
from cellwall.runtime.server_entries import ServerSettings
from cellwall.runtime.server_start import hold_nothing, start_action, workspace_request
from cellwall.runtime.signed_grants import signed_grants

if TYPE_CHECKING:
    from cellwall.mcp_servers.connection import ServerConnection
    from cellwall.runtime.app import App

_MAX_STARTS, _STARTS_WITHIN_S = 5, 60.0
_SHOWN_ERROR_BYTES = 2000
_COMPARE_EVERY_S = 1.0
_QUARANTINE = "CW-MCP-QUARANTINE"
_SHARED = "its directory is writable, and users of a service must not share one"
_REVIEW = "A person can look at it: cellwall mcp gateway review {}"


class ToolServers:
    """Implements `ToolServersPort`. For one event loop."""

    def __init__(
        self,
        app: App,
        tasks: anyio.abc.TaskGroup,
        *,
        starter: Principal,
        policy: tuple[str, ...] = (),
        ask: ApproverPort | None = None,
        offers: OfferedServers | None = None,
        admit: Callable[[], None] | None = None,
    ) -> None:
        """`starter` is the person who has configured the servers, or a user of a service, with
        `admit`, which raises where the user has too many servers."""
        self._app = app
        self._tasks = tasks
        self._starter, self._policy = starter, policy
        self._ask = ask
        self._is_for_users = admit is not None
        self._admit = admit or (lambda: None)
        self._offers = offers or OfferedServers(
            app.store.home, lambda: app.scanner, signed_grants(app.store.home, app.settings)
        )
        self._catalog = self._offers.catalog
        self.listeners: set[Callable[[], None]] = set()
        """Called when other tools are offered."""
        self._live: dict[str, LiveServer] = {}
        self._ending: list[LiveServer] = []
        self._opening = anyio.Lock(fast_acquire=True)
        self._is_making = False

    # --- (1)

    def offered(self) -> Offer:
        """The tools that are offered now."""
        return self._offers.current()

    async def offered_now(self) -> Offer:
        """`offered`; definitions that a person has just accepted are scanned in a thread."""
        known = self._offers.current_if_known()
        if known is not None:
            return known
        return await anyio.to_thread.run_sync(self._offers.current)

    def names(self) -> frozenset[str]:
        """The servers that are configured."""
        return frozenset(self._catalog.names())

    def judge(self, operation: CallServerTool) -> Decision:
        key = (operation.server, operation.tool)
        try:
            entry = self._catalog.read(operation.server)
            offered = self._offers.for_entry(entry)
        except CellwallError as error:
            if operation.server in self._live:  # removed while it ran
                self._live[operation.server].stop.set()
            return Decision.built_in(Verdict.DENY, "mcp:unknown", error.message)
        live = self._live.get(operation.server)
        if self._is_withheld(entry.settings):
            return Decision.built_in(Verdict.DENY, "mcp:shared", _SHARED)
        if key not in offered.tools:
            reason = offered.withheld.get(key, "no person has accepted this tool")
        elif live is not None and live.is_up and not live.may_use(operation.tool):
            reason = "the server has changed this tool, or itself, since a person accepted it"
        else:
            return Decision.built_in(Verdict.ALLOW, "mcp:accepted", "a person has accepted it")
        return Decision.built_in(Verdict.DENY, "mcp:quarantine", reason)

    def is_named_together(self, server: str) -> bool:
        """Whether a person has consented to all labels of this server, as its tools are now."""
        entry, live = self._catalog.read(server), self._live.get(server)
        seen = "" if live is None or not live.is_up else live.sha256
        return entry.is_named_together and seen in ("", entry.pins.together)

    def _is_withheld(self, settings: ServerSettings) -> bool:
        """A directory that the servers of all users write would carry data between users."""
        return self._is_for_users and settings.mode == WorkspaceMode.READ_WRITE.value

    # --- (4)

    async def call(self, action: Action, operation: CallServerTool) -> RunResult:
        live = await self._opened(operation.server)
        connection = await self._current(live)
        if operation.tool not in (live.usable or ()):
            raise Denied(
                f"the server has changed {operation.rule_name}, or itself, since a person "
                "accepted it",
                hint=_REVIEW.format(operation.server),
                code=_QUARANTINE,
                detail=action.id,
            )
        return await connection.call(operation.tool, operation.arguments, elicit=operation.elicit)

    async def session_of(self, server: str) -> str:
        """The sandbox of a server, which need not run yet; approvals hold for it."""
        return (await self._opened(server)).session_id

    async def session_for(self, operation: CallServerTool) -> str | None:
        """`session_of`; None where a sandbox would be made for a call that is refused."""
        live = self._live.get(operation.server)
        try:
            if live is not None and live.settings == self._catalog.read(live.name).settings:
                return live.session_id
        except CellwallError:
            return None  # removed: the call is refused
        is_open = self.judge(operation).verdict is Verdict.ALLOW
        return await self.session_of(operation.server) if is_open else None

    async def look(self, server: str) -> ToolSet:
        """Start a server and return what it lists, for a review."""
        live = await self._opened(server)
        async with live.lock:
            connection = await self._started(live)
            return await connection.list_tools()

    def errors_of(self, server: str) -> str:
        """The end of the standard error of a server that has ended; redacted."""
        live = self._live.get(server)
        text = b"" if live is None else live.errors[-_SHOWN_ERROR_BYTES:]
        return self._app.runtime.guard.redact(text.decode("utf-8", "replace"))

    async def _opened(self, server: str) -> LiveServer:
        live = self._live.get(server)
        # Nearly all calls: no task opens or replaces a server now, and this one is unchanged.
        is_idle = live is not None and not self._opening.locked()
        if live is not None and is_idle and live.settings == self._catalog.read(server).settings:
            return live
        async with self._opening:
            live, settings = self._live.get(server), self._catalog.read(server).settings
            if live is not None and live.settings != settings:
                # Removed, and added again in another form.
                del self._live[server]
                await end_servers([live], self._ending)
                live = None
            if live is None:
                self._admit()
                # No await since, so that concurrent calls cannot exceed the number together.
                self._is_making = True
                try:
                    with anyio.CancelScope(shield=True):  # else an unknown sandbox would stay
                        session = self._app.session(workspace_request(settings), self._starter)
                        session_id = await anyio.to_thread.run_sync(session.__enter__)
                finally:
                    self._is_making = False
                live = self._live[server] = LiveServer(settings, session, session_id)
                # Before it starts: its first call is judged by what it can reach (POL-9).
                self._app.runtime.labels.label_session(self._start_action(live, hold_nothing))
            return live

    async def _current(self, live: LiveServer) -> ServerConnection:
        """The connection, with tools compared since the server last announced others."""
        known = live.connection
        if known is not None and live.is_up and not live.lock.locked() and not known.must_list:
            return known  # as nearly always
        async with live.lock:
            connection = await self._started(live)
            if connection.must_list:
                await self._compare(live, await connection.list_tools())
            return connection

    # --- (2)

    async def _started(self, live: LiveServer) -> ServerConnection:
        if live.connection is not None and live.is_up:
            return live.connection
        now_s = anyio.current_time()
        live.starts_s = [each for each in live.starts_s if now_s - each < _STARTS_WITHIN_S]
        if len(live.starts_s) >= _MAX_STARTS:
            raise ServerFailed(
                f"the MCP server {live.name} keeps ending",
                hint=_REVIEW.format(live.name),
                code="CW-MCP-FAILED",
            )
        live.starts_s.append(now_s)
        problem = await self._tasks.start(self._hold, live)
        if problem is not None:
            problem.raise_for_status()
        if live.connection is None:
            raise ServerFailed(f"the MCP server {live.name} ended at once", code="CW-MCP-FAILED")
        return live.connection

    async def _hold(
        self,
        live: LiveServer,
        *,
        task_status: anyio.abc.TaskStatus[Outcome | None],
    ) -> None:
        is_started = False
        live.stop, live.finished = anyio.Event(), anyio.Event()
        connection = new_connection(live.settings)

        async def work() -> None:
            nonlocal is_started
            await self._compare(live, await connection.start())  # (3)
            connection.on_change = partial(self._changed, live)
            live.connection = connection
            is_started = True
            task_status.started(None)
            async with anyio.create_task_group() as waits:
                for event in (live.stop, connection.ended):
                    waits.start_soon(_first_of, event, waits.cancel_scope)

        async def hold(pipe: ServerPipe) -> None:
            try:
                await connection.serve(pipe, work)
            finally:
                live.errors = pipe.errors()

        try:
            action = self._start_action(live, hold)
            outcome = await self._app.runtime.perform(action, ask=self._ask)
        finally:
            live.connection = None
            live.finished.set()
        if not is_started:
            task_status.started(outcome)

    def _start_action(
        self, live: LiveServer, hold: Callable[[ServerPipe], Awaitable[None]]
    ) -> Action:
        return start_action(
            live.settings,
            live.session_id,
            hold,
            starter=self._starter,
            limits=self._app.limits,
            policy=self._policy,
        )

    # --- (3)

    async def _compare(self, live: LiveServer, seen: ToolSet) -> None:
        entry = self._catalog.read(live.name)
        before, live.usable, live.sha256 = live.usable, usable(entry.pins, seen), seen.sha256
        waiting = [
            each.name or "the server itself"
            for each in compare(entry.pins, seen)
            if each.state in {"new", "changed"}
        ]
        if waiting and (entry.seen is None or entry.seen.sha256 != seen.sha256):
            note = partial(self._note_change, live, seen, waiting)
            await anyio.to_thread.run_sync(note)
        if before and before != live.usable:
            self._tell_change()

    def _note_change(self, live: LiveServer, seen: ToolSet, waiting: list[str]) -> None:
        message = f"the MCP server {live.name} waits for a review of {len(waiting)} definitions"
        body: dict[str, Json] = {
            "change": "quarantine",
            "server": live.name,
            "message": message,
            "sha256": seen.sha256,
            "definitions": list(waiting[:64]),
        }
        who = self._starter
        event = Event(
            EventKind.CONFIG, new_id("act"), who.name, who.interface, body, live.session_id
        )
        self._app.audit.write(event)
        self._catalog.note_seen(live.name, seen)

    def _changed(self, live: LiveServer) -> None:
        """The server announces other tools: none is usable until they are compared."""
        live.usable = None
        if live.is_comparing:
            return  # attack: announcements without end
        live.is_comparing = True
        self._tell_change()
        self._tasks.start_soon(self._compare_again, live)

    async def _compare_again(self, live: LiveServer) -> None:
        now_s = anyio.current_time()
        await anyio.sleep(max(0.0, live.compared_s + _COMPARE_EVERY_S - now_s))
        live.compared_s = anyio.current_time()
        live.is_comparing = False
        try:
            await self._current(live)
            self._tell_change()
        except CellwallError:
            pass  # the next call reports it

    def withheld_now(self) -> frozenset[tuple[str, str]]:
        """Offered tools that a running server has changed, or that this user cannot have."""
        return frozenset(key for key in self._offers.current().tools if self._is_gone(*key))

    def _is_gone(self, server: str, tool: str) -> bool:
        live = self._live.get(server)
        if live is not None and live.is_up and tool not in (live.usable or ()):
            return True
        try:
            return self._is_withheld(self._catalog.read(server).settings)
        except CellwallError:  # removed meanwhile
            return True

    def act_as(self, starter: Principal) -> None:
        """The same user from now on, whose role may differ. A running server has the egress and the
        secrets of the role that started it: it ends, and the next call starts it with the rights of
        now (RBAC-2)."""
        has_changed = _rights_of(starter) != _rights_of(self._starter)
        self._starter = starter
        if has_changed and self._live:
            self._tasks.start_soon(self.close)

    def live(self) -> tuple[LiveServer, ...]:
        """The servers with a sandbox."""
        return tuple(self._live.values())

    @property
    def count(self) -> int:
        """Servers with a sandbox, one that gets it now, and those whose sandbox is ending."""
        return len(self._live) + self._is_making + len(self._ending)

    async def end(self, server: LiveServer) -> None:
        """End one server; the next call starts it again."""
        if self._live.get(server.name) is server:
            del self._live[server.name]
            await end_servers([server], self._ending)

    def _tell_change(self) -> None:
        for listener in tuple(self.listeners):
            listener()

    async def close(self) -> None:
        """End all servers and their sandboxes; a later call starts a server again."""
        live, self._live = list(self._live.values()), {}
        await end_servers(live, self._ending)


def _rights_of(who: Principal) -> tuple[object, ...]:
    """What decides about the egress and the secrets of a server."""
    return who.role, who.scopes, None if who.account is None else who.account.teams


async def _first_of(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()

"""Audit events of a session's connections and leaks (AUD-1, NET-5).

A write waits for the disk, and concurrent connections share one flush. Work that must not start
before its event is durable awaits `write`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from cellwall.core.errors import AuditFailed, CellwallError, EgressRefused
from cellwall.core.network import EgressContext
from cellwall.core.outcomes import Finding, Severity
from cellwall.core.types import Json
from cellwall.egress.inspection.leak_scan import LeakHit

_MAX_ONCE = 4096

RecordEvent = Callable[[dict[str, Json], EgressContext], Awaitable[object]]

_REFUSALS_PER_WINDOW = 20
_WINDOW_S = 1.0
_MAX_PLACES = 1024
SERVICE = "service"
"""The `via` of connections that a service of this process answers."""
_UNAVAILABLE = "CW-PACKAGE-UNAVAILABLE"
"""The server behind a service did not answer: no refusal of a package."""
_MAX_FINDINGS = 16


_PLACEHOLDER_HINT = "Use the placeholder of the secret, with a grant for this host."
# By kind: what the request contains, the hint, and the code.
_LEAKS = {
    "known": ("a secret", _PLACEHOLDER_HINT, "CW-LEAK"),
    "pattern": ("what looks like {}", _PLACEHOLDER_HINT, "CW-LEAK"),
    "personal": (
        "personal data ({})",
        "Leave it out; [egress] personal_data is what refuses it.",
        "CW-LEAK-PERSONAL",
    ),
    "canary": (
        "part of a registered text",
        "Leave it out; `cellwall canary list` shows the registered texts.",
        "CW-LEAK-CANARY",
    ),
}


class LeakRefused(EgressRefused):
    """A request that contains a secret (NET-5); the event names the secret, never its value.

    The cell does not even get the name: a correct guess would reveal which secret it is.
    """

    default_code = "CW-LEAK"

    def __init__(self, hit: LeakHit, *, is_host: bool = False) -> None:
        what, hint, code = _LEAKS[hit.kind]
        super().__init__(
            f"the request contains {what.format(hit.name)}, which must not leave the sandbox",
            hint=hint,
            code=code,
            detail=f"{hit.kind}: {hit.name}",
        )
        self.hit = hit
        self.is_host = is_host
        """Whether the secret is in the host name, which then is not recorded either."""


class EgressAudit:
    """The audit events of one session; used on the loop only."""

    def __init__(
        self,
        record: RecordEvent,
        context: EgressContext,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.context = context
        """The action of new connections; an open connection keeps its own."""
        self._record = record
        self._loop = loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_failed = False
        self._written_once: set[str] = set()
        self._window: asyncio.TimerHandle | None = None
        self._refusal_count = 0
        self._suppressed: Counter[str] = Counter()
        self._places: set[str] = set()
        self._findings: dict[tuple[str, ...], Finding] = {}

    def take_findings(self) -> tuple[Finding, ...]:
        """The refusals since the last call, with their hints."""
        findings, self._findings = self._findings, {}
        return tuple(findings.values())

    def _note_finding(self, error: CellwallError, place: str, via: str) -> None:
        """One finding for each place and reason; of a service, for each thing that it refused."""
        if len(self._findings) >= _MAX_FINDINGS:
            return
        if via == SERVICE:
            category = "network" if error.code == _UNAVAILABLE else "packages"
            text = f"{error.message} {error.hint}".rstrip()
            found = Finding(category, "medium", text, rule=error.code)
            self._findings.setdefault((place, error.code, error.message), found)
            return
        severity: Severity = "high" if isinstance(error, LeakRefused) else "low"
        text = f"{place} was refused ({error.code}): {error.message}. {error.hint}"
        self._findings.setdefault((place, error.code), Finding("network", severity, text))

    def check(self) -> None:
        """Refuse any work after an event could not be written."""
        if self._has_failed:
            raise _failed()

    async def write(self, body: dict[str, Json], context: EgressContext | None = None) -> None:
        """Write an event durably; `AuditFailed` refuses the work that it is about."""
        self.check()
        try:
            await self._record(body, context or self.context)
        except Exception:  # noqa: BLE001 - any failure: no record, no connection
            self._has_failed = True
            raise _failed() from None

    def record_later(self, body: dict[str, Json], context: EgressContext | None = None) -> None:
        """Write an event of the past in the background; a failure refuses all further work."""
        task = self._loop.create_task(self._write_later(body, context or self.context))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _write_later(self, body: dict[str, Json], context: EgressContext) -> None:
        try:
            await self._record(body, context)
        except Exception:  # noqa: BLE001 - any failure: `check` refuses what follows
            self._has_failed = True

    def record_once(self, body: dict[str, Json]) -> None:
        """Write an event that code in the cell could repeat at will, once."""
        key = json.dumps(body, sort_keys=True)
        if key not in self._written_once and len(self._written_once) < _MAX_ONCE:
            self._written_once.add(key)
            self.record_later(body)

    def record_refusal(self, error: CellwallError, *, host: str, port: int, via: str) -> None:
        """Record a refusal; above a rate per second, refusals are counted in one event.

        A loop of refused connections must not fill the audit log, nor hide another event in it.
        """
        if self._window is None:
            self._window = self._loop.call_later(_WINDOW_S, self._end_window)
        host = "" if isinstance(error, LeakRefused) and error.is_host else host[:253]
        place = f"{host}:{port}"
        self._note_finding(error, place, via)
        is_new = place not in self._places and len(self._places) < _MAX_PLACES
        self._places |= {place} if is_new else set()
        # A leak, and the first refusal of a destination, always get their own event.
        if (
            self._refusal_count >= _REFUSALS_PER_WINDOW
            and not is_new
            and not isinstance(error, LeakRefused)
        ):
            self._suppressed[error.code] += 1
            return
        self._refusal_count += 1
        body: dict[str, Json] = {
            "event": "refused",
            "status": "refused",
            "code": error.code,
            "error_code": error.code,
            "reason": error.message,
            "host": host,
            "port": port,
            "via": via,
        }
        if error.detail:
            body["detail"] = error.detail
        if isinstance(error, LeakRefused):
            body["event"] = body["status"] = "leak-refused"
            body["secret"] = error.hit.name
            body["kind"] = error.hit.kind
            body["encoding"] = error.hit.encoding
        self.record_later(body)

    def _end_window(self) -> None:
        self._window = None
        self._refusal_count = 0
        if self._suppressed:
            codes: dict[str, Json] = dict(self._suppressed)
            self.record_later(
                {
                    "event": "refused-more",
                    "status": "refused-more",
                    "count": self._suppressed.total(),
                    "codes": codes,
                }
            )
            self._suppressed.clear()

    async def drain(self) -> None:
        """Wait until all background events are written."""
        if self._window is not None:
            self._window.cancel()
        self._end_window()
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))


def _failed() -> AuditFailed:
    return AuditFailed(
        "the audit log cannot be written, so the connection is refused",
        hint="Check the audit log with `cellwall doctor`.",
    )


_MAX_LEAKS = 5
"""Known values that a session may try to send. A refusal confirms a guess, so few are allowed."""


class LeakLimit:
    """The number of leaks of one session."""

    def __init__(self, audit: EgressAudit) -> None:
        self._audit = audit
        self._count = 0

    def check_open(self) -> None:
        """Refuse all requests after too many leaks.

        Called before each scan, so that concurrent guesses cannot exceed the limit.
        """
        if self._count >= _MAX_LEAKS:
            raise EgressRefused(
                "egress is closed: too many requests contained a secret",
                hint="Check the audit log of this sandbox, then start a new one.",
                code="CW-LEAK-LIMIT",
            )

    def report(self, leak: LeakRefused, *, host: str, port: int, via: str) -> None:
        """Record a leak, and count it if it was a known value."""
        if leak.hit.kind == "known":
            self._count += 1
        self._audit.record_refusal(leak, host=host, port=port, via=via)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakReporter:
    """Reports leaks to one destination. A leak counts when it is found, not when it is raised.

    The scan may be cancelled, or its result never awaited: an early response, a closed client. The
    server sees the cut request all the same, and code that cooperates with it could guess without
    limit.
    """

    leak_limit: LeakLimit
    host: str
    port: int
    via: str

    def check_open(self) -> None:
        self.leak_limit.check_open()

    def report(self, hit: LeakHit, *, is_host: bool = False) -> LeakRefused:
        """Record the leak; returns the error to raise."""
        leak = LeakRefused(hit, is_host=is_host)
        self.leak_limit.report(leak, host=self.host, port=self.port, via=self.via)
        return leak


class ConnectionRecord:
    """One connection to a server: `opened` is written before its first packet, `closed` after."""

    def __init__(self, audit: EgressAudit, facts: dict[str, Json]) -> None:
        """`facts` are part of both events."""
        self._audit = audit
        self.context = audit.context
        self._facts = facts
        self._address = ""
        self._began_s = time.monotonic()
        self._has_ended = False
        self.request_count = 0

    @property
    def action_id(self) -> str:
        """The action whose events these are."""
        return self.context.action_id

    async def write_opened(
        self, addresses: Sequence[IPv4Address | IPv6Address], *, is_intercepted: bool
    ) -> None:
        """Write `opened` durably; a failure refuses the connection (AUD-1)."""
        await self._audit.write(
            {
                "event": "opened",
                **self._facts,
                "addresses": [str(address) for address in addresses],
                "tls_opened": is_intercepted,
            },
            self.context,
        )

    def set_peer(self, sock: socket.socket) -> None:
        """Note the address that was connected."""
        with contextlib.suppress(OSError):
            self._address = sock.getpeername()[0]

    def write_closed(
        self, *, up_bytes: int = 0, down_bytes: int = 0, error: CellwallError | None = None
    ) -> None:
        """Write `closed`; only the first call counts."""
        if self._has_ended:
            return
        self._has_ended = True
        body: dict[str, Json] = {
            "event": "closed",
            **self._facts,
            "address": self._address,
            "bytes_up": up_bytes,
            "bytes_down": down_bytes,
            "duration_s": round(time.monotonic() - self._began_s, 6),
        }
        if self.request_count:
            body["requests"] = self.request_count
        if error is not None:
            body["code"] = error.code
            body["reason"] = error.message
        self._audit.record_later(body, self.context)

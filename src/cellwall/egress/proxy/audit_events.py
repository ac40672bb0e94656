"""What a session's connections put on record (AUD-1).

The record waits for a disk, and connections of the same moment share its flush; whoever must not go
on before it is written awaits it.
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
from cellwall.core.outcomes import Finding
from cellwall.core.types import Json
from cellwall.egress.inspection.leak_scan import Hit

_MAX_TOLD_ONCE = 4096

Record = Callable[[dict[str, Json], EgressContext], Awaitable[object]]

_REFUSALS_PER_WINDOW = 20
_WINDOW_S = 1.0
_MAX_PLACES = 1024
_MAX_NOTICED = 16


class LeakRefused(EgressRefused):
    """A secret that was about to leave (NET-5); told by its name, never by its value.

    Inside not even the name is told: a guess that was right would be known for whose it is.
    """

    default_code = "CW-LEAK"

    def __init__(self, hit: Hit, *, is_host: bool = False) -> None:
        what = "a secret" if hit.kind == "known" else f"what looks like {hit.name}"
        super().__init__(
            f"the request holds {what}, which must not leave",
            hint="Use the secret by its placeholder, with a grant for this host.",
            detail=f"{hit.kind}: {hit.name}",
        )
        self.hit = hit
        self.is_host = is_host
        """Whether it stands in the host's name, which then is not to be recorded either."""


class EgressAudit:
    """The record of one session; used on the loop alone."""

    def __init__(
        self,
        record: Record,
        context: EgressContext,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.context = context
        """Whose connections begin now; one that has begun stays its own."""
        self._record = record
        self._loop = loop
        self._noted: set[asyncio.Task[None]] = set()
        self._has_failed = False
        self._told_once: set[str] = set()
        self._window: asyncio.TimerHandle | None = None
        self._told = 0
        self._untold: Counter[str] = Counter()
        self._places: set[str] = set()
        self._noticed: dict[tuple[str, int, str], CellwallError] = {}

    def take_findings(self) -> tuple[Finding, ...]:
        """What was refused since somebody asked last, and how it could be allowed."""
        found, self._noticed = self._noticed, {}
        return tuple(
            Finding(
                "network",
                "high" if isinstance(error, LeakRefused) else "low",
                f"{host}:{port} was refused ({code}): {error.message}. {error.hint}",
            )
            for (host, port, code), error in found.items()
        )

    def check(self) -> None:
        """Refuse whatever would follow on a record that could not be written."""
        if self._has_failed:
            raise _failed()

    async def write(self, body: dict[str, Json], context: EgressContext | None = None) -> None:
        """Returns once it is durable; `AuditFailed` refuses what it was about."""
        self.check()
        try:
            await self._record(body, context or self.context)
        except Exception:  # noqa: BLE001 - whatever the reason: without a record nothing happens
            self._has_failed = True
            raise _failed() from None

    def record_later(self, body: dict[str, Json], context: EgressContext | None = None) -> None:
        """For what has happened already. If it cannot be written, nothing more goes out."""
        task = self._loop.create_task(self._write_later(body, context or self.context))
        self._noted.add(task)
        task.add_done_callback(self._noted.discard)

    async def _write_later(self, body: dict[str, Json], context: EgressContext) -> None:
        try:
            await self._record(body, context)
        except Exception:  # noqa: BLE001 - as above
            self._has_failed = True

    def record_once(self, body: dict[str, Json]) -> None:
        """For what code could make happen again and again, each time the same."""
        key = json.dumps(body, sort_keys=True)
        if key not in self._told_once and len(self._told_once) < _MAX_TOLD_ONCE:
            self._told_once.add(key)
            self.record_later(body)

    def record_refusal(self, error: CellwallError, *, host: str, port: int, via: str) -> None:
        """A refusal; beyond some in a second they are counted and told as one.

        A loop that knocks at a closed door must not fill the record (nor hide in it).
        """
        if self._window is None:
            self._window = self._loop.call_later(_WINDOW_S, self._end_window)
        host = "" if isinstance(error, LeakRefused) and error.is_host else host[:253]
        if len(self._noticed) < _MAX_NOTICED:
            self._noticed.setdefault((host, port, error.code), error)
        place = f"{host}:{port}"
        is_new = place not in self._places and len(self._places) < _MAX_PLACES
        self._places |= {place} if is_new else set()
        # A leak, and where nobody went before, always stand by themselves: noise hides neither.
        if self._told >= _REFUSALS_PER_WINDOW and not is_new and not isinstance(error, LeakRefused):
            self._untold[error.code] += 1
            return
        self._told += 1
        body: dict[str, Json] = {
            "event": "refused",
            "code": error.code,
            "reason": error.message,
            "host": host,
            "port": port,
            "via": via,
        }
        if error.detail:
            body["detail"] = error.detail
        if isinstance(error, LeakRefused):
            body["event"] = "leak-refused"
            body["secret"] = error.hit.name
            body["kind"] = error.hit.kind
            body["encoding"] = error.hit.encoding
        self.record_later(body)

    def _end_window(self) -> None:
        self._window = None
        self._told = 0
        if self._untold:
            codes: dict[str, Json] = dict(self._untold)
            self.record_later(
                {"event": "refused-more", "count": self._untold.total(), "codes": codes}
            )
            self._untold.clear()

    async def drain(self) -> None:
        """Until everything that was noted is written."""
        if self._window is not None:
            self._window.cancel()
        self._end_window()
        while self._noted:
            await asyncio.wait(tuple(self._noted))


def _failed() -> AuditFailed:
    return AuditFailed(
        "the record of this connection cannot be written, so it is not made",
        hint="Look at the state of the audit record with `cellwall doctor`.",
    )


_MAX_LEAKS = 5
"""Known values that a session may try to send. A refusal confirms a guess: nobody gets many."""


class LeakLimit:
    """Of one session."""

    def __init__(self, audit: EgressAudit) -> None:
        self._audit = audit
        self._count = 0

    def check_open(self) -> None:
        """Refuse whatever follows too many tries to send what must not leave.

        Before each look: of many guesses at the same time no more are answered than of one by one.
        """
        if self._count >= _MAX_LEAKS:
            raise EgressRefused(
                "the way out is closed: what must not leave was tried too often",
                hint="Look at the record of this sandbox, then start a new one.",
                code="CW-LEAK-LIMIT",
            )

    def report(self, leak: LeakRefused, *, host: str, port: int, via: str) -> None:
        """On record, and counted if it was a known value."""
        if leak.hit.kind == "known":
            self._count += 1
        self._audit.record_refusal(leak, host=host, port=port, via=via)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakReporter:
    """For what goes to one place. Each find counts as it is made, not when somebody is told.

    Whoever looks may be cancelled, or nobody may wait for its result any more: an answer that came
    before, a client that went away. The server learns of the find all the same, by a request
    that is cut, and code that it works with could guess without end.
    """

    leak_limit: LeakLimit
    host: str
    port: int
    via: str

    def check_open(self) -> None:
        self.leak_limit.check_open()

    def report(self, hit: Hit, *, is_host: bool = False) -> LeakRefused:
        """The error to raise; it is on record by then."""
        leak = LeakRefused(hit, is_host=is_host)
        self.leak_limit.report(leak, host=self.host, port=self.port, via=self.via)
        return leak


class ConnectionRecord:
    """From the decision to its end."""

    def __init__(self, audit: EgressAudit, facts: dict[str, Json]) -> None:
        """`facts` stand in both events."""
        self._audit = audit
        self._context = audit.context
        self._facts = facts
        self._address = ""
        self._began_s = time.monotonic()
        self._has_ended = False
        self.request_count = 0

    @property
    def action_id(self) -> str:
        """The action that has it on record."""
        return self._context.action_id

    async def write_opened(
        self, addresses: Sequence[IPv4Address | IPv6Address], *, is_intercepted: bool
    ) -> None:
        """Durable when it returns; a failure refuses the connection (AUD-1)."""
        await self._audit.write(
            {
                "event": "opened",
                **self._facts,
                "addresses": [str(address) for address in addresses],
                "tls_opened": is_intercepted,
            },
            self._context,
        )

    def set_peer(self, sock: socket.socket) -> None:
        """Which of the addresses it became."""
        with contextlib.suppress(OSError):
            self._address = sock.getpeername()[0]

    def write_closed(
        self, *, up_bytes: int = 0, down_bytes: int = 0, error: CellwallError | None = None
    ) -> None:
        """The first call counts."""
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
        self._audit.record_later(body, self._context)

"""What a session's connections put on record, in order, off the loop (AUD-1).

The record is a blocking call that waits for a disk. One thread makes these calls for all sessions;
whoever must not go on before the record is written awaits it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor

from holdfast.core.errors import AuditFailed, EgressRefused, HoldfastError
from holdfast.core.network import Traveller
from holdfast.core.types import Json
from holdfast.egress.scan import Hit

_MOST_TOLD_ONCE = 4096

Record = Callable[[dict[str, Json], Traveller], None]

_REFUSALS_PER_WINDOW = 20
_WINDOW_S = 1.0


class Leak(EgressRefused):
    """A secret that was about to leave (NET-5); told by its name, never by its value."""

    default_code = "HF-LEAK"

    def __init__(self, hit: Hit) -> None:
        what = f"the secret {hit.name}" if hit.kind == "known" else f"what looks like {hit.name}"
        super().__init__(
            f"the request holds {what}, which must not leave",
            mend="Use the secret by its placeholder, with a grant for this host.",
        )
        self.hit = hit


class Ledger:
    """The record of one session; used on the loop alone."""

    def __init__(
        self,
        record: Record,
        traveller: Traveller,
        writer: Executor,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.traveller = traveller
        self._record = record
        self._writer = writer
        self._loop = loop
        self._noted: set[asyncio.Future[None]] = set()
        self._has_failed = False
        self._told_once: set[str] = set()
        self._window: asyncio.TimerHandle | None = None
        self._told = 0
        self._untold: Counter[str] = Counter()

    async def write(self, body: dict[str, Json]) -> None:
        """Returns once it is durable; `AuditFailed` refuses what it was about."""
        if self._has_failed:
            raise _failed()
        try:
            await self._loop.run_in_executor(self._writer, self._record, body, self.traveller)
        except Exception:  # noqa: BLE001 - whatever the reason: without a record nothing happens
            self._has_failed = True
            raise _failed() from None

    def note(self, body: dict[str, Json]) -> None:
        """For what has happened already. If it cannot be written, nothing more goes out."""
        try:
            future = self._loop.run_in_executor(self._writer, self._record, body, self.traveller)
        except RuntimeError:  # the process is about to end
            self._has_failed = True
            return
        self._noted.add(future)
        future.add_done_callback(self._on_noted)

    def note_once(self, body: dict[str, Json]) -> None:
        """For what code could make happen again and again, each time the same."""
        key = json.dumps(body, sort_keys=True)
        if key not in self._told_once and len(self._told_once) < _MOST_TOLD_ONCE:
            self._told_once.add(key)
            self.note(body)

    def _on_noted(self, future: asyncio.Future[None]) -> None:
        self._noted.discard(future)
        if not future.cancelled() and future.exception() is not None:
            self._has_failed = True

    def refused(self, error: HoldfastError, *, host: str, port: int, via: str) -> None:
        """A refusal; beyond some in a second they are counted and told as one.

        A loop that knocks at a closed door must not fill the record (nor hide in it).
        """
        if self._window is None:
            self._window = self._loop.call_later(_WINDOW_S, self._end_window)
        if self._told >= _REFUSALS_PER_WINDOW:
            self._untold[error.code] += 1
            return
        self._told += 1
        body: dict[str, Json] = {
            "event": "refused",
            "code": error.code,
            "reason": error.message,
            "host": host[:253],
            "port": port,
            "via": via,
        }
        if error.detail:
            body["detail"] = error.detail
        if isinstance(error, Leak):
            body["event"] = "leak-refused"
            body["secret"] = error.hit.name
            body["kind"] = error.hit.kind
            body["encoding"] = error.hit.encoding
        self.note(body)

    def _end_window(self) -> None:
        self._window = None
        self._told = 0
        if self._untold:
            codes: dict[str, Json] = dict(self._untold)
            self.note({"event": "refused-more", "count": self._untold.total(), "codes": codes})
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
        mend="Look at the state of the audit record with `holdfast doctor`.",
    )

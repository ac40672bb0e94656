"""What happens now, read from the record as it grows: rates, latencies, limits and decisions.

One thread follows the audit log for all who watch, and for a while after the last one left. Every
record is counted; of the records themselves only the newest are kept, so a flood costs a fixed
amount of memory. What belongs to one account is counted apart, since most accounts may see their
own records alone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from cellwall.admin import audit_queries
from cellwall.admin.event_lines import EventLine, event_line
from cellwall.core.errors import CellwallError
from cellwall.core.outcomes import EventKind
from cellwall.core.types import REMOTE_INTERFACES
from cellwall.secrets.session_keys import SessionKeys

WINDOW_S = 300
LATENCY_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_LINGER_S = 30.0
_MAX_BACKFILL = 5000
_MAX_ROWS = 100
_MAX_ACCOUNTS = 1000
_RETRY_AFTER_S = 1.0
_EVERYBODY = ""
_log = logging.getLogger("cellwall.live")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSnapshot:
    """The last minutes, at one moment."""

    runs: tuple[int, ...]
    """Outcomes in each second of the window, the oldest first."""
    refusals: tuple[int, ...]
    latencies: tuple[int, ...]
    """Runs by duration: one number for each of `LATENCY_BOUNDS_S`, and one above them all."""
    limits: tuple[tuple[str, int], ...]
    """The limits that ended runs, the most frequent first."""
    rows: tuple[EventLine, ...]
    """The newest first."""
    seen: int
    """How many rows there were since the start, those that were dropped included."""

    @property
    def runs_per_s(self) -> float:
        """Over the last ten seconds."""
        return sum(self.runs[-10:]) / 10

    @property
    def latency_bins(self) -> list[tuple[float | None, int]]:
        """The upper bound and the count of each bin from the first with runs to the last; None is
        the bound of the bin above all. Empty without runs."""
        bins = list(zip((*LATENCY_BOUNDS_S, None), self.latencies, strict=True))
        used = [index for index, (_, count) in enumerate(bins) if count]
        return bins[used[0] : used[-1] + 1] if used else []

    def latency_s(self, share: float) -> float | None:
        """The upper bound of the bin with this share of the runs; None without runs."""
        total, seen = sum(self.latencies), 0
        for bound, count in zip(
            (*LATENCY_BOUNDS_S, LATENCY_BOUNDS_S[-1]), self.latencies, strict=True
        ):
            seen += count
            if total and seen >= share * total:
                return bound
        return None


@dataclass(slots=True)
class _Second:
    runs: int = 0
    refusals: int = 0
    latencies: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BOUNDS_S) + 1))
    limits: Counter[str] = field(default_factory=Counter)


class _Series:
    """The counts and rows of one account, or of everybody."""

    def __init__(self) -> None:
        self._seconds: OrderedDict[int, _Second] = OrderedDict()
        self._rows: deque[EventLine] = deque(maxlen=_MAX_ROWS)
        self._seen = 0

    def note(self, record: Mapping[str, Any], row: EventLine | None, at_s: float) -> None:
        if row is not None:
            self._rows.appendleft(row)
            self._seen += 1
        second = self._second(int(at_s))
        body = record["body"]
        if record["kind"] == EventKind.DENIAL:
            second.refusals += 1
        elif record["kind"] == EventKind.OUTCOME:
            second.runs += 1
            if body.get("limit"):
                second.limits[str(body["limit"])[:20]] += 1
            usage = body.get("usage")
            wall_s = usage.get("wall_s", 0.0) if isinstance(usage, dict) else 0.0
            second.latencies[_bin(wall_s)] += 1

    def _second(self, at: int) -> _Second:
        found = self._seconds.get(at)
        if found is None:
            found = self._seconds[at] = _Second()
            while len(self._seconds) > 2 * WINDOW_S:
                self._seconds.popitem(last=False)
        return found

    def snapshot(self, now_s: float, since_s: float) -> LiveSnapshot:
        last = int(now_s)
        window = [
            self._seconds.get(at, _NOTHING) if at >= since_s else _NOTHING
            for at in range(last - WINDOW_S + 1, last + 1)
        ]
        limits: Counter[str] = Counter()
        for each in window:
            limits.update(each.limits)
        return LiveSnapshot(
            runs=tuple(each.runs for each in window),
            refusals=tuple(each.refusals for each in window),
            latencies=tuple(map(sum, zip(*(each.latencies for each in window), strict=True))),
            limits=tuple(limits.most_common(8)),
            rows=tuple(row for row in self._rows if row.at_s >= since_s),
            seen=self._seen,
        )


_NOTHING = _Second()


def _bin(wall_s: object) -> int:
    if not isinstance(wall_s, int | float):
        return 0
    return sum(wall_s > bound for bound in LATENCY_BOUNDS_S)


class LiveView:
    """Follows one audit log while a page is open."""

    def __init__(self, home: str, keys: SessionKeys) -> None:
        self._home, self._keys = home, keys
        self._lock = threading.Lock()
        self._watchers = 0
        self._unwatched_at = 0.0
        self._thread: threading.Thread | None = None
        self._series: OrderedDict[str, _Series] = OrderedDict()
        self._last_seq = 0
        self._is_closed = False
        self.is_draining = False
        """The service stops: streams must end."""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """The log is followed while the block lasts."""
        with self._lock:
            self._watchers += 1
            self._start()
        try:
            yield
        finally:
            with self._lock:
                self._watchers -= 1
                self._unwatched_at = time.monotonic()

    def touch(self) -> None:
        """Follow the log for a while: a page without scripts was opened."""
        with self._lock:
            self._unwatched_at = time.monotonic()
            self._start()

    def close(self) -> None:
        """End the thread."""
        self._is_closed = True
        thread = self._thread
        if thread is not None:
            thread.join()

    def snapshot(self, account: str | None, *, since_s: float = 0.0) -> LiveSnapshot:
        """What one account may see; None: everything. `since_s` is when the account was created:
        earlier records under its name are another person's."""
        with self._lock:
            series = self._series.get(_EVERYBODY if account is None else f"@{account}")
            return (series or _Series()).snapshot(time.time(), since_s)

    def _start(self) -> None:
        if self._thread is None and not self._is_closed:
            self._series.clear()
            self._backfill()
            self._thread = threading.Thread(target=self._run, name="cellwall-live", daemon=True)
            self._thread.start()

    def _is_wanted(self) -> bool:
        with self._lock:
            is_recent = time.monotonic() - self._unwatched_at < _LINGER_S
            if self._is_closed or not (self._watchers or is_recent):
                self._thread = None
                return False
            return True

    def _backfill(self) -> None:
        since = datetime.now(UTC) - timedelta(seconds=WINDOW_S)
        query = audit_queries.Query(since=since)
        found = audit_queries.newest(query, home=self._home, keys=self._keys)
        records = list(islice(found, _MAX_BACKFILL))
        self._last_seq = records[0]["seq"] if records else self._newest_seq()
        for record in reversed(records):
            self._note(record)

    def _newest_seq(self) -> int:
        found = audit_queries.newest(audit_queries.Query(), home=self._home, keys=self._keys)
        return next((record["seq"] for record in found), 0)

    def _run(self) -> None:
        while self._is_wanted():
            try:
                self._follow()
            except CellwallError as error:
                # An altered log, or a locked vault. The audit page tells; here the list stands.
                _log.warning("the record is not followed: %s", error.code)
                time.sleep(_RETRY_AFTER_S)
            else:
                return

    def _follow(self) -> None:
        query = audit_queries.Query()
        found = audit_queries.following(
            query, after=self._last_seq, home=self._home, keys=self._keys
        )
        for record in found:
            if record is None:
                if not self._is_wanted():
                    return
                continue
            with self._lock:
                self._note(record)
            self._last_seq = record["seq"]
            if self._is_closed:
                return

    def _note(self, record: Mapping[str, Any]) -> None:
        at_s = datetime.fromisoformat(record["time"]).timestamp()
        row = event_line(record, at_s)
        self._of(_EVERYBODY).note(record, row, at_s)
        if record["interface"] in REMOTE_INTERFACES:
            self._of(f"@{record['principal']}").note(record, row, at_s)

    def _of(self, key: str) -> _Series:
        found = self._series.get(key)
        if found is None:
            found = self._series[key] = _Series()
            if len(self._series) > _MAX_ACCOUNTS:
                oldest = next(each for each in self._series if each != _EVERYBODY)
                del self._series[oldest]
        return found

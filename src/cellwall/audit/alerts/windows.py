"""A sliding window of counts in fixed memory. Pure.

The window is divided into buckets: a flood of records costs two numbers for each bucket, and a
count is exact to one bucket's width.
"""

from __future__ import annotations

from collections import deque
from typing import Any

BUCKETS = 60
_ROUNDING_S = 1e-6
MAX_RECORDS = 10
"""Ids of records that are kept as examples, the newest."""


class SlidingWindow:
    """Counts of selected and of all records in the last `window_s`."""

    __slots__ = ("_buckets", "hits", "records", "total", "width_s")

    def __init__(self, window_s: float) -> None:
        self.width_s = window_s / BUCKETS
        self.hits = self.total = 0
        self.records: deque[str] = deque(maxlen=MAX_RECORDS)
        self._buckets: deque[list[int]] = deque()

    def __bool__(self) -> bool:
        return bool(self._buckets)

    def add(self, at_s: float, *, is_hit: bool, record_id: str) -> None:
        """Count a record; `at_s` never goes back."""
        number = int(at_s // self.width_s)
        if not self._buckets or self._buckets[-1][0] != number:
            self._buckets.append([number, 0, 0])
        self._buckets[-1][1] += is_hit
        self._buckets[-1][2] += 1
        self.hits += is_hit
        self.total += 1
        if is_hit and record_id:
            self.records.append(record_id)

    def expire(self, at_s: float) -> None:
        """Forget what is older than the window."""
        oldest = int((at_s + _ROUNDING_S) // self.width_s) - BUCKETS
        while self._buckets and self._buckets[0][0] <= oldest:
            _, hits, total = self._buckets.popleft()
            self.hits -= hits
            self.total -= total
        if not self.hits:
            self.records.clear()

    def next_change_s(self) -> float:
        """When the oldest bucket leaves the window, if any."""
        return (self._buckets[0][0] + BUCKETS) * self.width_s

    def to_json(self) -> dict[str, Any]:
        return {"buckets": [list(each) for each in self._buckets], "records": list(self.records)}

    def load(self, fields: dict[str, Any]) -> None:
        """From `to_json`."""
        self._buckets = deque([int(number) for number in each] for each in fields["buckets"])
        self.hits = sum(each[1] for each in self._buckets)
        self.total = sum(each[2] for each in self._buckets)
        self.records = deque(map(str, fields["records"]), maxlen=MAX_RECORDS)

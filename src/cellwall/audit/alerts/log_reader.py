"""Reads the log for alerts: every record after the bookmark once, each checked against the chain.

  (1) the log is the one of the bookmark: same origin, and the same record at its number. Otherwise
      it was replaced or cut, which is a finding;
  (2) each record links to the one before it. A gap is a finding unless the whole log verifies:
      retention deletes old files and records that;
  (3) a log that cannot be read further is a finding, and is tried again later.

A finding is an event of the kind `watch`, which the rule `tampering` selects.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress

from cellwall.audit.alerts.events import AlertEvent
from cellwall.audit.alerts.watch_state import NO_LEAF, LogPosition
from cellwall.audit.following import follow
from cellwall.audit.merkle import leaf_hash
from cellwall.audit.search import FoundRecord, Query, search
from cellwall.core.errors import AuditFailed

_ALTERED = "CW-AUDIT-ALTERED"
_TROUBLE_EVERY_S = 3600.0
Verify = Callable[[], str]
"""Verifies the whole log; returns what is wrong with it, or nothing."""


class LogReader:
    """Yields events and moves the bookmark; None while there is no new record."""

    def __init__(
        self,
        directory: str,
        position: LogPosition,
        verify: Verify,
        *,
        not_before_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Records before `not_before_s` are read but not evaluated."""
        self._directory, self._position, self._verify = directory, position, verify
        self._not_before_s, self._clock = not_before_s, clock

    def events(self) -> Iterator[AlertEvent | None]:
        """Until the log cannot be read; then one finding, and the end."""
        yield from self._check_origin()  # (1)
        try:
            # From the bookmark's own record on: it is compared, and the log is read once.
            after = max(0, self._position.seq - 1)
            with closing(follow(self._directory, Query(), after_seq=after)) as found:
                first = next(found, None)
                if first is not None or self._position.seq == 0:
                    yield from self._check_bookmark(first)
                    yield from self._take_all(found)
                    return
            yield from self._go_to_end()
            with closing(follow(self._directory, Query(), after_seq=self._position.seq)) as found:
                yield from self._take_all(found)
        except AuditFailed as error:  # (3)
            now_s, position = self._clock(), self._position
            if not 0 <= now_s - position.trouble_s < _TROUBLE_EVERY_S:
                position.trouble_s = now_s
                yield self._finding(error.message, error.code)

    def _check_origin(self) -> Iterator[AlertEvent]:
        position, origin = self._position, _read_origin(self._directory)
        if position.origin and origin != position.origin:
            what = "replaced by another one" if origin else "removed"
            yield self._finding(f"the audit log was {what}")
            position.seq, position.leaf = 0, NO_LEAF
        position.origin = origin

    def _check_bookmark(self, first: FoundRecord | None) -> Iterator[AlertEvent | None]:
        position = self._position
        if first is None or first.record["seq"] != position.seq:
            yield from self._take_all([first])  # a new log, or older files were deleted
        elif leaf_hash(first.line).hex() != position.leaf:
            yield self._finding(f"record {position.seq} of the audit log was replaced")
            position.leaf = leaf_hash(first.line).hex()

    def _go_to_end(self) -> Iterator[AlertEvent]:
        """The log ends before the bookmark."""
        position = self._position
        newest = next(search(self._directory, Query(), is_indexed=False), None)
        end = 0 if newest is None else newest.record["seq"]
        yield self._finding(
            f"the audit log ends at record {end}, and record {position.seq} was there before; "
            "only a power cut explains that otherwise"
        )
        position.seq = end
        position.leaf = NO_LEAF if newest is None else leaf_hash(newest.line).hex()

    def _take_all(self, found: Iterable[FoundRecord | None]) -> Iterator[AlertEvent | None]:
        for each in found:
            if each is None:
                yield None
            else:
                yield from self._take(each)

    def _take(self, found: FoundRecord) -> Iterator[AlertEvent]:
        record, position = found.record, self._position
        is_next = record["seq"] == position.seq + 1
        is_linked = is_next and position.leaf in (NO_LEAF, record["prev"])
        is_first = position.seq == 0 and position.leaf == NO_LEAF and record["seq"] > 1
        if not is_linked:  # (2)
            problem = self._verify()
            if problem or (is_next and not is_first):
                text = problem or f"record {record['seq']} does not follow the one before it"
                yield self._finding(f"the audit log was altered: {text}")
        position.seq, position.leaf = record["seq"], leaf_hash(found.line).hex()
        event = AlertEvent.of(record)
        if event.time_s >= self._not_before_s:
            yield event

    def _finding(self, text: str, code: str = _ALTERED) -> AlertEvent:
        return AlertEvent.found(time_s=self._clock(), code=code, finding=text)


def _read_origin(directory: str) -> str:
    """A digest, so that the state names no host."""
    with suppress(OSError), open(os.path.join(directory, "origin"), "rb") as file:
        return hashlib.sha256(file.read(4096)).hexdigest()
    return ""

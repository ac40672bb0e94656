"""One alert of a rule: its window, and whether it is pending, firing or resolved. Pure.

          above `over`              for `hold_s`
(idle) ------------------> pending ---------------> firing
   ^                          |                       |  not above for `resolve_s`
   +--------------------------+                       v
   |        not above                              resolved
   +--------------------------------------------------+
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cellwall.audit.alerts.events import AlertEvent
from cellwall.audit.alerts.windows import SlidingWindow
from cellwall.config.alerts_section import AlertRuleTable

_MAX_FINDING_CHARACTERS = 300


class AlertState(StrEnum):
    """The state of an alert that is shown to people."""

    IDLE = "idle"
    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert as it stood at one moment; plain data for people, receivers and the state file."""

    id: str
    """The same from pending to resolved."""
    rule: str
    group: str
    severity: str
    state: AlertState
    summary: str
    reason: str
    records: tuple[str, ...]
    since_s: float
    """When it became pending or firing, in seconds since 1970."""
    ended_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, "state": self.state.value, "records": list(self.records)}

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Alert:
        """From `to_json`."""
        state, records = AlertState(fields["state"]), tuple(fields["records"])
        return cls(**{**fields, "state": state, "records": records})


class AlertSeries:
    """The counts and the state of one rule and group, on the clock of the engine."""

    def __init__(self, name: str, group: str, rule: AlertRuleTable) -> None:
        self.name, self.group, self.rule = name, group, rule
        self.state = AlertState.IDLE
        self.sent_s: float | None = None
        """When receivers were last told that it fires, in seconds since 1970."""
        self._window = SlidingWindow(rule.window_s)
        self._since_s = self._ended_s = 0.0
        self._below_since_s: float | None = None
        self._id = self._reason = self._finding = ""
        self._records: tuple[str, ...] = ()

    @property
    def is_forgettable(self) -> bool:
        return self.state is AlertState.IDLE and not self._window

    def add(self, event: AlertEvent, at_s: float, *, is_hit: bool) -> None:
        """Count a record; the caller has advanced the series to this time."""
        self._window.add(at_s, is_hit=is_hit, record_id=event.id)
        if is_hit and event.finding:
            self._finding = event.finding[:_MAX_FINDING_CHARACTERS]

    def advance(self, at_s: float) -> AlertState | None:
        """Go on to this time, through every moment at which the count changes: a state that was
        reached between two records counts. Returns `RESOLVED` if the alert ended meanwhile."""
        done_s = -math.inf
        while True:
            moment = self._next_moment(at_s)
            moment = moment if moment > done_s else at_s  # rounding must not stop the clock
            state = self._step(moment)
            if state is not None or moment >= at_s:
                return state
            done_s = moment

    def _next_moment(self, at_s: float) -> float:
        moments = [at_s]
        if self._window:
            moments.append(self._window.next_change_s())
        if self.state is AlertState.PENDING:
            moments.append(self._since_s + self.rule.hold_s)
        if self._below_since_s is not None:
            moments.append(self._below_since_s + self.rule.resolve_s)
        return min(moments)

    def _step(self, at_s: float) -> AlertState | None:
        if self._is_above():  # up to this moment
            self._fire_if_due(at_s)
            if at_s >= self._window.next_change_s():
                self._note_reason()  # the last one, if what leaves the window ends the alert
        self._window.expire(at_s)
        if self._is_above():
            self._below_since_s = None
            if self.state is AlertState.IDLE:
                self.state, self._since_s = AlertState.PENDING, at_s
            self._fire_if_due(at_s)
        elif self.state is AlertState.PENDING:
            self._reset()
        elif self.state is AlertState.FIRING:
            if self._below_since_s is None:
                self._below_since_s = at_s
            if at_s >= self._below_since_s + self.rule.resolve_s:
                self.state, self._ended_s = AlertState.RESOLVED, at_s
                return AlertState.RESOLVED
        return None

    def _fire_if_due(self, at_s: float) -> None:
        if self.state is AlertState.PENDING and at_s >= self._since_s + self.rule.hold_s:
            self.state = AlertState.FIRING

    def _is_above(self) -> bool:
        window, rule = self._window, self.rule
        if rule.measure == "count":
            return window.hits > rule.over
        return window.total >= rule.min_events and window.hits / window.total > rule.over

    def _note_reason(self) -> None:
        window, rule = self._window, self.rule
        span = _span_text(rule.window_s)
        if rule.measure == "count":
            counted = f"{window.hits} in {span}; the alert is for more than {rule.over:g}"
        else:
            share = 100 * window.hits / window.total
            counted = f"{window.hits} of {window.total} ({share:.1f} %) in {span}; the alert is "
            counted += f"for more than {100 * rule.over:g} %"
        self._reason = f"{self._finding}; {counted}" if self._finding else counted
        self._records = tuple(window.records)

    def end(self) -> None:
        """Start over after `RESOLVED` was taken note of."""
        self._reset()
        self.sent_s = None
        self._finding = ""

    def _reset(self) -> None:
        self.state, self._below_since_s, self._id = AlertState.IDLE, None, ""

    def alert(self, *, offset_s: float) -> Alert:
        """As it stands; `offset_s` leads from the engine's clock to that of the host."""
        if self._is_above():
            self._note_reason()
        since_s = round(self._since_s + offset_s, 3)
        is_over = self.state is AlertState.RESOLVED
        if not self._id:
            text = f"{self.name}\0{self.group}\0{self._since_s}"
            self._id = f"alr_{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:20]}"
        return Alert(
            id=self._id,
            rule=self.name,
            group=self.group,
            severity=self.rule.severity,
            state=self.state,
            summary=self.rule.summary,
            reason=self._reason,
            records=self._records,
            since_s=since_s,
            ended_s=round(self._ended_s + offset_s, 3) if is_over else None,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "group": self.group,
            "window_s": self.rule.window_s,
            "window": self._window.to_json(),
            "state": self.state.value,
            "since_s": self._since_s,
            "below_since_s": self._below_since_s,
            "sent_s": self.sent_s,
            "id": self._id,
            "reason": self._reason,
            "finding": self._finding,
            "records": list(self._records),
        }

    def load(self, fields: dict[str, Any]) -> None:
        """From `to_json`. Counts of another window do not fit and begin anew."""
        if fields["window_s"] == self.rule.window_s:
            self._window.load(fields["window"])
        self.state = AlertState(fields["state"])
        self._since_s, self._below_since_s = float(fields["since_s"]), fields["below_since_s"]
        self.sent_s, self._id = fields["sent_s"], str(fields["id"])
        self._reason, self._finding = str(fields["reason"]), str(fields["finding"])
        self._records = tuple(map(str, fields["records"]))


def _span_text(seconds: int) -> str:
    for size, noun in ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds % size == 0:
            count = seconds // size
            return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
    raise AssertionError  # every number of seconds is a multiple of one

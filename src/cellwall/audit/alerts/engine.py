"""Evaluates all rules over a stream of records, on a clock of its own. Pure.

The clock only goes forward: it adds up the steps between the times of records. A record a little
older than the one before it (several writers) counts at the present moment. A host clock that was
set back adds nothing, and counts go on; one that was set forward ends windows early, and fires what
is pending: no such change hides an alert for longer than one window.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from cellwall.audit.alerts.events import AlertEvent, group_of, selects_any
from cellwall.audit.alerts.series import Alert, AlertSeries, AlertState
from cellwall.config.alerts_section import AlertRuleTable

MAX_GROUPS = 64
"""Of one rule: more values are counted together, so invented names take no memory."""
OTHER_GROUP = "other"
_MAX_GROUP_CHARACTERS = 120
_MAX_ENDED = 100
_MAX_KNOWN = 1000
_JITTER_S = 5.0
"""A record that is older than its predecessor by less was written at the same time."""


class AlertEngine:
    """All series, and what changed since the last call of `take_ended`."""

    def __init__(self, rules: Mapping[str, AlertRuleTable]) -> None:
        self._rules = {name: rule for name, rule in rules.items() if rule.state == "on"}
        self._series: dict[tuple[str, str], AlertSeries] = {}
        self._group_counts: Counter[str] = Counter()
        self._known: dict[tuple[str, ...], list[tuple[str, AlertRuleTable, bool]]] = {}
        self._clock_s = 0.0
        self._host_s: float | None = None
        self._ended: list[tuple[Alert, float | None]] = []
        self.recent: deque[Alert] = deque(maxlen=_MAX_ENDED)
        """Alerts that have ended, the newest last."""

    def observe(self, event: AlertEvent) -> None:
        """Count a record in every rule that selects it."""
        self._follow_clock(event.time_s)
        for name, rule, is_hit in self._selecting(event):
            series = self._series_of(name, rule, group_of(rule, event))
            self._advance(series)  # up to now without the record
            series.add(event, self._clock_s, is_hit=is_hit)
            self._advance(series)

    def _selecting(self, event: AlertEvent) -> list[tuple[str, AlertRuleTable, bool]]:
        """The rules that count the event, remembered by its words: most records are alike."""
        words = event.words
        if words not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            found = [
                (name, rule, selects_any(rule.of, event))
                for name, rule in self._rules.items()
                if selects_any((*rule.of, *rule.among), event)
            ]
            self._known[words] = found
        return self._known[words]

    def tick(self, host_s: float) -> None:
        """Time has passed, with or without records."""
        self._follow_clock(host_s)
        for key, series in list(self._series.items()):
            self._advance(series)
            if series.is_forgettable:
                del self._series[key]
                self._group_counts[series.name] -= 1

    def active(self) -> Iterator[tuple[AlertSeries, Alert]]:
        """What is pending or firing."""
        for series in self._series.values():
            if series.state in (AlertState.PENDING, AlertState.FIRING):
                yield series, series.alert(offset_s=self._offset_s)

    def take_ended(self) -> list[tuple[Alert, float | None]]:
        """The alerts that were resolved, each with the time at which receivers were told of it."""
        ended, self._ended = self._ended, []
        return ended

    @property
    def _offset_s(self) -> float:
        return (self._host_s or 0.0) - self._clock_s

    def _follow_clock(self, host_s: float) -> None:
        if self._host_s is None:
            self._host_s = host_s
            return
        step_s = host_s - self._host_s
        if step_s > 0:
            self._clock_s += step_s
            self._host_s = host_s
        elif step_s < -_JITTER_S:
            self._host_s = host_s  # the clock was set back

    def _series_of(self, name: str, rule: AlertRuleTable, group: str) -> AlertSeries:
        key = (name, group[:_MAX_GROUP_CHARACTERS])
        if key not in self._series:
            if self._group_counts[name] >= MAX_GROUPS:
                key = (name, OTHER_GROUP)
            if key not in self._series:
                self._series[key] = AlertSeries(*key, rule)
                self._group_counts[name] += 1
        return self._series[key]

    def _advance(self, series: AlertSeries) -> None:
        if series.advance(self._clock_s) is AlertState.RESOLVED:
            alert = series.alert(offset_s=self._offset_s)
            self._ended.append((alert, series.sent_s))
            self.recent.append(alert)
            series.end()
            self._advance(series)

    def to_json(self) -> dict[str, Any]:
        """The whole state, bounded by rules and groups."""
        return {
            "clock_s": self._clock_s,
            "host_s": self._host_s,
            "series": [each.to_json() for each in self._series.values()],
            "recent": [each.to_json() for each in self.recent],
        }

    def load(self, fields: dict[str, Any]) -> None:
        """From `to_json`; series of rules that are gone or off are dropped."""
        self._clock_s, self._host_s = float(fields["clock_s"]), fields["host_s"]
        self.recent.extend(Alert.of(each) for each in fields["recent"])
        for each in fields["series"]:
            rule = self._rules.get(each["name"])
            if rule is not None:
                series = AlertSeries(each["name"], each["group"], rule)
                series.load(each)
                self._series[(series.name, series.group)] = series
                self._group_counts[series.name] += 1

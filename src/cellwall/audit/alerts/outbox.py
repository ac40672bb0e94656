"""Messages that wait for one receiver: a bounded queue, a budget, pauses after failures. Pure.

An agent can cause alerts, so it could try to hide one among many: each rule has a budget of its
own, critical messages need none, and a full queue drops the oldest message of the rule that has the
most, among the least severe.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from cellwall.audit.alerts.notices import Notice
from cellwall.core.outcomes import SEVERITIES

MAX_WAITING = 200
_CRITICAL = SEVERITIES.index("critical")
_HOUR_S = 3600.0
FIRST_PAUSE_S = 5.0
MAX_PAUSE_S = 600.0


@dataclass(slots=True)
class Outbox:
    """The queue of one receiver, and how delivery stands. Times are in seconds since 1970."""

    waiting: list[Notice] = field(default_factory=list)
    failures: int = 0
    """In a row."""
    retry_s: float = 0.0
    problem: str = ""
    code: str = ""
    delivered: int = 0
    last_delivered_s: float | None = None
    dropped: int = 0
    """Messages that a full queue has lost."""
    unsent: dict[str, int] = field(default_factory=dict)
    """By rule: messages beyond the budget since the last one within it."""
    spent: dict[str, list[float]] = field(default_factory=dict)
    """By rule: when messages of the last hour were queued."""

    def put(self, notice: Notice, *, now_s: float, max_per_hour: int) -> None:
        """Queue a message, unless the budget of its rule is spent."""
        rule = notice.alert.rule
        if notice.severity < _CRITICAL:
            # A time in the future was noted before the clock was set back.
            recent = [at for at in self.spent.get(rule, []) if 0 <= now_s - at < _HOUR_S]
            self.spent[rule] = recent
            if len(recent) >= max_per_hour:
                self.unsent[rule] = self.unsent.get(rule, 0) + 1
                return
            recent.append(now_s)
        self.waiting.append(replace(notice, unsent=self.unsent.pop(rule, 0)))
        if len(self.waiting) > MAX_WAITING:
            counts = Counter(each.alert.rule for each in self.waiting)
            self.waiting.remove(
                min(self.waiting, key=lambda each: (each.severity, -counts[each.alert.rule]))
            )
            self.dropped += 1

    def due(self, now_s: float) -> Notice | None:
        """The next message to send, unless a pause lasts. The most severe goes first; a pause that
        is longer than any was noted before the clock was set back."""
        if not self.waiting or 0 < self.retry_s - now_s <= MAX_PAUSE_S:
            return None
        return max(self.waiting, key=lambda each: each.severity)  # the first of equals

    def delivered_now(self, notice: Notice, *, now_s: float) -> None:
        """The receiver has it."""
        self.waiting = [each for each in self.waiting if each.id != notice.id]
        self.failures, self.retry_s, self.problem, self.code = 0, 0.0, "", ""
        self.delivered += 1
        self.last_delivered_s = now_s

    def failed_now(self, problem: str, code: str, *, now_s: float) -> None:
        """The message stays, and the pause grows."""
        pause_s = min(FIRST_PAUSE_S * 2 ** min(self.failures, 16), MAX_PAUSE_S)
        self.failures += 1
        self.retry_s, self.problem, self.code = now_s + pause_s, problem[:300], code

    def to_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        return {**fields, "waiting": [each.to_json() for each in self.waiting]}

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Outbox:
        """From `to_json`."""
        return cls(**{**fields, "waiting": [Notice.of(each) for each in fields["waiting"]]})

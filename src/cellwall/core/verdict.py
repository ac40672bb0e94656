"""Verdicts are ordered and the strictest wins: order is the semantics."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Verdict(IntEnum):
    """ALLOW < ASK < DENY, so `max()` of any verdicts is the strictest."""

    ALLOW = 0
    ASK = 1
    DENY = 2

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Decision:
    """A verdict with the rule it came from and a reason a person can read (POL-5)."""

    verdict: Verdict
    rule: str = ""
    reason: str = ""
    source: str = ""
    """The file and line of the rule; `built-in` where it is our own."""
    subject: str = ""
    """What was judged, as people write it: a command, a path."""
    place: tuple[str, ...] = ()
    """In what the subject stands, from the outside in: for people."""
    parts: tuple[Decision, ...] = ()
    """What it is made of, each judged by itself; the strictest of them is the whole."""
    stops: bool = False
    """A denial after which the agent is to stop, because its rule says so."""

    def to_json(self) -> dict[str, str]:
        return {
            "verdict": self.verdict.word,
            "rule": self.rule,
            "reason": self.reason,
            "source": self.source,
        }


def strictest(first: Decision, *others: Decision) -> Decision:
    """The strictest decision; of equals the first, so that the earliest reason is told."""
    return max((first, *others), key=lambda decision: decision.verdict)

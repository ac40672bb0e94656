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
    """A verdict with its rule and a readable reason (POL-5)."""

    verdict: Verdict
    rule: str = ""
    reason: str = ""
    source: str = ""
    """The file and line of the rule; `built-in` for our own."""
    subject: str = ""
    """The judged text, as people write it: a command, a path."""
    place: tuple[str, ...] = ()
    """The constructs around the subject, from the outside in, for people."""
    parts: tuple[Decision, ...] = ()
    """The parts, each judged by itself; the strictest decides the whole."""
    stops: bool = False
    """A denial after which the agent must stop, as its rule says."""

    @classmethod
    def built_in(cls, verdict: Verdict, rule: str, reason: str) -> Decision:
        """A decision of Cellwall itself, by no rule of a file."""
        return cls(verdict, rule, reason, "built-in")

    def to_json(self) -> dict[str, str]:
        return {
            "verdict": self.verdict.word,
            "rule": self.rule,
            "reason": self.reason,
            "source": self.source,
        }


def strictest(first: Decision, *others: Decision) -> Decision:
    """The strictest decision; of equals the first, so the earliest reason is shown."""
    return max((first, *others), key=lambda decision: decision.verdict)

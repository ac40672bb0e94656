"""Gathers what the screening finds, a bounded number for each rule."""

from __future__ import annotations

from cellwall.guard.code.rules import RULES, CodePattern, Rule
from cellwall.guard.report import Hit

_MAX_OF_A_RULE = 5
"""For each rule by itself: a flood of one thing hides no other that a setting refuses."""


class Findings:
    """Of one piece of code, in its characters."""

    def __init__(self) -> None:
        self._found: dict[str, set[tuple[int, int]]] = {}
        self._patterned: list[Hit] = []

    def add(self, name: str, start: int, end: int) -> None:
        spans = self._found.setdefault(f"code.{name}", set())
        if len(spans) < _MAX_OF_A_RULE:
            spans.add((start, max(start, end)))

    def add_pattern(self, code: str, given: CodePattern) -> None:
        """All matches of a pattern of the configuration, up to the same bound."""
        data = code.encode("utf-8", "surrogatepass")
        for number, (start, end) in enumerate(given.pattern.spans(data)):
            if number >= _MAX_OF_A_RULE:
                break
            first = len(data[:start].decode("utf-8", "surrogatepass"))
            length = len(data[start:end].decode("utf-8", "surrogatepass"))
            self._patterned.append(_hit(given.rule(), first, first + length))

    def is_full(self, name: str) -> bool:
        """Whether another of this rule would not be kept: its place need not be worked out."""
        return len(self._found.get(f"code.{name}", ())) >= _MAX_OF_A_RULE

    def within(self, start: int, end: int) -> Findings:
        """For code that stands there as a text: all that is found in it has that place."""
        return _Within(self, start, end)

    def hits(self) -> tuple[Hit, ...]:
        """From left to right."""
        found = [
            _hit(RULES[name], start, end)
            for name, spans in self._found.items()
            for start, end in spans
        ]
        found += self._patterned
        return tuple(sorted(found, key=lambda hit: (hit.start, hit.end, hit.rule)))


def _hit(rule: Rule, start: int, end: int) -> Hit:
    return Hit(
        category=rule.category,
        severity=rule.severity,
        rule=rule.id,
        message=rule.message,
        start=start,
        end=end,
        score=rule.score,
    )


class _Within(Findings):
    def __init__(self, outer: Findings, start: int, end: int) -> None:
        super().__init__()
        self._outer = outer
        self._start = start
        self._end = end

    def add(self, name: str, start: int, end: int) -> None:  # noqa: ARG002  # of the inner code
        self._outer.add(name, self._start, self._end)

    def is_full(self, name: str) -> bool:
        return self._outer.is_full(name)

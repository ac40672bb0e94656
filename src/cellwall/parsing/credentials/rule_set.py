"""The set of credential rules, and the scan with all of them (GRD-11).

One pass finds the keywords of all rules; the rules of a keyword then check a bounded number of
bytes behind it. So the work is linear in the data, whatever the data is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources

from cellwall.parsing.budget import checkpoint
from cellwall.parsing.credentials.named_rules import NAMED_WORDS, NamedRule
from cellwall.parsing.credentials.search_rules import SearchRule
from cellwall.parsing.credentials.shape_rules import BEFORE_BYTES, ShapeRule, read_shape
from cellwall.parsing.credentials.spans import (
    ScanContext,
    Span,
    mark_zones,
    merged,
    placeholder_zones,
)
from cellwall.parsing.derived_cache import load_shipped_toml
from cellwall.parsing.matching import WordIndex

_MANY = 1 << 40
_STEPS = 64
"""Keywords between two checkpoints: each takes some tens of microseconds at most."""

_NAMES_END = (b"=", b":", b"/", b" ")
"""Last bytes of keywords that name a value instead of being its prefix."""

Zones = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class SecretRules:
    """Rules and their keywords, compiled for one common search."""

    shapes: tuple[ShapeRule, ...] = ()
    named: tuple[NamedRule, ...] = ()
    searches: tuple[SearchRule, ...] = ()

    def with_rules(self, other: SecretRules) -> SecretRules:
        """The union of both sets."""
        return SecretRules(
            self.shapes + other.shapes,
            self.named + tuple(rule for rule in other.named if rule not in self.named),
            self.searches + other.searches,
        )

    @cached_property
    def ids(self) -> frozenset[str]:
        return frozenset(rule.id for rule in self._all)

    @cached_property
    def words_of(self) -> Mapping[str, tuple[bytes, ...]]:
        """Keywords in lower case by rule id; empty for rules that match before a keyword."""
        searches = {rule.id: () for rule in self.searches}
        words_by_rule: dict[str, tuple[bytes, ...]] = {}
        for rules in (self.shapes, self.named):
            for rule in rules:
                words = (word.lower() for word in rule.words)
                words_by_rule[rule.id] = (*words_by_rule.get(rule.id, ()), *words)
        return {**words_by_rule, **searches}

    def prefix_bytes(self, span: Span, data: bytes) -> int:
        """Length of the fixed prefix (`ghp_`) directly before a value."""
        before = data[max(0, span.start - BEFORE_BYTES) : span.start].lower()
        fitting = (len(word) for word in self._prefixes.get(span.rule, ()) if before.endswith(word))
        return max(fitting, default=0)

    @cached_property
    def _prefixes(self) -> Mapping[str, tuple[bytes, ...]]:
        return {
            rule.id: tuple(word.lower() for word in rule.words if word[-1:] not in _NAMES_END)
            for rule in self.shapes
            if rule.lead is None
        }

    @cached_property
    def _all(self) -> tuple[ShapeRule | NamedRule | SearchRule, ...]:
        return (*self.shapes, *self.named, *self.searches)

    @cached_property
    def by_word(self) -> tuple[tuple[bytes, tuple[ShapeRule | NamedRule | SearchRule, ...]], ...]:
        """Keywords in lower case, each with its rules."""
        rules_by_word: dict[bytes, list[ShapeRule | NamedRule | SearchRule]] = {}
        for rule in self._all:
            for word in dict.fromkeys(word.lower() for word in rule.words):
                rules_by_word.setdefault(word, []).append(rule)
        return tuple((word, tuple(rules)) for word, rules in rules_by_word.items())

    @cached_property
    def wordless(self) -> tuple[SearchRule, ...]:
        """User rules without keywords, which may match anywhere."""
        return tuple(rule for rule in self.searches if not rule.words)

    @cached_property
    def index(self) -> WordIndex:
        return WordIndex([word for word, _ in self.by_word], ignore_case=True)

    @cached_property
    def _max_word_bytes(self) -> int:
        return max((len(word) for word, _ in self.by_word), default=1)

    def places(self, data: bytes, start: int = 0, stop: int | None = None) -> list[tuple[int, int]]:
        """Number and end of each keyword that ends behind `start` and not behind `stop`."""
        first = max(0, start - self._max_word_bytes + 1)
        found = self.index.places(data[first:stop], _MANY)
        return [(number, first + end) for number, end in found if first + end > start]


@cache
def shipped() -> SecretRules:
    """The rules of `rules.toml`."""
    file = resources.files("cellwall.parsing.credentials").joinpath("rules.toml")
    table = load_shipped_toml(file.read_text("utf-8"))
    vendors = table["vendors"]["names"]
    named = (
        NamedRule("named-secret", NAMED_WORDS),
        NamedRule("vendor-secret", tuple(name.encode() for name in vendors), is_vendor=True),
    )
    return SecretRules(tuple(map(read_shape, table["rule"])), named)


@cache
def on_wire() -> SecretRules:
    """The shipped rules whose matches are refused in requests."""
    return SecretRules(tuple(rule for rule in shipped().shapes if rule.is_on_wire))


def scan_with_rules(
    rules: SecretRules,
    data: bytes,
    around: ScanContext,
    *,
    zones: Zones = (),
    first: int = 0,
    places: Sequence[tuple[int, int]] = (),
    is_final: bool,
) -> Iterator[int | Span]:
    """Spans to redact, and positions from which on data must be held back.

    Keywords before `first` and in `zones` are ignored. `places` are the keywords to check, as
    `SecretRules.places` finds them; without any, all are checked.
    """
    lent = placeholder_zones(data)
    last_search: dict[str, int] = {}
    covered: dict[str, int] = {}
    for step, (number, end) in enumerate(places or rules.places(data)):
        if step % _STEPS == 0:
            checkpoint()
        word, lookers = rules.by_word[number]
        start = end - len(word)
        if start < first or is_within(zones, start) or is_within(lent, start):
            continue
        for looker in lookers:
            if isinstance(looker, SearchRule):
                if looker.has_seen(data, last_search.get(looker.id), start):
                    continue
                last_search[looker.id] = start
            elif start < covered.get(looker.id, 0):
                continue  # within a long value of the same rule: both have the same end
            for result in looker.look(data, start, end, is_final=is_final, around=around):
                if isinstance(result, int):
                    yield result
                elif not is_within(zones, result.start):
                    if result.is_long and isinstance(looker, ShapeRule):
                        covered[looker.id] = result.end
                    yield result


def spans_in(rules: SecretRules, data: bytes, *, is_strict: bool = False) -> list[Span]:
    """All credentials in complete data, in order and without overlaps."""
    around = ScanContext(words=rules.words_of, is_strict=is_strict)
    zones = mark_zones(data, rules.ids)
    results = scan_with_rules(rules, data, around, zones=zones, is_final=True)
    return merged([result for result in results if isinstance(result, Span)])


def is_within(zones: Zones, place: int) -> bool:
    """Whether the position is in one of the zones, which are sorted and disjoint."""
    if not zones:
        return False
    before = bisect_right(zones, (place, _MANY)) - 1
    return before >= 0 and place < zones[before][1]

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
from cellwall.parsing.keeping import own_toml
from cellwall.parsing.matching import WordIndex

_MANY = 1 << 40
_STEPS = 64
"""Words between two looks at the clock: each takes some tens of microseconds at most."""

_NAMES_END = (b"=", b":", b"/", b" ")
"""With these a word ends that names a value instead of beginning it."""

Zones = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class SecretRules:
    """Rules and the words they begin with, made ready to be searched for all at once."""

    shapes: tuple[ShapeRule, ...] = ()
    named: tuple[NamedRule, ...] = ()
    searches: tuple[SearchRule, ...] = ()

    def with_rules(self, other: SecretRules) -> SecretRules:
        """Both."""
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
        """In small letters, by id; none for rules that may find something before their words."""
        searches = {rule.id: () for rule in self.searches}
        found: dict[str, tuple[bytes, ...]] = {}
        for rules in (self.shapes, self.named):
            for rule in rules:
                words = (word.lower() for word in rule.words)
                found[rule.id] = (*found.get(rule.id, ()), *words)
        return {**found, **searches}

    def prefix_bytes(self, span: Span, data: bytes) -> int:
        """How many bytes right before a value are the beginning that all of its kind share."""
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
        """The words in small letters, and who looks where one stands."""
        found: dict[bytes, list[ShapeRule | NamedRule | SearchRule]] = {}
        for rule in self._all:
            for word in dict.fromkeys(word.lower() for word in rule.words):
                found.setdefault(word, []).append(rule)
        return tuple((word, tuple(rules)) for word, rules in found.items())

    @cached_property
    def wordless(self) -> tuple[SearchRule, ...]:
        """Rules of users that may match anywhere."""
        return tuple(rule for rule in self.searches if not rule.words)

    @cached_property
    def index(self) -> WordIndex:
        return WordIndex([word for word, _ in self.by_word], ignore_case=True)


@cache
def shipped() -> SecretRules:
    """What Cellwall knows of secrets."""
    file = resources.files("cellwall.parsing.credentials").joinpath("rules.toml")
    table = own_toml(file.read_text("utf-8"))
    vendors = table["vendors"]["names"]
    named = (
        NamedRule("named-secret", NAMED_WORDS),
        NamedRule("vendor-secret", tuple(name.encode() for name in vendors), is_vendor=True),
    )
    return SecretRules(tuple(map(read_shape, table["rule"])), named)


@cache
def on_wire() -> SecretRules:
    """Those of the shipped rules whose finds are refused in requests."""
    return SecretRules(tuple(rule for rule in shipped().shapes if rule.is_on_wire))


def scan_with_rules(
    rules: SecretRules,
    data: bytes,
    around: ScanContext,
    *,
    zones: Zones = (),
    first: int = 0,
    is_final: bool,
) -> Iterator[int | Span]:
    """What goes, and places from which on there is something to wait for.

    Words before `first` and in `zones` name nothing.
    """
    lent = placeholder_zones(data)
    looked: dict[str, int] = {}
    covered: dict[str, int] = {}
    for step, (number, end) in enumerate(rules.index.places(data, _MANY)):
        if step % _STEPS == 0:
            checkpoint()
        word, lookers = rules.by_word[number]
        start = end - len(word)
        if start < first or is_within(zones, start) or is_within(lent, start):
            continue
        for looker in lookers:
            if isinstance(looker, SearchRule):
                if looker.has_seen(data, looked.get(looker.id), start):
                    continue
                looked[looker.id] = start
            elif start < covered.get(looker.id, 0):
                continue  # within a long value of the same kind: it would end where that one does
            for seen in looker.look(data, start, end, is_final=is_final, around=around):
                if isinstance(seen, int):
                    yield seen
                elif not is_within(zones, seen.start):
                    if seen.is_long and isinstance(looker, ShapeRule):
                        covered[looker.id] = seen.end
                    yield seen


def spans_in(rules: SecretRules, data: bytes, *, is_strict: bool = False) -> list[Span]:
    """All credentials in data that is complete, in order and apart."""
    around = ScanContext(words=rules.words_of, is_strict=is_strict)
    zones = mark_zones(data, rules.ids)
    found = scan_with_rules(rules, data, around, zones=zones, is_final=True)
    return merged([seen for seen in found if isinstance(seen, Span)])


def is_within(zones: Zones, place: int) -> bool:
    """Whether the place lies in one of the zones, which are in order and apart."""
    if not zones:
        return False
    before = bisect_right(zones, (place, _MANY)) - 1
    return before >= 0 and place < zones[before][1]

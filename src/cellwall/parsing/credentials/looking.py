"""Where the rules find credentials in some data: for a stream step by step, for a text at once.

The words of all rules are searched for in one pass; behind each the rules of that word look at a
bounded number of bytes. So the work is in proportion to the data, whatever it holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from cellwall.parsing.budget import checkpoint
from cellwall.parsing.credentials.gitleaks import SearchRule
from cellwall.parsing.credentials.rules import SecretRules, ShapeRule
from cellwall.parsing.credentials.spans import Around, Span, lent_zones, marked_zones, merged

_MANY = 1 << 40
_STEPS = 64
"""Words between two looks at the clock: each takes some tens of microseconds at most."""

Zones = Sequence[tuple[int, int]]


def looks(
    rules: SecretRules,
    data: bytes,
    around: Around,
    *,
    zones: Zones = (),
    first: int = 0,
    is_final: bool,
) -> Iterator[int | Span]:
    """What goes, and places from which on there is something to wait for.

    Words before `first` and in `zones` name nothing.
    """
    lent = lent_zones(data)
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
    around = Around(words=rules.words_of, is_strict=is_strict)
    zones = marked_zones(data, rules.ids)
    found = looks(rules, data, around, zones=zones, is_final=True)
    return merged([seen for seen in found if isinstance(seen, Span)])


def is_within(zones: Zones, place: int) -> bool:
    """Whether the place lies in one of the zones, which are in order and apart."""
    if not zones:
        return False
    before = bisect_right(zones, (place, _MANY)) - 1
    return before >= 0 and place < zones[before][1]

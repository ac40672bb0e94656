"""Numbers that are written in groups: payment cards and telephones.

One pass finds stretches of digits; Python looks only at those, group by group, and asks the
libraries only about what has the shape of a card or a telephone number.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cellwall.guard.pii.hit import Budget, PiiHit, stands_alone
from cellwall.guard.pii.phones import Phones
from cellwall.parsing.matching import Pattern

# Blanks and hyphens of all kinds, since word processors put them into numbers.
_BETWEEN = r"[ .\-/()\x{a0}\x{2009}\x{202f}\x{2010}-\x{2015}\x{2212}]{0,3}"
_STRETCH = Pattern(rf"(?:\+\(?|\()?[0-9](?:{_BETWEEN}[0-9]){{6,}}")
_GROUP = re.compile(rb"[0-9]+")

_ISSUERS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    # from, to (by their first digits), lengths
    ("4", "4", (13, 16, 19)),
    ("51", "55", (16,)),
    ("2221", "2720", (16,)),
    ("34", "34", (15,)),
    ("37", "37", (15,)),
    ("6011", "6011", (16, 19)),
    ("644", "649", (16, 19)),
    ("65", "65", (16, 19)),
    ("300", "305", (14, 16)),
    ("36", "36", (14, 16)),
    ("38", "39", (14, 16)),
    ("3528", "3589", (16, 19)),
    ("62", "62", (16, 17, 18, 19)),
    ("81", "82", (16,)),
    ("60", "60", (16,)),
    ("508", "508", (16,)),
    ("2200", "2204", (16, 19)),
    ("50", "50", (16, 18, 19)),
    ("56", "58", (16, 18, 19)),
    ("6759", "6763", (16, 18, 19)),
    ("9792", "9792", (16,)),
)
_CARD_LENGTHS = frozenset(length for _, _, lengths in _ISSUERS for length in lengths)
_CARD_GROUPS = frozenset(
    {(4, 4, 4, 4), (4, 4, 4, 4, 3), (4, 6, 5), (4, 6, 4), (4, 4, 5), (4, 3, 3, 3)}
)


@dataclass(frozen=True, slots=True)
class Group:
    """Digits without a gap."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


def numbers(data: bytes, budget: Budget, regions: Sequence[str]) -> Iterator[PiiHit]:
    """Cards and telephone numbers."""
    phones = Phones(regions)
    for start, end in _STRETCH.spans(data):
        groups = [Group(*match.span()) for match in _GROUP.finditer(data, start, end)]
        at = fresh = 0  # where a number may begin: with the stretch, or behind another
        while at < len(groups):
            if budget.is_spent:
                yield PiiHit("number", groups[at].start, end)
                break
            found = _card(data, groups, at) or phones.starting_at(
                data, groups, at, budget, is_fresh=at == fresh
            )
            if found is None:
                at += 1
                continue
            yield found
            while at < len(groups) and groups[at].start < found.end:
                at += 1
            fresh = at


def _card(data: bytes, groups: Sequence[Group], at: int) -> PiiHit | None:
    first = groups[at]
    if first.length != 4:
        return _checked_card(data, first.start, first.end) if first.length > 12 else None
    lengths: list[int] = []
    found: PiiHit | None = None
    separator = data[first.end : groups[at + 1].start] if at + 1 < len(groups) else b""
    for number in range(at, min(at + 5, len(groups))):
        group = groups[number]
        if number > at and data[groups[number - 1].end : group.start] != separator:
            break
        lengths.append(group.length)
        if tuple(lengths) in _CARD_GROUPS:  # the longest that is one
            found = _checked_card(data, first.start, group.end) or found
    return found


def _checked_card(data: bytes, start: int, end: int) -> PiiHit | None:
    digits = b"".join(_GROUP.findall(data, start, end)).decode("ascii")
    if len(digits) not in _CARD_LENGTHS or not _is_issued(digits):
        return None
    if len(set(digits)) == 1 or not passes_luhn(digits) or not stands_alone(data, start, end):
        return None
    return PiiHit("card", start, end)


def _is_issued(digits: str) -> bool:
    return any(
        first <= digits[: len(first)] <= last and len(digits) in lengths
        for first, last, lengths in _ISSUERS
    )


def passes_luhn(digits: str) -> bool:
    """Whether the last digit checks the others, as on every payment card."""
    doubled = [sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2]]
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0

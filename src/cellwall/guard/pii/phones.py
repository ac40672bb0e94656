"""Telephone numbers, as the library of their plans knows them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from cellwall.guard.pii.hit import Budget, PiiHit, stands_alone

_SHORTEST, _LONGEST = 7, 15
_NAMED = re.compile(
    r"(?i)(?:\btel|phone|\bfon\b|\bmob(?:ile?)?\b|handy|\bcell|\bfax|\bcall\b|whatsapp|signal|\bsms|"
    r"m[óo]vil|celular|portable|t[ée]l[ée]fono?|telemóvel|тел|电话|電話|전화|फ़ोन)[^\n0-9]{0,16}$"
)
_REACH_BYTES = 40
# Years first or last, with months and days: dates and times look like groups of a number.
_DATE = re.compile(rb"(?:19|20)\d\d[-/. ]\d{1,2}(?:[-/. ]|$)|\d{1,2}[-/.]\d{1,2}[-/.](?:19|20)\d\d")
# How regions write numbers that begin with no zero, where that looks like nothing else. Three
# groups of three are not here: most often that is an amount.
_NANP = frozenset({(3, 3, 4), (1, 3, 3, 4)})
_SHAPES: dict[str, frozenset[tuple[int, ...]]] = {
    "US": _NANP,
    "CA": _NANP,
    "ES": frozenset({(3, 2, 2, 2), (2, 3, 2, 2)}),
    "PL": frozenset({(2, 3, 2, 2)}),
    "IT": frozenset({(3, 3, 4)}),
    "MX": frozenset({(2, 4, 4), (3, 3, 4)}),
    "BR": frozenset({(2, 5, 4), (2, 4, 4)}),
    "CN": frozenset({(3, 4, 4)}),
}
_TRUNK_DIGITS = range(9, 13)


class _Group(Protocol):
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def length(self) -> int: ...


class Phones:
    """Of the regions whose numbers are known without a country code."""

    def __init__(self, regions: Sequence[str]) -> None:
        self._regions = tuple(regions)
        # By the sizes of the first two groups, so that other digits cost one look.
        self._shapes: dict[tuple[int, int], list[tuple[tuple[int, ...], list[str]]]] = {}
        shapes = {shape for each in self._regions for shape in _SHAPES.get(each, ())}
        for shape in sorted(shapes, key=len, reverse=True):
            known = [each for each in self._regions if shape in _SHAPES.get(each, ())]
            self._shapes.setdefault((shape[0], shape[1]), []).append((shape, known))

    def starting_at(
        self,
        data: bytes,
        groups: Sequence[_Group],
        at: int,
        budget: Budget,
        *,
        is_fresh: bool,
    ) -> PiiHit | None:
        """The longest run of groups from here on that is a number somebody can be called by."""
        start = _opened(data, groups[at].start)
        for last, regions in self._candidates(data, groups, at, start, is_fresh=is_fresh):
            end = groups[last].end
            is_plus = data[groups[at].start - 1 : groups[at].start] == b"+"
            first = start if b")" in data[start:end] else groups[at].start - is_plus
            if stands_alone(data, first, end) and _is_valid(data[first:end], regions, budget):
                return PiiHit("phone", first, end)
        return None

    def _candidates(
        self, data: bytes, groups: Sequence[_Group], at: int, start: int, *, is_fresh: bool
    ) -> Iterator[tuple[int, Sequence[str]]]:
        """The last group of each, the longest first, and where such a number may come from."""
        first = groups[at]
        if b"+" in data[start : first.start]:
            yield from ((last, ("ZZ",)) for last in _ends(groups, at, least=1))
        # Behind other digits no word can stand that names a number, which saves most of the work.
        elif at == 0 and _is_named(data, start):
            yield from ((last, self._regions) for last in _ends(groups, at, least=1))
        elif _DATE.match(data, first.start):
            return
        elif data[first.start] == ord("0"):
            # In the middle of other digits it is one column of a table, or a part of an account.
            for last in _ends(groups, at, least=2) if is_fresh else ():
                digits = sum(group.length for group in groups[at : last + 1])
                if last > at and digits in _TRUNK_DIGITS:
                    yield last, self._regions
        elif at + 1 < len(groups):
            for shape, regions in self._shapes.get((first.length, groups[at + 1].length), ()):
                if shape == tuple(group.length for group in groups[at : at + len(shape)]):
                    yield at + len(shape) - 1, regions


def _is_named(data: bytes, start: int) -> bool:
    before = data[max(0, start - _REACH_BYTES) : start].decode("utf-8", "replace")
    return _NAMED.search(before) is not None


def _is_valid(raw: bytes, regions: Sequence[str], budget: Budget) -> bool:
    import phonenumbers  # noqa: PLC0415  # 100 ms, for texts with such numbers alone

    digits = bytes(byte for byte in raw if 48 <= byte <= 57).decode("ascii")
    text = "+" + digits if b"+" in raw[:2] else digits
    for region in regions:
        budget.take()
        try:
            number = phonenumbers.parse(text, region)
        except phonenumbers.NumberParseException:
            continue
        if phonenumbers.is_valid_number(number):
            return True
    return False


def _opened(data: bytes, start: int) -> int:
    """With the bracket and the plus before the first group."""
    if data[start - 1 : start] == b"(":
        start -= 1
    if data[start - 1 : start] == b"+":
        start -= 1
        if data[start - 1 : start] == b"(":
            start -= 1
    return start


def _ends(groups: Sequence[_Group], at: int, *, least: int) -> list[int]:
    """Where a run of groups with `least` digits each may end, the longest run first."""
    total = 0
    found: list[int] = []
    for number in range(at, min(at + _LONGEST, len(groups))):
        total += groups[number].length
        if total > _LONGEST or groups[number].length < least:
            break
        if total >= _SHORTEST:
            found.append(number)
    return found[::-1]

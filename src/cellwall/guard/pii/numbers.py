"""National identity numbers, IBANs, payment cards and telephone numbers.

Cards and telephone numbers are digits written in groups. One pass finds stretches of digits.
Python examines only those, group by group, and calls the libraries only for groups in the shape
of a card or a telephone number.
"""

# ruff: noqa: PLC0415  # late imports: phonenumbers takes 100 ms to import; only texts with such numbers need it
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module

from cellwall.guard.pii.hit import (
    CheckBudget,
    KeywordPlace,
    PiiHit,
    keyword_places,
    load_forms,
    stands_alone,
)
from cellwall.parsing.matching import Pattern, WordIndex

# National identity numbers and IBANs, checked by python-stdnum.
#
# Some are unambiguous: their form is unique and they have check digits. Others are nine or eleven
# digits like many numbers; they count only after a keyword that names them.
_REACH_BYTES = 40


@dataclass(frozen=True, slots=True)
class IdentityNumber:
    """One kind of identity number, as `forms.toml` defines it."""

    kind: str
    check: str
    alone: str
    near: str
    words: tuple[str, ...]


def find_unambiguous(data: bytes, budget: CheckBudget) -> Iterator[PiiHit]:
    """Numbers whose form and check digits are sufficient."""
    for start, end in _alone_pattern().spans(data):
        for identity in _alone_identities():
            is_form = re.fullmatch(identity.alone.encode(), data[start:end])
            if is_form and _is_one(identity, data, start, end, budget):
                yield PiiHit(identity.kind, start, end)
                break


def find_named(data: bytes, budget: CheckBudget) -> Iterator[PiiHit]:
    """Numbers after a keyword that names them."""
    for place in keyword_places(_words(), data):
        for identity in _by_word()[place.word]:
            found = _first(identity, data, place, budget)
            if found is not None:
                yield found
                break


def _first(
    identity: IdentityNumber, data: bytes, place: KeywordPlace, budget: CheckBudget
) -> PiiHit | None:
    window = _near_pattern(identity.near).spans(data, place.end, place.end + _REACH_BYTES)
    for start, end in window:
        if _is_one(identity, data, start, end, budget):
            return PiiHit(identity.kind, start, end)
    return None


def _is_one(
    identity: IdentityNumber, data: bytes, start: int, end: int, budget: CheckBudget
) -> bool:
    if not stands_alone(data, start, end):
        return False
    if not identity.check or budget.is_spent:
        return True
    budget.take()
    number = data[start:end].decode("ascii")
    return bool(import_module(f"stdnum.{identity.check}").is_valid(number))


@cache
def identities() -> tuple[IdentityNumber, ...]:
    """All kinds in `forms.toml`."""
    return tuple(
        IdentityNumber(
            kind=row["kind"],
            check=row.get("check", ""),
            alone=row.get("alone", ""),
            near=row.get("near", ""),
            words=tuple(row.get("words", ())),
        )
        for row in load_forms()["identity"]
    )


@cache
def _alone_identities() -> tuple[IdentityNumber, ...]:
    return tuple(each for each in identities() if each.alone)


@cache
def _alone_pattern() -> Pattern:
    return Pattern(r"\b(?:" + "|".join(each.alone for each in _alone_identities()) + r")\b")


@cache
def _near_pattern(form: str) -> Pattern:
    return Pattern(rf"\b(?:{form})\b")


@cache
def _by_word() -> dict[str, tuple[IdentityNumber, ...]]:
    found: dict[str, tuple[IdentityNumber, ...]] = {}
    for identity in identities():
        for word in identity.words:
            found[word] = (*found.get(word, ()), identity)
    return found


@cache
def _words() -> tuple[tuple[str, ...], WordIndex]:
    words = tuple(_by_word())
    return words, WordIndex([word.encode() for word in words], ignore_case=True)


_IBAN = Pattern(r"\b[A-Z]{2}[0-9]{2}(?:[ \-\x{a0}\x{202f}]?[A-Z0-9]){11,40}\b")
_SIGN = re.compile(rb"[A-Z0-9]")
_MIN_IBAN, _MAX_IBAN = 15, 34


def find_ibans(data: bytes, budget: CheckBudget) -> Iterator[PiiHit]:
    """IBANs whose length and check digits are valid for their country."""
    for start, end in _IBAN.spans(data):
        if budget.is_spent:
            yield PiiHit("iban", start, end)
            continue
        signs = [match.start() for match in _SIGN.finditer(data, start, end)]
        found = _longest(data, signs, budget)
        if found is not None:
            yield PiiHit("iban", start, found)


def _longest(data: bytes, signs: list[int], budget: CheckBudget) -> int | None:
    """End of the longest valid IBAN: words in capitals may follow it."""
    for count in range(min(len(signs), _MAX_IBAN), _MIN_IBAN - 1, -1):
        end = signs[count - 1] + 1
        number = bytes(data[at] for at in signs[:count]).decode("ascii")
        if _has_check_digits(number) and stands_alone(data, signs[0], end):
            budget.take()
            if import_module("stdnum.iban").is_valid(number):
                return end
    return None


def _has_check_digits(number: str) -> bool:
    turned = number[4:] + number[:4]
    return int("".join(str(int(sign, 36)) for sign in turned)) % 97 == 1


_MIN_DIGITS, _MAX_DIGITS = 7, 15
_NAMED = re.compile(
    r"(?i)(?:\btel|phone|\bfon\b|\bmob(?:ile?)?\b|handy|\bcell|\bfax|\bcall\b|whatsapp|signal|\bsms|"
    r"m[óo]vil|celular|portable|t[ée]l[ée]fono?|telemóvel|тел|电话|電話|전화|फ़ोन)[^\n0-9]{0,16}$"
)
# Dates and times look like groups of a number.
_DATE = re.compile(rb"(?:19|20)\d\d[-/. ]\d{1,2}(?:[-/. ]|$)|\d{1,2}[-/.]\d{1,2}[-/.](?:19|20)\d\d")
# Group lengths of national numbers without a leading zero, where they are unambiguous. Three
# groups of three are left out: they are usually an amount.
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


@dataclass(frozen=True, slots=True)
class _DigitGroup:
    """Digits without a gap."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


class Phones:
    """Finds telephone numbers; `regions` are tried for numbers without a country code."""

    def __init__(self, regions: Sequence[str]) -> None:
        self._regions = tuple(regions)
        # Indexed by the lengths of the first two groups: other digits cost one lookup.
        self._shapes: dict[tuple[int, int], list[tuple[tuple[int, ...], list[str]]]] = {}
        shapes = {shape for each in self._regions for shape in _SHAPES.get(each, ())}
        for shape in sorted(shapes, key=len, reverse=True):
            known = [each for each in self._regions if shape in _SHAPES.get(each, ())]
            self._shapes.setdefault((shape[0], shape[1]), []).append((shape, known))

    def starting_at(
        self,
        data: bytes,
        groups: Sequence[_DigitGroup],
        at: int,
        budget: CheckBudget,
        *,
        is_fresh: bool,
    ) -> PiiHit | None:
        """The longest sequence of groups from here on that is a valid telephone number."""
        start = _start_with_prefix(data, groups[at].start)
        for last, regions in self._candidates(data, groups, at, start, is_fresh=is_fresh):
            end = groups[last].end
            is_plus = data[groups[at].start - 1 : groups[at].start] == b"+"
            first = start if b")" in data[start:end] else groups[at].start - is_plus
            if stands_alone(data, first, end) and _is_valid(data[first:end], regions, budget):
                return PiiHit("phone", first, end)
        return None

    def _candidates(
        self, data: bytes, groups: Sequence[_DigitGroup], at: int, start: int, *, is_fresh: bool
    ) -> Iterator[tuple[int, Sequence[str]]]:
        """The last group of each candidate, longest first, and its possible regions."""
        first = groups[at]
        if b"+" in data[start : first.start]:
            yield from ((last, ("ZZ",)) for last in _ends(groups, at, least=1))
        # A keyword can precede only the first group, which saves most of the work.
        elif at == 0 and _is_named(data, start):
            yield from ((last, self._regions) for last in _ends(groups, at, least=1))
        elif _DATE.match(data, first.start):
            return
        elif data[first.start] == ord("0"):
            # Between other digits it is a table column or part of an account number.
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


def _is_valid(raw: bytes, regions: Sequence[str], budget: CheckBudget) -> bool:
    import phonenumbers

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


def _start_with_prefix(data: bytes, start: int) -> int:
    """Start including a bracket and a plus sign before the first group."""
    if data[start - 1 : start] == b"(":
        start -= 1
    if data[start - 1 : start] == b"+":
        start -= 1
        if data[start - 1 : start] == b"(":
            start -= 1
    return start


def _ends(groups: Sequence[_DigitGroup], at: int, *, least: int) -> list[int]:
    """Last groups of sequences whose groups have at least `least` digits, longest first."""
    total = 0
    found: list[int] = []
    for number in range(at, min(at + _MAX_DIGITS, len(groups))):
        total += groups[number].length
        if total > _MAX_DIGITS or groups[number].length < least:
            break
        if total >= _MIN_DIGITS:
            found.append(number)
    return found[::-1]


# Spaces and hyphens of all kinds, as word processors insert them into numbers.
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


def find_numbers(data: bytes, budget: CheckBudget, regions: Sequence[str]) -> Iterator[PiiHit]:
    """Cards and telephone numbers."""
    phones = Phones(regions)
    for start, end in _STRETCH.spans(data):
        groups = [_DigitGroup(*match.span()) for match in _GROUP.finditer(data, start, end)]
        at = fresh = 0  # start of the stretch, or the group after the previous hit
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


def _card(data: bytes, groups: Sequence[_DigitGroup], at: int) -> PiiHit | None:
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
        if tuple(lengths) in _CARD_GROUPS:  # keep the longest valid one
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
    """Whether the Luhn check digit is valid, as on every payment card."""
    doubled = [sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2]]
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0

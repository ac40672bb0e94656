"""National identity numbers and IBANs, checked by python-stdnum.

Some are unambiguous: their form is unique and they have check digits. Others are nine or eleven
digits like many numbers; they count only after a keyword that names them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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

_REACH_BYTES = 40


@dataclass(frozen=True, slots=True)
class Identity:
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
    identity: Identity, data: bytes, place: KeywordPlace, budget: CheckBudget
) -> PiiHit | None:
    window = _near_pattern(identity.near).spans(data, place.end, place.end + _REACH_BYTES)
    for start, end in window:
        if _is_one(identity, data, start, end, budget):
            return PiiHit(identity.kind, start, end)
    return None


def _is_one(identity: Identity, data: bytes, start: int, end: int, budget: CheckBudget) -> bool:
    if not stands_alone(data, start, end):
        return False
    if not identity.check or budget.is_spent:
        return True
    budget.take()
    number = data[start:end].decode("ascii")
    return bool(import_module(f"stdnum.{identity.check}").is_valid(number))


@cache
def identities() -> tuple[Identity, ...]:
    """All kinds in `forms.toml`."""
    return tuple(
        Identity(
            kind=row["kind"],
            check=row.get("check", ""),
            alone=row.get("alone", ""),
            near=row.get("near", ""),
            words=tuple(row.get("words", ())),
        )
        for row in load_forms()["identity"]
    )


@cache
def _alone_identities() -> tuple[Identity, ...]:
    return tuple(each for each in identities() if each.alone)


@cache
def _alone_pattern() -> Pattern:
    return Pattern(r"\b(?:" + "|".join(each.alone for each in _alone_identities()) + r")\b")


@cache
def _near_pattern(form: str) -> Pattern:
    return Pattern(rf"\b(?:{form})\b")


@cache
def _by_word() -> dict[str, tuple[Identity, ...]]:
    found: dict[str, tuple[Identity, ...]] = {}
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
_SHORTEST, _LONGEST = 15, 34


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
    for count in range(min(len(signs), _LONGEST), _SHORTEST - 1, -1):
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

"""International bank account numbers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module

from cellwall.guard.pii.hit import Budget, PiiHit, stands_alone
from cellwall.parsing.matching import Pattern

_IBAN = Pattern(r"\b[A-Z]{2}[0-9]{2}(?:[ \-\x{a0}\x{202f}]?[A-Z0-9]){11,40}\b")
_SIGN = re.compile(rb"[A-Z0-9]")
_SHORTEST, _LONGEST = 15, 34


def ibans(data: bytes, budget: Budget) -> Iterator[PiiHit]:
    """Those whose check digits and length are right for their country."""
    for start, end in _IBAN.spans(data):
        if budget.is_spent:
            yield PiiHit("iban", start, end)
            continue
        signs = [match.start() for match in _SIGN.finditer(data, start, end)]
        found = _longest(data, signs, budget)
        if found is not None:
            yield PiiHit("iban", start, found)


def _longest(data: bytes, signs: list[int], budget: Budget) -> int | None:
    """Where it ends: the words behind it may be in capitals too."""
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

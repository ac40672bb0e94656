"""What the finders of personal data share: their hits, their bounds, their borders."""

from __future__ import annotations

from dataclasses import dataclass

REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "NL", "PT", "BR", "IN", "CH", "AT", "AU")
"""Where numbers without a country code may come from."""

UNREAD = "unread"
"""Of the last hit, where there were too many: all the rest of the text, which nobody looked at."""

_LETTERS_AND_DIGITS = frozenset(b"0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_JOINERS = frozenset(b".,-+/:")


@dataclass(frozen=True, slots=True)
class PiiHit:
    """Personal data of a kind, never the data itself."""

    kind: str
    start: int
    end: int


class Budget:
    """Of checks that are much dearer than finding a candidate.

    When it is spent, candidates count as found without a check: hiding too much is safe.
    """

    def __init__(self, checks: int) -> None:
        self._left = checks

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    def take(self, checks: int = 1) -> None:
        self._left -= checks


def stands_alone(data: bytes, start: int, end: int) -> bool:
    """Whether it is no part of a longer word, number, identifier or version."""
    if start > 0:
        before = data[start - 1]
        if before in _LETTERS_AND_DIGITS:
            return False
        if before in b".-" and start > 1 and data[start - 2] in _LETTERS_AND_DIGITS:
            return False
    if end < len(data):
        after = data[end]
        if after in _LETTERS_AND_DIGITS:
            return False
        if after in _JOINERS and end + 1 < len(data) and _goes_on(data[end + 1], after):
            return False
    return True


def _goes_on(character: int, joiner: int) -> bool:
    # `12-34x` is one identifier; `4111…,next` and `4111….Next` are not.
    return character in (_LETTERS_AND_DIGITS if joiner in b"-" else b"0123456789")

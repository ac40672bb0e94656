"""Tokens that stand for personal data in one session, and the way back for the user (GRD-6).

A token is `[mail-1-k3f9x2ab]`: the kind, the number of the value, and eight signs made with a key
that only this session has. Text from outside therefore cannot name a value by guess, and who has
seen one token knows nothing of another.

`restore(hide(text)) == text` for every text that `hide` takes. There is a bound to what is kept for
a session, and a page with ten thousand made-up addresses reaches it: `hide` refuses then, `cover`
goes on with tokens such as `[mail-unkept]` that stand for nothing.

What looks like a token already, be it one of this session's or not, is hidden like a value; so
nothing in what `hide` returns has the form of a token except the tokens it put there.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from cellwall.core.errors import BadInput
from cellwall.guard.pii.finder import Names, find
from cellwall.guard.pii.hit import REGIONS, UNREAD, PiiHit

_TOKEN = re.compile(r"\[([a-z]{1,16})-([0-9]{1,9})-([a-z2-7]{8})\]")
_LITERAL = "literal"
MAX_VALUES = 10_000
_MAX_VALUE_CHARACTERS = 1_024
_SPELLING = re.compile(r"[\W_]+")


class Pseudonyms:
    """The tokens of one session. Thread-safe."""

    def __init__(
        self,
        *,
        regions: Sequence[str] = REGIONS,
        names: Names | None = None,
        max_values: int = MAX_VALUES,
    ) -> None:
        self._regions = tuple(regions)
        self._names = names
        self._max_values = max_values
        self._lock = threading.Lock()
        self._start_over()

    def hide(self, text: str) -> str:
        """With tokens in the place of personal data; `BadInput` when there is too much of it."""
        hits = self._hits(text)
        if any(hit.kind == UNREAD for hit in hits):
            raise _too_much()
        return self._written(text, hits, self._token)

    def cover(self, text: str) -> str:
        """As `hide`; what cannot be kept is covered all the same, and does not come back."""
        return self._written(text, self._hits(text), self._token_or_none)

    def _written(self, text: str, hits: Sequence[PiiHit], token: Callable[[str, str], str]) -> str:
        pieces: list[str] = []
        at = 0
        with self._lock:
            for hit in hits:
                pieces += (text[at : hit.start], token(hit.kind, text[hit.start : hit.end]))
                at = hit.end
        return "".join((*pieces, text[at:]))

    def _token_or_none(self, kind: str, value: str) -> str:
        if kind != UNREAD:
            with suppress(BadInput):
                return self._token(kind, value)
        return f"[{kind}-unkept]"

    def restore(self, text: str) -> str:
        """What stood there, for the user's own view; what is no token of this session stays."""
        with self._lock:
            return _TOKEN.sub(lambda match: self._values.get(match[0], match[0]), text)

    def forget(self) -> None:
        """Drop all values and the key: tokens given out until now stand for nothing any more."""
        with self._lock:
            self._start_over()

    def _start_over(self) -> None:
        self._key = secrets.token_bytes(32)
        self._tokens: dict[tuple[str, str], str] = {}
        self._values: dict[str, str] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._counts: dict[str, int] = {}

    def _hits(self, text: str) -> list[PiiHit]:
        """Personal data, and whatever could be taken for a token, whole."""
        literals = [PiiHit(_LITERAL, *match.span()) for match in _TOKEN.finditer(text)]
        found = find(text, regions=self._regions, names=self._names)
        hits: list[PiiHit] = []
        for hit in sorted((*literals, *found), key=lambda each: (each.start, -each.end)):
            last = hits[-1] if hits else None
            if last is not None and hit.start < last.end:
                # One over the border of the other: one value, for half a token could become one.
                hits[-1] = PiiHit(last.kind, last.start, max(last.end, hit.end))
            else:
                hits.append(hit)
        return hits

    def _token(self, kind: str, value: str) -> str:
        known = self._tokens.get((kind, value))
        if known is not None:
            return known
        if len(self._values) >= self._max_values or len(value) > _MAX_VALUE_CHARACTERS:
            raise _too_much()
        # The same number in another spelling has the same number here, so that a model sees that
        # they are one; the signs differ, so that each comes back as it was written.
        told = (kind, _SPELLING.sub("", value).casefold() or value)
        number = self._numbers.get(told)
        if number is None:
            number = self._counts[kind] = self._counts.get(kind, 0) + 1
            self._numbers[told] = number
        token = f"[{kind}-{number}-{self._signs(kind, number, value)}]"
        while token in self._values:  # two spellings with equal signs: once in 2^40
            number = self._counts[kind] = self._counts[kind] + 1
            token = f"[{kind}-{number}-{self._signs(kind, number, value)}]"
        self._tokens[kind, value] = token
        self._values[token] = value
        return token

    def _signs(self, kind: str, number: int, value: str) -> str:
        told = f"{kind}\0{number}\0{value}".encode("utf-8", "surrogatepass")
        digest = hashlib.blake2s(told, key=self._key, digest_size=5).digest()
        return base64.b32encode(digest).decode("ascii").lower()


def _too_much() -> BadInput:
    return BadInput(
        "there is more personal data than can be hidden and brought back in one session",
        hint="Work on a smaller part of the text, or in a new session.",
        code="CW-PII-FULL",
    )

"""Reversible tokens for personal data of one session (GRD-6).

A token is `[mail-1-k3f9x2ab]`: the kind, the number of the value, and eight characters derived with
a key of this session. So foreign text cannot guess a token, and one token reveals nothing about
another.

`restore(hide(text)) == text` for every text that `hide` accepts. The table of a session is bounded,
and a page with ten thousand invented addresses fills it: then `hide` raises, and `cover` continues
with irreversible tokens such as `[mail-unkept]`.

Text in the form of a token, of this session or not, is hidden like a value. So every token in the
result of `hide` was put there by `hide`.
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
        self._reset()

    def hide(self, text: str) -> str:
        """The text with tokens for personal data; `BadInput` when the table is full."""
        hits = self._hits(text)
        if any(hit.kind == UNREAD for hit in hits):
            raise _too_much()
        return self._replace_hits(text, hits, self._token)

    def cover(self, text: str) -> str:
        """As `hide`, but values that do not fit into the table get an irreversible token."""
        return self._replace_hits(text, self._hits(text), self._token_or_none)

    def _replace_hits(
        self, text: str, hits: Sequence[PiiHit], token: Callable[[str, str], str]
    ) -> str:
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
        """The text with the values of this session; foreign tokens stay."""
        with self._lock:
            return _TOKEN.sub(lambda match: self._values.get(match[0], match[0]), text)

    def forget(self) -> None:
        """Drop all values and the key; earlier tokens become meaningless."""
        with self._lock:
            self._reset()

    def _reset(self) -> None:
        self._key = secrets.token_bytes(32)
        self._tokens: dict[tuple[str, str], str] = {}
        self._values: dict[str, str] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._counts: dict[str, int] = {}

    def _hits(self, text: str) -> list[PiiHit]:
        """Hits for personal data and for text in the form of a token, merged where they overlap."""
        literals = [PiiHit(_LITERAL, *match.span()) for match in _TOKEN.finditer(text)]
        found = find(text, regions=self._regions, names=self._names)
        hits: list[PiiHit] = []
        for hit in sorted((*literals, *found), key=lambda each: (each.start, -each.end)):
            last = hits[-1] if hits else None
            if last is not None and hit.start < last.end:
                # Overlapping hits become one value: half a token could combine into another.
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
        # Spellings of one value share the number, so that a model sees that they are the same; the
        # digest differs, so that each is restored as it was written.
        spelled = (kind, _SPELLING.sub("", value).casefold() or value)
        number = self._numbers.get(spelled)
        if number is None:
            number = self._counts[kind] = self._counts.get(kind, 0) + 1
            self._numbers[spelled] = number
        token = f"[{kind}-{number}-{self._digest(kind, number, value)}]"
        while token in self._values:  # a collision of two spellings: once in 2^40
            number = self._counts[kind] = self._counts[kind] + 1
            token = f"[{kind}-{number}-{self._digest(kind, number, value)}]"
        self._tokens[kind, value] = token
        self._values[token] = value
        return token

    def _digest(self, kind: str, number: int, value: str) -> str:
        spelled = f"{kind}\0{number}\0{value}".encode("utf-8", "surrogatepass")
        digest = hashlib.blake2s(spelled, key=self._key, digest_size=5).digest()
        return base64.b32encode(digest).decode("ascii").lower()


def _too_much() -> BadInput:
    return BadInput(
        "there is more personal data than can be hidden and brought back in one session",
        hint="Work on a smaller part of the text, or in a new session.",
        code="CW-PII-FULL",
    )

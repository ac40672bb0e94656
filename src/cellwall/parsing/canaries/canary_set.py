"""Finds registered texts by digests of parts of them.

A registered text is kept as keyed digests of windows of its letters. The windows do not overlap:
with overlapping ones, a reader who knows the beginning could find the rest letter by letter. They
begin at anchors, so that a search computes a digest at few places. A window is found wherever it
stands: re-spaced, re-cased, escaped, in base64 or hexadecimal digits, across pieces of a stream.
Other words for the same thing are not found.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from zlib import crc32

from cellwall.parsing.canaries.letters import cut_escape, cut_run, decoded, letters

WINDOW = 48
"""Bytes of one window: letters and digits in UTF-8."""
MIN_BYTES = 96
"""Letters and digits of a text that can be registered."""
MAX_BYTES = 1_000_000
# About one letter of eight in European languages, and one byte of eight in other scripts.
_ANCHOR = re.compile(rb"[hcmw05\x80\x88\x90\x98\xa0\xa8\xb0\xb8]")


@dataclass(frozen=True, slots=True)
class Canary:
    """One registered text: no part of it can be read from this."""

    name: str
    key: bytes = field(repr=False)
    prints: Mapping[int, bytes] = field(repr=False)
    """By a checksum that most windows fail, the digest that decides."""

    @classmethod
    def of(cls, name: str, text: str) -> Canary | None:
        """Register a text; None if it has too few letters, or too many."""
        plain, key = letters(text.encode("utf-8", "ignore")), os.urandom(16)
        if not MIN_BYTES <= len(plain) <= MAX_BYTES:
            return None
        prints: dict[int, bytes] = {}
        place = 0
        while (anchor := _ANCHOR.search(plain, place)) is not None:
            window = plain[anchor.start() : anchor.start() + WINDOW]
            if len(window) < WINDOW:
                break
            prints[crc32(window)] = _digest(window, key)
            place = anchor.start() + WINDOW
        return cls(name, key, prints) if prints else None


def _digest(window: bytes, key: bytes) -> bytes:
    return blake2b(window, key=key, digest_size=16).digest()


class CanarySet:
    """All registered texts; built once, used by every search."""

    def __init__(self, canaries: Sequence[Canary] = ()) -> None:
        self._by_sum: dict[int, list[Canary]] = {}
        for canary in canaries:
            for checksum in canary.prints:
                self._by_sum.setdefault(checksum, []).append(canary)

    def __bool__(self) -> bool:
        return bool(self._by_sum)

    def find(self, data: bytes) -> str | None:
        """The name of the first registered text of which a window stands in these bytes."""
        return self.stream().feed(data)

    def stream(self) -> CanaryStream:
        """A search in bytes that come in pieces."""
        return CanaryStream(self)

    def in_letters(self, plain: bytes) -> Iterator[str]:
        """Names by the windows of letters."""
        known = self._by_sum
        for anchor in _ANCHOR.finditer(plain, 0, max(0, len(plain) - WINDOW + 1)):
            start = anchor.start()
            window = plain[start : start + WINDOW]
            checksum = crc32(window)
            if checksum in known:
                for canary in known[checksum]:
                    if _digest(window, canary.key) == canary.prints[checksum]:
                        yield canary.name


class CanaryStream:
    """One stream: `feed` pieces of any size; a window is found when it is complete."""

    def __init__(self, canaries: CanarySet) -> None:
        self._canaries = canaries
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        """Leaves out malformed bytes, which a cut inside an escape would hide as well; it holds the
        beginning of a character."""
        self._held = b""
        """The beginning of an escape."""
        self._letters = b""
        """The last letters, in which a window may have begun."""
        self._run = b""
        """The end of what may be an encoded run."""
        self._found: str | None = None

    def feed(self, data: bytes) -> str | None:
        """The name of the text that these bytes complete a window of, or that was found before."""
        if self._found is None and data and self._canaries:
            self._found = next(self._search(data), None)
        return self._found

    def _search(self, data: bytes) -> Iterator[str]:
        run = self._run + data
        self._run = cut_run(run)
        data = self._held + self._decoder.decode(data).encode()
        end = cut_escape(data)
        self._held = data[end:]
        plain = self._letters + letters(data[:end])
        self._letters = plain[1 - WINDOW :]
        yield from self._canaries.in_letters(plain)
        if self._held:  # it may be no escape, and nothing may follow
            yield from self._canaries.in_letters(self._letters + letters(self._held))
        for view in decoded(run):
            yield from self._canaries.in_letters(letters(view))

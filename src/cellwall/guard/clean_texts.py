"""Short texts in which nothing was found, so that the same text is not scanned again.

Agents run the same few lines over and over, and most of their output is short. Kept are digests
under a key of this process, not texts: nothing of a session can be read from them.
"""

from __future__ import annotations

import os
from hashlib import blake2b

_MAX_TEXTS = 4096
_MAX_CHARACTERS = 4096
"""Longer texts seldom recur as a whole."""
_DIGEST_BYTES = 16


class CleanTexts:
    """For the rules of one scanner. Safe for threads: each step is one call of a dictionary."""

    def __init__(self) -> None:
        self._key = os.urandom(_DIGEST_BYTES)
        self._scores: dict[bytes, float] = {}

    def digest(self, text: str, circumstances: str) -> bytes | None:
        """Of a text and all else that the scan depends on; None for a text that is not kept."""
        if len(text) > _MAX_CHARACTERS:
            return None
        data = f"{circumstances}\0{text}".encode("utf-8", "surrogatepass")
        return blake2b(data, digest_size=_DIGEST_BYTES, key=self._key).digest()

    def score(self, digest: bytes | None) -> float | None:
        """The score of a known text without findings; None: the text is not known."""
        return None if digest is None else self._scores.get(digest)

    def add(self, digest: bytes | None, score: float = 0.0) -> None:
        """After a complete scan without any finding."""
        if digest is None:
            return
        if len(self._scores) >= _MAX_TEXTS:
            self._scores.clear()  # they come back with their next scan
        self._scores[digest] = score

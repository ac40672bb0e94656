"""The plan that `cellwall-cell` carries out: NUL-terminated words, a verb and its arguments each.

Pure: it only writes bytes. The C side (cell/plan.c) reads exactly this form and dies on any other.
"""

from __future__ import annotations

from collections.abc import Mapping

from cellwall.core.errors import BadInput
from cellwall.core.text import to_bytes


class Plan:
    """Steps in the order in which they are carried out."""

    def __init__(self) -> None:
        self._words: list[bytes] = []

    def step(self, verb: str, *arguments: str | int) -> None:
        for word in (verb, *arguments):
            if isinstance(word, int):
                self._words.append(b"%d" % word)
                continue
            encoded = to_bytes(word, what="an argument, path or variable")
            if b"\0" in encoded:  # it would end the word early and inject a step
                raise BadInput(
                    "an argument, path or variable holds a NUL byte",
                    hint="Remove it; no program can be given one.",
                    code="CW-NUL-BYTE",
                )
            self._words.append(encoded)

    def blob(self, data: bytes) -> None:
        """Raw bytes, whose length the previous step states."""
        self._words.append(data)

    def add(self, steps: bytes) -> None:
        """Steps encoded by `joined` of another plan."""
        self._words.append(steps)

    def files(self, files: Mapping[str, bytes]) -> None:
        """path inside -> content, world-readable."""
        for path, content in files.items():
            self.step("file", path, 0o444, len(content))
            self.blob(content)

    def joined(self) -> bytes:
        return b"\0".join(self._words)

    def encode(self) -> bytes:
        return self.joined() + b"\0"

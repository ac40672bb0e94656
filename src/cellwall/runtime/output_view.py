"""The beginning and the end of an output that is larger than a result may be.

A run with `spills_output` is not ended by its output: all of it goes to the caller's sink, and the
result holds this view. The view is made of what the guard has redacted, since a secret that is cut
in two is not recognised any more. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from cellwall.core.outcomes import RunResult

_Name = Literal["stdout", "stderr"]


class OutputView:
    """At most `max_bytes` of both streams together: one half for the beginning, one for the end."""

    def __init__(self, max_bytes: int) -> None:
        self._head_room = max_bytes // 2
        self._tail_bytes = max_bytes // 4  # of each stream
        self._heads: dict[_Name, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._tails: dict[_Name, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._left_out: dict[_Name, int] = {"stdout": 0, "stderr": 0}

    def add(self, name: _Name, chunk: bytes) -> None:
        tail = self._tails[name]
        if not tail and not self._left_out[name]:
            taken = chunk[: self._head_room]
            self._head_room -= len(taken)
            self._heads[name] += taken
            chunk = chunk[len(taken) :]
        tail += chunk
        # Not with every chunk: removing the first bytes moves all others.
        if len(tail) > 2 * self._tail_bytes:
            self._trim(name)

    def _trim(self, name: _Name) -> None:
        tail = self._tails[name]
        extra = len(tail) - self._tail_bytes
        if extra > 0:
            del tail[:extra]
            self._left_out[name] += extra

    def show(self, result: RunResult) -> RunResult:
        """The result with this view as its output."""
        for name in self._tails:
            self._trim(name)
        is_cut = result.truncated or any(self._left_out.values())
        return replace(
            result, stdout=self._text("stdout"), stderr=self._text("stderr"), truncated=is_cut
        )

    def _text(self, name: _Name) -> bytes:
        left_out = self._left_out[name]
        note = f"\n[{left_out} bytes left out]\n".encode() if left_out else b""
        return bytes(self._heads[name]) + note + bytes(self._tails[name])

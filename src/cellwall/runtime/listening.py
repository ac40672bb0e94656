"""The caller's own sink for output, told apart from the host's failures."""

from __future__ import annotations

from typing import Literal

from cellwall.core.types import OutputSink


class Listener:
    """The caller's sink; an error of its own is the caller's, not the host's."""

    def __init__(self, sink: OutputSink) -> None:
        self._sink = sink
        self.error: Exception | None = None

    def __call__(self, name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        try:
            self._sink(name, chunk)
        except Exception as error:
            self.error = error
            raise

"""What a caller of the SDK gets back, and how output reaches it as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cellwall.core.outcomes import Outcome, Status
from cellwall.core.types import OutputSink

TextSink = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Execution:
    """What came of a command or a piece of code."""

    outcome: Outcome = field(repr=False)
    status: Status
    exit_code: int | None
    stdout: str
    stderr: str
    value: object
    text: str | None
    results: Sequence[object]
    error: object
    limit: str | None
    state: Literal["kept", "lost"] | None = None
    """Of a live sandbox's variables, after code ran in it."""

    @classmethod
    def of(cls, outcome: Outcome) -> Execution:
        return cls(
            outcome=outcome,
            status=outcome.status,
            exit_code=outcome.exit_code,
            stdout=outcome.stdout,
            stderr=outcome.stderr,
            value=outcome.value,
            text=outcome.text,
            results=outcome.results,
            error=outcome.error if outcome.error is not None else outcome.code_error,
            limit=outcome.limit.value if outcome.limit else None,
            state=outcome.state,
        )

    def raise_for_status(self) -> Execution:
        self.outcome.raise_for_status()
        return self


def text_sink(on_stdout: TextSink | None, on_stderr: TextSink | None) -> OutputSink | None:
    """Text as it comes. A character cut by a chunk's border waits for its rest."""
    if on_stdout is None and on_stderr is None:
        return None
    import codecs  # noqa: PLC0415  # only for streaming callers

    make = codecs.getincrementaldecoder("utf-8")
    decoders = {"stdout": make("replace"), "stderr": make("replace")}
    callbacks = {"stdout": on_stdout, "stderr": on_stderr}

    def deliver(name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        callback = callbacks[name]
        text = decoders[name].decode(chunk)
        if callback is not None and text:
            callback(text)

    return deliver

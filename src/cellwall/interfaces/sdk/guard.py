"""`cellwall.Guard` and `cellwall.redact`: texts on their way to a model and back (GRD-1 to GRD-9).

A strong signal and a cleaner, never the only layer of defence.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from cellwall.core.outcomes import Finding
from cellwall.runtime import guarding

if TYPE_CHECKING:
    from cellwall.guard.channel_formats import Channel
    from cellwall.interfaces.sdk.execution import Execution
    from cellwall.runtime.guarding import Mode, Report


class Guard:
    """The content guard, as configured.

    guard = cellwall.Guard()
    report = guard.scan(page, kind="output", channel="html")
    report.verdict, report.score, report.findings, report.text
    guard.mark(report.text, source="a page")       # for the model
    """

    def __init__(self, *, config: str | None = None, profile: str | None = None) -> None:
        self._guard = guarding.guard_for(config=config, profile=profile, environ=os.environ)
        self._pseudonyms = guarding.pseudonyms()

    def scan(
        self,
        text: str,
        *,
        kind: Literal["input", "output"] = "output",
        channel: Channel = "plain",
    ) -> Report:
        """Find attacks on a model in a text; the report has the verdict and the cleaned text.

        `kind` is `input` for text to a model, `output` for the result of a tool.
        """
        return self._guard.scanner.scan(text, kind=kind, channel=channel)

    def redact(self, text: str) -> str:
        """The text with secrets replaced."""
        return self._guard.redactor.redact_text(text).text

    def screen(self, code: str, language: str = "python") -> Sequence[Finding]:
        """Findings about code before it runs: advice, never the boundary."""
        return guarding.screened_code(code, language)

    def mark(self, text: str, *, source: str, mode: Mode | None = None) -> str:
        """The text marked as data for a model, between lines that it cannot forge."""
        return guarding.mark(text, source=source, mode=mode or self._guard.settings.marking)

    def unmark(self, text: str) -> str:
        """The original text of `mark`."""
        return guarding.unmark(text)

    def for_model(self, result: Execution) -> str:
        """A whole result for a model: redacted, neutralised, marked."""
        return guarding.shown(self._guard, result.outcome)

    def hide(self, text: str) -> str:
        """Personal data replaced by tokens that only this object can reverse."""
        return self._pseudonyms.hide(text)

    def restore(self, text: str) -> str:
        """The tokens of this object replaced by the original data."""
        return self._pseudonyms.restore(text)


def redact(text: str) -> str:
    """The text with secrets replaced."""
    return _redactor().redact(text)


@functools.cache
def _redactor() -> Guard:
    return Guard()

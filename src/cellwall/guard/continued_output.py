"""Output of a background program that a model reads in pieces.

Each read is scanned by itself, so an instruction that the program prints in two parts would pass in
two halves. The end of what was read before is scanned again together with the next piece; a finding
across the border is removed from that piece, as far as the model has not seen it yet.
"""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from typing import Any

from cellwall.core.outcomes import Finding, RunResult
from cellwall.core.types import Action, ProcessOperation
from cellwall.guard.report import TextTreatment
from cellwall.guard.scanning import Scanner

_KEPT_CHARACTERS = 1000
_STOP = re.compile(r"[.!?]\s|\n")

_Key = tuple[str, int, str]
"""Session, program, stream."""


class ContinuedOutput:
    """The end of what a model has read of each program. Thread-safe."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._lock = threading.Lock()
        self._read: dict[_Key, str] = {}

    def cut(self, action: Action, result: RunResult, findings: list[Finding]) -> RunResult:
        """The result as the model may read it; adds to `findings`."""
        operation = action.operation
        if not isinstance(operation, ProcessOperation) or action.audience != "model":
            return result
        changes: dict[str, Any] = {}
        for name, data in (("stdout", result.stdout), ("stderr", result.stderr)):
            key = (action.session_id or "", operation.process, name)
            text = data.decode("utf-8", "replace")
            before = self._exchange(key, text, has_ended=result.exit_code is not None)
            found = self._across(before, text[:_KEPT_CHARACTERS]) if before and text else []
            if found:
                end = _end_of_sentence(text, max(each.span[1] for each in found if each.span))
                findings += [replace(each, span=(0, end), where=name) for each in found]
                note = f"[{end} characters removed: {found[0].category}]"
                changes[name] = (note + text[end:]).encode()
        return replace(result, **changes) if changes else result

    def end_session(self, session_id: str) -> None:
        with self._lock:
            self._read = {key: text for key, text in self._read.items() if key[0] != session_id}

    def _exchange(self, key: _Key, text: str, *, has_ended: bool) -> str:
        """What was read before; keeps the new end."""
        with self._lock:
            before = self._read.pop(key, "")
            if not has_ended:
                self._read[key] = (before + text)[-_KEPT_CHARACTERS:]
        return before

    def _across(self, before: str, text: str) -> list[Finding]:
        """Findings that begin in `before` and end in `text`, with spans of `text`."""
        treatments = self._scanner.settings.treatments("output")
        return [
            replace(each, span=(0, each.span[1] - len(before)))
            for each in self._scanner.scan(before + text).findings
            if each.span is not None
            and each.span[0] < len(before) < each.span[1]
            and treatments[each.severity] is not TextTreatment.ALLOW
        ]


def _end_of_sentence(text: str, at: int) -> int:
    found = _STOP.search(text, max(0, at - 1), at + _KEPT_CHARACTERS)
    return at if found is None else max(at, found.start() + 1)

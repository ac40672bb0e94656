"""What we say ourselves: errors, notes and JSON, never mixed into a program's output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cellwall.core.errors import CellwallError
from cellwall.core.outcomes import ErrorInfo, Finding, Outcome, Status
from cellwall.core.text import plain
from cellwall.core.types import Json
from cellwall.core.verdict import Decision, Verdict
from cellwall.interfaces.cli.run_output import is_terminal, write_all
from cellwall.interfaces.terminal import TerminalFilter, one_line, safe_text

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_FINDINGS = 20
UNWRITABLE = ErrorInfo(
    "CW-OUTPUT-UNWRITABLE",
    "the output could not be written",
    "Check the disk or device that standard output and error go to.",
)


def say(text: str) -> None:
    """A line of ours on standard error; if nobody can hear it the exit code still tells."""
    try:
        write_all(2, f"cellwall: {safe_text(text)}\n".encode())
    except OSError:
        return


def tell_error(error: ErrorInfo, *, as_json: bool) -> None:
    """Why it was refused or what failed, and the hint."""
    if as_json:
        try:
            print_json(failed(error).to_json())
        except CellwallError:  # not writable: then at least for the person
            as_json = False
    if as_json:
        return
    say(error_line(error))


def error_line(error: ErrorInfo) -> str:
    """An error and its hint, for a person."""
    hint = f"\n  hint: {one_line(error.hint)}" if error.hint else ""
    return f"{error.message} [{error.code}]{hint}"


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """What was seen, for a person. The guard's curiosities stand in `--json` alone."""
    told = [finding for finding in findings if not finding.rule or finding.severity != "low"]
    lines = [
        one_line(f"{finding.message} [{finding.category}, {finding.severity}]")
        for finding in told[:_MAX_FINDINGS]
    ]
    more = len(told) - len(lines)
    return [*lines, f"{more} findings more; --json lists all"] if more else lines


def failed(error: ErrorInfo, *, workspace_id: str | None = None) -> Outcome:
    """The outcome of what never came to one."""
    undecided = Decision(Verdict.DENY, reason="it ended before there was a decision to tell")
    return Outcome(
        status=Status.ERROR,
        action_id="",
        decision=undecided,
        error=error,
        workspace_id=workspace_id,
    )


def print_json(value: Json) -> None:
    """Exactly one object on standard output, valid for every reader of JSON."""
    text = json.dumps(plain(value), ensure_ascii=True, allow_nan=False)
    _put(text.encode("ascii") + b"\n")


def print_text(text: str) -> None:
    """Text that holds words of others; a terminal shows it and does not obey it."""
    data = text.encode("utf-8", "surrogateescape")
    if is_terminal("stdout"):
        clean = TerminalFilter(colours=False)
        data = clean.feed(data) + clean.finish()
    _put(data)


def _put(data: bytes) -> None:
    try:
        write_all(1, data)
    except BrokenPipeError:
        raise
    except OSError as error:
        problem = UNWRITABLE
        raise CellwallError(problem.message, hint=problem.hint, code=problem.code) from error


_ERASE = "\r\x1b[K"


class Progress:
    """What is being done, on standard error: one line that changes, or one line each."""

    def __init__(self, *, quiet: bool) -> None:
        self._show: Callable[[str], None] = say
        self._is_shown = False
        if quiet:
            self._show = lambda _: None
        elif is_terminal("stderr"):
            self._show = self._replace

    def __call__(self, text: str) -> None:
        self._show(one_line(text))

    def end(self) -> None:
        """Leave a terminal as it was."""
        if self._is_shown:
            self._write(_ERASE)

    def _replace(self, text: str) -> None:
        self._is_shown = True
        self._write(f"{_ERASE}cellwall: {text}")

    @staticmethod
    def _write(text: str) -> None:
        try:
            write_all(2, text.encode())
        except OSError:
            return  # nobody sees it; the result and the exit code still tell

"""Cellwall's own lines: errors, notes, progress and JSON, never mixed into a program's output."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from cellwall.core.errors import CellwallError
from cellwall.core.outcomes import ErrorInfo
from cellwall.core.text import plain
from cellwall.core.types import Json
from cellwall.interfaces.outcome_text import error_line, failed
from cellwall.interfaces.terminal import (
    TerminalFilter,
    is_terminal,
    one_line,
    safe_text,
    write_all,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_ERASE = "\r\x1b[K"
UNWRITABLE = ErrorInfo(
    "CW-OUTPUT-UNWRITABLE",
    "the output could not be written",
    "Check the disk or device that standard output and error go to.",
)


def say(text: str) -> None:
    """Write a line to standard error; where that fails, the exit code still reports the result."""
    try:
        write_all(2, f"cellwall: {safe_text(text)}\n".encode())
    except OSError:
        return


def print_error(error: ErrorInfo, *, as_json: bool) -> None:
    """The error with its hint, as JSON on standard output or as text on standard error."""
    if as_json:
        try:
            print_json(failed(error).to_json())
        except CellwallError:  # standard output is not writable: try standard error
            pass
        else:
            return
    say(error_line(error))


def json_line(value: Json) -> bytes:
    """One line of JSON that every parser accepts: ASCII, no NaN, no lone surrogates."""
    text = json.dumps(plain(value), ensure_ascii=True, allow_nan=False)
    return text.encode("ascii") + b"\n"


def print_json(value: Json) -> None:
    """Exactly one JSON value on standard output."""
    print_bytes(json_line(value))


def print_text(text: str) -> None:
    """Text that may contain untrusted words; on a terminal, control characters are escaped."""
    data = text.encode("utf-8", "surrogateescape")
    if is_terminal("stdout"):
        clean = TerminalFilter(colours=False)
        data = clean.feed(data) + clean.finish()
    print_bytes(data)


def print_bytes(data: bytes) -> None:
    """Write to standard output; raises `CW-OUTPUT-UNWRITABLE` where the disk is full."""
    try:
        write_all(1, data)
    except BrokenPipeError:
        raise
    except OSError as error:
        problem = UNWRITABLE
        raise CellwallError(problem.message, hint=problem.hint, code=problem.code) from error


class Progress:
    """The step that a long command is at, on standard error.

    On a terminal one line is rewritten; elsewhere each step is a line.
    """

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
        """Erase the line."""
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
            return  # progress may be lost; the result and the exit code are not

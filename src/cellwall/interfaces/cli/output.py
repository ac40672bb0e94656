"""Cellwall's own lines: errors, notes, progress and JSON, never mixed into a program's output."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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
    from collections.abc import Callable, Iterator

    from cellwall.interfaces.edited_file import SettingsChange

ERASE = "\r\x1b[K"
_PART = re.compile(r"(\d[\d,]{0,20}) of (\d[\d,]{0,20})")
_BAR_COLUMNS = 20
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


def json_fields(value: object, *names: str) -> dict[str, Any]:
    """These attributes of a result, by name."""
    return {name: getattr(value, name) for name in names}


def print_result(value: Json, text: str, *, as_json: bool) -> None:
    """The result of a command, as JSON or as text."""
    if as_json:
        print_json(value)
    else:
        print_text(text)


def print_change(
    change: SettingsChange, done: str, note: str = "", *, is_dry: bool, as_json: bool, **more: Json
) -> int:
    """The result of an edit of another program's settings; returns the exit code."""
    text = None if change.text is None else change.text.decode("utf-8", "replace")
    if as_json:
        result = {
            "file": change.file,
            **more,
            "changed": change.is_changed,
            "backup": change.backup,
        }
        print_json({**result, "dry_run": is_dry, **({"text": text} if is_dry else {})})
    elif is_dry:
        print_text(text or "")
    elif not change.is_changed:
        print_text(f"Nothing to do: {one_line(change.file)} is up to date.\n")
    else:
        kept = f" The old content is in {one_line(change.backup)}." if change.backup else ""
        print_text(f"{done}{kept}\n" + (f"{note}\n" if note else ""))
    return 0


def print_bytes(data: bytes) -> None:
    """Write to standard output; raises `CW-OUTPUT-UNWRITABLE` where the disk is full."""
    try:
        write_all(1, data)
    except BrokenPipeError:
        raise
    except OSError as error:
        problem = UNWRITABLE
        raise CellwallError(problem.message, hint=problem.hint, code=problem.code) from error


def _bar(text: str) -> str:
    """The part that a text such as `7 of 20` states; empty for other texts."""
    found = _PART.search(text)
    if found is None:
        return ""
    done, total = (int(number.replace(",", "")) for number in found.groups())
    full = _BAR_COLUMNS * min(done, total) // max(total, 1)
    return f"[{'#' * full}{'.' * (_BAR_COLUMNS - full)}] "


class Progress:
    """The step that a long command is at, on standard error.

    On a terminal one line is rewritten, with a bar for a text such as `7 of 20`; elsewhere each
    step is a line.
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

    @contextmanager
    def hushed(self) -> Iterator[None]:
        """No progress while a person is asked on the same terminal."""
        show, self._show = self._show, lambda _: None
        self.end()
        try:
            yield
        finally:
            self._show = show

    def end(self) -> None:
        """Erase the line."""
        if self._is_shown:
            self._write(ERASE)

    def _replace(self, text: str) -> None:
        self._is_shown = True
        self._write(f"{ERASE}cellwall: {_bar(text)}{text}")

    @staticmethod
    def _write(text: str) -> None:
        try:
            write_all(2, text.encode())
        except OSError:
            return  # progress may be lost; the result and the exit code are not

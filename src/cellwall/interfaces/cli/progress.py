"""What a long step is doing, for a person who waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cellwall.interfaces.cli.output import say
from cellwall.interfaces.cli.run_output import is_terminal, write_all
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

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

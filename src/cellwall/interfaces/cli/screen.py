"""What an interactive program may send to the user's terminal: text, and sequences that draw.

The filter emits an allowlist: printable text, nine C0 controls, and whole escape sequences that
are named here. Every other control character is dropped. So the parser of the terminal is in its
ground state between two emitted pieces, and the pieces around a dropped sequence cannot join.
"""

from __future__ import annotations

import codecs
import re

_NUMBERS = r"[0-9]{0,5}(?:[;:][0-9]{0,5}){0,31}"
# DEC private modes: cursor keys, reverse video, origin, wrap, cursor, alternate screen, mouse,
# focus, bracketed paste, synchronised output. Not: VT52 (2), width (3), reports of size or colours.
_DEC_MODES = (
    *("1", "5", "6", "7", "12", "25", "47", "1047", "1048", "1049"),
    *("1000", "1002", "1003", "1004", "1005", "1006", "1015", "2004", "2026"),
)
_ON_AT_START = frozenset({"7", "25"})
_CURSOR_ONLY = "1048"
"""Saves and restores the cursor; nothing stays on."""
_DEC_MODE = "|".join(_DEC_MODES)

# ECMA-48: control strings (OSC, DCS, SOS, PM, APC), CSI and other escape sequences, controls. A
# string ends with BEL, ST, CAN or SUB, or where another sequence begins.
_TOKEN = re.compile(
    r"\x1b[\]PX^_][^\x07\x18\x1a\x1b\x9c]*(?:[\x07\x18\x1a\x9c]|\x1b\\)?"
    r"|\x1b\[[0-?]{0,200}[ -/]{0,4}[@-~]"
    r"|\x1b[ -/]{0,4}[0-~]"
    r"|[\x00-\x06\x10-\x1f\x7f-\x9f]"
)
_UNFINISHED = re.compile(
    r"\x1b(?:([\]PX^_])[^\x07\x18\x1a\x1b\x9c]*(\x1b?)|\[[0-?]{0,200}[ -/]{0,4}|[ -/]{0,4})\Z"
)
# Cursor, erasing, colours, scrolling, insert mode, the cursor's shape, character sets, keypad.
# Reports are not among them: their answers come back as if the user had typed them.
_DRAWS = re.compile(
    rf"\x1b\[{_NUMBERS}[A-HJ-MPSTXZ@`abdefgmrsu]|\x1b\[\?[0-9]{{0,5}}[JK]|\x1b\[[0-9]? q"
    r"|\x1b[78DEHM=>]|\x1b[()][0-9A-Z]"
)
_SETS_MODES = re.compile(rf"\x1b\[(?:4|\?(?P<modes>(?:{_DEC_MODE})(?:;(?:{_DEC_MODE}))*))[hl]")
_CHANGES_REGION = re.compile(r"\x1b\[[0-9;:]+r")
_CHANGES_CURSOR = re.compile(r"\x1b\[[0-9]* q")


class ScreenFilter:
    """Passes what draws on the screen; chunks may be cut anywhere."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting = ""
        self._is_mid_line = False
        self._modes: set[str] = set()
        """Those that are not as they were at the start, and other states that outlive text."""

    def feed(self, data: bytes) -> bytes:
        text = self._waiting + self._decoder.decode(data)
        unfinished = _UNFINISHED.search(text)
        end = len(text) if unfinished is None else unfinished.start()
        self._waiting = text[end:]
        if unfinished is not None and unfinished[1] is not None:
            # Nothing of a string is shown, however long: only that it goes on is remembered.
            self._waiting = f"\x1b{unfinished[1]}{unfinished[2]}"
        shown = _TOKEN.sub(self._passed, text[:end]).encode()
        self._is_mid_line = not shown.endswith(b"\n") if shown else self._is_mid_line
        return shown

    def finish(self) -> bytes:
        """The screen as a shell expects it; a program that was killed has not restored it."""
        states, self._modes, self._waiting = self._modes, set(), ""
        undone = [
            f"\x1b[?{mode}{'h' if mode in _ON_AT_START else 'l'}"
            for mode in _DEC_MODES
            if mode in states
        ]
        # Leaving the alternate screen moves the cursor, so it is left only where it was entered.
        undone += [done for state, done in _OTHERS_UNDONE.items() if state in states]
        line_end = "\r\n" if self._is_mid_line else ""
        return ("".join(undone) + f"\x1b(B\x0f\x1b[0m{line_end}").encode()

    def _passed(self, found: re.Match[str]) -> str:
        sequence = found[0]
        if (modes := _SETS_MODES.fullmatch(sequence)) is not None:
            is_on = sequence.endswith("h")
            for mode in (modes["modes"] or "insert").split(";"):
                if mode != _CURSOR_ONLY:
                    self._note(mode, changed=is_on is not (mode in _ON_AT_START))
            return sequence
        if _DRAWS.fullmatch(sequence) is None:
            return ""
        if sequence.endswith("r"):
            self._note("region", changed=_CHANGES_REGION.fullmatch(sequence) is not None)
        elif _CHANGES_CURSOR.fullmatch(sequence) is not None:
            self._note("shape", changed=sequence not in {"\x1b[ q", "\x1b[0 q"})
        elif sequence in {"\x1b=", "\x1b>"}:
            self._note("keypad", changed=sequence == "\x1b=")
        return sequence

    def _note(self, state: str, *, changed: bool) -> None:
        self._modes.add(state) if changed else self._modes.discard(state)


_OTHERS_UNDONE = {
    "insert": "\x1b[4l",
    "region": "\x1b7\x1b[r\x1b8",  # a new region moves the cursor
    "shape": "\x1b[0 q",
    "keypad": "\x1b>",
}

"""Shows untrusted text to a person: nothing in it can hide or forge text of ours.

Every line begins with a bar, and the column after the bar is ours as well:

    | git push origin main      a line
    |+--force                   the rest of a line that was too long
    |~ 812 characters are ...   a note of ours on omitted text

Lines are wrapped here and not by the terminal: text that a terminal wraps begins at the left edge,
which is reserved for our own text. Pure.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from cellwall.core.text import INVISIBLE

BAR = "|"
WIDTH = 76
"""Columns of the text as shown and logged."""
MIN_WIDTH = 20
_MAX_ROWS = 40
_MAX_CHARACTERS = 4000
# Enough for every script in use; more combining marks overwrite the lines above and below.
_MAX_MARKS = 2
_RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})
_PLAIN = re.compile(r"[\x20-\x7e]*")
_FIRST_WIDE = 0x1100  # Hangul; before it there are Latin, Greek, Cyrillic and their like
_NAMED = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
_WORD = re.compile(r"[^\W\d_]+")


def escaped(text: str) -> str:
    """The text in one line, with every character that is not plainly visible escaped."""
    if _PLAIN.fullmatch(text):
        return text
    return "".join(shown for shown, _ in _cells(text))


def one_line(text: str, *, most: int = 60) -> str:
    """`escaped`, with the middle of a longer text replaced by `[...]`."""
    if len(text) > 2 * most:
        text = text[:most] + text[-most:]
    shown = escaped(text)
    if len(shown) <= most:
        return shown
    half = (most - 5) // 2
    return f"{shown[:half]}[...]{shown[-half:]}"


def warnings(text: str, *, max_characters: int = _MAX_CHARACTERS) -> tuple[str, ...]:
    """Warnings for the person about the text that `block` shows."""
    if len(text) > max_characters:
        text = text[: max_characters // 2] + "\n" + text[-max_characters // 2 :]
    texts = []
    cells = zip(text, _cells(text), strict=True)
    hidden = sum(shown != char for char, (shown, _) in cells) - text.count("\n")
    if hidden:
        texts.append(f"{hidden} characters that are not visible as they are, written as \\x1b")
    if _mixes_scripts(text):
        texts.append("a word mixes letters of several alphabets, some of which look alike")
    return tuple(texts)


def _mixes_scripts(text: str) -> bool:
    if text.isascii():
        return False
    for word in _WORD.findall(text):
        scripts = {unicodedata.name(char, "?").partition(" ")[0] for char in word}
        if "LATIN" in scripts and len(scripts) > 1:
            return True
    return False


def block(text: str, *, max_rows: int = _MAX_ROWS, max_characters: int = _MAX_CHARACTERS) -> str:
    """The text behind bars, ending in a newline; several lines are numbered.

    A longer text loses its middle: harm hides at the end of a command.
    """
    digits, room = _measures(text)
    whole = _whole(text, room, max_rows, max_characters)
    if whole is not None:
        return "".join(_line(row, digits) for row in whole)
    half = max_characters // 2
    head = list(_rows(text[:half], room, offset=0, number=1))[: max_rows // 2]
    # From the end backwards, but never into the text of the head.
    begin = max(len(text) - half, head[-1].end)
    number = text.count("\n", 0, begin) + 1
    tail = list(_rows(text[begin:], room, offset=begin, number=number))
    tail = tail[-(max_rows - max_rows // 2) :]
    left_out = text[head[-1].end : tail[0].start]
    return "".join(
        [
            *(_line(row, digits) for row in head),
            *_gap(left_out, digits),
            *(_line(row, digits, is_tail=True) for row in tail),
        ]
    )


def is_shown_whole(text: str, *, max_rows: int, max_characters: int) -> bool:
    """Whether `block` with the same bounds would leave nothing out."""
    _, room = _measures(text)
    return _whole(text, room, max_rows, max_characters) is not None


def _measures(text: str) -> tuple[int, int]:
    """Columns for line numbers, and for the text."""
    last = text.count("\n") + 1
    digits = len(str(last)) if last > 1 else 0
    return digits, WIDTH - digits - 2


def _whole(text: str, room: int, max_rows: int, max_characters: int) -> list[_Row] | None:
    if len(text) > max_characters:
        return None
    rows = list(_rows(text, room, offset=0, number=1))
    return rows if len(rows) <= max_rows else None


def fit(shown: str, columns: int) -> str:
    """The text for a terminal of this width: lines that it would wrap continue behind bars."""
    room = max(columns, MIN_WIDTH) - 1
    lines = []
    for line in shown.split("\n"):
        # Our own lines have no bar; the bar marks a continuation.
        pieces = list(_pieces(line, room, room - 2)) or [""]
        lines += [pieces[0], *(f"{BAR}+{piece}" for piece in pieces[1:])]
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class _Row:
    """One row on the screen, and the range of characters that it shows."""

    shown: str
    number: int
    is_rest: bool
    start: int
    end: int


def _rows(text: str, room: int, *, offset: int, number: int) -> Iterator[_Row]:
    for line in text.split("\n"):
        row, width, start, is_rest = "", 0, offset, False
        for shown, columns in _cells(line):
            if width + columns > room:
                yield _Row(row, number, is_rest, start, offset)
                row, width, start, is_rest = "", 0, offset, True
                shown, columns = _first(shown, columns)  # noqa: PLW2901  # the same character
            row += shown
            width += columns
            offset += 1
        yield _Row(row, number, is_rest, start, offset)
        offset += 1
        number += 1


def _line(row: _Row, digits: int, *, is_tail: bool = False) -> str:
    # After a gap only a line number shows that a row begins its line.
    is_rest = row.is_rest or (is_tail and not digits)
    number = "" if is_rest or not digits else str(row.number)
    return f"{BAR}{number:>{digits}}{'+' if is_rest else ' '}{row.shown}\n"


def _gap(left_out: str, digits: int) -> Iterator[str]:
    data = left_out.encode("utf-8", "surrogatepass")
    begin = f"{BAR}{'':>{digits}}~ "
    yield f"{begin}{len(left_out)} characters are left out here, SHA-256\n"
    yield f"{begin}{hashlib.sha256(data).hexdigest()}\n"


def _cells(text: str) -> Iterator[tuple[str, int]]:
    """Each character as it is shown, and how many columns that takes."""
    marks, may_mark = 0, False
    for char in text:
        if " " <= char <= "~":
            marks, may_mark = 0, char.isalpha()
            yield char, 1
            continue
        category = unicodedata.category(char)
        is_mark = category[0] == "M"
        marks = marks + 1 if is_mark else 0
        # Right-to-left letters reorder the text around them, the bar included.
        turns = unicodedata.bidirectional(char) in _RIGHT_TO_LEFT
        if turns or not char.isprintable() or INVISIBLE.match(char):
            visible = False
        elif is_mark:
            # At the start it would combine with our bar, after a symbol change that symbol.
            visible = may_mark and marks <= _MAX_MARKS and category != "Me"
        else:
            visible, may_mark = True, category[0] == "L"
        if visible:
            yield char, 2 if _is_wide(char, category) else 1
        else:
            marks, may_mark = (marks, may_mark) if is_mark else (0, False)
            spelled = _escape_character(char)
            yield spelled, len(spelled)


def _is_wide(char: str, category: str) -> bool:
    """Whether any terminal may show it in two columns; to overcount is harmless.

    Python's table is older than those of terminals: hexagrams, trigrams and regional indicators are
    narrow in it. So only letters and marks below U+1100 count as narrow.
    """
    is_letter = category[0] in "LM" and ord(char) < _FIRST_WIDE
    return not is_letter or unicodedata.east_asian_width(char) in "WFA"


def _first(shown: str, columns: int) -> tuple[str, int]:
    """The character at the start of a row, where a mark would combine with our bar."""
    if unicodedata.category(shown[0])[0] != "M":
        return shown, columns
    spelled = _escape_character(shown)
    return spelled, len(spelled)


def _escape_character(char: str) -> str:
    code = ord(char)
    if char in _NAMED:
        return _NAMED[char]
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8
        code -= 0xDC00
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _pieces(line: str, first: int, others: int) -> Iterator[str]:
    piece, width, room = "", 0, first
    for shown, columns in _cells(line):
        if width + columns > room:
            yield piece
            piece, width, room = "", 0, others
            shown, columns = _first(shown, columns)  # noqa: PLW2901  # the same character
        piece += shown
        width += columns
    if piece:
        yield piece

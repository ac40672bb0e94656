"""Removes invisible characters from a text before it is sent (GRD-1, GRD-7).

Every `clean` begins here: removing invisible characters after escaping markup could join what the
escaping has separated.
"""

from __future__ import annotations

import re

# Controls: an escape sequence rewrites what a terminal shows. CR: a line that hides another one,
# and the end of a mail header.
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_LINE_ENDS = re.compile(r"\r\n?|[\u0085\u2028\u2029]")
_INVISIBLE = re.compile(
    "["
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f"  # zero width, directions, invisible operators
    "\u2800\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\ufe00-\ufe0d"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"  # tags and selectors: a whole hidden alphabet
    "]+"
)
# One joiner between letters of scripts that need it, or within an emoji, is spelling; a run of
# them, or one in an English word, is a message.
_JOINERS = re.compile(r"(?<![^\x00-\x7f])[\u200c\u200d]+|[\u200c\u200d]+(?![^\x00-\x7f])")
_JOINER_RUNS = re.compile(r"([\u200c\u200d])[\u200c\u200d]+")
_SELECTORS = re.compile(r"([\ufe0e\ufe0f])[\ufe0e\ufe0f]+")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def visible(text: str) -> str:
    """The visible text; lines end with a line feed alone."""
    if "\r" in text or not text.isascii():
        text = _LINE_ENDS.sub("\n", text)
    text = _CONTROLS.sub("", text)
    if text.isascii():
        return text
    text = _INVISIBLE.sub("", text)
    text = _JOINER_RUNS.sub(r"\1", text)
    text = _SELECTORS.sub(r"\1", text)
    text = _JOINERS.sub("", text)
    return _SURROGATES.sub("\ufffd", text)


def one_line(text: str) -> str:
    """The visible text on one line, so that it cannot begin a second header or message."""
    return " ".join(visible(text).split())

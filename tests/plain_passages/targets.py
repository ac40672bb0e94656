"""What a passage points at: addresses, paths, code, amounts, times, persons (GRD-2)."""

# ruff: noqa: RUF001  # quotes of other scripts are what is looked for
from __future__ import annotations

import re
from collections.abc import Iterator

# What a passage points at: the letters without which there is none, and the form.
_TARGETS = {
    "to mail": ("@", re.compile(r"[\w.+-]@[\w-]{1,64}\.\w|@example|redacted@", re.IGNORECASE)),
    "to address": (
        ":.",
        re.compile(r"https?:|www\.|\w\.(?:com|net|org|io|dev|ru|xyz)\b"),
    ),
    "to path": ("/.", re.compile(r"(?:^|[\s'\"`(])(?:~|\.{1,2})?/[\w.-]+|\.env\b|\.ssh\b")),
    "to code": (
        "`$ ",
        re.compile(r"`[^`]{2,}|\$\(|\b(?:curl|wget|rm -|sudo|bash|pip|npm|git) \S"),
    ),
    "to tool": ("_", re.compile(r"[a-z]{2}_[a-z]{2}")),
    "to quote": ("\"“'‘«「", re.compile(r"[\"“'‘«「][^\"”'’»」]{2,}[\"”'’»」]")),
    "amount": (
        "$€£0123456789",
        re.compile(r"[$€£]\s?\d|\d\s?(?:USD|EUR|BTC|dollars|euros)\b"),
    ),
    "to account": (
        "0123456789",
        re.compile(r"\b[A-Z]{2}\d{2}[A-Z0-9]{8,}|\b\d{9,}\b|\b0x[0-9a-f]{6,}|\bbc1\w{5,}"),
    ),
    "at time": (
        "0123456789",
        re.compile(r"\b\d{1,2}:\d{2}\b|\b\d{4}-\d{2}-\d{2}\b|\b\d{1,2} ?[ap]m\b"),
    ),
    "number": ("0123456789", re.compile(r"\d")),
    "to person": (" ", re.compile(r"[a-z,] [A-Z][a-z]{2,}")),
}


def targets_of(passage: str, marks: set[str]) -> Iterator[str]:
    """The names of its targets; `marks` are the characters of the passage."""
    for name, (needed, form) in _TARGETS.items():
        if not marks.isdisjoint(needed) and form.search(passage):
            yield name

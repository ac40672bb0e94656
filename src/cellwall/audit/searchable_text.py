"""What a search for a text looks at in a record. Pure.

The text of a record is its line without number, time, version and link. It is spelled as in the
line, so that no character needs more than ASCII. An id or a digest is found by its beginning: a
match does not begin inside a long run of lower-case letters and digits. Chance matches in random
characters are no result, and the filters of the text index need not hold them.
"""

from __future__ import annotations

import json
import re

from cellwall.audit.records import BadRecord, match_tail

MIN_OPAQUE_CHARACTERS = 20
_MIN_DIGITS = 3
"""Words in prose and names in code have fewer; ids and digests have fewer once in a thousand, and
are then searched like any word."""
_RUN = re.compile(rb"[0-9a-z]{%d,}+" % MIN_OPAQUE_CHARACTERS)
_REST_OF_RUN = re.compile(rb"[0-9a-z]*+")
_FIELD_END = b"\0"
"""Stands for what was left out; no record and no encoded text contains NUL."""


def encoded_text(text: str) -> bytes:
    """The text as the record spells it, without quotes."""
    return json.dumps(text).encode("ascii")[1:-1]


def searchable(line: bytes) -> bytes:
    """The text of a record, from its line with an opened body."""
    try:
        tail = match_tail(line)
    except BadRecord:  # valid all the same, but not written by us: everything counts
        return line
    return _FIELD_END.join(
        (
            line[: tail.start(4) - len(b',"prev":"')],
            line[tail.end(4) + 1 : tail.start(6) - len(b',"seq":')],
            line[tail.end(6) : tail.start(8) - len(b',"time":"')],
        )
    )


def contains(text: bytes, wanted: bytes) -> bool:
    """Whether the encoded text occurs, and not only inside of ids and digests."""
    at = text.find(wanted)
    while at >= 0:
        run_end = _opaque_end(text, at)
        if run_end is None:
            return True
        at = text.find(wanted, run_end)  # later beginnings in this run do not count either
    return False


def without_opaque(text: bytes, *, kept: int) -> bytes:
    """The text with at most `kept` characters of each id and digest."""
    return _RUN.sub(lambda run: _shorten(run[0], kept), text)


def _shorten(run: bytes, kept: int) -> bytes:
    return run[:kept] + _FIELD_END if _is_opaque(run) else run


def _opaque_end(text: bytes, at: int) -> int | None:
    """Where the id or digest ends that this place is inside of; None if it is inside of none."""
    if at == 0 or not _is_of_run(text[at - 1]) or not _is_of_run(text[at]):
        return None
    start = at - 1
    while start > 0 and _is_of_run(text[start - 1]):
        start -= 1
    rest = _REST_OF_RUN.match(text, at)
    assert rest is not None  # noqa: S101  # the pattern also matches nothing
    return rest.end() if _is_opaque(text[start : rest.end()]) else None


def _is_of_run(character: int) -> bool:
    return 0x61 <= character <= 0x7A or 0x30 <= character <= 0x39


def _is_opaque(run: bytes) -> bool:
    if len(run) < MIN_OPAQUE_CHARACTERS:
        return False
    return len(run) - len(run.translate(None, b"0123456789")) >= _MIN_DIGITS

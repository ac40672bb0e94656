"""Runs of base64, base32 and hexadecimal digits that hold text.

What such a run looks like when it holds *text* is narrow: of four base64 letters the first three
can be only some. So one pass in RE2 finds them between ordinary words, identifiers, hashes and
pictures, and next to nothing else.
"""

from __future__ import annotations

import base64
import binascii
import re
import string
from collections.abc import Callable, Iterator
from typing import NamedTuple

from cellwall.guard.ctext.library import SurveyResult, may_be_text
from cellwall.guard.normalise.characters import invisible
from cellwall.guard.normalise.encoding_survey import ALPHABET, LONG_CHARS, digit_spans, quad_spans
from cellwall.guard.normalise.offsets import DecodedPiece
from cellwall.parsing.budget import AttemptBudget

_LOWER = b"abcdefghijklmnopqrstuvwxyz"
_TURNED = _LOWER[13:] + _LOWER[:13]
ROT13 = bytes.maketrans(_LOWER + _LOWER.upper(), _TURNED + _TURNED.upper())

_URL_SAFE = bytes.maketrans(b"-_", b"+/")

_HEAD_CHARS = 128


class Decoded(NamedTuple):
    """What was read in a part of a text, and how."""

    via: tuple[str, ...]
    piece: DecodedPiece


def decode_runs(image: bytes, surveyed: SurveyResult, attempts: AttemptBudget) -> Iterator[Decoded]:
    """Decoded runs from left to right. `image` has one byte per character; `surveyed` is the
    result of `survey` for it."""
    sure = [(start, end, True) for start, end in quad_spans(image, surveyed)]
    maybe = [(start, end, False) for start, end in digit_spans(image, surveyed)]
    waiting = sorted(sure + maybe, reverse=True)
    done = tried = 0
    while waiting:
        begin, end, is_sure = waiting.pop()
        start = max(begin, done)
        if end - start < _MIN_CHARS or _is_uniform(image[start:end]):
            continue
        if not is_sure and _is_noise(image[begin:end]):
            continue
        if not attempts.spend():
            return
        # Many beginnings in one long run would each go through all of it.
        extents = [] if start < tried else _extents(image, start, end)
        extents += [(start, _tail(image, end)), (start, end)]
        tried = max(tried, *(last for _, last in extents))
        if opened := _decode_first(image, extents):
            yield opened
            done = opened.piece.end
            waiting.append((done, end, True))


_MIN_CHARS = 12
_Disguise = tuple[tuple[str, ...], Callable[[bytes], bytes]]
_DISGUISES: tuple[_Disguise, ...] = (
    ((), lambda run: run),
    (("rot13",), lambda run: run.translate(ROT13)),
    (("reversed",), lambda run: run[::-1]),
    (("rot13", "reversed"), lambda run: run.translate(ROT13)[::-1]),
)


def _disguises(run: bytes) -> tuple[_Disguise, ...]:
    """Those that change it: digits are the same when they are turned, and in a disguise no reading
    makes sense that makes none without it."""
    return _DISGUISES if _LETTER.search(run) else _DISGUISES_OF_DIGITS


_LETTER = re.compile(rb"[A-Za-z]")
_DISGUISES_OF_DIGITS = tuple(each for each in _DISGUISES if "rot13" not in each[0])


def _is_uniform(run: bytes) -> bool:
    """Lines, rows of zeros, names and paths in small letters."""
    return (run.islower() and not _PAIR.search(run)) or len(set(run[:256])) < _MIN_LETTERS


_PAIR = re.compile(rb"[0-9][a-f0-9]")
_MIN_LETTERS = 6


def _is_noise(run: bytes) -> bool:
    """A picture, a key or a hash: no text at either end, in whatever disguise."""
    if len(run) < LONG_CHARS or _is_base32(run):
        return False
    if _is_hex_lines(run):
        return not _HEX_HEAD.match(run)
    if not may_be_text(run):
        return True
    head = run[:_GLANCE_CHARS]
    tail = run[: -_GLANCE_CHARS - 1 : -1]
    return all(
        _from_base64(part) is None
        for part in (head, head.translate(ROT13), tail, tail.translate(ROT13))
    )


_HEX_LINES = b"0123456789ABCDEFabcdefNOPQRSnopqrsxXkK ,:;\r\n\t-"
_HEX_HEAD = re.compile(
    rb"[ ,:;\r\n\t-]*(?:(?:(?:0[xXkK])?[2-7][0-9A-Fa-fN-Sn-s][ ,:;\r\n\t-]*){6}"
    rb"|(?:[0-9A-Fa-fN-Sn-s][2-7](?:[xXkK]0)?[ ,:;\r\n\t-]*){6})"
)
_BASE32 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567 \t\r\n>"
_BASE64 = ALPHABET.encode() + b"_- \t\r\n>"
_GLANCE_CHARS = 64
_BEFORE = ALPHABET.encode() + b"-_="
_MAX_BEFORE = 4096
_TAIL = re.compile(rb"[A-Za-z0-9+/_-]{0,3}={0,2}")
_AFTER = re.compile(
    rb"[A-Za-z0-9+/_-]*={0,6}(?:\r?\n[ \t>]{0,8}[A-Za-z0-9+/_-]+={0,6}(?=[ \t]*(?:\r?\n|\Z)))*"
)
_AFTER_DIGITS = re.compile(
    rb"(?:[ ,:;\r\n\t-]{0,4}(?:0[xXkK]|[xXkK]0)?[0-9A-Fa-fN-Sn-s]{2})*(?:[xXkK]0)?(?![A-Za-z0-9])"
)


def _is_hex_lines(run: bytes) -> bool:
    return bool(run) and _has_only(run, _HEX_LINES)


def _is_base32(run: bytes) -> bool:
    return _is_padded(run, _BASE32)


def _is_base64(run: bytes) -> bool:
    return _is_padded(run, _BASE64)


def _is_padded(run: bytes, letters: bytes) -> bool:
    run = run.strip(b"=")
    return len(run) >= _MIN_CHARS and _has_only(run, letters)


def _has_only(run: bytes, letters: bytes) -> bool:
    """Many times as quick as a pattern. Its head first: most runs have others there."""
    return not run[:_HEAD_CHARS].translate(None, letters) and not run.translate(None, letters)


def _tail(image: bytes, end: int) -> int:
    match = _TAIL.match(image, end)
    return match.end() if match else end


def _extents(image: bytes, start: int, end: int) -> list[tuple[int, int]]:
    """How far a run may reach around the part that was found, what is most likely first."""
    head = image[max(0, start - _MAX_BEFORE) : start]
    before = start - len(head) + len(head.rstrip(_BEFORE))
    found = [after.match(image, end) for after in (_AFTER, _AFTER_DIGITS)]
    ends = sorted({match.end() for match in found if match}, reverse=True)
    extents = [(first, last) for last in ends for first in (before, start)]
    if not _is_in_groups(image[start:end]):
        # Words that follow on the next line can look like more of it.
        lines = _AFTER.match(image, start)
        extents[:0] = [(first, lines.end()) for first in (before, start) if lines]
    return list(dict.fromkeys(extents))


def _is_in_groups(run: bytes) -> bool:
    """Whether it is written in groups of one size, of which the last may be smaller."""
    groups = run.split()
    return len(groups) > 1 and len({len(group) for group in groups[:-1]}) == 1


def _decode_first(image: bytes, extents: list[tuple[int, int]]) -> Decoded | None:
    """The first reading that makes sense."""
    # Most extents begin or end alike.
    noise: set[tuple[str, bytes]] = set()
    for start, end in extents:
        run = image[start:end].rstrip(_MARGIN)
        stop = start + len(run)
        run = run.lstrip(_MARGIN)
        start = stop - len(run)  # noqa: PLW2901  # the margin is not part of it
        decoders = [(name, decode) for name, fits, decode in _DECODERS if fits(run)]
        for via, undo in _disguises(run) if decoders else ():
            undone = undo(run)
            # The head is enough to tell a picture or a key from text.
            head = undone[:_HEAD_CHARS]
            for name, decode in decoders:
                if (name, head) in noise:
                    continue
                text = decode(head)
                if text is None:
                    noise.add((name, head))
                    continue
                if len(undone) > _HEAD_CHARS:
                    text = decode(undone)
                if text is not None and _is_meant(text, (*via, name), undone):
                    return Decoded((*via, name), DecodedPiece(text, start, stop))
    return None


def _is_meant(text: str, via: tuple[str, ...], run: bytes) -> bool:
    """Not by chance, which is likelier the more ways are tried; and columns of numbers are
    printable too when they are taken for hexadecimal digits."""
    if via == ("base64",) or (via == ("hex",) and _HEX_LETTER.search(run)):
        return True
    if via[-1] != "hex" and len(text) >= 2 * _MIN_BY_CHANCE:
        return True
    return len(text) >= _MIN_BY_CHANCE and is_wordy(text)


_MIN_BY_CHANCE = 16
_HEX_LETTER = re.compile(rb"[2-7][A-Fa-f]")
_MARGIN = b" \t\r\n>,:;"
_NOISE = b" \t\r\n>"
_HEX_SEPARATORS = b" ,:;\r\n\t-"
_HEX_NOISE = re.compile(rb"0[xX]|[ ,:;\r\n\t-]+")
_HEX = b"0123456789ABCDEFabcdef"


def _from_hex(run: bytes) -> str | None:
    if b"x" in run or b"X" in run:
        digits = _HEX_NOISE.sub(b"", run)
    else:  # columns of numbers, most often
        digits = run.translate(None, _HEX_SEPARATORS)
    if len(digits) < _MIN_CHARS or not _has_only(digits, _HEX):
        return None
    return decode_readable(bytes.fromhex(digits[: len(digits) & ~1].decode()))


_BASE32_TEXT = re.compile(rb"[E-P][ABEFIJMNQRUVYZ45]")
"""What two ASCII characters begin with; a word in capitals seldom does."""


def _from_base32(run: bytes) -> str | None:
    run = run.translate(None, _NOISE).strip(b"=")
    if len(run) < LONG_CHARS and not _BASE32_TEXT.match(run):
        return None
    try:
        return decode_readable(base64.b32decode(run + b"=" * (-len(run) % 8)))
    except (binascii.Error, ValueError):
        return None


def _from_base64(run: bytes) -> str | None:
    run = run.translate(_URL_SAFE, _NOISE).strip(b"=")
    if len(run) % 4 == 1:
        run = run[:-1]
    try:
        return decode_readable(binascii.a2b_base64(run + b"=" * (-len(run) % 4)))
    except binascii.Error:
        return None


_Decoder = tuple[str, Callable[[bytes], bool], Callable[[bytes], str | None]]
_DECODERS: tuple[_Decoder, ...] = (
    ("hex", _is_hex_lines, _from_hex),
    ("base32", _is_base32, _from_base32),
    ("base64", _is_base64, _from_base64),
)


_PRINTABLE = string.printable.encode()
_LETTERS = (string.ascii_letters + " \r\n").encode()
_HEAD_BYTES = 96
_MAX_ODD_SHARE = 0.04
_MIN_TEXT_BYTES = 6


def decode_readable(data: bytes) -> str | None:
    """The text that the bytes are; None for pictures, keys, hashes and other noise."""
    if len(data) < _MIN_TEXT_BYTES or not _may_be_text(data[:_HEAD_BYTES]):
        return None
    if data.isascii() and data.count(0) * 8 <= len(data):
        odd = len(data.translate(None, _PRINTABLE))
        return data.decode("ascii") if odd <= len(data) * _MAX_ODD_SHARE else None
    text = _decoded(data)
    if text is None or len(text) < _MIN_TEXT_BYTES // 2:
        return None
    rest = "".join(text.split())
    if rest.isprintable():
        return text
    # Hidden text inside of an encoding is text as well.
    rest = invisible().sub("", rest)
    odd = sum(not character.isprintable() for character in rest[:1024])
    return text if odd <= min(len(rest), 1024) * _MAX_ODD_SHARE else None


_LONG_CHARS = 40
_FEW_LETTERS = 20
_CODED = re.compile(
    r"[%=](?:25|3[DQdq])?[0-9A-Sa-s]{2}|&#[xXkK]?[0-9A-Sa-s]{2,5};|\\[xukh][0-9A-Sa-s]{2,4}"
)
_HEX_PAIRS = re.compile(r"(?:(?:0x)?[0-9A-Fa-f]{2}[ ,:;]{0,2}){6,}|(?:[0-9A-Fa-f]{2}(?:x0)? ?){6,}")


def is_wordy(text: str) -> bool:
    """Letters and spaces for the most part, or characters that are encoded again."""
    if not text.isascii() or _HEX_PAIRS.fullmatch(text):
        return True
    if len(text) >= _LONG_CHARS and len(set(text)) <= _FEW_LETTERS:
        return True
    rest = _CODED.sub("", text)
    odd = len(rest.encode().translate(None, _LETTERS))
    return odd * 4 <= max(len(rest), len(text) // 2)


def _may_be_text(head: bytes) -> bool:
    """A quick look: text has few control characters and no bytes that begin nothing."""
    zeros = head.count(0)
    if zeros * 4 >= len(head):
        return zeros * 5 <= len(head) * 3  # UTF-16
    if head.isascii():
        return len(head.translate(None, _PRINTABLE)) * 8 <= len(head)
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.start >= len(head) - 3
    return True


def _decoded(data: bytes) -> str | None:
    zeros = data.count(0)
    if zeros * 4 >= len(data):
        codec = "utf-16-le" if data[1::2].count(0) >= data[::2].count(0) else "utf-16-be"
        data = data[: len(data) & ~1]
    else:
        codec = "utf-8"
    try:
        return data.decode(codec)
    except UnicodeDecodeError as error:
        # Cut in the middle of its last character.
        if codec == "utf-8" and error.start >= len(data) - 3:
            return data[: error.start].decode(codec)
    return None

"""The letters of a text: what stays the same when it is re-spaced, re-cased or escaped."""

from __future__ import annotations

import base64
import binascii
import re
import string
import unicodedata
from collections.abc import Iterator
from urllib.parse import unquote

_LOWER = bytes(range(256)).lower()
_NO_LETTERS = bytes(
    each for each in range(128) if each not in (string.ascii_letters + string.digits).encode()
)
_NO_LETTER = re.compile(r"[\W_]+")
_JSON_BLANK = re.compile(rb"\\[nrtbf]")
_JSON_CHARACTER = re.compile(rb"\\u([0-9a-fA-F]{4})")
_MAX_CUT = 32
_CUT = re.compile(rb"(?:\\u?[0-9a-fA-F]{0,3}|(?:%[0-9a-fA-F]{0,2}){1,4}|&[#A-Za-z0-9]{0,30})\Z")
_WORD = rb"[A-Za-z0-9+/_-]"
_BASE64 = re.compile(rb"%b{48,}+(?:[\r\n]{1,2}%b{4,}+)*" % (_WORD, _WORD))
# From the beginning of a run alone: a search from each place in it would take quadratic time.
_WRAPPED = re.compile(rb"(?<!%b)%b{16,47}+(?:[\r\n]{1,2}%b{4,}+)+" % (_WORD, _WORD, _WORD))
_HEX = re.compile(rb"(?:[0-9a-fA-F]{2}[ :,\r\n]{0,2}){40,}+")
_RUN_END = re.compile(rb"[A-Za-z0-9+/_\r\n:, -]{1,512}\Z")
_NOT_HEX = bytes(each for each in range(256) if each not in string.hexdigits.encode())
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
# Text in decoded bytes; NUL is every second byte of UTF-16.
_TEXT_RUN = re.compile(rb"[\t\r\n\x20-\x7e\0]{40,}+")


def letters(data: bytes) -> bytes:
    """Letters and digits alone, in one case; escapes of JSON, URLs and HTML are undone first.

    Malformed UTF-8 is left out, before escapes are undone, as in a stream.
    """
    if not data.isascii():
        data = data.decode("utf-8", "ignore").encode()
    if b"\\" in data:
        data = _JSON_CHARACTER.sub(_character, data)
        data = _JSON_BLANK.sub(b" ", data)
    if b"%" in data or b"&" in data:
        from cellwall.parsing.html.tokens import characters  # noqa: PLC0415  # loads slowly

        text = data.decode("utf-8", "ignore")
        data = characters(unquote(text, errors="ignore")).encode("utf-8", "ignore")
    if data.isascii():
        return data.translate(_LOWER, _NO_LETTERS)
    text = unicodedata.normalize("NFKC", data.decode("utf-8", "ignore"))
    return _NO_LETTER.sub("", text.casefold()).encode("utf-8", "ignore")


def _character(found: re.Match[bytes]) -> bytes:
    return chr(int(found[1], 16)).encode("utf-8", "ignore")


def cut_escape(data: bytes) -> int:
    """Where an escape may begin that the next piece of a stream completes."""
    found = _CUT.search(data, max(0, len(data) - _MAX_CUT))
    return len(data) if found is None else found.start()


def cut_run(data: bytes) -> bytes:
    """The end of the data in which an encoded run may go on."""
    found = _RUN_END.search(data, max(0, len(data) - 512))
    return b"" if found is None else found[0]


def decoded(data: bytes) -> Iterator[bytes]:
    """The texts in runs of base64 and hexadecimal digits, at every alignment."""
    for pattern in (_BASE64, _WRAPPED):
        for run in pattern.finditer(data):
            plain = run[0].translate(_URL_SAFE, b"\r\n")
            for skip in range(4):
                end = skip + (len(plain) - skip) // 4 * 4
                try:
                    yield from _texts_in(base64.b64decode(plain[skip:end]))
                except (binascii.Error, ValueError):  # never for this alphabet
                    continue
    for run in _HEX.finditer(data):
        digits = run[0].translate(None, _NOT_HEX)
        for skip in range(2):
            end = skip + (len(digits) - skip) // 2 * 2
            yield from _texts_in(binascii.unhexlify(digits[skip:end]))


def _texts_in(data: bytes) -> Iterator[bytes]:
    """Decoding at a wrong place gives noise, which is neither of the two."""
    if not data.isascii():
        cut = data.decode("utf-8", "ignore").encode("utf-8")
        if len(data) - len(cut) <= 8:  # the ends may be cut
            yield cut
            return
    for run in _TEXT_RUN.finditer(data):
        yield run[0]

"""What the bytes of a mail's part say: encodings for the way and sets of characters. Pure."""

from __future__ import annotations

import base64
import binascii
import codecs
import quopri
import re

_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Bytes of seven bits that are not what they look like.
_SHIFTED = re.compile(r"utf-?7|iso-?2022-.*|hz(?:-gb-?2312)?", re.IGNORECASE)
_UU_BEGIN = re.compile(r"^begin [0-7]{3,4} [^\n]*\n", re.MULTILINE)
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/=]+")
# Encodings of text alone: Python knows others that unpack, rotate or take quadratic time.
_CHARSET = re.compile(
    r"(?:us-?)?ascii|utf-?(?:7|8|16|32)(?:-?[lb]e)?|(?:iso-?)?8859-?\d{1,2}|iso-8859-\d{1,2}|latin-?\d{1,2}"
    r"|(?:windows|cp)-?\d{3,4}|koi8-[rut]|gb2312|gbk|gb18030|big5(?:hkscs)?|shift[_-]?jis|sjis"
    r"|euc-?(?:jp|kr|cn)|iso-?2022-?(?:jp|kr)(?:-\w{1,4})?|hz(?:-gb-?2312)?|mac-?roman|tis-?620",
    re.IGNORECASE,
)
_AS_TEXT = re.compile(
    r"text/.*|message/.*|application/(?:.*\+)?(?:json|xml|xhtml\+xml|ics)|multipart/.*"
)


def text_of(data: bytes, charset: str) -> str:
    """Bytes as text, whatever they say of themselves."""
    name = charset.strip().strip("\"'")
    if _CHARSET.fullmatch(name) is None:
        name = "utf-8"
    try:
        text = codecs.decode(data, name, "replace")
    except (LookupError, ValueError):
        text = data.decode("utf-8", "replace")
    if data.startswith(_WIDE) and "16" not in name:
        # Some programs believe the mark and some the header: both are read.
        text = f"{text}\n{data.decode('utf-16', 'replace')}"
    return text


def decoded(body: str, kind: str, parameters: dict[str, str], encoding: str) -> tuple[str, bool]:
    """A part's text, and whether it stands like this in the source."""
    charset = parameters.get("charset", "utf-8")
    if encoding in ("base64", "uuencode"):
        data = from_base64(body) if encoding == "base64" else _from_uuencode(body)
        if _AS_TEXT.fullmatch(kind) is None:
            return _if_text(data), False
        return text_of(data, charset), False
    if encoding == "quoted-printable":
        raw = quopri.decodestring(body.encode("utf-8", "surrogatepass"))
        return text_of(raw, charset if body.isascii() else "utf-8"), False
    if _SHIFTED.fullmatch(charset.strip()) is not None and body.isascii():
        return text_of(body.encode("ascii"), charset), False
    return body, True  # readable as it is, whatever its type is said to be


def _if_text(data: bytes) -> str:
    """A file that is said to be something else, and is text."""
    if data.startswith(_WIDE):
        return text_of(data, "utf-8")
    try:
        text = data.decode("utf-8")
    except ValueError:
        return ""
    return "" if "\0" in text else text


def from_base64(text: str) -> bytes:
    """Whatever else stands between; nothing if it is none."""
    flat = _NOT_BASE64.sub("", text).rstrip("=")
    try:
        return base64.b64decode(
            flat[: len(flat) - (len(flat) % 4 == 1)] + "=" * (-len(flat) % 4 % 3)
        )
    except (binascii.Error, ValueError):
        return b""


def _from_uuencode(text: str) -> bytes:
    begin = _UU_BEGIN.search(text)
    out: list[bytes] = []
    for line in text[0 if begin is None else begin.end() :].splitlines():
        if line == "end":
            break
        # The first character says how long the line is; what stands behind that is no part of it.
        count = (ord(line[0]) - 32) & 63 if line else 0
        try:
            out.append(binascii.a2b_uu(line[: 1 + (count + 2) // 3 * 4].encode("ascii", "replace")))
        except binascii.Error:
            continue
    return b"".join(out)

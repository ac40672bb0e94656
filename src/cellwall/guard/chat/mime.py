"""Parser for the source of a mail: headers, parts, encodings. Pure, bounded, and never raises.

The standard parser is not used on what a stranger wrote: it recurses over nested parts, holds
each line against the boundaries of all of them, and fails on some headers.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import quopri
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

_OF_A_MAIL = frozenset(
    {
        "from",
        "to",
        "cc",
        "subject",
        "date",
        "sender",
        "reply-to",
        "return-path",
        "received",
        "message-id",
        "mime-version",
        "content-type",
        "content-transfer-encoding",
        "content-disposition",
        "delivered-to",
    }
)
"""Input that begins with none of these headers is not the source of a mail."""
MAILS = frozenset({"message/rfc822", "message/global", "message/news", "message/x-rfc822"})
_PAGES = frozenset({"text/html", "application/xhtml+xml", "image/svg+xml"})
_PAGE_NAME = re.compile(r"\.(?:s?html?|xhtml?|svg)\Z", re.IGNORECASE)
_PAGE = re.compile(
    r"\s*+<(?:!doctype|!--|html|head|body|title|meta|style|script|svg|table|div|span|p|h[1-6]|a|b|i"
    r"|br|img|font|center)\b|[^<]{0,2000}+<(?:b|i|span|div|p|font|a)[\s>]",
    re.IGNORECASE,
)
"""What stands at the beginning of a page that says of itself that it is something else."""
MAX_DEPTH = 12
MAX_PARTS = 500
_MAX_HEADERS = 2_000
_MAX_BOUNDARY = 1_000

_HEADER = re.compile(r"([!-9;-~]{1,100})[ \t]*:(.*)", re.DOTALL)
_LINE = re.compile(r"[^\n]*(?:\n|\Z)")
_FOLD = re.compile(r"\r?\n[ \t]")
_WORD = re.compile(r"=\?([^?\s]{1,60})\?([bBqQ])\?([^?\n]*)\?=")
_BETWEEN_WORDS = re.compile(r"(\?=)\s+(?==\?)")
_PARAMETER = re.compile(r";\s*([\w!#$%&'^`{}~.+*-]{1,80})\s*=\s*(\"(?:[^\"\\]|\\.)*+\"|[^;\s]*)")
_COMMENT_SIGNS = re.compile(r"\"(?:[^\"\\]|\\.)*+\"|\\.|[()]", re.DOTALL)
# A mark of order, blank lines, and the line that parts mails in a mailbox.
_BEFORE_MAIL = re.compile(r"\ufeff?(?:[ \t]*+\r?\n)*(>?From [^\n]*+\n)?")


@dataclass(frozen=True, slots=True)
class Header:
    """One header field: its value unfolded, encoded words decoded."""

    name: str
    value: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Part:
    """One leaf of a mail."""

    number: str
    kind: str
    """Content type in lower case, such as `text/html`."""
    headers: tuple[Header, ...]
    text: str
    """Decoded; empty for binary files."""
    start: int
    end: int
    is_verbatim: bool
    """Whether `text` is verbatim in the source."""
    group: str = ""
    """The number of the `multipart/alternative` that it belongs to."""

    @property
    def names(self) -> tuple[str, ...]:
        """File name from the headers."""
        found = []
        for header in self.headers:
            if header.name.lower() in ("content-disposition", "content-type"):
                parameters = parameters_of(header.value)
                found += [parameters[key] for key in ("filename", "name") if parameters.get(key)]
        return tuple(dict.fromkeys(found))

    @property
    def is_page(self) -> bool:
        """Whether a client renders it as HTML, by type, file name or content."""
        if self.kind in _PAGES or any(_PAGE_NAME.search(name) for name in self.names):
            return True
        return self.kind != "text/plain" and _PAGE.match(self.text) is not None


def parts(source: str) -> Iterator[Part]:
    """All leaves in order; preamble and epilogue of a multipart are leaves as well."""
    before = _BEFORE_MAIL.match(source)
    begin = 0 if before is None else before.end()
    if begin and not _is_mail(headers(source, begin, len(source))[0]):
        begin = 0
    if begin and before is not None and before[1]:
        yield Part("1 around", "text/plain", (), before[1], *before.span(1), True)
    todo = [("1", begin, len(source), 0, "")]
    left = MAX_PARTS
    while todo:
        number, start, end, depth, group = todo.pop()
        left -= 1
        if left <= 0:
            yield Part(number, "text/plain", (), source[start:end], start, end, True)
            continue
        found, body = headers(source, start, end)
        if depth == 0 and not _is_mail(found):
            found, body = (), start  # `Note: do it` is the first line of a text
        # What has no type is text; what is below a digest is the same for our purpose.
        kind, parameters = content_type(found)
        boundary = parameters.get("boundary", "").rstrip()  # RFC 2046 5.1.1: it ends with no blank
        if kind.startswith("multipart/") and boundary and depth < MAX_DEPTH:
            yield Part(number, kind, found, "", body, body, True, group)
            inner = number if kind == "multipart/alternative" else group
            children, around = _split(source, body, end, boundary)
            for begin, stop in around:
                if source[begin:stop].strip():
                    text = source[begin:stop]
                    yield Part(f"{number} around", "text/plain", (), text, begin, stop, True)
            for index in range(len(children), 0, -1):
                begin, stop = children[index - 1]
                todo.append((f"{number}.{index}", begin, stop, depth + 1, inner))
        elif kind in MAILS and depth < MAX_DEPTH and not _encoding(found):
            yield Part(number, kind, found, "", body, body, True, group)
            todo.append((f"{number}.1", body, end, depth + 1, ""))
        else:
            text, is_verbatim = decoded(source[body:end], kind, parameters, _encoding(found))
            yield Part(number, kind, found, text, body, end, is_verbatim, group)


def _is_mail(found: tuple[Header, ...]) -> bool:
    return any(header.name.lower() in _OF_A_MAIL for header in found)


def headers(source: str, start: int, end: int) -> tuple[tuple[Header, ...], int]:
    """The fields at the beginning, and where the body begins."""
    found: list[Header] = []
    at, begin = start, start
    pending = ""
    while at < end and len(found) < _MAX_HEADERS:
        line = _LINE.match(source, at, end)
        text = line[0] if line is not None else ""
        if pending and text[:1] in (" ", "\t") and text.strip():
            at += len(text)
            continue
        if pending:
            found.append(_header(source[begin:at], begin, at))
        pending = ""
        if not text.strip("\r\n"):
            return tuple(found), at + len(text)
        if _HEADER.match(text) is None:
            return tuple(found), at  # the body begins without a blank line, as some write it
        pending, begin = text, at
        at += len(text)
    if pending:
        found.append(_header(source[begin:at], begin, at))
    return tuple(found), at


def _header(raw: str, start: int, end: int) -> Header:
    matched = _HEADER.match(raw)
    name, value = (matched[1], matched[2]) if matched is not None else ("", raw)
    return Header(name, decoded_words(_FOLD.sub(" ", value).strip()), start, end)


def content_type(found: tuple[Header, ...]) -> tuple[str, dict[str, str]]:
    """The type and its parameters; plain text if none is stated."""
    for header in found:
        if header.name.lower() == "content-type":
            value = without_comments(header.value)
            kind = value.partition(";")[0].strip().strip('"').lower()
            return kind or "text/plain", parameters_of(value)
    return "text/plain", {}


def without_comments(value: str) -> str:
    """`text/html (a comment)` without what stands in brackets; as it is if they do not match."""
    if "(" not in value:
        return value
    kept: list[str] = []
    depth, at = 0, 0
    for found in _COMMENT_SIGNS.finditer(value):
        if found[0] == "(":
            if depth == 0:
                kept.append(value[at : found.start()])
            depth += 1
        elif found[0] == ")" and depth:
            depth -= 1
            at = found.end()
    return value if depth else "".join([*kept, value[at:]])


def parameters_of(value: str) -> dict[str, str]:
    """`filename*0*=utf-8''…` and its kin are put together (RFC 2231)."""
    plain: dict[str, str] = {}
    pieces: dict[str, list[tuple[int, str]]] = {}
    for found in _PARAMETER.finditer(value):
        key, text = found[1].lower(), found[2]
        if text.startswith('"'):
            text = re.sub(r"\\(.)", r"\1", text[1:-1])
        name, star, rest = key.partition("*")
        if not star:
            plain.setdefault(name, decoded_words(text))
            continue
        digits = rest.rstrip("*")
        pieces.setdefault(name, []).append(
            (int(digits) if digits.isdecimal() and len(digits) < 5 else 0, text)
        )
    for name, found_pieces in pieces.items():
        joined = "".join(text for _, text in sorted(found_pieces))
        charset, quote, rest = joined.partition("'")
        if quote and "'" in rest:
            joined = text_of(unquote_to_bytes(rest.partition("'")[2]), charset)
        elif "%" in joined:
            joined = text_of(unquote_to_bytes(joined), "utf-8")
        plain[name] = joined
    return plain


def decoded_words(value: str) -> str:
    """Decode `=?utf-8?B?…?=` (RFC 2047)."""
    if "=?" not in value:
        return value
    return _WORD.sub(_word, _BETWEEN_WORDS.sub(r"\1", value))


def _word(found: re.Match[str]) -> str:
    charset, encoding, text = found[1], found[2].lower(), found[3]
    if encoding == "b":
        data = from_base64(text)
    else:
        data = quopri.decodestring(text.encode("utf-8", "replace"), header=True)
    return text_of(data, charset.partition("*")[0])


def _encoding(found: tuple[Header, ...]) -> str:
    for header in found:
        if header.name.lower() == "content-transfer-encoding":
            word = without_comments(header.value).strip().strip('"').lower()
            return _ENCODINGS.get(word, "")
    return ""


_ENCODINGS = {
    "base64": "base64",
    "quoted-printable": "quoted-printable",
    **dict.fromkeys(("x-uuencode", "uuencode", "x-uue", "uue"), "uuencode"),
}


def _split(
    source: str, start: int, end: int, boundary: str
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The ranges of the parts, and those of what stands before and behind them."""
    mark = re.compile(rf"^--{re.escape(boundary[:_MAX_BOUNDARY])}(--)?[ \t]*\r?$\n?", re.MULTILINE)
    children: list[tuple[int, int]] = []
    around: list[tuple[int, int]] = []
    begin, is_inside = start, False
    for found in mark.finditer(source, start, end):
        (children if is_inside else around).append((begin, found.start()))
        begin, is_inside = found.end(), found[1] is None
    (children if is_inside else around).append((begin, end))
    return children, around


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
    """Bytes as text, whatever charset they declare."""
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
    """Text of a part, and whether it is verbatim in the source."""
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
    """A file that declares another type but is text."""
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

"""What `cellwall.guard.normalise.inline_escapes` reads, in plain Python: the same lines, one part
after the other, by patterns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from cellwall.guard.normalise.offsets import IDENTITY, DecodedPiece, PieceMap, join
from cellwall.parsing.budget import AttemptBudget
from cellwall.parsing.html.tokens import characters
from cellwall.parsing.matching import Pattern

_OUTSIDE = "[^ \\t\\r\\n\"'<>]"
TOKEN = Pattern(
    "&(?:#0*[0-9]{1,7};?|#[xX]0*[0-9A-Fa-f]{1,6};?|[A-Za-z][A-Za-z0-9]{1,30};)"
    f"|%[0-9A-Fa-f]{{2}}{_OUTSIDE}*"
    f"|[?&][A-Za-z0-9_.-]{{1,40}}=[A-Za-z0-9.,]*[+%][A-Za-z0-9%]{_OUTSIDE}*"
    "|(?:\\\\[xX][0-9A-Fa-f]{2})+|(?:\\\\[0-3][0-7]{2})+"
    "|(?:\\\\[uU](?:\\{0*[0-9A-Fa-f]{1,6}\\}|[0-9A-Fa-f]{4}(?:[0-9A-Fa-f]{4})?))+"
    "|(?:[Uu]\\+[0-9A-Fa-f]{4,6}[ \\t\\r\\n\\f]?)+"
    "|(?:=[0-9A-F]{2})+|=\\r?\\n"
)

_REACH_CHARS = 240
"""Around what was encoded, of a line that does not end before."""

MAX_EDITS = 100_000
_FEW_URLS = 400
_EQUALS = Pattern("(?:=[0-9A-F]{2})+|=\\r?\\n")
_QUOTED_SIGNS = (b"=\n", b"=\r\n", b"=3D", b"=20")

_Edit = tuple[int, int, str]
_Spans = list[tuple[int, int]]


def decoded_lines(
    plain: str, image: bytes, attempts: AttemptBudget
) -> Iterator[tuple[str, list[DecodedPiece]]]:
    """The name of each encoding, and its parts."""
    yield "json", list(patched(plain, _some(_strings(plain), attempts)))
    found: dict[str, _Spans] = {}
    for start, end in TOKEN.spans(image):
        if not attempts.spend():
            break
        name = _NAMES[image[start]]
        if name == "html" and image[end - 1] != 0x3B and image[start + 1] != 0x23:
            name = "url"
        found.setdefault(name, []).append((start, end))
    if "url" in found and any(sign in image for sign in _QUOTED_SIGNS):
        found["quoted-printable"] = _equals(image, found)
    for name, spans in found.items():
        yield name, list(patched(plain, _some(_READERS[name](plain, spans), attempts)))


def joined(pieces: list[DecodedPiece]) -> tuple[str, PieceMap]:
    """The text of parts, and where each of its places was."""
    parts = join(pieces)
    return "".join(piece.text for piece in parts), PieceMap(parts, IDENTITY)


def _equals(image: bytes, found: dict[str, _Spans]) -> _Spans:
    if len(found["url"]) > _FEW_URLS:
        return list(_EQUALS.spans(image))
    inside = [span for start, end in found["url"] for span in _EQUALS.spans(image, start, end + 2)]
    return sorted([*found.get("quoted-printable", ()), *inside])


def _some(edits: Iterator[_Edit], attempts: AttemptBudget) -> Iterator[_Edit]:
    yield from islice(edits, MAX_EDITS)
    if next(edits, None) is not None:
        attempts.exhaust()


def patched(plain: str, edits: Iterable[tuple[int, int, str]]) -> Iterator[DecodedPiece]:
    """The lines around the edits as they read after them; the rest is left out."""
    done = reach = 0
    for start, end, text in edits:
        if start > reach:
            yield from _up_to(plain, done, reach)
            done = _line_start(plain, start, reach)
        yield from _up_to(plain, done, start)
        yield DecodedPiece(text, start, end)
        done = end
        reach = _next_line_end(plain, end)
    yield from _up_to(plain, done, reach)


def _up_to(plain: str, start: int, end: int) -> Iterator[DecodedPiece]:
    if end > start:
        yield DecodedPiece(plain[start:end], start, end)


def _line_start(plain: str, at: int, least: int) -> int:
    least = max(least, at - _REACH_CHARS)
    return max(least, plain.rfind("\n", least, at) + 1)


def _line_end(plain: str, at: int) -> int:
    most = min(len(plain), at + _REACH_CHARS)
    found = plain.find("\n", at, most)
    return most if found < 0 else found


def _next_line_end(plain: str, at: int) -> int:
    """A sentence may go on behind the line."""
    return _line_end(plain, min(len(plain), _line_end(plain, at) + 1))


def _entities(plain: str, spans: _Spans) -> Iterator[_Edit]:
    for start, end in spans:
        entity = plain[start:end]
        text = characters(entity)
        if text != entity:
            yield start, end, text


_PERCENT = re.compile(r"(?:%[0-9A-Fa-f]{2})+|\+")


def _percents(plain: str, spans: _Spans) -> Iterator[_Edit]:
    for first, last in spans:
        for match in _PERCENT.finditer(plain, first, last):
            run = match[0]
            text = " " if run == "+" else _bytes_text(bytes.fromhex(run.replace("%", "")))
            if text is not None:
                yield match.start(), match.end(), text


def _bytes_text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data.decode("latin-1") if len(data) == 1 else None


def _escapes(plain: str, spans: _Spans) -> Iterator[_Edit]:
    for start, end in spans:
        run = plain[start:end]
        if run[1] in "xX":
            text = _bytes_text(bytes.fromhex(run.lower().replace("\\x", "")))
        elif run[1].isdigit():
            text = _bytes_text(bytes(int(octal, 8) for octal in run[1:].split("\\")))
        else:
            text = _points_text(run)
        if text is not None:
            yield start, end, text


_POINT = re.compile(r"(?<=\{)[0-9A-Fa-f]+|[0-9A-Fa-f]{4,8}")


def _points_text(run: str) -> str | None:
    codes = [int(code, 16) for code in _POINT.findall(run)]
    if max(codes) > 0x10FFFF:
        return None
    text = "".join(map(chr, codes))
    if not any(0xD800 <= code <= 0xDFFF for code in codes):
        return text
    # Two halves of one character are written as two escapes.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


_MIN_RUN = 4 * len("=41")
_MIN_BROKEN_CHARS = 60
_QUOTED = re.compile("=[0-9A-F]{2}")


def _quoted(plain: str, spans: _Spans) -> Iterator[_Edit]:
    line_end = -1
    is_quoted = False
    for start, end in spans:
        if start >= line_end:
            first = _line_start(plain, start, 0)
            line_end = max(_line_end(plain, start), start + 1)
            is_quoted = _is_quoted(plain[first:line_end])
        run = plain[start:end]
        if not is_quoted and len(run) < _MIN_RUN:
            continue
        if run[1] in "\r\n":
            yield start, end, ""
            continue
        text = _bytes_text(bytes.fromhex(run.replace("=", "")))
        if text is not None and "".join(text.split()).isprintable():
            yield start, end, text


def _is_quoted(line: str) -> bool:
    """In code an equals sign stands for itself; here it hardly ever does."""
    signs = line.count("=")
    quoted = len(_QUOTED.findall(line)) + line.rstrip("\r").endswith("=")
    # Where base64 ends a line, there is no space in it or there are two signs.
    is_broken = line.rstrip("\r").endswith("=") and not line.rstrip("\r").endswith("==")
    is_broken = is_broken and (" " in line or quoted > 1)
    if quoted < signs:
        return quoted > 3 * (signs - quoted) or (is_broken and len(line) >= _MIN_BROKEN_CHARS)
    return quoted > 2 or is_broken or "=20" in line or "=3D" in line


_STRING_ESCAPE = re.compile(r"\\[nrt\"/\\]")
_MEANT = {"n": "\n", "r": "\r", "t": "\t"}


def _strings(plain: str) -> Iterator[_Edit]:
    """Lines inside of JSON: what begins one there begins none in the text."""
    if "\\n" in plain and plain[:_REACH_CHARS].lstrip()[:1] in ("{", "["):
        for match in _STRING_ESCAPE.finditer(plain):
            letter = match[0][1]
            yield match.start(), match.end(), _MEANT.get(letter, letter)


_NAMES = {
    **dict.fromkeys(b"&", "html"),
    **dict.fromkeys(b"%?", "url"),
    **dict.fromkeys(b"\\Uu", "escapes"),
    **dict.fromkeys(b"=", "quoted-printable"),
}
_READERS: dict[str, Callable[[str, _Spans], Iterator[_Edit]]] = {
    "html": _entities,
    "url": _percents,
    "escapes": _escapes,
    "quoted-printable": _quoted,
}

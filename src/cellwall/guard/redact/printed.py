r"""Known values as shells, files and dumps print them; beyond `credentials.known` (GRD-5).

In text: quoted for a shell (`'it'\''s'`, `'it'"'"'s'`, `\$`); with other ends of lines; indented or
behind the signs of a diff or a quotation; without the newline at its end; as JSON within JSON. In
base64 that is wrapped and indented. In the lines of `xxd`, `hexdump -C`, `od -tx1` and `od -c`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from cellwall.guard.redact.dumps import Dumps
from cellwall.parsing.credentials.known.encodings import (
    MIN_BYTES,
    PLAIN,
    Form,
    Unit,
    cores,
    pieces,
)
from cellwall.parsing.credentials.known.matches import BEGINNING_BYTES, beginnings
from cellwall.parsing.credentials.spans import KNOWN, Span

_INDENTS = (
    *(b" " * count for count in range(17)),
    *(b"\t" * count for count in range(1, 5)),
    *(b"+", b"-", b"+ ", b"- ", b"> ", b">", b"| ", b"|", b"# ", b"// "),
)
_LINE_END: Unit = tuple(end + indent for end in (b"\n", b"\r\n") for indent in _INDENTS)
_WRAPS: Unit = (b"", *_LINE_END)
_ESCAPED = {0x0D: b"\\r", 0x09: b"\\t"}
_PLAIN_RUN = re.compile(b"[%s]+" % re.escape(PLAIN))
_ALNUM_RUN = re.compile(rb"[A-Za-z0-9]+")
_WRAPPED = re.compile(
    rb"\n(?:(?<=[A-Za-z0-9+/_-]\n)(?<=[A-Za-z0-9+/_-]{16}\n)"
    rb"|(?<=\r\n)(?<=[A-Za-z0-9+/_-]{16}\r\n))"
    rb"[ \t+>|#/-]{1,16}[A-Za-z0-9+/=_-]{2,}[\"'\s]"
)
"""A long row of letters that goes on in the next line, indented, with nothing else on it."""
_BLANK = b" \t\r\n+->|#/"
_ANCHOR_BYTES = 4
_MAX_ANCHOR_BYTES = 48
_AROUND_BYTES = 256
"""More than the longest anchor, with all that may wrap it."""
_MAX_UNIT_BYTES = 20


@dataclass(frozen=True)
class _Printed:
    """One form of a value, or of a piece of one, and a part of it that shows. `repr` hides both."""

    name: str
    form: Form
    anchor: bytes

    def __repr__(self) -> str:
        return f"_Printed({self.name})"


class PrintedValues:
    """Made once for a set of values."""

    def __init__(self, values: Iterable[tuple[str, bytes]]) -> None:
        known = [pair for pair in values if len(pair[1]) >= MIN_BYTES]
        self._texts = tuple(each for name, value in known for each in _texts(name, value))
        self._wrapped = tuple(each for name, value in known for each in _wrapped(name, value))
        self._dumps = Dumps(known)

    def find(self, data: bytes, start: int, *, is_final: bool) -> tuple[list[Span], int]:
        """Those that begin at `start` or behind it, and where one may have begun at the end."""
        spans, begun = self._dumps.find(data, start, is_final=is_final)
        for each in self._worth_a_look(data):
            place = start
            while (found := each.form.first(data, place)) is not None:
                spans.append(Span(*found, f"secret {each.name}", KNOWN))
                place = found[1]
        if is_final:
            return spans, len(data)
        covered = max((span.end for span in spans), default=start)
        return spans, min(begun, self._begun(data, max(start, covered)))

    def _worth_a_look(self, data: bytes) -> Iterator[_Printed]:
        yield from (each for each in self._texts if each.anchor in data)
        if self._wrapped and (joined := _joined(data)):
            yield from (each for each in self._wrapped if each.anchor in joined)

    def _begun(self, data: bytes, start: int) -> int:
        first = max(start, len(data) - self._max_bytes)
        for place in range(first, len(data) - BEGINNING_BYTES + 1):
            wanted = self._beginnings.get(data[place : place + BEGINNING_BYTES])
            if wanted is not None and any(form.is_begun(data, place) for form in wanted):
                return place
        return len(data)

    @cached_property
    def _forms(self) -> tuple[Form, ...]:
        return tuple(each.form for each in (*self._texts, *self._wrapped))

    @cached_property
    def _max_bytes(self) -> int:
        return max((len(form.units) * _MAX_UNIT_BYTES for form in self._forms), default=0)

    @cached_property
    def _beginnings(self) -> dict[bytes, list[Form]]:
        found: dict[bytes, list[Form]] = {}
        for form in self._forms:
            for beginning in set(beginnings(form)):
                found.setdefault(beginning, []).append(form)
        return found


def _joined(data: bytes) -> bytes:
    """What stands around wrapped rows, without what wraps them."""
    parts: list[bytes] = []
    end = 0
    for found in _WRAPPED.finditer(data + b"\n"):
        start = max(end, found.start() - _AROUND_BYTES)
        end = max(end, found.end() + _AROUND_BYTES)
        parts.append(data[start:end])
    return b"".join(parts).translate(None, _BLANK)


def _texts(name: str, value: bytes) -> Iterator[_Printed]:
    bare = value.strip(b"\r\n")
    if len(bare) < MIN_BYTES:
        return
    if len(bare) == len(value) and not bare.translate(None, PLAIN):
        return  # nothing in it is ever written otherwise
    for piece in pieces(bare.replace(b"\r\n", b"\n")):
        anchor = max(_PLAIN_RUN.findall(piece), key=len, default=b"")
        units = tuple(map(_text_unit, piece))
        yield _Printed(name, Form("escaped", units), anchor)


def _wrapped(name: str, value: bytes) -> Iterator[_Printed]:
    for piece in pieces(value):
        for align, core in enumerate(cores(piece)):
            runs = _ALNUM_RUN.findall(core)
            anchor = max(runs, key=len, default=b"")[:_MAX_ANCHOR_BYTES]
            if len(anchor) < _ANCHOR_BYTES:
                continue
            units: list[Unit] = []
            for place, byte in enumerate(core):
                if place and (place + (0, 2, 3)[align]) % 4 == 0:
                    units.append(_WRAPS)
                units.append(_DIGITS.get(byte, (bytes([byte]),)))
            yield _Printed(name, Form("base64", tuple(units)), anchor)


_DIGITS: dict[int, Unit] = {ord("+"): (b"+", b"-"), ord("/"): (b"/", b"_")}


def _text_unit(byte: int) -> Unit:
    sign = bytes([byte])
    if sign == b"\n":
        return (*_LINE_END, b"\\n", b"\\\\n")
    if sign == b"'":
        return (b"'", b"\\'", b"'\\''", b"'\"'\"'")
    if sign in b'"\\':  # once more for JSON within JSON
        return (sign, b"\\" + sign, b"\\\\\\" + sign)
    if byte in _ESCAPED:
        return (sign, _ESCAPED[byte])
    if byte in PLAIN or byte >= 0x7F or byte < 0x20:
        return (sign,)
    return (sign, b"\\" + sign)

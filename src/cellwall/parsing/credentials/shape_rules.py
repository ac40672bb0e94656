"""Credential rules by shape: a keyword, then a value of a given form.

A rule in `rules.toml` has:

id             the name in the mark that replaces the value
words          keywords; one of them precedes every match. They are searched for first, and stay in
               the text: they are not secret, and a stream need not wait for them
lead           the text between a keyword and the value (Python syntax, bounded; the first
               alternative that matches, never the longest: later data must not change it)
chars          the bytes of the value: a name in `spans.RUNS`. The value is the longest such run
value          the beginning of the value (RE2), or the whole value if `exact`
before         the text required before the keyword (Python syntax)
border         "word": no letter, digit or `_` before a keyword; "token": nor any of `-.+/`; "none"
ignore_case    of keywords and lead
checks         further conditions: see `_CHECKS`
entropy        the minimum in bits per byte
wire           false: a match does not refuse a request; the comment behind it gives the reason
max_bytes      that are waited for; a longer run is redacted whole if it begins like a secret
match, not_match   examples; tests run all of them
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from cellwall.parsing.credentials.entropy import STRONG, is_placeholder, randomness, shannon
from cellwall.parsing.credentials.spans import RUNS, ScanContext, Span, ValueRun, is_mark_cut
from cellwall.parsing.matching import Pattern

LEAD_BYTES = 600
"""Maximum between a keyword and its value; a stream keeps as much context."""
_MAX_BYTES = 512
BEFORE_BYTES = 24
_DIGIT = re.compile(rb"[0-9]")
_LOWER_HEX = re.compile(rb"[0-9a-f-]*")
_WORD = re.compile(rb"[A-Za-z]?[a-z]{0,23}|[A-Z_]{1,24}")
_ESCAPE = re.compile(
    rb"(?:\\[abfnrtv]|\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|%(?:25)?[0-9A-Fa-f]{2}"
    rb"|\\[0-7]{1,3}|#0[0-3][0-7]|=[0-9A-F]{2}"
    rb"|(?:\x1b|\\x1[bB]|\\u001[bB]|\\u\{1[bB]\}|\\0?33|\\e|\^\[|#033|%1[bB]|&#(?:27|x1[bB]);"
    rb"|\xe2\x90\x9b|ESC)(?:\[|%5[bB])[0-9;:?]{0,12}[@-~]"
    rb"|\x9b[0-9;:?]{0,12}[@-~]|\x1b[ -/]{0,4}[0-Z\\^-~])$"
)
"""Text that may precede a secret although it ends with a letter: escapes and terminal sequences, as
programs and logs write them."""


@dataclass(frozen=True)
class ShapeRule:
    """A secret identified by a keyword before it and by its shape."""

    id: str
    words: tuple[bytes, ...]
    value: Pattern
    run: ValueRun
    lead: re.Pattern[bytes] | None = None
    before: re.Pattern[bytes] | None = None
    border: Literal["word", "token", "none"] = "word"
    ignore_case: bool = False
    is_exact: bool = False
    checks: tuple[Callable[[bytes, bytes], bool], ...] = ()
    min_entropy: float = 0.0
    max_bytes: int = _MAX_BYTES
    until: bytes = b""
    """The value must contain this byte and ends before the last one."""
    is_on_wire: bool = True
    """Whether a request that contains a match is refused."""
    match: tuple[str, ...] = ()
    not_match: tuple[str, ...] = ()

    def look(
        self, data: bytes, start: int, end: int, *, is_final: bool, around: ScanContext
    ) -> Iterator[int | Span]:
        """Positions to hold back and spans to redact, for the keyword at `start`."""
        if (result := self._check(data, start, end, around, is_final=is_final)) is not None:
            yield result

    def _check(
        self, data: bytes, start: int, end: int, around: ScanContext, *, is_final: bool
    ) -> int | Span | None:
        word = data[start:end]
        if not self.ignore_case and word not in self.words:
            return None
        if start not in around.ends and not self._is_free(data, start, around):
            return None
        if self.lead is not None:
            lead_match = self.lead.match(data, end, end + LEAD_BYTES)
            if lead_match is None:
                return None
            end = lead_match.end()
        stop, state = self.run.extent(data, end, self.max_bytes)
        is_open = state == "open" or is_mark_cut(data, stop) or around.begun < stop
        if is_open and not is_final:
            return end
        if around.is_left_over(data, end, stop):
            return None
        span = self._judge(data, word, end, stop, around, is_capped=state == "capped")
        if span is None and (cut := around.cut(data, end, stop)) < stop:
            return self._judge(data, word, end, cut, around, is_capped=False)
        return span

    def _judge(
        self,
        data: bytes,
        word: bytes,
        start: int,
        stop: int,
        around: ScanContext,
        *,
        is_capped: bool,
    ) -> Span | None:
        value = data[start:stop]
        if self.until:
            stop = start + max(0, value.rfind(self.until))
        else:
            value = value.rstrip(b".,:;")
        if not value or (is_capped and self.is_exact):
            return None
        if not self.value.matches(value):
            return None
        judged = data[start:stop] if self.until else value
        if not self._passes(word, data[start:stop], judged, is_strict=around.is_strict):
            return None
        if not is_capped:
            return Span(start, stop, self.id)
        return around.long_span(data, start, stop, self.id, self.run)

    def _passes(self, word: bytes, whole: bytes, value: bytes, *, is_strict: bool) -> bool:
        if is_strict:
            return all(check(word, value) for check in self.checks if check is not _is_random)
        if is_placeholder(whole) or shannon(value) < self.min_entropy:
            return False
        return all(check(word, value) for check in self.checks)

    def _is_free(self, data: bytes, start: int, around: ScanContext) -> bool:
        if self.border == "none" and self.before is None:
            return True
        stands = data[max(0, start - BEFORE_BYTES) : start]
        if stands.endswith(b"]") and around.goes_on(data, start):
            return False
        if self.before is not None and not self.before.search(stands):
            return False
        if self.border == "none" or not stands:
            return True
        last = stands[-1:]
        if stands.endswith(b"-----"):  # the end of a PEM key is a border
            return True
        if around.is_strict and (last.isdigit() or last in b".+/"):
            return True
        if last.isalnum() or last == b"_" or (self.border == "token" and last in b"-.+/"):
            return bool(_ESCAPE.search(stands))
        return True


def _decode_base64(text: bytes) -> bytes:
    text = text.rstrip(b"=").translate(bytes.maketrans(b"-_", b"+/"))
    text = text[: len(text) // 4 * 4] if len(text) % 4 == 1 else text
    try:
        return base64.b64decode(text + b"=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return b""


def _is_name_and_password(_word: bytes, value: bytes) -> bool:
    credentials = _decode_base64(value)
    return b":" in credentials[:-1] and credentials.isascii() and credentials.decode().isprintable()


def _holds_key(word: bytes, value: bytes) -> bool:
    return b"PRIVATE KEY" in _decode_base64((word + value)[:400])


def _is_random(_word: bytes, value: bytes) -> bool:
    return randomness(value) >= STRONG


_CHECKS: Mapping[str, Callable[[bytes, bytes], bool]] = {
    "digit": lambda _word, value: _DIGIT.search(value) is not None,
    "mixed": lambda _word, value: (
        not (value.islower() or value.isupper()) or _LOWER_HEX.fullmatch(value) is not None
    ),
    "random": _is_random,
    "basic": _is_name_and_password,
    "key-inside": _holds_key,
    "no-word": lambda _word, value: not _WORD.fullmatch(value),
}


def read_shape(row: Mapping[str, object]) -> ShapeRule:
    """One `[[rule]]` table of `rules.toml`."""
    get = row.get
    flags = re.IGNORECASE if get("ignore_case") else 0
    value = f"^(?s:{row['value']})" + ("$" if get("exact") else "")
    chars = str(get("chars", "word"))
    lead, before = get("lead"), get("before")
    border = get("border", "word")
    assert border in ("word", "token", "none")  # noqa: S101  # our own file, and tests read all
    return ShapeRule(
        id=str(row["id"]),
        words=tuple(word.encode() for word in _texts(row["words"])),
        value=Pattern(value),
        run=RUNS[chars],
        lead=re.compile(str(lead).encode(), flags) if lead else None,
        before=re.compile(b"(?:%s)$" % str(before).encode()) if before else None,
        border=border,
        ignore_case=bool(get("ignore_case")),
        is_exact=bool(get("exact")),
        checks=tuple(_CHECKS[name] for name in _texts(get("checks", ()))),
        min_entropy=float(str(get("entropy", 0.0))),
        max_bytes=int(str(get("max_bytes", _MAX_BYTES))),
        until=b"@" if chars == "userinfo" else b"",
        is_on_wire=bool(get("wire", True)),
        match=_texts(get("match", ())),
        not_match=_texts(get("not_match", ())),
    )


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()

"""Values that are secrets by their name: `api_key = "…"`, `--token …`, `"password": "…"`.

There are too many vendors, and most of their keys look alike. So the rule only requires a keyword
for a secret, or the name of a vendor, before a value that looks random. A password need not look
random: its value must be a literal, not a variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cellwall.parsing.credentials.entropy import (
    NOT,
    STRONG,
    WEAK,
    is_lookup_expression,
    is_placeholder,
    randomness,
)
from cellwall.parsing.credentials.spans import (
    NAMED,
    ScanContext,
    Span,
    ValueRun,
    before,
    is_mark_cut,
    quoted,
)

NAMED_WORDS = (
    *b"token secret passw passphrase pwd pass credential key auth access private apikey".split(),
    *b"api_key login _pat -pat".split(),
    b" pat",
)
_ANYWHERE = frozenset(b"token secret passw passphrase credential apikey api_key".split())
"""Keywords that count even behind other letters, as in `mytoken`; `key` also ends `monkey`."""
_PASSWORDS = frozenset(b"passw passphrase pwd pass".split())
_MAX_BYTES = 512
_LEAD_BYTES = 480
_MIN_BYTES = 8
_MIN_DIFFERENT = 6
_COMPOUND = re.compile(
    rb"(?i)(?:api|access|secret|private|auth|app|account|master|sign(?:ing)?|encryption|client"
    rb"|service|license|licence|admin|write|read|token|user|host|ssh|rsa|deploy|session|shared|site"
    rb"|server|personal|project|org|bot|web|x)$"
)
# The rest of a name and its closing quote; its type; the assignment; the opening quote.
_QUOTE = rb"(?:\\{0,7}[\"'`]|&(?:quot|apos|#34|#39|#x22|#x27);)"
_NAME = rb"[A-Za-z0-9_.\-]{0,32}+%s{0,2}[\])]{0,2}" % _QUOTE
_TYPE = rb"[ \t]{0,20}:[ \t]?[A-Za-z_][\w\[\]|?.]{0,24}"
_GETS = (
    rb"[ \t]{0,20}(?:[:=?+|<]{0,3}[=:>]|,|\|\||%%3[DdAa])[ \t]{0,20}"
    rb"(?:[@frbuFRBUL]{1,2}(?=[\"'`]))?(?P<open>(?:%s|\\?\(){0,3})"
) % _QUOTE
_PLAIN_ASSIGNED = re.compile(_NAME + _GETS)
_ASSIGNED = re.compile(b"%s(?:%s)?%s" % (_NAME, _TYPE, _GETS))
_ATTRIBUTE = re.compile(
    rb"[A-Za-z0-9_.\-]{0,32}+[\"'][ \t]{1,4}value[ \t]{0,2}=[ \t]{0,2}(?P<open>[\"'])"
)
"""`<add key="ApiKey" value="…"/>`"""
_BELOW = re.compile(rb"[A-Za-z0-9_.\-]{0,32}+[\"']?:[ \t]{0,4}\r?\n[ \t]{1,20}(?P<open>[\"']?)")
"""YAML with the value on the next line."""
_BESIDE = re.compile(
    rb"(?i)(?:[_.\- ]{0,2}(?:key|token|secret|access|private|api|auth|tok|id|pat)){0,3}"
    rb"(?:[ \t]{1,3}|[\-.:_])(?P<open>(?:\\?[\"'`]){0,1})"
)
_BLOCK = re.compile(
    rb"[A-Za-z0-9_.\-]{0,32}+\"?\s{0,4}\{\s{0,40}(?:[a-z]{1,20}\s{0,20}=[^\r\n]{0,100}\r?\n\s{0,40}){0,3}?"
    rb"default\s{0,20}=\s{0,20}(?P<open>\"?)"
)
_NEAR_VENDOR = re.compile(rb"(?:[ \t]{1,3}|[\-:_])(?P<open>\\?[\"'`]?)")
_LEADS = (
    *((_PLAIN_ASSIGNED, False), (_ASSIGNED, False), (_BLOCK, False), (_ATTRIBUTE, False)),
    *((_BELOW, True), (_BESIDE, True)),
)
_VENDOR_LEADS = (*_LEADS[:-1], (_NEAR_VENDOR, True))
_BARE = ValueRun(re.compile(rb"[A-Za-z0-9_+/=.~@!#$%^*?:\-]*"))
_BESIDE_RUN = ValueRun(re.compile(rb"[A-Za-z0-9_+/=.~:\-]*"))
_QUOTED = {mark: quoted(mark) for mark in (b'"', b"'", b"`")}
_ESCAPED = ValueRun(re.compile(rb"[^\"'\\\r\n]*"))
_NOT_SECRET_NAME = re.compile(
    rb"(?i)^(?:s?[_.\-]?(?:name|type|id|ids|url|uri|path|file|len|length|size|count|format|algo"
    rb"|algorithm|expir\w*|ttl|prefix|suffix|regex|pattern|class|field|column|label|index|usage|sum"
    rb"|digest|hash|sha\d*|md5|fingerprint|version|location|endpoint|scope|bits?))\b|^words?\b|^board|^frame"
    rb"|^or\b|^ors?\b|^ority|^enticat"
)
_NOT_SECRET_BEFORE = re.compile(
    rb"(?i)(?:public|primary|foreign|sort|cache|partition|composite|unique|pub|hash|checksum|commit"
    rb"|integrity|sha\d*|md5|digest|fingerprint|etag|revision|blob|tree|object|keygrip|idempotency)"
    rb"[_.\-]?$"
)
_INTEGRITY = re.compile(
    rb"(?i)^(?:sha\d{1,3}|md5|blake2\w?)[-:=]|^[0-9.]{1,15}$|^[a-z]+://|^[./]|^~/"
)
_CALLED = frozenset((b"(", b"[", b"{"))
_ARGUMENT = re.compile(rb",\s*$")
_VARIABLE = re.compile(rb"[A-Z0-9_]{4,40}=\"?")
"""An environment variable, whose value is a literal."""
_SOLID = re.compile(rb"(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{16,512}")
"""The value of a variable that is not several words: random text may be pronounceable."""
_PLAINLY = re.compile(rb"(?i)pass(?:w(?:or)?d|phrase)?(?:=|: ?)|pwd(?:=|: ?)")
_LINE_ENDS = (b"", b" ", b"\t", b"\r", b"\n", b"&", b";")
_DIGIT = re.compile(rb"[0-9]")


@dataclass(frozen=True)
class NamedRule:
    """Keywords that name a secret or its vendor."""

    id: str
    words: tuple[bytes, ...]
    is_vendor: bool = False

    def look(
        self, data: bytes, start: int, end: int, *, is_final: bool, around: ScanContext
    ) -> Iterator[int | Span]:
        """Positions to hold back and spans to redact, for the keyword at `start`."""
        if not self._is_name(data, start, end):
            return
        seen_at = -1
        for lead, is_beside in _VENDOR_LEADS if self.is_vendor else _LEADS:
            lead_match = lead.match(data, end, end + _LEAD_BYTES)
            if (
                lead_match is not None
                and lead_match.end() != seen_at
                and lead_match.end() not in around.named
            ):
                seen_at = lead_match.end()
                place = _NamedValue(self, data, start, end, lead_match, is_beside)
                result = place.look(around, is_final=is_final)
                if isinstance(result, Span) and not is_beside:
                    around.named.add(result.start)
                if result is not None:
                    yield result

    def _is_name(self, data: bytes, start: int, end: int) -> bool:
        word = data[start:end].lower()
        if word[1:] == b"pat" or word == b"pass":
            return not data[end : end + 1].isalpha()
        return not (self.is_vendor and before(data, start, 1).isalnum())


@dataclass(frozen=True, slots=True)
class _NamedValue:
    """A value with the text that introduces it."""

    rule: NamedRule
    data: bytes
    start: int
    end: int
    lead_match: re.Match[bytes]
    is_beside: bool

    def look(self, around: ScanContext, *, is_final: bool) -> int | Span | None:
        value_start = self.lead_match.end()
        mark = self.lead_match["open"][-1:]
        run = self._run(mark)
        stop, state = run.extent(self.data, value_start, _MAX_BYTES)
        is_open = state == "open" or is_mark_cut(self.data, stop) or around.begun < stop
        if is_open and not is_final:
            return value_start
        if around.is_left_over(self.data, value_start, stop):
            return None
        is_quoted = mark in _QUOTED
        if not self._is_secret(self.data[value_start:stop], stop, is_quoted=is_quoted):
            cut = around.cut(self.data, value_start, stop)
            if cut == stop or not self._is_secret(
                self.data[value_start:cut], cut, is_quoted=is_quoted
            ):
                return None
            return Span(value_start, cut, self.rule.id, NAMED)
        if state != "capped":
            return Span(value_start, stop, self.rule.id, NAMED)
        return around.long_span(self.data, value_start, stop, self.rule.id, run, NAMED)

    def _run(self, mark: bytes) -> ValueRun:
        if mark not in _QUOTED:
            return _BESIDE_RUN if self.is_beside else _BARE
        is_escaped = self.lead_match["open"].endswith(b"\\" + mark)
        return _ESCAPED if is_escaped else _QUOTED[mark]

    def _is_secret(self, value: bytes, stop: int, *, is_quoted: bool) -> bool:
        # The check that most values fail comes first: this runs for every second `key` in a text.
        value = value.rstrip(b".,:;?!")
        word = self.data[self.start : self.end].lower()
        is_password = word in _PASSWORDS and _is_password(
            value,
            is_quoted=is_quoted,
            is_beside=self.is_beside,
            is_variable=self._is_variable(),
            is_line=self._is_line(stop),
        )
        if not is_password and not self._is_random(value, word):
            return False
        if not is_quoted and (
            self.data[stop : stop + 1] in _CALLED or _ARGUMENT.search(self.lead_match[0])
        ):
            return False
        if is_password and _NOT_SECRET_NAME.match(self.lead_match[0]):
            return False
        return not is_placeholder(value) and not is_lookup_expression(value)

    def _is_variable(self) -> bool:
        return bool(_VARIABLE.fullmatch(self.data[self.start : self.lead_match.end()]))

    def _is_line(self, stop: int) -> bool:
        """Whether this is a line of settings or logs; in code, the value could be a variable."""
        is_plain = _PLAINLY.fullmatch(self.data, self.start, self.lead_match.end()) is not None
        return is_plain and self.data[stop : stop + 1] in _LINE_ENDS

    def _is_random(self, value: bytes, word: bytes) -> bool:
        if len(value) < _MIN_BYTES or (len(value) < 16 and not _DIGIT.search(value)):
            return False
        if len(set(value[:32])) < _MIN_DIFFERENT:
            return False
        level, needed = randomness(value), self._needed(word)
        if level == NOT or level < needed:
            return needed <= WEAK and self._is_variable() and bool(_SOLID.fullmatch(value))
        return b" " not in value and not _INTEGRITY.match(value)

    def _is_whole(self, word: bytes, stands: bytes) -> bool:
        """Whether the keyword is a whole word, not the end of a longer one as in `monkey`."""
        last, first = stands[-1:], self.data[self.start : self.start + 1]
        if word in _ANYWHERE or not (last.isalpha() and first.isalpha()):
            return True
        is_capital = first.isupper() and (last.islower() or self.data[self.start + 1] >= 97)
        return is_capital or bool(_COMPOUND.search(stands))

    def _needed(self, word: bytes) -> int:
        stands = before(self.data, self.start, 24)
        if _NOT_SECRET_BEFORE.search(stands) or _NOT_SECRET_NAME.match(self.lead_match[0]):
            return STRONG + 1
        if self.rule.is_vendor:
            return STRONG
        if not self._is_whole(word, stands):
            return STRONG
        if self.is_beside:
            return WEAK if word in _ANYWHERE else STRONG
        return WEAK if word in _ANYWHERE or word == b"key" else STRONG


def _is_password(
    value: bytes, *, is_quoted: bool, is_beside: bool, is_variable: bool, is_line: bool
) -> bool:
    """Whether a literal looks like a password: a digit or a mark among letters."""
    if not 6 <= len(value) <= 128 or b" " in value or b"://" in value or value.startswith(b"/"):
        return False
    if is_variable:
        return True
    letters = sum(byte in _LETTERS for byte in value)
    digits = sum(48 <= byte <= 57 for byte in value)
    marks = sum(byte in b"!@#$%^&*?~+" for byte in value)
    if is_line and letters >= 3 and digits >= 1 and not _IDENTIFIER.fullmatch(value):
        return True
    if is_quoted and not is_beside:
        return letters >= 3 and digits + marks >= 1 and not _IDENTIFIER.fullmatch(value)
    return letters >= 3 and digits + marks >= 2 and len(value) >= 8 and randomness(value) != NOT


_LETTERS = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
_IDENTIFIER = re.compile(rb"[A-Za-z_]+(?:[._\-][A-Za-z_]+)+[0-9]?|%[A-Za-z(].*|.*\(.*\)")

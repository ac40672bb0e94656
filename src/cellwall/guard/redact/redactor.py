"""Nested data without secrets: in its texts, in its keys, and in texts that a key names as one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cellwall.core.errors import CellwallError, VaultError
from cellwall.core.types import Json
from cellwall.guard.redact.known import KnownValues
from cellwall.guard.redact.stream import RedactingStream
from cellwall.guard.redact.terminal import may_hold
from cellwall.parsing.budget import NOT_SCANNED, ScanBudget, ScanUnfinished, checkpoint, grant
from cellwall.parsing.credentials.rule_set import SecretRules, shipped, spans_in
from cellwall.parsing.credentials.spans import SecretHit, mark

TOO_DEEP = "[redacted:too-deep]"
"""Stands for data that is nested deeper than anybody reads."""
_MAX_DEPTH = 64
_NAME_CHARACTERS = 64
_NAMED_CHARACTERS = 4096
_NUMBER_FROM, _NUMBER_UNTIL = 10**5, 10**1000
"""No shorter value is known; no longer number can be written down."""


@dataclass(frozen=True, slots=True)
class RedactedText:
    """A text as it may be shown, and what was taken out. Places are characters of the input."""

    text: str
    hits: tuple[SecretHit, ...]


class DataRedactor:
    """Cleans data with what cleans a text."""

    def __init__(self, text: Callable[[str], RedactedText]) -> None:
        self._text = text

    def redact(self, value: Json) -> Json:
        return self._data(value, "", 0)

    def _data(self, value: Json, name: str, depth: int) -> Json:
        if isinstance(value, str):
            return self._named(name, value)
        if isinstance(value, Mapping):
            return TOO_DEEP if depth >= _MAX_DEPTH else self._mapping(value, depth)
        if isinstance(value, Sequence):
            return TOO_DEEP if depth >= _MAX_DEPTH else self._sequence(value, name, depth)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self._number(value)
        return value

    def _number(self, value: float) -> Json:
        # A card or an account that is kept as a text may stand here as a number.
        if isinstance(value, int) and not _NUMBER_FROM <= abs(value) < _NUMBER_UNTIL:
            return value
        text = repr(value)
        shown = self._text(text).text
        return value if shown == text else shown

    def _mapping(self, value: Mapping[str, Json], depth: int) -> dict[str, Json]:
        cleaned: dict[str, Json] = {}
        times: dict[str, int] = {}
        for key, each in value.items():
            name = shown = self._text(key).text
            # Two that hold secrets can look the same by now; none of them is lost. Counted on, or
            # a row of equal names would cost quadratic time.
            while shown in cleaned or (shown != key and shown in value):
                times[name] = times.get(name, 1) + 1
                shown = f"{name} ({times[name]})"
            cleaned[shown] = self._data(each, key[-_NAME_CHARACTERS:], depth + 1)
        return cleaned

    def _sequence(self, value: Sequence[Json], name: str, depth: int) -> list[Json]:
        cleaned: list[Json] = []
        for each in value:
            cleaned.append(self._data(each, name, depth + 1))
            # As in the arguments of a command: an option, then its value.
            if isinstance(each, str) and each.startswith("-"):
                name = each[-_NAME_CHARACTERS:]
        return cleaned

    def _named(self, name: str, text: str) -> str:
        shown = self._text(text).text
        if shown != text or not name or not text or len(text) > _NAMED_CHARACTERS:
            return shown
        # As it would stand in a file: the rules for names are the same there.
        introduction = f'{name}": "'
        written = text.replace("\\", "\\\\").replace('"', '\\"')
        told = self._text(introduction + written)
        rules = [hit.rule for hit in told.hits if hit.start >= len(introduction)]
        return f"[redacted:{rules[0]}]" if rules else text


Known = Callable[[], Mapping[str, bytes]]
_SHORT_BYTES = 4096
_TEXT_BYTES = 8
"""What each text may cost, however short."""
_LARGE = 10**1000
"""No larger number can be written down."""
_Handler = Literal["surrogatepass", "surrogateescape"]


@dataclass(frozen=True, slots=True)
class Redacted:
    """Bytes as they may be shown, and what was taken out. Places are those of the input."""

    data: bytes
    hits: tuple[SecretHit, ...]


class Redactor:
    """Takes secrets out. Thread-safe; made once, for its words and values are made ready once."""

    def __init__(self, rules: SecretRules | None = None, known: Known | None = None) -> None:
        self._rules = shipped() if rules is None else rules
        self._asked = known
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}
        self._known = KnownValues(())

    def redact(self, data: bytes) -> Redacted:
        """Bytes of any kind; what holds no secret comes back as it is."""
        return self._redacted(data, self._values_now())

    def redact_text(self, text: str) -> RedactedText:
        """A text of any kind, lone surrogates included."""
        return self._redacted_text(text, self._values_now())

    def redact_json(self, value: Json) -> Json:
        """The same data; every text and every key in it clean. A key names its value."""
        known = self._values_now()
        # Many short texts are looked through for known values together, not one by one.
        if not known.is_empty and not known.find(_joined(value), 0, is_final=True)[0]:
            known = KnownValues(())
        budget = ScanBudget()
        with budget.running():  # one for all of them
            return DataRedactor(lambda text: self._redacted_text(text, known)).redact(value)

    def stream(self) -> RedactingStream:
        """For what comes in pieces."""
        return RedactingStream(self._rules, self._values_now)

    def _values_now(self) -> KnownValues:
        if self._asked is None:
            return self._known
        try:
            values = self._asked()
        except Exception as error:
            # Whatever the reason, it is not known what must not be shown.
            detail = error.detail if isinstance(error, CellwallError) else type(error).__name__
            raise VaultError(
                "the values that must not be shown cannot be read, so nothing is shown",
                hint="Unlock the vault or hint it, then ask again.",
                detail=detail,
            ) from error
        with self._lock:
            if values != self._values:
                self._values = dict(values)
                self._known = KnownValues(self._values.items(), marks=sorted(self._rules.ids))
            return self._known

    def _redacted(self, data: bytes, known: KnownValues) -> Redacted:
        stream = RedactingStream(self._rules, lambda: known)
        cleaned = stream.end(data)
        return Redacted(cleaned, tuple(stream.hits))

    def _short(self, data: bytes) -> Redacted | None:
        """As a stream would, without what a stream is: for short texts, of which there may be many.

        None where it takes a stream: for colours, and rules of users that have no words.
        """
        if self._rules.wordless or may_hold(data):
            return None
        grant(ScanBudget(), len(data) + _TEXT_BYTES)
        if not self._rules.index.places(data, 1):
            return Redacted(data, ())
        parts: list[bytes] = []
        hits: list[SecretHit] = []
        done = 0
        try:
            checkpoint()
            spans = spans_in(self._rules, data)
        except ScanUnfinished:
            return Redacted(mark(NOT_SCANNED), (SecretHit(NOT_SCANNED, 0, len(data)),))
        for span in spans:
            parts += data[done : span.start], mark(span.rule)
            hits.append(SecretHit(span.rule, span.start, span.end))
            done = span.end
        return Redacted(b"".join([*parts, data[done:]]), tuple(hits))

    def _redacted_text(self, text: str, known: KnownValues) -> RedactedText:
        handler: _Handler = _handler(text)
        data = text.encode("utf-8", handler)
        is_short = known.is_empty and len(data) <= _SHORT_BYTES
        cleaned = (self._short(data) if is_short else None) or self._redacted(data, known)
        if not cleaned.hits:
            return RedactedText(text, ())
        hits = cleaned.hits if text.isascii() else _in_characters(cleaned.hits, data, handler)
        try:
            shown = cleaned.data.decode("utf-8", handler)
        except UnicodeDecodeError:
            # A value of no text has been cut out of the middle of a character.
            shown = cleaned.data.decode("utf-8", "replace")
        return RedactedText(shown, hits)


def _joined(value: Json) -> bytes:
    """All texts and numbers of the data. What stands in one of them stands in this."""
    told: list[str] = []
    waiting: list[Json] = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            told += each.keys()
            waiting += each.values()
        elif isinstance(each, Sequence) and not isinstance(each, str):
            waiting += each
        elif isinstance(each, str):
            told.append(each)
        elif isinstance(each, float) or (isinstance(each, int) and -_LARGE < each < _LARGE):
            told.append(repr(each))
    text = "\n".join(told)
    return text.encode("utf-8", _handler(text))


def _handler(text: str) -> _Handler:
    """How its surrogates become bytes: as what they stand for, if that can be undone."""
    try:
        data = text.encode("utf-8", "surrogateescape")
        if data.decode("utf-8", "surrogateescape") == text:
            return "surrogateescape"
    except UnicodeEncodeError:
        pass
    return "surrogatepass"


def _in_characters(
    hits: Sequence[SecretHit], data: bytes, handler: _Handler
) -> tuple[SecretHit, ...]:
    found: list[SecretHit] = []
    place = characters = 0
    for hit in hits:
        start = characters + _length(data[place : hit.start], handler)
        end = start + _length(data[hit.start : hit.end], handler)
        found.append(SecretHit(hit.rule, start, end))
        place, characters = hit.end, end
    return tuple(found)


def _length(data: bytes, handler: _Handler) -> int:
    try:
        return len(data.decode("utf-8", handler))
    except UnicodeDecodeError:
        return len(data.decode("utf-8", "replace"))

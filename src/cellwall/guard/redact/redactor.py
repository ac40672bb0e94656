"""Redacts secrets in bytes, texts and nested data (GRD-5, SEC-2).

Pure except for `known`, which is called before every text and every chunk of a stream. If `known`
fails, nothing is shown: the error says so and contains nothing of the text.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cellwall.core.errors import CellwallError, VaultError
from cellwall.core.types import Json
from cellwall.guard.redact.known import KnownValueSearch
from cellwall.guard.redact.stream import RedactingStream, may_contain_sequences
from cellwall.parsing.budget import NOT_SCANNED, ScanBudget, ScanUnfinished, checkpoint, grant
from cellwall.parsing.credentials.rule_set import SecretRules, shipped, spans_in
from cellwall.parsing.credentials.spans import SecretHit, mark

TOO_DEEP = "[redacted:too-deep]"
"""Replaces data beyond the depth limit."""
_MAX_DEPTH = 64
_NAME_CHARACTERS = 64
_NAMED_CHARACTERS = 4096
_NUMBER_FROM, _NUMBER_UNTIL = 10**5, 10**1000
"""Shorter values are never searched for; longer numbers cannot be printed."""


@dataclass(frozen=True, slots=True)
class RedactedText:
    """The redacted text and the hits; positions are characters of the input."""

    text: str
    hits: tuple[SecretHit, ...]


class DataRedactor:
    """Redacts nested data: strings, keys, and strings that a key names as a secret."""

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
        # A card or account number that the vault keeps as text may be a number here.
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
            # Two keys with secrets can be equal once redacted; a counter keeps both. The counter is
            # kept per name, or many equal names would cost quadratic time.
            while shown in cleaned or (shown != key and shown in value):
                times[name] = times.get(name, 1) + 1
                shown = f"{name} ({times[name]})"
            cleaned[shown] = self._data(each, key[-_NAME_CHARACTERS:], depth + 1)
        return cleaned

    def _sequence(self, value: Sequence[Json], name: str, depth: int) -> list[Json]:
        cleaned: list[Json] = []
        for each in value:
            cleaned.append(self._data(each, name, depth + 1))
            # Arguments of a command: an option, then its value.
            if isinstance(each, str) and each.startswith("-"):
                name = each[-_NAME_CHARACTERS:]
        return cleaned

    def _named(self, name: str, text: str) -> str:
        shown = self._text(text).text
        if shown != text or not name or not text or len(text) > _NAMED_CHARACTERS:
            return shown
        # Written as in a file, so that the rules for named values apply.
        introduction = f'{name}": "'
        written = text.replace("\\", "\\\\").replace('"', '\\"')
        texts = self._text(introduction + written)
        rules = [hit.rule for hit in texts.hits if hit.start >= len(introduction)]
        return f"[redacted:{rules[0]}]" if rules else text


Known = Callable[[], Mapping[str, bytes]]
_SHORT_BYTES = 4096
_TEXT_BYTES = 8
"""Granted to each text, however short."""
_LARGE = 10**1000
"""Larger numbers cannot be printed."""
_Handler = Literal["surrogatepass", "surrogateescape"]


@dataclass(frozen=True, slots=True)
class Redacted:
    """The redacted bytes and the hits; positions are those of the input."""

    data: bytes
    hits: tuple[SecretHit, ...]


class Redactor:
    """Redacts secrets. Thread-safe. Create it once: rules and values are compiled once."""

    def __init__(self, rules: SecretRules | None = None, known: Known | None = None) -> None:
        self._rules = shipped() if rules is None else rules
        self._read_known = known
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}
        self._known = KnownValueSearch(())

    def redact(self, data: bytes) -> Redacted:
        """Redact bytes; data without a secret is returned unchanged."""
        return self._redact_whole(data, self._current_values())

    def redact_text(self, text: str) -> RedactedText:
        """Redact a text; lone surrogates are allowed."""
        return self._redact_text(text, self._current_values())

    def redact_json(self, value: Json) -> Json:
        """Redact every string and key of nested data. A key names its value."""
        known = self._current_values()
        # Known values are searched for in all texts at once, not one by one.
        if not known.is_empty and not known.find(_join_texts(value), 0, is_final=True)[0]:
            known = KnownValueSearch(())
        budget = ScanBudget()
        with budget.running():  # one budget for all texts
            return DataRedactor(lambda text: self._redact_text(text, known)).redact(value)

    def stream(self) -> RedactingStream:
        """A redactor for data that arrives in chunks."""
        return RedactingStream(self._rules, self._current_values)

    def _current_values(self) -> KnownValueSearch:
        if self._read_known is None:
            return self._known
        try:
            values = self._read_known()
        except Exception as error:
            # Without the known values nothing can be shown safely, whatever the reason.
            detail = error.detail if isinstance(error, CellwallError) else type(error).__name__
            raise VaultError(
                "the values that must not be shown cannot be read, so nothing is shown",
                hint="Unlock or repair the vault, then try again.",
                detail=detail,
            ) from error
        with self._lock:
            if values != self._values:
                self._values = dict(values)
                self._known = KnownValueSearch(self._values.items(), marks=sorted(self._rules.ids))
            return self._known

    def _redact(self, data: bytes, known: KnownValueSearch) -> Redacted:
        stream = RedactingStream(self._rules, lambda: known)
        cleaned = stream.end(data)
        return Redacted(cleaned, tuple(stream.hits))

    def _redact_whole(self, data: bytes, known: KnownValueSearch) -> Redacted:
        is_short = known.is_empty and len(data) <= _SHORT_BYTES
        return (self._redact_short(data) if is_short else None) or self._redact(data, known)

    def _redact_short(self, data: bytes) -> Redacted | None:
        """The result of a stream without its overhead, for the many short texts.

        None where a stream is needed: for escape sequences, and user rules without keywords.
        """
        if self._rules.wordless or may_contain_sequences(data):
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

    def _redact_text(self, text: str, known: KnownValueSearch) -> RedactedText:
        handler: _Handler = _handler(text)
        data = text.encode("utf-8", handler)
        cleaned = self._redact_whole(data, known)
        if not cleaned.hits:
            return RedactedText(text, ())
        hits = cleaned.hits if text.isascii() else _to_characters(cleaned.hits, data, handler)
        try:
            shown = cleaned.data.decode("utf-8", handler)
        except UnicodeDecodeError:
            # A binary value was removed from the middle of a character.
            shown = cleaned.data.decode("utf-8", "replace")
        return RedactedText(shown, hits)


def _join_texts(value: Json) -> bytes:
    """All strings and numbers of the data, joined."""
    texts: list[str] = []
    waiting: list[Json] = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            texts += each.keys()
            waiting += each.values()
        elif isinstance(each, Sequence) and not isinstance(each, str):
            waiting += each
        elif isinstance(each, str):
            texts.append(each)
        elif isinstance(each, float) or (isinstance(each, int) and -_LARGE < each < _LARGE):
            texts.append(repr(each))
    text = "\n".join(texts)
    return text.encode("utf-8", _handler(text))


def _handler(text: str) -> _Handler:
    """Error handler for surrogates: `surrogateescape` if it is reversible for this text."""
    try:
        data = text.encode("utf-8", "surrogateescape")
        if data.decode("utf-8", "surrogateescape") == text:
            return "surrogateescape"
    except UnicodeEncodeError:
        pass
    return "surrogatepass"


def _to_characters(
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

"""Nested data without secrets: in its texts, in its keys, and in texts that a key names as one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cellwall.core.types import Json
from cellwall.parsing.credentials.spans import SecretHit

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

"""Parses the fields of one rule and reports every problem."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cellwall.core.outcomes import SEVERITIES
from cellwall.core.showing import one_line
from cellwall.guard.detect.scoring import CATEGORIES, SCORES
from cellwall.guard.detect.sweep import as_word

_ID = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}", re.ASCII)
_LANGUAGE = re.compile(r"[a-z]{2}|\*", re.ASCII)
_PART = re.compile(r"\{([a-z][a-z-]{0,31})\}", re.ASCII)
_MAX_PATTERN_CHARACTERS = 4000
_MAX_WHOLE_CHARACTERS = 16000
"""Of a pattern with its parts put in."""
_MAX_MESSAGE_CHARACTERS = 200
_MAX_EXAMPLE_CHARACTERS = 4000
_MAX_IN_LIST = 200
_WORD_BYTES = range(3, 65)
"""Shorter keywords occur everywhere and would make every scan slow."""


@dataclass(frozen=True, slots=True)
class RuleProblem:
    """A problem of a rule, or of the pack if `rule` is empty."""

    rule: str
    problem: str

    def __str__(self) -> str:
        return f"rule {self.rule}: {self.problem}" if self.rule else self.problem


class _FieldError(ValueError):
    """A value that cannot be used, with the reason."""


def read_parts(table: object) -> tuple[dict[str, str], list[RuleProblem]]:
    """Named parts of patterns; a part may use earlier ones."""
    if not isinstance(table, dict) or len(table) > _MAX_IN_LIST:
        return {}, [RuleProblem("", f"`parts` is a table of at most {_MAX_IN_LIST} texts")]
    parts: dict[str, str] = {}
    mistakes: list[RuleProblem] = []
    for name, value in table.items():
        shown = one_line(str(name))[:40]
        if not _PART.fullmatch(f"{{{name}}}"):
            mistakes.append(RuleProblem("", f"part `{shown}`: a name is made of a-z and dashes"))
            continue
        try:
            parts[name] = f"(?:{_whole(_pattern(value), parts)})"
        except _FieldError as error:
            mistakes.append(RuleProblem("", f"part `{shown}` {error}"))
    return parts, mistakes


def read_rule(
    table: object, number: int, parts: Mapping[str, str]
) -> tuple[dict[str, Any], list[RuleProblem]]:
    """The values of a rule, by the names of its fields, and what is wrong with them."""
    if not isinstance(table, dict):
        return {}, [RuleProblem(f"number {number}", "it is not a table")]
    rule_id = table.get("id")
    name = rule_id if isinstance(rule_id, str) and _ID.fullmatch(rule_id) else f"number {number}"
    mistakes = [
        RuleProblem(name, f"unknown key `{one_line(str(key))[:40]}`")
        for key in table
        if key not in _FIELDS
    ]
    values: dict[str, Any] = {}
    for key, (read, is_needed) in _FIELDS.items():
        if key not in table:
            if is_needed:
                mistakes.append(RuleProblem(name, f"`{key}` is missing"))
            continue
        try:
            values[key] = read(table[key])
            if key == "pattern":
                values[key] = _whole(values[key], parts)
        except _FieldError as error:
            mistakes.append(RuleProblem(name, f"`{key}` {error}"))
    values.setdefault("near", ())
    if not mistakes:
        values.setdefault("score", SCORES[values["severity"]])
    return values, mistakes


def _id(value: object) -> str:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise _FieldError("is made of a-z, 0-9, dots and dashes, at most 64 of them")
    return value


def _one_of(known: tuple[str, ...]) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in known or not isinstance(value, str):
            raise _FieldError(f"is not one of {', '.join(known)}")
        return value

    return read


def _languages(value: object) -> tuple[str, ...]:
    found = _texts(value, max_characters=2)
    if not all(_LANGUAGE.fullmatch(one) for one in found):
        raise _FieldError("is a list of codes of two letters, or of a star alone")
    return found


def _words(value: object) -> tuple[bytes, ...]:
    found = tuple(as_word(word) for word in _texts(value, max_characters=64))
    if not all(len(word) in _WORD_BYTES for word in found):
        raise _FieldError("has a word with less than 3 or more than 64 bytes")
    return found


def _pattern(value: object) -> str:
    return _text(value, max_characters=_MAX_PATTERN_CHARACTERS)


def _whole(pattern: str, parts: Mapping[str, str]) -> str:
    """With the parts in the places of their names; braces around anything else stay."""
    found = _PART.sub(lambda name: parts.get(name[1], name[0]), pattern)
    if len(found) > _MAX_WHOLE_CHARACTERS:
        raise _FieldError(f"has more than {_MAX_WHOLE_CHARACTERS} characters with its parts")
    return found


def _message(value: object) -> str:
    found = _text(value, max_characters=_MAX_MESSAGE_CHARACTERS)
    if not found.isprintable():
        raise _FieldError("is not one printable line")
    return found


def _score(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise _FieldError("is a number above 0 and up to 1")
    return float(value)


def _examples(value: object) -> tuple[str, ...]:
    return _texts(value, max_characters=_MAX_EXAMPLE_CHARACTERS)


def _text(value: object, *, max_characters: int) -> str:
    if not isinstance(value, str) or not value or len(value) > max_characters:
        raise _FieldError(f"is a text of 1 to {max_characters} characters")
    return value


def _texts(value: object, *, max_characters: int) -> tuple[str, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_IN_LIST:
        raise _FieldError(f"is a list of 1 to {_MAX_IN_LIST} texts")
    try:
        return tuple(_text(one, max_characters=max_characters) for one in value)
    except _FieldError as error:
        raise _FieldError(f"has an element that is not: it {error}") from None


_FIELDS: Mapping[str, tuple[Callable[[object], Any], bool]] = {
    "id": (_id, True),
    "category": (_one_of(CATEGORIES), True),
    "severity": (_one_of(SEVERITIES), True),
    "languages": (_languages, True),
    "words": (_words, True),
    "near": (_words, False),
    "pattern": (_pattern, True),
    "score": (_score, False),
    "message": (_message, True),
    "match": (_examples, True),
    "not_match": (_examples, True),
}

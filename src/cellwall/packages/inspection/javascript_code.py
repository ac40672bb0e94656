"""What the JavaScript code of a package does, from its tokens (PKG-1). Pure.

JavaScript has no syntax tree here, and bundles wrap all code in functions: every file counts as
code that runs when it is loaded. The rules are therefore few; `javascript.toml` has them.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from cellwall.packages.inspection.behaviours import Behaviour, ObservedBehaviour, When
from cellwall.packages.inspection.signs import (
    hidden_in,
    is_start_file,
    line_of,
    signs_of_command,
    signs_of_text,
)
from cellwall.parsing.budget import checked, checkpoint
from cellwall.parsing.javascript.canonical import CanonicalForm
from cellwall.parsing.javascript.patterns import expand
from cellwall.parsing.javascript.tokens import Tokenizer
from cellwall.parsing.matching import Pattern

MAX_SOURCE_BYTES = 512 * 1024
"""Longer sources are bundles, in which honest code of many packages has every behaviour: they are
searched for hidden and obfuscated code, and asked about where a rule could find more."""
_TABLES = tomllib.loads(Path(__file__).with_name("javascript.toml").read_text("utf-8"))
_WORDS = {Behaviour[name]: words.split() for name, words in _TABLES["words"].items()}
_NEEDS = {name: Pattern(text) for name, text in _TABLES["needs"].items()}
_OBFUSCATED_NAME = re.compile(_TABLES["obfuscated"]["name"].encode())
_SYMBOLS = re.compile(_TABLES["obfuscated"]["symbols"].encode())
_MIN_OBFUSCATED_NAMES = 12
_TEXTS = frozenset({"string", "template"})
_WRITING = re.compile(r"\b(?:append|write)File(?:Sync)?\(|createWriteStream\(")


@cache
def _pattern(behaviour: Behaviour) -> re.Pattern[str]:
    return re.compile(expand(_TABLES["rules"][behaviour.name]))


def observe_javascript(data: bytes, *, is_install: bool = False) -> list[ObservedBehaviour]:
    """The behaviours of a source."""
    moment = When.INSTALL if is_install else When.IMPORT
    found = list(_observe_bytes(data))
    if len(data) <= MAX_SOURCE_BYTES and (found or is_install or has_words(data)):
        found += _observe_tokens(data.decode("utf-8-sig", "replace"))
    return [ObservedBehaviour(behaviour, line, moment) for behaviour, line in dict.fromkeys(found)]


def has_words(data: bytes) -> bool:
    """Whether a rule can find anything in a source."""

    def has(name: str) -> bool:
        return _NEEDS[name].matches(data)

    starts, talks = has("starts"), has("talks")
    return (
        has("drops")
        or ((starts or has("runs")) and has("decodes"))
        or (starts and has("commands"))
        or (talks and (has("private") or has("runs")))
        or ((starts or talks) and has("persists"))
    )


def _observe_bytes(data: bytes) -> Iterator[tuple[Behaviour, int]]:
    yield from hidden_in(data)
    if data.count(b"_0x") >= _MIN_OBFUSCATED_NAMES:
        names = {match[0] for match in checked(_OBFUSCATED_NAME.finditer(data))}
        if len(names) >= _MIN_OBFUSCATED_NAMES:
            yield Behaviour.OBFUSCATED, line_of(data, data.index(b"_0x"))
    if b"![]" in data and (found := _SYMBOLS.search(data)):
        yield Behaviour.OBFUSCATED, line_of(data, found.start())


def _observe_tokens(code: str) -> Iterator[tuple[Behaviour, int]]:
    tokenizer = Tokenizer(code)
    tokenizer.run()
    form = CanonicalForm(code, tokenizer.tokens)
    lines = _LineNumbers(code)
    for start, _ in form.hidden_names:
        yield Behaviour.BUILT_NAME, lines.at(start)
    seen = set()
    for behaviour, words in _WORDS.items():
        checkpoint()
        if any(word in form.text for word in words):
            for match in checked(_pattern(behaviour).finditer(form.text)):
                if place := form.place(*match.span()):
                    seen.add(behaviour)
                    yield behaviour, lines.at(place[0])
    is_writing = _WRITING.search(form.text) is not None
    for kind, text, start, _ in checked(tokenizer.tokens):
        if kind not in _TEXTS or len(text) < 5:
            continue
        signs = list(signs_of_text(text))
        if Behaviour.RUN_PROGRAM in seen:
            signs += signs_of_command(text)
        if is_writing and is_start_file(text):
            signs.append(Behaviour.WRITE_START_FILE)
        for behaviour in signs:
            yield behaviour, lines.at(start)


class _LineNumbers:
    """Line numbers of places, which mostly come in order."""

    def __init__(self, code: str) -> None:
        self._code = code
        self._last = (0, 1)

    def at(self, place: int) -> int:
        start, line = self._last if place >= self._last[0] else (0, 1)
        line += self._code.count("\n", start, place)
        self._last = place, line
        return line

"""Shell builtins and groups of programs, as data (grammar.toml). Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from cellwall.parsing.shell.words import Word


@dataclass(frozen=True, slots=True)
class Grammar:
    """The tables of grammar.toml, which explains each of them."""

    neutral: Mapping[str, str]
    listers: frozenset[str]
    filters: frozenset[str]
    whole: Mapping[str, frozenset[str]]
    """By whether they read or write."""
    unpacking: frozenset[str]
    manifests: Mapping[str, frozenset[str]]
    refused: Mapping[str, str]
    unread: frozenset[str]
    printing: frozenset[str]

    def is_printing(self, words: Sequence[Word]) -> bool:
        """Whether the command is, word for word, one that only prints."""
        is_known = all(word.is_literal and " " not in word.text for word in words)
        return is_known and " ".join(word.text for word in words) in self.printing


@cache
def grammar() -> Grammar:
    """Read once."""
    text = resources.files(__package__).joinpath("grammar.toml").read_text("utf-8")
    data = tomllib.loads(text)
    return Grammar(
        data["neutral"],
        frozenset(data["listers"]["names"]),
        frozenset(data["filters"]["names"]),
        {access: frozenset(data["whole"][access]) for access in ("read", "write")},
        frozenset(data["whole"]["unpacking"]),
        {name: frozenset(text.split()) for name, text in data["manifests"].items()},
        data["refused"],
        frozenset(data["unread"]["names"]),
        frozenset(data["printing"]["commands"]),
    )

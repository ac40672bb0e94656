"""The shell's own words, as data (grammar.toml). Pure."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class Grammar:
    """See the data."""

    neutral: Mapping[str, str]
    listers: frozenset[str]
    filters: frozenset[str]
    whole: Mapping[str, frozenset[str]]
    """By whether they read or write."""
    unpacking: frozenset[str]
    manifests: Mapping[str, frozenset[str]]
    refused: Mapping[str, str]
    unread: frozenset[str]


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
    )

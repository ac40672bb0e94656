"""The patterns of `syntax.toml`, and patterns of others that use its fragments. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path


def _read_tables() -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    tables = tomllib.loads(Path(__file__).with_name("syntax.toml").read_text("utf-8"))
    fragments: dict[str, str] = {}
    for name, pattern in tables.pop("fragments").items():
        written = _expand(pattern, fragments)
        fragments[name] = f"(?:{written})" if "|" in pattern else written
    return fragments, tables


def _expand(pattern: str, fragments: Mapping[str, str]) -> str:
    return re.sub(r"<([A-Z]+)>", lambda match: fragments[match[1]], pattern)


_FRAGMENTS, _TABLES = _read_tables()


def expand(pattern: str) -> str:
    """The pattern with `<NAME>` replaced by the fragment of that name."""
    return _expand(pattern, _FRAGMENTS)


TOKENS = {name: re.compile(expand(pattern)) for name, pattern in _TABLES["tokens"].items()}
NAMES = {name: frozenset(words.split()) for name, words in _TABLES["names"].items()}


@cache
def alias_pattern(name: str) -> re.Pattern[str]:
    """Compiled with its first use."""
    return re.compile(expand(_TABLES["aliases"][name]))

"""The words and phrases that an instruction to a model has, by what they do (GRD-2)."""

# ruff: noqa: RUF001  # words of other languages are what is looked for
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from cellwall.parsing.derived_cache import load_shipped_toml

_MIN_CUE_CHARACTERS = 6
_STRONG_WORDS = frozenset({"override", "quiet"})
_STRONG_PHRASES = frozenset({"override", "machine", "quiet", "announce", "role"})
_COMMON_PHRASES = frozenset(
    (
        "as follows",
        "instead of",
        "before you",
        "do the following",
        "nouvelle",
        "nuova",
        "yeni",
        "新的",
        "新しい",
        "새로운",
        "evil",
        "artık",
        "role of",
        "act as",
        "bist du",
        "as my",
        "so far",
        "set aside",
        "in the background",
        "keep this",
        "your new",
        "from now on",
        "new rule",
    )
)
"""Of the strong ones, those that ordinary texts have often."""


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Classes of words, and phrases with their class."""

    classes: Mapping[str, tuple[str, ...]]
    phrases: tuple[tuple[str, str], ...]


@cache
def lexicon() -> Lexicon:
    """The shipped lexicon."""
    file = resources.files("cellwall.guard.detect.passages") / "lexicon.toml"
    told = load_shipped_toml(file.read_text("utf-8"))
    classes: dict[str, list[str]] = {}
    for name, words in told["words"].items():
        for word in dict.fromkeys(words.split()):
            classes.setdefault(word, []).append(name)
    phrases = [(phrase, name) for name, many in told["phrases"].items() for phrase in many]
    return Lexicon({word: tuple(names) for word, names in classes.items()}, tuple(phrases))


@cache
def cues() -> tuple[str, ...]:
    """Words and phrases that few ordinary texts have: a long text is read around these."""
    known = lexicon()
    words = (
        word
        for word, names in known.classes.items()
        if len(word) >= _MIN_CUE_CHARACTERS and not _STRONG_WORDS.isdisjoint(names)
    )
    phrases = (
        phrase
        for phrase, name in known.phrases
        if name in _STRONG_PHRASES and phrase not in _COMMON_PHRASES
    )
    return tuple(dict.fromkeys((*words, *phrases)))

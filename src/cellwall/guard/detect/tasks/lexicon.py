"""The words of `lexicon.toml`: what verbs ask for, what nouns are about, what code does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

from cellwall.parsing.keeping import own_toml


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Sets of words in lower case, by the name of their list."""

    verbs: dict[str, frozenset[str]]
    openers: dict[str, frozenset[str]]
    nouns: dict[str, frozenset[str]]
    follows: dict[str, frozenset[str]]
    """What may stand after the verb."""
    snippet: dict[str, tuple[str, ...]]
    stop: frozenset[str]
    verb_classes: dict[str, tuple[str, ...]]
    """Each verb, and the lists it stands in."""
    noun_classes: dict[str, tuple[str, ...]]
    follow_classes: dict[str, tuple[str, ...]]


@cache
def lexicon() -> Lexicon:
    """Read once, when it is first needed."""
    text = resources.files(__package__).joinpath("lexicon.toml").read_text("utf-8")
    told = own_toml(text)
    verbs = _sets(told["verbs"])
    nouns = _sets(told["nouns"])
    follows = _sets(told["follows"])
    return Lexicon(
        verbs=verbs,
        openers=_sets(told["openers"]),
        nouns=nouns,
        follows=follows,
        snippet={name: tuple(words) for name, words in told["snippet"].items()},
        stop=frozenset(told["plainwords"]["stop"].split()),
        verb_classes=_turned(verbs),
        noun_classes=_turned(nouns),
        follow_classes=_turned(follows),
    )


def _sets(lists: dict[str, str]) -> dict[str, frozenset[str]]:
    return {name: frozenset(words.split()) for name, words in lists.items()}


def _turned(sets: dict[str, frozenset[str]]) -> dict[str, tuple[str, ...]]:
    words = {word for each in sets.values() for word in each}
    return {
        word: tuple(name for name, members in sets.items() if word in members) for word in words
    }

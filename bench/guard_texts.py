"""Writes attacks and near misses from the grammars in bench/guard_data, for training the guard.

Every text comes from a seed, so a run can be repeated. Nothing is copied from a data set.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cellwall.core.errors import BadInput

_GRAMMARS = Path(__file__).resolve().parent / "guard_data"
_SLOT = re.compile(r"\{([a-z_]+)\}")
_MAX_DEPTH = 8
_TYPO_RATE = 0.02
_SUBJECT_LINES = ("", "", "", "Note: ", "P.S. ", "* ", "> ", "- ")


def _load(name: str) -> dict[str, dict[str, list[str]]]:
    return tomllib.loads((_GRAMMARS / name).read_text("utf-8"))


def merged(*groups: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """The lists of all grammars by name. One that hides another would put its texts in the other's
    place, so it is refused."""
    lists: dict[str, Sequence[str]] = {}
    for group in groups:
        if twice := sorted(lists.keys() & group.keys()):
            raise BadInput(
                f"two lists of the grammars are named {', '.join(twice)}", hint="Rename one."
            )
        lists.update(group)
    return lists


@dataclass(frozen=True)
class TextWriter:
    """Writes texts with one source of chance."""

    chance: random.Random
    lists: Mapping[str, Sequence[str]] = field(default_factory=dict)
    languages: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)
    frames: Sequence[str] = ()
    more_frames: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def of_seed(cls, seed: int) -> TextWriter:
        attacks, ordinary = _load("attacks_en.toml"), _load("ordinary_en.toml")
        direct, forms = _load("attacks_direct.toml"), _load("attacks_forms.toml")
        return cls(
            random.Random(seed),
            merged(
                *(attacks["slots"], attacks["parts"], ordinary["parts"]),
                *(direct["parts"], forms["parts"]),
            ),
            _load("attacks_languages.toml"),
            attacks["frames"]["attack"],
            {**direct["frames"], **forms["frames"]},
        )

    def request(self, form: str) -> str:
        """An attack of the later grammars: `direct`, for a model's `tools`, of other `forms`."""
        return self._spoil(self._finish(self.expand(self.chance.choice(self.more_frames[form]))))

    def attack(self) -> str:
        """One attack, one in three of them not in English."""
        if self.chance.random() < 0.33:
            return self.attack_in(self.chance.choice(sorted(self.languages)))
        return self._spoil(self._finish(self.expand(self.chance.choice(self.frames))))

    def attack_in(self, language: str) -> str:
        phrases, pick = self.languages[language], self.chance.choice
        parts = [pick(phrases["act"]), pick(phrases["end"])]
        if self.chance.random() < 0.75:
            parts.insert(0, pick(phrases["start"]))
        if self.chance.random() < 0.2:
            parts.insert(1, pick(phrases["act"]))
        if self.chance.random() < 0.15:
            parts = [pick(phrases["start"])]
        return self._spoil(self.expand(" ".join(part for part in parts if part)))

    def near_miss(self, kind: str) -> str:
        """A few sentences of a kind (guide, letter, about), or a whole prompt, story, e-mail."""
        if kind == "plain":
            phrases = self.languages[self.chance.choice(sorted(self.languages))]["plain"]
            return " ".join(self.expand(self.chance.choice(phrases)) for _ in range(2))
        count = 1 if kind in ("prompt", "story", "email") else self.chance.choice((1, 1, 2, 3))
        return self.chance.choice((" ", "\n")).join(
            self._finish(self.expand(self.chance.choice(self.lists[kind]))) for _ in range(count)
        )

    def expand(self, text: str, depth: int = 0) -> str:
        def fill(slot: re.Match[str]) -> str:
            name = slot[1]
            if name == "attack":
                return self.attack().replace("\n", " ").strip()
            choices = self.lists.get(name)
            if choices is None or depth >= _MAX_DEPTH:
                return slot[0]
            return self.expand(self.chance.choice(choices), depth + 1)

        return _SLOT.sub(fill, text)

    def _finish(self, text: str) -> str:
        """Upper case after a stop, single blanks, no empty pairs."""
        text = re.sub(r"[ ]{2,}", " ", text).replace(" .", ".").strip()
        text = re.sub(r"\b(\w+ing|\w+)\. \.", r"\1.", text)
        if self.chance.random() < 0.85:
            text = re.sub(r"(^|[.!?:\n] )([a-z])", lambda found: found[1] + found[2].upper(), text)
        return text

    def _spoil(self, text: str) -> str:
        """Case, typing errors and list marks, as attacks are written in the field."""
        roll = self.chance.random()
        if roll < 0.04:
            text = text.upper()
        elif roll < 0.12:
            text = text.lower()
        elif roll < 0.18:
            text = "".join(self._mistype(letter) for letter in text)
        elif roll < 0.22:
            text = text.replace(". ", ".\n")
        return self.chance.choice(_SUBJECT_LINES) + text

    def _mistype(self, letter: str) -> str:
        if self.chance.random() >= _TYPO_RATE or not letter.isalpha():
            return letter
        return self.chance.choice(("", letter + letter, letter + self.chance.choice("aeinrst")))

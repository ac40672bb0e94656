"""The traits of a passage, by name and by the number that they have in C (GRD-2).

A passage has the classes of its words and phrases (`lexicon.toml`), shared by all languages; what
it begins with; which acts have which objects a few words behind them; what it points at (addresses,
code, quotes); and its form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from cellwall.guard.ctext.passages import (
    CLASSES,
    FIRST_ACT,
    FIRST_FORM,
    FORMS,
    TEXT_TRAITS,
    TRAITS,
    Vocabulary,
    bits_of,
)
from cellwall.guard.detect.passages.lexicon import lexicon

_VERBS = (
    *("override", "halt", "send", "run", "say", "leak", "do", "deed", "destroy", "money", "role"),
)
_OBJECTS = ("prior", "instr", "secret", "user", "me", "you", "system", "ai", "task", "personal")
_OPENERS = ("ai", "machine", "system", "you", "urgent", "user", "prior", "please")
_SPOKEN_TO = ("ai", "machine")
_SKIPPED = (
    *("please", "kindly", "now", "also", "then", "next", "first", "finally", "just", "and", "but"),
    *(
        "so",
        "immediately",
        "always",
        "todo",
        "note",
        "important",
        "attention",
        "bitte",
        "by",
        "the",
    ),
    *("way", "can", "could", "you", "would", "ps", "p.s"),
)
"""An order may follow behind them."""
GATE = frozenset(
    (
        *("override", "send", "money", "destroy", "leak", "role", "quiet", "announce", "marker"),
        *("machine", "answer_only", "secret", "order", "order inside", "instr", "halt", "urgent"),
        *("system", "pointer", "obligation", "ordering", "request", "omit", "exempt", "helper"),
        *("anyone", "principal", "conditional", "standing", "memory", "origin", "effect"),
        *("outcome_of", "rate", "style"),
    )
)
"""An instruction to a model has one of them."""
SHAPES = (
    *("text of lines", "text of paragraphs", "text of data", "text of markup", "text of headings"),
    *("text of a mail", "text over 3000", "text over 1200", "text over 700", "text over 300"),
    *("text over 120", "text under 120"),
)
"""Traits of a whole text, which its parts have too."""


@dataclass(frozen=True, slots=True)
class TraitNumbers:
    """All traits that a passage or a text can have."""

    numbers: Mapping[str, int]
    names: Mapping[int, str]
    of_text: Mapping[str, int]
    text_names: Mapping[int, str]

    def named(self, words: Iterable[int]) -> frozenset[str]:
        """The names of the traits of a passage."""
        return frozenset(map(self.names.__getitem__, bits_of(tuple(words))))

    def text_named(self, bits: int) -> frozenset[str]:
        """The names of the traits of a text."""
        return frozenset(map(self.text_names.__getitem__, bits_of((bits,))))


@cache
def trait_numbers() -> TraitNumbers:
    """Those of the shipped lexicon."""
    known = lexicon()
    used = {name for names in known.classes.values() for name in names}
    used |= {name for _, name in known.phrases}
    acting = (*_VERBS, *_OBJECTS)
    classes = (*acting, *sorted(used - set(acting)))
    assert len(classes) <= CLASSES  # noqa: S101  # the shipped lexicon has far fewer
    forms = (*FORMS, *(f"opens {name}" for name in dict.fromkeys((*_VERBS, *_OPENERS))))
    assert FIRST_FORM + len(forms) <= FIRST_ACT  # noqa: S101  # both are written here
    acts = [f"{verb} > {thing}" for verb in _VERBS for thing in _OBJECTS]
    numbers = {
        name: first + number
        for first, names in ((0, classes), (FIRST_FORM, forms), (FIRST_ACT, acts))
        for number, name in enumerate(names)
    }
    assert max(numbers.values()) < TRAITS  # noqa: S101  # as many as there are acts and objects
    of_text = {name: number for number, name in enumerate((*TEXT_TRAITS, *SHAPES))}
    return TraitNumbers(
        numbers,
        {number: name for name, number in numbers.items()},
        of_text,
        {number: name for name, number in of_text.items()},
    )


def vocabulary() -> Vocabulary:
    """The shipped lexicon, as C takes it."""
    known, numbers = lexicon(), trait_numbers().numbers
    return Vocabulary(
        words={word: [numbers[name] for name in names] for word, names in known.classes.items()},
        skipped=frozenset(_SKIPPED),
        phrases=[(phrase, numbers[name]) for phrase, name in known.phrases],
        verbs=len(_VERBS),
        objects=len(_OBJECTS),
        gate=[numbers[name] for name in GATE],
        spoken_to=[numbers[name] for name in _SPOKEN_TO],
        openers=[numbers[name] for name in _OPENERS],
        opens={
            numbers[name]: numbers[f"opens {name}"] for name in dict.fromkeys((*_VERBS, *_OPENERS))
        },
        override=numbers["override"],
        forget=numbers["forget"],
        reminder=numbers["reminder"],
        instructions=numbers["instr"],
        common=(
            numbers["attack_talk"],
            numbers["about"],
            numbers["you"],
            numbers["modal"],
            numbers["letter"],
        ),
    )

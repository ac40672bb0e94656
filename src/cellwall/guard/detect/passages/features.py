"""The features of a passage where it stands: its traits, those of its text and of its neighbours,
and pairs of these (GRD-2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from cellwall.guard.detect.passages.reading import TextPassage, passage_of, read_passages
from cellwall.guard.detect.passages.surroundings import Surroundings, read_surroundings, shape_of
from cellwall.guard.detect.passages.traits import GATE

__all__ = [
    "PassageTraits",
    "Surroundings",
    "TextPassage",
    "candidates",
    "describe",
    "place",
    "read",
    "shape_of",
    "trait_names",
]

_UNPAIRED = frozenset(
    {
        "negation",
        "example",
        "howto",
        "letter",
        "question",
        "story",
        "list",
        "code",
        "near end",
        "reminder",
        "forget",
    }
)
CARRIED = (
    "ai",
    "machine",
    "override",
    "about",
    "attack_talk",
    "example",
    "quiet",
    "send",
    "marker",
    "announce",
    "system",
    "order",
    "howto",
    "you",
    "ends colon",
    "role",
)


@dataclass(frozen=True, slots=True)
class PassageTraits:
    """The traits of one passage in its text, from which its features are made."""

    own: frozenset[str]
    paired: tuple[str, ...]
    """Of these, each pair is a feature, and each with a trait of the text or of a neighbour."""
    beside: tuple[str, ...]


def is_paired(name: str) -> bool:
    """Whether each pair with the trait is a feature."""
    return name not in _UNPAIRED and not name.startswith("opens") and " > " not in name


def place(passages: Sequence[TextPassage], number: int, text: Surroundings) -> PassageTraits:
    """The traits of a passage where it stands."""
    passage = passages[number]
    traits = set(passage.traits)
    if passage.script != text.script:
        traits.add("other script")
    if number == text.count - 1 and text.count > 1:
        traits.add("last")
    if number == 0:
        traits.add("begins")
    near: set[str] = set()
    for other in (number - 2, number - 1, number + 1, number + 2):
        if 0 <= other < text.count:
            near |= passages[other].traits
    if number >= text.count - 3 and text.count > 4:
        traits.add("near end")
    paired = sorted(filter(is_paired, traits))
    return PassageTraits(
        frozenset(traits), tuple(paired), tuple(name for name in CARRIED if name in near)
    )


def trait_names(placed: PassageTraits, text: Surroundings) -> Iterator[str]:
    """The traits of a passage where it stands: its own, those of the text and of its neighbours."""
    yield from placed.own
    yield from text.traits
    yield from (f"beside {name}" for name in placed.beside)


def describe(placed: PassageTraits, text: Surroundings) -> Iterator[str]:
    """Names of the features of one passage for the linear model."""
    yield from trait_names(placed, text)
    yield from (f"{left} & {right}" for left, right in combinations(placed.paired, 2))
    yield from (f"{name} in {where}" for name in placed.paired for where in text.traits)
    yield from (f"{name} by {other}" for name in placed.paired for other in placed.beside)


def read(text: str, shape: frozenset[str] | None = None) -> tuple[list[TextPassage], Surroundings]:
    """The passages of a text, and what the text adds to each. A part of a text has the shape of the
    whole."""
    passages = read_passages(text)
    found = [passage_of(passages, number) for number in range(len(passages))]
    return found, read_surroundings(passages, shape_of(text) if shape is None else shape)


def candidates(passages: Iterable[TextPassage]) -> list[int]:
    """Numbers of the passages that pass the gate."""
    return [number for number, each in enumerate(passages) if not GATE.isdisjoint(each.traits)]

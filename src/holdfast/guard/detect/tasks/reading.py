"""A text's candidates, each with what is known of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.guard.detect.tasks.candidates import Candidate, candidates, places
from holdfast.guard.detect.tasks.features import (
    Features,
    Sentence,
    of_company,
    of_sentence,
    of_surroundings,
)
from holdfast.guard.detect.tasks.lexicon import lexicon
from holdfast.guard.normalise import View
from holdfast.guard.normalise.characters import lowered

_MOST_CUES = 30_000
_NEAR_CHARACTERS = 900


@dataclass(frozen=True, slots=True)
class Read:
    """The candidates of one text; features are made when they are asked for."""

    plain: str
    image: bytes
    is_unwrapped: bool
    found: tuple[Candidate, ...]
    rivals: tuple[int, ...]
    """How many other candidates are near, for each of them."""
    end: int
    """How far it was looked at; ordinary texts never have so many cues that it ends early."""

    def sentences(self) -> Iterator[tuple[int, Sentence]]:
        for number, here in enumerate(self.found):
            yield number, self.sentence(here)

    def sentence(self, here: Candidate) -> Sentence:
        plain = self.plain[here.start : here.end]
        return of_sentence(plain, lowered(plain), lexicon())

    def outside(self, number: int) -> int:
        """How much of the text is not this sentence, in characters."""
        here = self.found[number]
        return len(self.plain) - (here.end - here.start)

    def company(self, number: int) -> Features:
        """How large the text is, and how many other candidates are near: cheap to tell."""
        return of_company(
            rivals=self.rivals[number],
            outside=self.outside(number),
            is_unwrapped=self.is_unwrapped,
        )

    def surroundings(self, number: int, sentence: Sentence) -> Features:
        """How the sentence stands among what is around it."""
        here = self.found[number]
        return of_surroundings(sentence, here, self.plain, lexicon())


def read(view: View, *, is_unwrapped: bool = False) -> Read:
    """Finds the candidates; `is_unwrapped` where the text came out of an encoding."""
    plain, image = view.plain, view.image
    cues = places(plain, _MOST_CUES, image)
    found = tuple(candidates(plain, cues))
    return Read(
        plain=plain,
        image=image,
        is_unwrapped=is_unwrapped,
        found=found,
        rivals=tuple(_rivals(found)),
        end=cues[-1][1] if len(cues) >= _MOST_CUES else len(plain),
    )


def _rivals(found: Sequence[Candidate]) -> Iterator[int]:
    """All of them stand in order, and apart."""
    count = len(found)
    low = high = 0
    for start, end in found:
        first, last = start - _NEAR_CHARACTERS, end + _NEAR_CHARACTERS
        while found[low][0] < first:
            low += 1
        while high < count and found[high][0] <= last:
            high += 1
        yield high - low - 1

"""Finds tasks for an assistant that were injected into a text about something else.

An e-mail with "Write a poem about the sea" between two bookings, a table with "What is the capital
of Brazil?" below its last row, an answer about code that wants foreign code in the reader's
program. No single word identifies them, so a small linear model weighs what a sentence asks for and
how it fits its surroundings (GRD-2, GRD-10). English only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cellwall.guard.ctext.sentences import Sentences, marked
from cellwall.guard.detect.tasks.candidates import candidates, lexicon, places
from cellwall.guard.detect.tasks.features import (
    Features,
    Sentence,
    of_company,
    of_sentence,
    of_surroundings,
)
from cellwall.guard.detect.tasks.model import (
    CompanyBound,
    Model,
    model,
    probability,
    sentence_bounds,
)
from cellwall.guard.normalise import View
from cellwall.guard.normalise.characters import lowered
from cellwall.guard.report import Hit
from cellwall.parsing.budget import checkpoint

_MAX_CUES = 30_000
_NEAR_CHARACTERS = 900


@dataclass(frozen=True, slots=True)
class CandidateSentences:
    """The candidates of one text; features are made when they are asked for."""

    plain: str
    marked: bytes
    is_unwrapped: bool
    found: Sentences
    rivals: Sequence[int]
    """How many other candidates are near, for each of them."""
    end: int
    """How far it was looked at; ordinary texts never have so many cues that it ends early."""

    def sentences(self) -> Iterator[tuple[int, Sentence]]:
        for number in range(len(self.found)):
            yield number, self.sentence(number)

    def sentence(self, number: int) -> Sentence:
        plain = self.plain[slice(*self.found[number])]
        return of_sentence(plain, lowered(plain), lexicon())

    def outside(self, number: int) -> int:
        """How much of the text is not this sentence, in characters."""
        start, end = self.found[number]
        return len(self.plain) - (end - start)

    def company(self, number: int) -> Features:
        """How large the text is, and how many other candidates are near: cheap to tell."""
        return of_company(
            rivals=self.rivals[number],
            outside=self.outside(number),
            is_unwrapped=self.is_unwrapped,
        )

    def surroundings(self, number: int, sentence: Sentence) -> Features:
        """How the sentence stands among what is around it."""
        return of_surroundings(sentence, self.found[number], self.plain, lexicon())


def find_candidates(view: View, *, is_unwrapped: bool = False) -> CandidateSentences:
    """Finds the candidates; `is_unwrapped` where the text came out of an encoding."""
    plain = view.plain
    text = view.image if plain.isascii() else marked(plain)
    cues = places(plain, _MAX_CUES, view.image)
    found = candidates(plain, text, cues)
    return CandidateSentences(
        plain=plain,
        marked=text,
        is_unwrapped=is_unwrapped,
        found=found,
        rivals=found.rivals(_NEAR_CHARACTERS),
        end=cues[-1][1] if len(cues) >= _MAX_CUES else len(plain),
    )


_SENTENCES_A_STEP = 32
__all__ = ["MIN_CARRIER_CHARACTERS", "find"]

_MAX_HITS = 32
_SURE = 0.9
_ROUNDING = 1e-9
"""By which two sums of the same numbers may differ."""
_FEW_SENTENCES = 8
MIN_CARRIER_CHARACTERS = 120
"""A text that is little more than the request is no carrier: it is the request itself."""


def find(view: View) -> Iterator[Hit]:
    """Hits of category "task" in one view, the strongest of them; spans are the view's."""
    known = model()
    text = find_candidates(view, is_unwrapped=bool(view.via))
    found = []
    for step, number in enumerate(_promising(text, known)):
        if step % _SENTENCES_A_STEP == 0:
            checkpoint()
        if not (view.via or text.outside(number) >= MIN_CARRIER_CHARACTERS):
            continue
        sentence = text.sentence(number)
        weight = known.weigh_sentence(sentence) + known.weigh(text.company(number))
        if weight < known.gate:
            continue
        weight += known.weigh(text.surroundings(number, sentence))
        if weight >= known.threshold:
            found.append(_hit(sentence, probability(weight), *text.found[number]))
    found.sort(key=lambda hit: -hit.score)
    yield from sorted(found[:_MAX_HITS], key=lambda hit: hit.start)
    if text.end < len(view.plain):
        # Requests without end are a way to hide one behind them: what nobody looked at is not
        # taken for clean.
        yield Hit(
            category="task",
            severity="medium",
            rule="task.flood",
            message="More requests than are looked at; the rest was not read.",
            start=text.end,
            end=len(view.plain),
            score=0.5,
        )


def _promising(text: CandidateSentences, known: Model) -> Iterable[int]:
    """Those that may reach the gate; all of them where it takes longer to ask than to weigh."""
    if len(text.found) < _FEW_SENTENCES:
        return range(len(text.found))
    company = CompanyBound(known, len(text.plain), is_unwrapped=text.is_unwrapped).most
    alone, least = sentence_bounds().most(text.marked, text.found), known.gate - _ROUNDING
    return [
        number
        for number, (most, rivals) in enumerate(zip(alone, text.rivals, strict=True))
        if most + company(rivals) >= least
    ]


def _hit(sentence: Sentence, score: float, start: int, end: int) -> Hit:
    is_addressed = any(
        name in sentence.features for name in ("asks about your answer", "a snippet for your code")
    )
    return Hit(
        category="task",
        severity="high" if is_addressed and score >= _SURE else "medium",
        rule="task.injected",
        message=_MESSAGES[sentence.form],
        start=start,
        end=end,
        score=round(score, 4),
    )


_MESSAGES = {
    "merge": "Asks for a stranger's code to be put into the reader's own.",
    "question": "A question to an assistant in a text about something else.",
    "request": "A request to an assistant in a text about something else.",
    "other": "Words to an assistant in a text about something else.",
}

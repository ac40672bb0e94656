"""Finds requests to an assistant that were slipped into a text about something else.

An e-mail with "Write a poem about the sea" between two bookings, a table with "What is the capital
of Brazil?" below its last row, an answer about code that wants a stranger's snippet in your
program. No single word gives them away, so a small model weighs what a sentence asks for and how
it fits its surroundings (GRD-2, GRD-10). It knows English alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cellwall.guard.detect.tasks.features import Sentence
from cellwall.guard.detect.tasks.model import Model, model, probability
from cellwall.guard.detect.tasks.prospects import Company, prospects
from cellwall.guard.detect.tasks.reading import Read, read
from cellwall.guard.normalise import View
from cellwall.guard.report import Hit
from cellwall.parsing.budget import checkpoint

_SENTENCES_A_STEP = 32
__all__ = ["MIN_CARRIER_CHARACTERS", "find"]

_MAX_HITS = 32
_SURE = 0.9
_ROUNDING = 1e-9
"""By which two sums of the same numbers may differ."""
_FEW_SENTENCES = 8
MIN_CARRIER_CHARACTERS = 120
"""A text that is little more than the request is not a carrier: it is what somebody asks."""


def find(view: View) -> Iterator[Hit]:
    """Hits of category "task" in one view, the strongest of them; spans are the view's."""
    known = model()
    text = read(view, is_unwrapped=bool(view.via))
    found = []
    for step, number in enumerate(_likely(text, known)):
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


def _likely(text: Read, known: Model) -> Iterable[int]:
    """Those that may reach the gate; all of them where it takes longer to ask than to weigh."""
    if len(text.found) < _FEW_SENTENCES:
        return range(len(text.found))
    company = Company(known, len(text.plain), is_unwrapped=text.is_unwrapped).most
    alone, least = prospects().most(text.marked, text.found), known.gate - _ROUNDING
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

"""Finds tasks for an assistant that were injected into a text about something else.

An e-mail with "Write a poem about the sea" between two bookings, a table with "What is the capital
of Brazil?" below its last row, an answer about code that wants foreign code in the reader's
program. No single word identifies them, so a small linear model weighs what a sentence asks for and
how it fits its surroundings (GRD-2, GRD-10). English only.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from cellwall.guard.ctext.library import (
    SentenceBounds,
    Sentences,
    SentenceWeights,
    WordWeights,
    marked,
)
from cellwall.guard.detect.shipped_data import read_checked
from cellwall.guard.detect.tasks.candidates import MAX_CHARACTERS, candidates, lexicon, places
from cellwall.guard.detect.tasks.features import (
    PHRASES,
    Features,
    Sentence,
    of_company,
    of_sentence,
    of_surroundings,
)
from cellwall.guard.normalise import View
from cellwall.guard.normalise.characters import lowered
from cellwall.guard.report import Hit
from cellwall.parsing.budget import checkpoint

WEIGHTS_SHA256 = "c9ef98109b797dc956af752a0edb2a5018b27d8c5a27697e5f6a5724655f03a7"
"""Of weights.json; `bench/train_tasks.py --write` writes it."""
_PACKAGE = "cellwall.guard.detect.tasks"

# The linear model of `weights.json`, and an upper bound of what a sentence can weigh.
#
# bench/train_tasks.py trains the model offline; here it is a sum over the features of a sentence.
# docs/guard.md has its measured quality (GRD-10).
#
# Of a hundred requests one or two come near a finding. The bound skips the others without a loss,
# because no sentence weighs more than its bound: certain features count as they are, uncertain ones
# only if they would raise the weight. C adds them up (`ctext/glance.c`) for all sentences at once.
#
# Weights of a word:
# - `anywhere`: upper bound, at any place.
# - `asking`: upper bound if it is the word that asks; `asking_first`: exact, for words that
#   certainly ask at the start of a sentence (`is_first_verb`). `is_leading` words may precede and
#   are skipped.
# - `opening`: upper bound if a question, not a request, begins with it (`is_question_word`).
# - `behind`: upper bound after the word that asks; `next`: exact, directly after a first verb. A
#   word that `is_telling` there makes the sentence a statement.
#
# Weights of a sentence: `begin` is for words before a verb that is not the first word, and for a
# statement; `ends` is exact, by the last byte; `asks_openly` is for a question mark outside a
# request, `tells_or_asks` for a sentence that begins as a question; the others are exact and named
# after their feature.


@dataclass(frozen=True, slots=True)
class TaskModel:
    """Weights by the name of a feature. Words and features that it does not know weigh nothing."""

    weights: dict[str, float]
    words: dict[str, float]
    verbs: dict[str, float]
    """Of the one word that asks."""
    gate: float
    """What a sentence must reach with its company before its surroundings are looked at."""
    threshold: float
    """Weight of sentence and surroundings from which on a hit is reported."""

    def weigh_sentence(self, sentence: Sentence) -> float:
        """What it is worth by itself."""
        words = self.words
        worth = sum([words[word] for word in words.keys() & sentence.words])
        return worth + self.verbs.get(sentence.verb, 0.0) + self.weigh(sentence.features)

    def weigh(self, features: Features) -> float:
        weights = self.weights
        return sum([weights[name] * value for name, value in features.items() if name in weights])


def probability(weight: float) -> float:
    """That of an attack, were attacks as common as the rest."""
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, weight))))


@cache
def model() -> TaskModel:
    """Read once, when it is first needed."""
    tables = json.loads(read_checked(_PACKAGE, "weights.json", WEIGHTS_SHA256))
    return TaskModel(
        weights=tables["features"],
        words=tables["words"],
        verbs=tables["verbs"],
        gate=tables["gate"],
        threshold=tables["threshold"],
    )


class CompanyBound:
    """The most that the company of a sentence can weigh in a text of one size."""

    def __init__(self, known: TaskModel, size: int, *, is_unwrapped: bool) -> None:
        self._known = known
        self._sizes = (max(0, size - MAX_CHARACTERS), size)
        self._is_unwrapped = is_unwrapped
        self._most: dict[int, float] = {}

    def most(self, rivals: int) -> float:
        if rivals not in self._most:
            # Between the two sizes each of the features only grows, or only shrinks.
            ends = [
                of_company(rivals=rivals, outside=outside, is_unwrapped=self._is_unwrapped)
                for outside in self._sizes
            ]
            weights = self._known.weights
            self._most[rivals] = sum(
                max(weights.get(name, 0.0) * end.get(name, 0.0) for end in ends)
                for name in ends[0].keys() | ends[1].keys()
            )
        return self._most[rivals]


@cache
def sentence_bounds() -> SentenceBounds:
    """Made once, when the first longer text is read."""
    known, words = model(), lexicon()
    weights = known.weights

    def hope(*names: str) -> float:
        return sum(max(0.0, weights.get(name, 0.0)) for name in names)

    def exactly(*names: str) -> float:
        return sum(weights.get(name, 0.0) for name in names)

    request, other, merge = (exactly(f"form {form}") for form in ("request", "other", "merge"))
    alone = dict(known.words)
    for noun, names in words.noun_classes.items():
        of_noun = hope(*(f"has {name}" for name in names))
        of_noun += hope(*(phrase for name in names for phrase in PHRASES.get(name, ())))
        if "snippet" in names:
            of_noun += max(0.0, merge - min(request, other))
        alone[noun] = alone.get(noun, 0.0) + of_noun
    for word in ("please", "kindly"):
        alone[word] = alone.get(word, 0.0) + hope("please")
    verbs, first_verbs = {}, {}
    for verb in words.verb_classes.keys() | known.verbs.keys():
        names = words.verb_classes.get(verb, ())
        worth = exactly(*(f"verb {name}" for name in names))
        verbs[verb] = max(0.0, worth + max(0.0, known.verbs.get(verb, 0.0)))
        if names and not any(verb in opener for opener in words.openers.values()):
            first_verbs[verb] = worth + known.verbs.get(verb, 0.0) + request
    for word in ("in", "to", "don't"):
        first_verbs.pop(word, None)
    then = {
        word: [f"then {name}" for name in names] for word, names in words.follow_classes.items()
    }
    asking, question = words.openers["question"], exactly("form question")
    leading = words.openers["skip"] - words.openers["ask"] - asking - {"in", "to", "don't"}
    only_asking = asking - words.openers["skip"] - words.openers["ask"] - {"in", "to", "don't"}
    opens = {word: hope(f"opens {word}") + verbs.get(word, 0.0) for word in asking}
    follows, telling = words.follow_classes, words.follows["tells"]
    every = set().union(alone, verbs, opens, leading, follows, telling)
    worths = {
        word.encode(): WordWeights(
            anywhere=alone.get(word, 0.0),
            asking=verbs.get(word, 0.0),
            asking_first=first_verbs.get(word, 0.0),
            is_first_verb=word in first_verbs,
            is_leading=word in leading,
            opening=opens.get(word, 0.0) + verbs.get(word, 0.0),
            is_question_word=word in only_asking,
            behind=hope(*then.get(word, ())),
            next=exactly(*then.get(word, ())),
            is_telling=word in telling,
        )
        for word in every
    }
    return SentenceBounds(
        worths,
        SentenceWeights(
            base=exactly("one") + hope("has a comma", "looks technical"),
            names_address=hope("names an address"),
            quotes=hope("quotes"),
            has_digits=exactly("has digits"),
            looks_technical=exactly("looks technical"),
            is_wrapped=exactly("is wrapped"),
            is_question=exactly("question"),
            few_words=exactly("few words"),
            some_words=exactly("some words"),
            many_words=exactly("many words"),
            begin=max(map(hope, ("asked politely", "starts in your", "do not forget")))
            + hope("tells")
            + max(request, other),
            asks_openly=max(opens.values()) + max(0.0, question - max(request, other)),
            tells_or_asks=max(question, other),
            then_a_name=exactly("then a name"),
            tells=exactly("tells"),
            ends=_ends(weights),
        ),
    )


def _ends(weights: Mapping[str, float]) -> tuple[float, ...]:
    names = dict.fromkeys(b".!", "ends with a stop") | {ord(":"): "ends with a colon"}
    names |= {
        code: "ends openly" for code in range(0x80) if chr(code).isalnum() or chr(code) == ","
    }
    by_byte = [weights.get(names.get(code, ""), 0.0) for code in range(0x80)]
    for code in range(0x1C, 0x20):  # blanks among characters and not among bytes
        by_byte[code] = max(0.0, *by_byte)
    return tuple(by_byte)


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
_MAX_PROMPT_CHARACTERS = 1200
_MAX_OPENING_CHARACTERS = 40
_SHARED_WORDS = 2
_STEM = 5
_LONG_WORD = re.compile(r"[^\W\d_]{5,}")
_MIN_READ_CHARACTERS = MIN_CARRIER_CHARACTERS
"""No request in a shorter text has a carrier, so none is looked for."""


def find(view: View) -> Iterator[Hit]:
    """Hits of category "task" in one view, the strongest of them; spans are the view's."""
    if len(view.plain) < _MIN_READ_CHARACTERS and not view.via:
        return
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
        if weight >= known.threshold and not _is_the_topic(text, number):
            found.append(_hit(sentence, probability(weight), *text.found[number]))
    found.sort(key=lambda hit: -hit.score)
    yield from sorted(found[:_MAX_HITS], key=lambda hit: hit.start)
    if text.end < len(view.plain):
        # Requests without end are a way to hide one behind them: a part that was not scanned is not
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


def _is_the_topic(text: CandidateSentences, number: int) -> bool:
    """Whether a short text goes on about what the request names: then the text is the request, such
    as a person's prompt, and no stranger's text around it."""
    start, end = text.found[number]
    if len(text.plain) > _MAX_PROMPT_CHARACTERS or text.found[0][0] > _MAX_OPENING_CHARACTERS:
        return False
    rest = lowered(text.plain[:start] + text.plain[end:])
    words = {word[:_STEM] for word in _LONG_WORD.findall(lowered(text.plain[start:end]))}
    return sum(word in rest for word in words) >= _SHARED_WORDS


def _promising(text: CandidateSentences, known: TaskModel) -> Iterable[int]:
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

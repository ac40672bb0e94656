"""The linear model of `weights.json`, and an upper bound of what a sentence can weigh.

bench/train_tasks.py trains the model offline; here it is a sum over the features of a sentence.
docs/guard.md has its measured quality (GRD-10).

Of a hundred requests one or two come near a finding. The bound skips the others without a loss,
because no sentence weighs more than its bound: certain features count as they are, uncertain ones
only if they would raise the weight. C adds them up (`ctext/glance.c`) for all sentences at once.

Weights of a word:
- `anywhere`: upper bound, at any place.
- `asking`: upper bound if it is the word that asks; `asking_first`: exact, for words that certainly
  ask at the start of a sentence (`is_first_verb`). `is_leading` words may precede and are skipped.
- `opening`: upper bound if a question, not a request, begins with it (`is_question_word`).
- `behind`: upper bound after the word that asks; `next`: exact, directly after a first verb. A word
  that `is_telling` there makes the sentence a statement.

Weights of a sentence: `begin` is for words before a verb that is not the first word, and for a
statement; `ends` is exact, by the last byte; `asks_openly` is for a question mark outside a
request, `tells_or_asks` for a sentence that begins as a question; the others are exact and named
after their feature.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from cellwall.guard.ctext.sentences import SentenceBounds, SentenceWeights, WordWeights
from cellwall.guard.detect.tasks.candidates import MAX_CHARACTERS, lexicon
from cellwall.guard.detect.tasks.features import PHRASES, Features, Sentence, of_company


@dataclass(frozen=True, slots=True)
class Model:
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
def model() -> Model:
    """Read once, when it is first needed."""
    text = resources.files(__package__).joinpath("weights.json").read_text("utf-8")
    told = json.loads(text)
    return Model(
        weights=told["features"],
        words=told["words"],
        verbs=told["verbs"],
        gate=told["gate"],
        threshold=told["threshold"],
    )


class CompanyBound:
    """The most that the company of a sentence can weigh in a text of one size."""

    def __init__(self, known: Model, size: int, *, is_unwrapped: bool) -> None:
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
    told = [weights.get(names.get(code, ""), 0.0) for code in range(0x80)]
    for code in range(0x1C, 0x20):  # blanks among characters and not among bytes
        told[code] = max(0.0, *told)
    return tuple(told)

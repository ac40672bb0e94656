"""The most that a sentence can weigh, told by a glance at its bytes.

Of a hundred sentences that ask for something one or two come near a finding. Not to weigh the
others loses nothing, for none of them can be worth more than is said here: what is certain counts
as it is, and of what is not certain only that which would speak for an attack. The adding up is
done in C (`ctext/glance.c`), for all sentences of a text at once.

What a word is worth:
- `anywhere`: at the most, wherever it stands.
- `asking`: at the most if it is the one that asks; `asking_first`: exactly, of those that are
  certain to ask if a sentence begins with them (`is_first_verb`). What may stand before them, and
  is read over, `is_leading`.
- `opening`: at the most if a question begins with it, and no request (`is_question_word`).
- `behind`: at the most behind the word that asks; `next`: exactly, right behind a first verb. One
  that `is_telling` there makes a sentence that tells something.

What a sentence is worth besides: `begin` is what may stand before the verb if that is not the first
word, and whether it tells; `ends` is by its last byte, exactly; `asks_openly` is of a question mark
if it is not a request, `tells_or_asks` of what begins as a question; the others are of what their
names say, and certain.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from cellwall.guard.ctext.sentences import Glance, WordWorth, Worths
from cellwall.guard.detect.tasks.candidates import MAX_CHARACTERS
from cellwall.guard.detect.tasks.features import PHRASES, of_company
from cellwall.guard.detect.tasks.lexicon import lexicon
from cellwall.guard.detect.tasks.model import Model, model


class Company:
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
def prospects() -> Glance:
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
        word.encode(): WordWorth(
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
    return Glance(
        worths,
        Worths(
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

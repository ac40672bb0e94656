"""The most that a sentence can weigh, told by a glance at its bytes.

Of a hundred sentences that ask for something one or two come near a finding. Not to weigh the
others loses nothing, for none of them can be worth more than is said here: what is certain counts
as it is, and of what is not certain only that which would speak for an attack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import repeat

from holdfast.guard.detect.tasks.candidates import MOST_CHARACTERS
from holdfast.guard.detect.tasks.features import PHRASES, of_company
from holdfast.guard.detect.tasks.lexicon import lexicon
from holdfast.guard.detect.tasks.model import Model, model

_LETTERS = b"abcdefghijklmnopqrstuvwxyz"
_LOWER = bytes.maketrans(_LETTERS.upper(), _LETTERS)
_DIGITS = frozenset(b"0123456789")
_NOT_FIRST = b"0123456789'-"
"""What else than letters a word may be made of, though it begins with none of it."""
_IN_WORDS = frozenset(_NOT_FIRST)
_SPLIT = bytes(code if code in _LETTERS + _NOT_FIRST else 0x20 for code in _LOWER)
_TECHNICAL = frozenset(b"`{}=[")
_QUOTES = frozenset(b"\"'")
_IN_ADDRESSES = frozenset(b":@")
_YOU = b"you"
_CAPITALS = frozenset(_LETTERS.upper())
_QUESTION = ord("?")
_LINE_END = ord("\n")
_STOP = ord(".")
_WWW = (b"w.", b"W.")
"""The end of what may be an address with a stop as its last byte."""
_DULL = bytes(set(range(256)) - set(b"0123456789'-`{}=[\":@?\n"))
_FEW, _SOME, _MANY = 4, 7, 24
_TELLING_WORDS = 11
"""Behind the one that asks, among which is looked for one that tells."""
_ASKED_BY_OTHERS = (b"want", b"need")
"""Second words of "I want you to": the verb comes later."""

_Table = Mapping[bytes, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospects:
    """Bounds of what the weights of a model can add up to."""

    words: _Table
    """What a word is worth at the most, wherever it stands."""
    verbs: _Table
    """What a word is worth at the most if it is the one that asks."""
    first_verbs: _Table
    """Of those that are certain to ask if a sentence begins with them: exactly."""
    leading: frozenset[bytes]
    """What may stand before them, and is read over."""
    question_words: _Table
    """Of those with which a question begins, and no request: at the most."""
    follows: _Table
    """What a word is worth at the most behind the one that asks."""
    next_words: _Table
    """What it is worth next to a first verb: exactly."""
    telling: frozenset[bytes]
    """Words behind it by which a sentence tells something."""
    begin: float
    """What may stand before the verb, if that is not the first word, and whether it tells."""
    ends: Sequence[float]
    """By its last byte: exactly."""
    features: Mapping[str, float]
    """Of those that are certain."""
    asks_openly: float
    """Of a question mark, if it is not a request."""
    tells_or_asks: float
    """Of what begins as a question."""
    names_address: float
    quotes: float
    base: float

    def most(self, sentence: bytes) -> float:
        """Of a sentence by itself, all of it ASCII."""
        signs = frozenset(sentence.translate(None, _DULL))
        words = sentence.translate(_SPLIT).split()
        if signs and not signs.isdisjoint(_IN_WORDS):
            words = [rest for word in words if (rest := word.lstrip(_NOT_FIRST))]
        worth = self.words
        most = self.base + sum([worth[word] for word in worth.keys() & words])
        most += self.ends[(sentence.rstrip() or b".")[-1]]
        count = len(words)
        if count < _SOME or count > _MANY:
            most += self._of_size(count)
        if signs:
            most += self._of_signs(signs)
        if (
            _STOP in sentence[:-1]
            or sentence[-2:] in _WWW
            or (signs and not signs.isdisjoint(_IN_ADDRESSES))
        ):
            most += self.names_address
        return most + self._of_verb(words, sentence, is_question=_QUESTION in signs)

    def _of_verb(self, words: list[bytes], sentence: bytes, *, is_question: bool) -> float:
        """Where it is certain which word asks, or that none does, no other is thought of."""
        at, last = 0, len(words) - 1
        if last > 0 and words[1] not in _ASKED_BY_OTHERS:
            if words[0] in self.question_words and words[1] != _YOU:
                opens = self.question_words[words[0]] if is_question else 0.0
                return self.tells_or_asks + opens
            while at < last and words[at] in self.leading:
                at += 1
            first = self.first_verbs.get(words[at]) if at < last else None
            if first is not None:
                return first + self._of_followers(words[at + 1 :], sentence)
        verb = max(map(self.verbs.get, words, repeat(0.0)), default=0.0)
        most = self.begin + verb + max(map(self.follows.get, words, repeat(0.0)), default=0.0)
        return most + self.asks_openly if is_question else most

    def _of_followers(self, words: list[bytes], sentence: bytes) -> float:
        """What the words behind the one that asks are worth."""
        most = self.next_words.get(words[0], 0.0)
        if sentence[sentence.translate(_LOWER).find(words[0], 1)] in _CAPITALS:
            most += self.features["then a name"]
        if not self.telling.isdisjoint(words[:_TELLING_WORDS]):
            most += self.features["tells"]
        return most

    def _of_size(self, count: int) -> float:
        if count < _FEW:
            return self.features["few words"]
        return self.features["some words" if count < _SOME else "many words"]

    def _of_signs(self, signs: frozenset[int]) -> float:
        most = 0.0
        if not signs.isdisjoint(_DIGITS):
            most += self.features["has digits"]
        if not signs.isdisjoint(_TECHNICAL):
            most += self.features["looks technical"]
        if not signs.isdisjoint(_QUOTES):
            most += self.quotes
        if _LINE_END in signs:
            most += self.features["is wrapped"]
        if _QUESTION in signs:
            most += max(0.0, self.features["question"])
        return most


class Company:
    """The most that the company of a sentence can weigh in a text of one size."""

    def __init__(self, known: Model, size: int, *, is_unwrapped: bool) -> None:
        self._known = known
        self._sizes = (max(0, size - MOST_CHARACTERS), size)
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
def prospects() -> Prospects:
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
    return Prospects(
        words=_in_bytes(alone),
        verbs=_in_bytes(verbs),
        first_verbs=_in_bytes(first_verbs),
        leading=frozenset(word.encode() for word in leading),
        question_words=_in_bytes(
            {word: opens[word] + verbs.get(word, 0.0) for word in only_asking}
        ),
        follows=_in_bytes({word: hope(*names) for word, names in then.items()}),
        next_words=_in_bytes({word: exactly(*names) for word, names in then.items()}),
        telling=frozenset(word.encode() for word in words.follows["tells"]),
        begin=max(map(hope, ("asked politely", "starts in your", "do not forget")))
        + hope("tells")
        + max(request, other),
        ends=_ends(weights),
        features={name: exactly(name) for name in _CERTAIN},
        asks_openly=max(opens.values()) + max(0.0, question - max(request, other)),
        tells_or_asks=max(question, other),
        names_address=hope("names an address"),
        quotes=hope("quotes"),
        base=exactly("one") + hope("has a comma", "looks technical"),
    )


_CERTAIN = (
    *("few words", "some words", "many words"),
    *("has digits", "looks technical", "is wrapped", "question", "then a name", "tells"),
)


def _ends(weights: Mapping[str, float]) -> list[float]:
    names = dict.fromkeys(b".!", "ends with a stop") | {ord(":"): "ends with a colon"}
    names |= {
        code: "ends openly" for code in range(0x80) if chr(code).isalnum() or chr(code) == ","
    }
    told = [weights.get(names.get(code, ""), 0.0) for code in range(0x80)]
    for code in range(0x1C, 0x20):  # blanks among characters and not among bytes
        told[code] = max(0.0, *told)
    return told


def _in_bytes(table: Mapping[str, float]) -> _Table:
    return {word.encode(): worth for word, worth in table.items()}

"""Stage 1: candidate sentences, found by keywords at the speed of hyperscan.

A verb counts where a sentence may begin (with a capital letter, after a line end, or after
"please"), a question if it ends with a question mark, and a few phrases ("your response", "the
following code") anywhere. Python never looks at the rest of a text. `lexicon.toml` has the words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, partial

from cellwall.guard.ctext.library import Cues, Kind, Sentences
from cellwall.guard.detect.shipped_data import read_checked
from cellwall.parsing.derived_cache import load_shipped_toml
from cellwall.parsing.matching import WordIndex

LEXICON_SHA256 = "bdaa1f16a2f84fa95460d0453d2e887da3c5782d0ba34609a41bbad3e8422cf0"
"""Of lexicon.toml: the weights belong to these words."""
_PACKAGE = "cellwall.guard.detect.tasks"


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Sets of words in lower case, by the name of their list."""

    verbs: dict[str, frozenset[str]]
    openers: dict[str, frozenset[str]]
    nouns: dict[str, frozenset[str]]
    follows: dict[str, frozenset[str]]
    """What may stand after the verb."""
    snippet: dict[str, tuple[str, ...]]
    stop: frozenset[str]
    verb_classes: dict[str, tuple[str, ...]]
    """Each verb, and the lists it stands in."""
    noun_classes: dict[str, tuple[str, ...]]
    follow_classes: dict[str, tuple[str, ...]]


@cache
def lexicon() -> Lexicon:
    """Read once, when it is first needed."""
    tables = load_shipped_toml(read_checked(_PACKAGE, "lexicon.toml", LEXICON_SHA256))
    verbs = _sets(tables["verbs"])
    nouns = _sets(tables["nouns"])
    follows = _sets(tables["follows"])
    return Lexicon(
        verbs=verbs,
        openers=_sets(tables["openers"]),
        nouns=nouns,
        follows=follows,
        snippet={name: tuple(words) for name, words in tables["snippet"].items()},
        stop=frozenset(tables["plainwords"]["stop"].split()),
        verb_classes=_invert(verbs),
        noun_classes=_invert(nouns),
        follow_classes=_invert(follows),
    )


def _sets(lists: dict[str, str]) -> dict[str, frozenset[str]]:
    return {name: frozenset(words.split()) for name, words in lists.items()}


def _invert(sets: dict[str, frozenset[str]]) -> dict[str, tuple[str, ...]]:
    words = {word for each in sets.values() for word in each}
    return {
        word: tuple(name for name, members in sets.items() if word in members) for word in words
    }


MAX_CHARACTERS = 360
"""Of one sentence; what is longer is cut there."""
_LOOK_BACK_CHARACTERS = 240
_LEAD_CHARACTERS = 60

# A line's end ends a sentence unless the next line goes on in lower case, as wrapped prose does.
# Each alternative begins with one of a few characters, and is looked at behind it: this is what
# makes the search quick.
_END = re.compile(
    r"[.!?\n|](?:(?<=[.!?])[\"'\u201d\u2019)\]]*(?=\s+[^a-z\s]|[ \t]*\n|\s*$|[|<\\,}])"
    r"|(?<=\n)(?![ \t]*[a-z(\"'])|(?<=\|))"
)
_BEGIN = re.compile(
    r"(?:[.!?][\"'\u201d\u2019)\]]*\s+(?=[^a-z])|\n\s*(?=[^a-z\s])|\n\s*\n\s*|\|\s*|^)(?=\S)"
)
_MARKS = re.compile(r"[\s#*/>\"'\u2022;%|-]*")

_BEFORE_LINE = ("", *".!?:|>`\n")
_BEFORE_SENTENCE = ("", *".!?:|")
_BLANKS = (" ", "\t")
_NAMED = ("verb", "question")
"""Cues that begin with a capital letter."""
_BY_BYTES = {
    "verb": Kind.NAMED,
    "question": Kind.NAMED_QUESTION,
    "after": Kind.AFTER,
    "question after": Kind.AFTER_QUESTION,
}
"""For these kinds C finds nearly all sentences, many times as fast."""

_PHRASES = (
    *(f"our {noun}" for noun in ("response", "reply", "replies", "answer", "output", "message")),
    *(f"our {noun}" for noun in ("code", "implementation", "solution", "algorithm", "program")),
    *(f"our {noun}" for noun in ("project", "script", "elucidation", "explanation", "summary")),
    *(
        f"{which} {noun}"
        for which in ("ollowing", "ubsequent", "elow")
        for noun in ("code", "snippet")
    ),
    *(f"ode {noun}" for noun in ("snippet", "excerpt", "segment", "fragment", "section", "block")),
    *("an you ", "ould you ", "want you to ", "need you to ", "like you to ", "ask you to "),
)
_QUESTIONS = (
    *("What", "Who", "Whose", "When", "Where", "Which", "Why", "How", "Is", "Are", "Was", "Were"),
    *("Do", "Does", "Did", "Has", "Have", "Should", "Can", "Could", "Would", "Will"),
)


@dataclass(frozen=True, slots=True)
class _Cues:
    index: WordIndex
    sentences: Cues
    lengths: tuple[int, ...]
    kinds: tuple[str, ...]


@cache
def _cues() -> _Cues:
    words = lexicon()
    verbs = {verb for each in words.verbs.values() for verb in each}
    verbs -= words.verbs["reference"] | words.verbs["noun"]
    cues: dict[str, str] = {}
    for verb in sorted(verbs):
        cues[f"{verb.capitalize()} "] = "verb"
        cues[f"\n{verb} "] = "after"
    cues |= {"Please ": "verb", "\nplease ": "after", " please ": "please"}
    for opener in _QUESTIONS:
        for ending in (" ", "'s "):
            cues[f"{opener}{ending}"] = "question"
            cues[f"\n{opener.lower()}{ending}"] = "question after"
    cues.update((phrase, "phrase") for phrase in _PHRASES)
    lengths, kinds = tuple(map(len, cues)), tuple(cues.values())
    return _Cues(
        index=WordIndex([cue.encode() for cue in cues]),
        sentences=Cues([_BY_BYTES.get(kind, Kind.BY_PYTHON) for kind in kinds], lengths),
        lengths=lengths,
        kinds=kinds,
    )


def places(text: str, most: int, image: bytes | None = None) -> list[tuple[int, int]]:
    """Number and end of each cue; after `most` of them it looks no further. `image`, if it is
    known, has one byte for each character of the text, so that places are the same in both."""
    data = text.encode("ascii", "replace") if image is None else image
    return _cues().index.places(data, most)


def candidates(text: str, marked: bytes, places: list[tuple[int, int]]) -> Sentences:
    """The sentences of these cues, in order of their place, each once."""
    return _cues().sentences.sentences(marked, places, partial(sentence_of, text))


def sentence_of(text: str, at: int, number: int) -> tuple[int, int] | None:
    """The sentence of one cue, if it may ask for something."""
    cues = _cues()
    kind = cues.kinds[number]
    start = _start(text, at, kind)
    if start is None:
        return None
    end = _end(text, start, at + cues.lengths[number])
    if kind.startswith("question") and "?" not in text[at:end]:
        return None
    return (start, end) if text.count(" ", start, end) >= 2 else None


def _start(text: str, at: int, kind: str) -> int | None:
    """Where the sentence begins; None where the word is only a name in the midst of one."""
    if kind in _NAMED:
        return _named_start(text, at)
    if kind == "please":
        verb = text[at + 8 : at + 32].split(" ", 1)[0]
        return _back(text, at) if verb in lexicon().verb_classes else None
    if kind.endswith("after"):
        # In lower case after an open line: prose that was wrapped there.
        return at + 1 if text[max(0, at - 1) : at] in _BEFORE_LINE else None
    return _back(text, at)


def _named_start(text: str, at: int) -> int | None:
    """Of a word with a capital letter."""
    last = text[at - 1] if at else ""
    if last not in _BLANKS:
        # A line's end as JSON writes it.
        is_inside = last.isalnum() and text[max(0, at - 2) : at] not in ("\\n", "\\t")
        return None if is_inside else at
    # Most stand between two words, or behind a sentence.
    last = text[at - 2 : at - 1]
    if last.isalnum():
        return None
    if last in _BEFORE_SENTENCE:
        return at
    # Nothing but marks since the line's begin, or what ends a sentence.
    before = text[max(0, at - _LEAD_CHARACTERS) : at]
    before = before[before.rfind("\n") + 1 :].rstrip(" \t").rstrip("\"')]\u201d\u2019")
    return at if before.rstrip("#*/>-\u2022;%")[-1:] in _BEFORE_SENTENCE else None


def _back(text: str, at: int) -> int:
    """Where the sentence begins that this place belongs to."""
    low = max(0, at - _LOOK_BACK_CHARACTERS)
    begin = low
    for match in _BEGIN.finditer(text, low, at + 1):
        if match.end() <= at:
            begin = match.end()
    marks = _MARKS.match(text, begin, at)
    return marks.end() if marks else begin


def _end(text: str, start: int, past: int) -> int:
    limit = min(len(text), start + MAX_CHARACTERS)
    match = _END.search(text, min(past, limit), limit)
    if match is None:
        return limit
    return match.start() if match[0] in ("\n", "|") else match.end()

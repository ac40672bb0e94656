"""Stage 2: what a candidate looks like, alone and among its neighbours, as named numbers.

`of_sentence` needs the sentence alone and is cheap; only what may still become a hit is looked at
by `of_surroundings`: whether it shares words with what stands around it, where it stands, what kind
of text carries it, and how many requests are there besides it.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from cellwall.guard.ctext.library import Candidate
from cellwall.guard.detect.tasks.candidates import Lexicon
from cellwall.guard.normalise.characters import lowered

Features = dict[str, float]

_NEAR_CHARACTERS = 1200
_SNIPPET_CHARACTERS = 900
_WORD = re.compile(r"[a-z][a-z0-9'\u2019-]*")
# First a sign and then what stands around it, so that only the signs of a sentence are looked at:
# a call, a scope, an option, a name of several words, a path, a tag, a variable, a decorator.
_DOCUMENTATION = re.compile(
    r"[(:_/<$@-](?:(?<=\w\()|(?<=:):|(?<=-)(?<!\S-)-?\w|(?<=\w_)\w|(?<=/)(?<!\S/)\w|(?<=[<$])\w"
    r"|(?<=@)\w+\b(?!\.))"
)
_OUTSIDE_ADDRESS = re.compile(
    r"[:.@](?:(?<=http:)|(?<=https:)|(?<=www\.)|(?<=\w@)\w|(?<=\.)(?:com|org|net|xyz|io|ru)\b)"
)
_COMMON_LETTERS = b"abcdefghijklmnopqrstuvwxyz ,"
_DIGITS = frozenset(b"0123456789")
_QUOTES = frozenset("\"'\u201c\u2018".encode())
_IN_ADDRESSES = frozenset(b".:@")
_TECHNICAL = frozenset(b"`{}=[")
_PERHAPS_TECHNICAL = frozenset(b"(:-_/<$@")
_LINE_END = ord("\n")
_QUOTED = re.compile(r"[\"\u201c'\u2018][^\"\u201d'\u2019]{3,}[\"\u201d'\u2019]")
_BULLET = re.compile(r"\s*(?:[-*+\u2022]|\d+[.)]|[a-z][.)])\s+$")
_COMMENT = re.compile(r"\s*(?:#+|//+!?|/?\*+|--+|;+|>+|%+|\"{3}|'{3}|@\w+|\.\\\"|:)\s*$")

_PIECE = (("asks for a piece", "piece", 3),)
_LETTERS = (("every letter", "cipher", 3),)
_FOLLOWED: dict[str, tuple[tuple[str, str, int], ...]] = {
    "your": (("your answer", "answer", 3), ("your code", "code", 3)),
    "a": _PIECE,
    "an": _PIECE,
    "every": _LETTERS,
    "each": _LETTERS,
    "code": (("speaks of a snippet", "snippet", 1),),
}
"""A word, the feature it makes, the nouns that must follow, and among how many words."""
PHRASES = {
    "answer": ("your answer", "asks about your answer"),
    "code": ("your code",),
    "piece": ("asks for a piece",),
    "cipher": ("every letter",),
    "snippet": ("speaks of a snippet", "a snippet for your code"),
    "me": ("asks for me",),
}
"""What there is with each of these nouns, and never without it."""
_IN_PHRASES = frozenset(f"has {noun}" for noun in PHRASES)


class Sentence(NamedTuple):
    """A candidate taken apart."""

    words: tuple[str, ...]
    verb: str
    """The word that asks, or the empty string."""
    form: str
    """"question", "request" (an imperative), "merge" (of code) or "other"."""
    features: Features


def of_sentence(plain: str, folded: str, words: Lexicon) -> Sentence:
    """What the sentence says by itself. `folded` is `plain` in lower case."""
    tokens = tuple(_WORD.findall(folded))
    found: Features = {"one": 1.0}
    at = _opening(tokens, words, found)
    verb = tokens[at] if at < len(tokens) else ""
    is_question = folded.rstrip("\"'\u201d\u2019) ").endswith("?")
    classes = words.verb_classes.get(verb, ())
    for name in classes:
        found[f"verb {name}"] = 1.0
    opens_question = bool(tokens) and tokens[0] in words.openers["question"]
    if is_question:
        found["question"] = 1.0
        if opens_question:
            found[f"opens {tokens[0]}"] = 1.0
    for noun in words.noun_classes.keys() & tokens:
        for name in words.noun_classes[noun]:
            found[f"has {name}"] = 1.0
    asks = bool(classes) and not opens_question
    if asks:
        _after_verb(plain, folded, tokens, at, words, found)
    if not found.keys().isdisjoint(_IN_PHRASES):
        _phrases(tokens, words, found, asks=asks)
    _shape(folded, len(tokens), found)
    _signs(folded, found)
    form = "other"
    if "speaks of a snippet" in found:
        form = "merge"
    elif is_question and (opens_question or "asked politely" in found):
        form = "question"
    elif asks:
        form = "request"
    found[f"form {form}"] = 1.0
    return Sentence(tokens, verb if form != "other" else "", form, found)


def _opening(tokens: tuple[str, ...], words: Lexicon, found: Features) -> int:
    """Reads over "please", "could you" and "in your response" up to the word that asks."""
    at = 0
    if "please" in tokens[:4] or "kindly" in tokens[:4]:
        found["please"] = 1.0
    if tokens[:2] and tokens[0] in words.openers["ask"] and tokens[1:2] == ("you",):
        found["asked politely"] = 1.0
        at = 2
    elif tokens[:1] == ("in",) and "your" in tokens[:3]:
        found["starts in your"] = 1.0
        at = 3
    elif tokens[1:4] in (("want", "you", "to"), ("need", "you", "to")):
        found["asked politely"] = 1.0
        at = 4
    elif tokens[:2] == ("don't", "forget") or tokens[:2] == ("don't", "hesitate"):
        found["do not forget"] = 1.0
        at = 3
    elif tokens[:1] == ("to",):
        # "To proceed, blend ...": the verb comes after the purpose.
        at = next((n for n in range(2, min(7, len(tokens))) if tokens[n] in words.verb_classes), 0)
    while at < len(tokens) - 1 and tokens[at] in words.openers["skip"]:
        at += 1
    return at


def _after_verb(
    plain: str, folded: str, tokens: tuple[str, ...], at: int, words: Lexicon, found: Features
) -> None:
    """ "Record the call" asks for something; "Record numbers of schools were" tells it."""
    follows = tokens[at + 1] if at + 1 < len(tokens) else ""
    for name in words.follow_classes.get(follows, ()):
        found[f"then {name}"] = 1.0
    if follows and plain[folded.find(follows, 1) :][:1].isupper():
        found["then a name"] = 1.0
    if not words.follows["tells"].isdisjoint(tokens[at + 1 : at + 12]):
        found["tells"] = 1.0


def _phrases(tokens: tuple[str, ...], words: Lexicon, found: Features, *, asks: bool) -> None:
    which = words.nouns["which"]
    for at, word in enumerate(tokens[:-1]):
        for name, noun, reach in _FOLLOWED.get("code" if word in which else word, ()):
            if not words.nouns[noun].isdisjoint(tokens[at + 1 : at + 1 + reach]):
                found[name] = 1.0
    if not asks:
        found.pop("asks for a piece", None)
    elif "your answer" in found:
        found["asks about your answer"] = 1.0
    if asks and tokens[1:2] and tokens[1] in words.nouns["me"]:
        found["asks for me"] = 1.0
    if "speaks of a snippet" in found and ("your code" in found or "your answer" in found):
        found["a snippet for your code"] = 1.0


def _shape(folded: str, count: int, found: Features) -> None:
    if count < 4:
        found["few words"] = 1.0
    elif count < 7:
        found["some words"] = 1.0
    elif count > 24:
        found["many words"] = 1.0
    last = folded.rstrip()[-1:]
    if last in ".!":
        found["ends with a stop"] = 1.0
    elif last == ":":
        found["ends with a colon"] = 1.0
    elif last == "," or last.isalnum():
        found["ends openly"] = 1.0
    if not folded.isascii():
        found["has other letters"] = 1.0
    if ", " in folded:
        found["has a comma"] = 1.0


def _signs(folded: str, found: Features) -> None:
    """What stands in no word is looked for only where one of its signs is there."""
    signs = set(folded.encode("utf-8", "replace").translate(None, _COMMON_LETTERS))
    if signs & _TECHNICAL or (signs & _PERHAPS_TECHNICAL and _DOCUMENTATION.search(folded)):
        found["looks technical"] = 1.0
    if signs & _IN_ADDRESSES and _OUTSIDE_ADDRESS.search(folded):
        found["names an address"] = 1.0
    if signs & _QUOTES and _QUOTED.search(folded):
        found["quotes"] = 1.0
    if _LINE_END in signs:
        found["is wrapped"] = 1.0
    if signs & _DIGITS:
        found["has digits"] = 1.0


def of_company(*, rivals: int, outside: int, is_unwrapped: bool) -> Features:
    """`rivals`: other candidates that are near. `outside`: what carries it, in characters."""
    if is_unwrapped and outside < _NEAR_CHARACTERS:
        # Out of an encoding: what carries it is the text outside, however short this one is.
        outside = _NEAR_CHARACTERS
    found: Features = {}
    if outside < 600:
        found["carried by less than a page"] = 1.0 - outside / 600
    if (much := math.log10(max(outside, 1)) - 3.5) > 0:
        found["carried by much"] = much
    if rivals:
        found["rivals"] = float(min(rivals, 6))
    else:
        found["no rivals"] = 1.0
    return found


def of_surroundings(sentence: Sentence, here: Candidate, plain: str, words: Lexicon) -> Features:
    """How it stands among what is around it."""
    before = lowered(plain[max(0, here.start - _NEAR_CHARACTERS) : here.start])
    after = lowered(plain[here.end : here.end + _NEAR_CHARACTERS])
    around = before + "\n" + after
    found: Features = {}
    found.update(_overlap(sentence.words, around, words))
    found.update(_place(plain, here))
    found.update(_carrier(around, lowered(plain[:400])))
    if "speaks of a snippet" in sentence.features:
        found.update(_snippet(after[:_SNIPPET_CHARACTERS], words))
    for name in (
        "shares nothing",
        "on its own line",
        "in a table",
        "in code",
        "in a mail",
        "in data",
        "first",
        "last",
        "marked as comment",
        "in a list",
    ):
        if found.get(name):
            found[f"{sentence.form} {name}"] = found[name]
    return found


def _overlap(tokens: tuple[str, ...], around: str, words: Lexicon) -> Features:
    """A stranger's request is about something else than what stands around it."""
    content = {token[:6] for token in tokens if len(token) > 3 and token not in words.stop}
    content -= {"respon", "reply", "answer"}
    if not content:
        return {"says little": 1.0}
    shared = sum(stem in around for stem in content)
    return {
        "shares": shared / len(content),
        "shares nothing": float(shared == 0 and len(content) > 1),
        "shares most": float(shared > 0.6 * len(content)),
        "says much": float(len(content) > 5),
    }


def _place(plain: str, here: Candidate) -> Features:
    line = plain.rfind("\n", max(0, here.start - 200), here.start) + 1
    lead = plain[line : here.start] if line or here.start < 200 else "..."
    stop = plain.find("\n", here.end, here.end + 200)
    rest = plain[here.end : stop if stop >= 0 else here.end + 200]
    found: Features = {}
    if not lead.strip():
        found["indented" if lead else "starts a line"] = 1.0
        if not rest.strip() and not lead:
            found["on its own line"] = 1.0
    elif _BULLET.match(lead):
        found["in a list"] = 1.0
    elif _COMMENT.match(lead):
        found["marked as comment"] = 1.0
    else:
        found["within a line"] = 1.0
    above = plain[max(0, line - 80) : max(0, line - 1)].rstrip(" \t")
    found["line above is empty"] = float(above.endswith("\n"))
    found["line above is open"] = float(above[-1:].isalnum() or above[-1:] in (",", "|"))
    found["line above ends"] = float(above[-1:] in (".", "!", "?"))
    below = plain[here.end : here.end + 80].lstrip(" \t")
    found["line below is empty"] = float(below.startswith("\n\n"))
    found["first"] = float(here.start < 3)
    found["last"] = float(not plain[here.end : here.end + 8].strip())
    return found


def _carrier(around: str, head: str) -> Features:
    size = len(around) + 1
    lines = around.count("\n") + 1
    symbols = sum(map(around.count, "{};=()"))
    found: Features = {
        "in a table": float(around.count("|") > 2 * lines),
        "in code": float(symbols > size / 30),
        "in markup": float(around.count("<") > size / 120),
        "in markdown": float("```" in around or "\n#" in around),
        "in data": float(around.count('"') > size / 40),
        "long lines": float(size / lines > 120),
    }
    if any(word in head for word in ("subject:", "dear ", "hi ", "hello", "from:", "unsubscribe")):
        found["in a mail"] = 1.0
    return found


def _snippet(after: str, words: Lexicon) -> Features:
    found: Features = {"a snippet follows": float("```" in after[:40] or "\n    " in after[:20])}
    for name, marks in words.snippet.items():
        found[f"the snippet {name}"] = float(min(2, sum(mark in after for mark in marks)))
    return found

"""The words of a passage, the classes of its phrases, and which acts have which objects (GRD-2)."""

# ruff: noqa: RUF001  # apostrophes of other scripts
from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate

from cellwall.guard.detect.passages.lexicon import lexicon
from cellwall.guard.detect.passages.splitting import LETTERS
from cellwall.parsing.matching import WordIndex

_WORD = re.compile(rf"{LETTERS}(?:['’.-]{LETTERS})*")
# A hidden file or folder of a program, as `~/.claude`, '.claude' or .claude/: whoever names the
# folder does not speak to the model of that name. Attack: a dot alone before the model's name.
_HIDDEN = re.compile(rf"(?<=[/'\"`‘“])\.(?={LETTERS})|(?<![\w.])\.(?={LETTERS}/)")
_SPOKEN_TO = frozenset(("ai", "machine"))
VERBS = (
    *("override", "halt", "send", "run", "say", "leak", "do", "deed", "destroy", "money", "role"),
)
_OBJECTS = frozenset(
    ("prior", "instr", "secret", "user", "me", "you", "system", "ai", "task", "personal")
)
_REACH = 5
"""So many words behind an act its object may stand."""


def phrase_classes(lows: Sequence[str]) -> list[set[str]]:
    """Of each passage, in lower case, the classes of the phrases that stand in it. All are searched
    at once: a text can have a thousand phrases in a thousand passages."""
    phrases = lexicon().phrases
    data = [low.encode("utf-8", "surrogatepass") for low in lows]
    ends = list(accumulate(len(each) + 1 for each in data))
    found: list[set[str]] = [set() for _ in lows]
    # No phrase has a zero byte, so none reaches from one passage to the next.
    whole = b"\0".join(data)
    for number, end in _phrase_index().places(whole, len(whole) * 64):
        found[bisect_left(ends, end)].add(phrases[number][1])
    return found


@cache
def _phrase_index() -> WordIndex:
    return WordIndex([phrase.encode() for phrase, _ in lexicon().phrases])


def words_of(low: str) -> list[str]:
    """The words of a passage, in lower case."""
    words = _WORD.findall(low)
    if "." not in low or (hidden := {found.end() for found in _HIDDEN.finditer(low)}) == set():
        return words
    classes = lexicon().classes
    return [
        f".{word}" if at in hidden and not _SPOKEN_TO.isdisjoint(classes.get(word, ())) else word
        for word, at in ((found.group(), found.start()) for found in _WORD.finditer(low))
    ]


def acts_on(words: Sequence[str], traits: set[str]) -> Iterator[str]:
    """Which acts have which objects a few words behind them. In a long sentence both often stand
    somewhere; side by side they are an order."""
    if traits.isdisjoint(VERBS) or traits.isdisjoint(_OBJECTS):
        return
    classes, acts = lexicon().classes, dict[str, int]()
    for at, word in enumerate(words):
        names = classes.get(word, ())
        for name in names:
            if name in _OBJECTS:
                for act, since in acts.items():
                    if at - since <= _REACH:
                        yield f"{act} > {name}"
        for name in names:
            if name in VERBS and name in traits:
                acts[name] = at

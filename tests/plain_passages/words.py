"""The words of a passage, the classes of its phrases, and which acts have which objects (GRD-2)."""

# ruff: noqa: RUF001  # apostrophes of other scripts
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cellwall.guard.detect.passages.lexicon import lexicon
from plain_passages.splitting import LETTERS

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


def phrase_classes(low: str) -> set[str]:
    """The classes of the phrases that stand in a passage, in lower case."""
    return {name for phrase, name in lexicon().phrases if phrase in low}


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

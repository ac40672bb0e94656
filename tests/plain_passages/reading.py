"""What a passage says by itself: speech acts, targets and form (GRD-2).

Its traits are classes of words (`lexicon.toml`), shared by all languages; what it points at
(addresses, code, quotes); and its form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cellwall.guard.detect.passages.lexicon import lexicon
from plain_passages.forms import ends_colon, forms_of, is_code
from plain_passages.targets import targets_of
from plain_passages.words import VERBS, acts_on, words_of

_OPENING = re.compile(r"(?:\A|[:>\])'\"#*.!-])\s{0,3}([^\W\d_]{2,20})")
_KEY_FIRST = re.compile(r"\s*[-*>|,{\[]{0,3}\s*[\"']?[\w .-]{1,30}[\"']?\s*[:=]\s*\S")
_CASE_CHARACTERS = 80
_OPENERS = frozenset(("ai", "machine", "system", "you", "urgent", "user", "prior", "please"))
_SKIPPED = frozenset(
    (
        "please",
        "kindly",
        "now",
        "also",
        "then",
        "next",
        "first",
        "finally",
        "just",
        "and",
        "but",
        "so",
        "immediately",
        "always",
        "todo",
        "note",
        "important",
        "attention",
        "bitte",
        "by",
        "the",
        "way",
        "can",
        "could",
        "you",
        "would",
        "ps",
        "p.s",
    )
)
_GATE = frozenset(
    {
        "override",
        "send",
        "money",
        "destroy",
        "leak",
        "role",
        "quiet",
        "announce",
        "marker",
        "machine",
        "answer_only",
        "secret",
        "order",
        "order inside",
        "instr",
        "halt",
        "urgent",
        "system",
        "pointer",
        "obligation",
        "ordering",
        "request",
        "omit",
        "exempt",
        "helper",
        "anyone",
        "principal",
        "conditional",
        "standing",
        "memory",
        "origin",
        "effect",
        "outcome_of",
        "rate",
        "style",
    }
)


@dataclass(frozen=True, slots=True)
class TextPassage:
    """One passage, with what it says by itself."""

    start: int
    end: int
    traits: frozenset[str]
    script: str


def read_passage(text: str, start: int, end: int, low: str, named: Iterable[str]) -> TextPassage:
    """The words, targets and form of one passage; `low` is it in lower case, `named` the classes of
    its phrases."""
    plain = text[start:end]
    classes = lexicon().classes
    words = words_of(low)
    traits: set[str] = set()
    for word in classes.keys() & set(words):
        traits.update(classes[word])
    # Also where it is misspelt.
    if "nstruct" in low and any("nstruct" in word and len(word) > 8 for word in words):
        traits.add("instr")
    traits.update(named)
    opening = next((word for word in words if word not in _SKIPPED), "")
    opens = [name for name in classes.get(opening, ()) if name in VERBS]
    if opens:
        traits.add("order")
        traits.update(f"opens {name}" for name in opens)
    elif any(name in VERBS for word in _OPENING.findall(low) for name in classes.get(word, ())):
        traits.add("order inside")
    if "reminder" in traits:
        _calm(traits, words)
    if _GATE.isdisjoint(traits):  # it only counts for others, by these
        if is_code(plain):
            traits.add("code")
        if ends_colon(plain):
            traits.add("ends colon")
        script = "latin" if plain.isascii() else _script([each for each in plain if each.isalpha()])
        return TextPassage(start, end, frozenset(traits), script)
    if words:
        traits.update(f"opens {name}" for name in classes.get(words[0], ()) if name in _OPENERS)
    if _KEY_FIRST.match(plain):
        traits.add("opens key")
    traits.update(acts_on(words, traits))
    marks = set(plain)
    traits.update(targets_of(plain, marks))
    traits.update(forms_of(plain))
    letters = list(filter(str.isalpha, plain[:_CASE_CHARACTERS]))
    if len(letters) > 12 and sum(map(str.isupper, letters)) > 0.6 * len(letters):
        traits.add("capitals")
    traits.add("short" if len(words) < 5 else "medium" if len(words) < 25 else "long")
    script = "latin" if plain.isascii() or not letters else _script(letters)
    inner = plain.strip()
    begin = start + plain.index(inner) if inner else start
    return TextPassage(begin, begin + len(inner) if inner else end, frozenset(traits), script)


def _calm(traits: set[str], words: Sequence[str]) -> None:
    """Takes off what a reminder seems to say: "do not forget to ..." overrides nothing."""
    classes = lexicon().classes
    if not any(
        "override" in names and "forget" not in names
        for names in (classes.get(word, ()) for word in words)
    ):
        traits.discard("override")
        traits.discard("opens override")


def _script(letters: Sequence[str]) -> str:
    counts: dict[str, int] = {}
    for letter in letters:
        code = ord(letter)
        name = (
            "latin"
            if code < 0x250
            else "cyrillic"
            if 0x400 <= code < 0x530
            else "cjk"
            if 0x3040 <= code < 0x9FFF or 0xAC00 <= code < 0xD7B0
            else "other"
        )
        counts[name] = counts.get(name, 0) + 1
    return max(counts, key=lambda name: counts[name], default="latin")


def passes_gate(passage: TextPassage) -> bool:
    """Whether a passage has anything that an instruction to a model has."""
    return not _GATE.isdisjoint(passage.traits)

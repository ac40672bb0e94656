"""What a passage of a text does: speech acts, targets, form, and how it stands in its text (GRD-2).

A passage is a sentence or a line. Its features are classes of words (`lexicon.toml`), shared by all
languages; what it points at (addresses, code, quotes); its form; and pairs of these. The text adds
its size and shape, how many passages it has, how many of them are orders, and whether it is about
attacks: a whole text that asks is a prompt, one line that asks among data is not.
"""

# ruff: noqa: RUF001  # stops, quotes and words of other scripts are what is looked for
from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, combinations

from cellwall.guard.detect.passages.forms import ends_colon, forms_of, is_code
from cellwall.guard.detect.passages.lexicon import lexicon
from cellwall.parsing.matching import WordIndex

MAX_PASSAGE_CHARACTERS = 600
_BREAK = re.compile(
    r"\n(?![ \t>|*#]*[a-z])|(?<=[.!?])[\"')\]*_]{0,3}\s+(?![a-z])"
    r"|(?<=[a-z0-9%])[.!?](?=[A-Z](?:[a-z]|[A-Z]{1,12}:))"
    r"|\\n|(?<=[。！？।؟])|<!--|-->|</?(?:p|div|td|tr|li|br|h[1-6]|span|caption|a|b|title)\b[^<>]{0,80}>"
)
_OPENING = re.compile(r"(?:\A|[:>\])'\"#*.!-])\s{0,3}([^\W\d_]{2,20})")
# Vowel signs and other marks that belong to a letter, which `\w` leaves out: without them, words
# of Hindi, Bengali, Thai and others are cut in the middle.
_MARKS = (
    "\u0300-\u036f\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06ed\u0900-\u0903\u093a-\u094f"
    "\u0951-\u0957\u0962\u0963\u0981-\u0983\u09bc-\u09cd\u09d7\u0a01-\u0a03\u0a3c-\u0a51\u0a81-\u0a83"
    "\u0abc-\u0acd\u0b82\u0bbe-\u0bcd\u0c00-\u0c03\u0c3e-\u0c56\u0d02\u0d03\u0d3e-\u0d4d\u0e31"
    "\u0e34-\u0e3a\u0e47-\u0e4e"
)
_LETTERS = rf"[^\W\d_]+(?:[{_MARKS}]+[^\W\d_]*)*"
_WORD = re.compile(rf"{_LETTERS}(?:['’.-]{_LETTERS})*")
# A hidden file or folder of a program, as `~/.claude`, '.claude' or .claude/: whoever names the
# folder does not speak to the model of that name. Attack: a dot alone before the model's name.
_HIDDEN = re.compile(rf"(?<=[/'\"`‘“])\.(?={_LETTERS})|(?<![\w.])\.(?={_LETTERS}/)")
_SPOKEN_TO = frozenset(("ai", "machine"))
# A line that is a part of a sentence: some words, and neither a stop nor a mark of data.
_PART_OF_SENTENCE = re.compile(
    rf"[ \t]*(?:[>|] ?)?{_LETTERS}(?:[ ,'’-]{{1,2}}{_LETTERS}){{0,6}},?[ \t\r]*\n?"
)
_MAX_PARTS, _PART_CHARACTERS = 16, 60
# What a passage points at: the letters without which there is none, and the form.
_TARGETS = {
    "to mail": ("@", re.compile(r"[\w.+-]@[\w-]{1,64}\.\w|@example|redacted@", re.IGNORECASE)),
    "to address": (
        ":.",
        re.compile(r"https?:|www\.|\w\.(?:com|net|org|io|dev|ru|xyz)\b"),
    ),
    "to path": ("/.", re.compile(r"(?:^|[\s'\"`(])(?:~|\.{1,2})?/[\w.-]+|\.env\b|\.ssh\b")),
    "to code": (
        "`$ ",
        re.compile(r"`[^`]{2,}|\$\(|\b(?:curl|wget|rm -|sudo|bash|pip|npm|git) \S"),
    ),
    "to tool": ("_", re.compile(r"[a-z]{2}_[a-z]{2}")),
    "to quote": ("\"“'‘«「", re.compile(r"[\"“'‘«「][^\"”'’»」]{2,}[\"”'’»」]")),
    "amount": (
        "$€£0123456789",
        re.compile(r"[$€£]\s?\d|\d\s?(?:USD|EUR|BTC|dollars|euros)\b"),
    ),
    "to account": (
        "0123456789",
        re.compile(r"\b[A-Z]{2}\d{2}[A-Z0-9]{8,}|\b\d{9,}\b|\b0x[0-9a-f]{6,}|\bbc1\w{5,}"),
    ),
    "at time": (
        "0123456789",
        re.compile(r"\b\d{1,2}:\d{2}\b|\b\d{4}-\d{2}-\d{2}\b|\b\d{1,2} ?[ap]m\b"),
    ),
    "number": ("0123456789", re.compile(r"\d")),
    "to person": (" ", re.compile(r"[a-z,] [A-Z][a-z]{2,}")),
}
_KEY_FIRST = re.compile(r"\s*[-*>|,{\[]{0,3}\s*[\"']?[\w .-]{1,30}[\"']?\s*[:=]\s*\S")
_SHAPES = {
    "text of lines": re.compile(r"\S[ \t]*\n\s*\S"),
    "text of paragraphs": re.compile(r"\S[ \t]*\n\s*\n\s*\S"),
    "text of data": re.compile(r"\A\s*(?:[\[{]|- ?\w+: |\w+: )"),
    "text of markup": re.compile(r"</\w+>"),
    "text of headings": re.compile(r"^#{1,4} ", re.MULTILINE),
    "text of a mail": re.compile(r"^(?:From|To|Subject|Date): ", re.MULTILINE | re.IGNORECASE),
}
_SHAPE_CHARACTERS = 8_000
_CASE_CHARACTERS = 80
_SIZES = (
    (3000, "text over 3000"),
    (1200, "text over 1200"),
    (700, "text over 700"),
    (300, "text over 300"),
    (120, "text over 120"),
)
_VERBS = (
    *("override", "halt", "send", "run", "say", "leak", "do", "deed", "destroy", "money", "role"),
)
_OBJECTS = frozenset(
    ("prior", "instr", "secret", "user", "me", "you", "system", "ai", "task", "personal")
)
_REACH = 5
"""So many words behind an act its object may stand."""
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
_UNPAIRED = frozenset(
    {
        "negation",
        "example",
        "howto",
        "letter",
        "question",
        "story",
        "list",
        "code",
        "near end",
        "reminder",
        "forget",
    }
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


def split_passages(text: str) -> Iterator[tuple[int, int]]:
    """Start and end of each passage that has letters.

    Attack: a sentence broken into short lines that begin with capitals, so that no line says much.
    Short lines without a stop, one directly below the other, are one passage with the short line
    that ends them."""
    held, parts = (0, 0), 0
    for start, end in _split(text):
        is_short = end - start <= _PART_CHARACTERS
        is_part = is_short and _PART_OF_SENTENCE.fullmatch(text, start, end) is not None
        if parts and start == held[1] and is_short and end - held[0] <= MAX_PASSAGE_CHARACTERS:
            held, parts = (held[0], end), parts + 1
            if is_part and parts < _MAX_PARTS:
                continue
            is_part = False
        elif parts:
            yield held
            held = (start, end)
        else:
            held = (start, end)
        parts = int(is_part)
        if not parts:
            yield held
    if parts:
        yield held


def _split(text: str) -> Iterator[tuple[int, int]]:
    at = 0
    for end in [*(found.end() for found in _BREAK.finditer(text)), len(text)]:
        while at < end:
            stop = min(end, at + MAX_PASSAGE_CHARACTERS)
            if stop - at > 40 or any(map(str.isalpha, text[at:stop])):
                yield at, stop
            at = stop


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


def read_passage(text: str, start: int, end: int, low: str, named: Iterable[str]) -> TextPassage:
    """The words, targets and form of one passage; `low` is it in lower case, `named` the classes of
    its phrases."""
    plain = text[start:end]
    classes = lexicon().classes
    words = _words(low)
    traits: set[str] = set()
    for word in classes.keys() & set(words):
        traits.update(classes[word])
    # Also where it is misspelt.
    if "nstruct" in low and any("nstruct" in word and len(word) > 8 for word in words):
        traits.add("instr")
    traits.update(named)
    opening = next((word for word in words if word not in _SKIPPED), "")
    opens = [name for name in classes.get(opening, ()) if name in _VERBS]
    if opens:
        traits.add("order")
        traits.update(f"opens {name}" for name in opens)
    elif any(name in _VERBS for word in _OPENING.findall(low) for name in classes.get(word, ())):
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
    traits.update(_acts_on(words, traits))
    marks = set(plain)
    traits.update(
        name
        for name, (needed, form) in _TARGETS.items()
        if not marks.isdisjoint(needed) and form.search(plain)
    )
    traits.update(forms_of(plain, marks))
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


def _words(low: str) -> list[str]:
    words = _WORD.findall(low)
    if "." not in low or (hidden := {found.end() for found in _HIDDEN.finditer(low)}) == set():
        return words
    classes = lexicon().classes
    return [
        f".{word}" if at in hidden and not _SPOKEN_TO.isdisjoint(classes.get(word, ())) else word
        for word, at in ((found.group(), found.start()) for found in _WORD.finditer(low))
    ]


def _acts_on(words: Sequence[str], traits: set[str]) -> Iterator[str]:
    """Which acts have which objects a few words behind them. In a long sentence both often stand
    somewhere; side by side they are an order."""
    if traits.isdisjoint(_VERBS) or traits.isdisjoint(_OBJECTS):
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
            if name in _VERBS and name in traits:
                acts[name] = at


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


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the whole text adds to each of its passages."""

    traits: frozenset[str]
    script: str
    count: int


def shape_of(text: str) -> frozenset[str]:
    """Size and form of a whole text."""
    size = len(text)
    shape = {name for name, form in _SHAPES.items() if form.search(text, 0, _SHAPE_CHARACTERS)}
    shape.add(next((name for least, name in _SIZES if size >= least), "text under 120"))
    return frozenset(shape)


def read_surroundings(passages: Sequence[TextPassage], shape: frozenset[str]) -> Surroundings:
    """What the passages of a text have in common; `shape` is that of the whole text."""
    count = len(passages)
    orders = sum("order" in each.traits for each in passages)
    talks = sum(bool({"attack_talk", "about"} & each.traits) for each in passages)
    asks = sum(bool({"you", "modal"} & each.traits) for each in passages)
    code = sum("code" in each.traits for each in passages)
    letters = sum("letter" in each.traits for each in passages)
    traits = {_count_trait(count), _order_trait(orders, count), *shape}
    if talks >= 3 and talks > 0.06 * count:
        traits.add("text about attacks")
    if asks > 0.3 * count and count > 4:
        traits.add("text to a reader")
    if code > 0.3 * count:
        traits.add("text of code")
    if letters >= 2:
        traits.add("text of a letter")
    scripts: dict[str, int] = {}
    for each in passages:
        scripts[each.script] = scripts.get(each.script, 0) + 1
    main = max(scripts, key=lambda name: scripts[name]) if scripts else "latin"
    return Surroundings(frozenset(traits), main, count)


def _count_trait(count: int) -> str:
    if count <= 1:
        return "text of one"
    return "text of few" if count <= 4 else "text of some" if count <= 15 else "text of many"


def _order_trait(orders: int, count: int) -> str:
    if orders <= 1:
        return "no other order"
    share = orders / count
    return "few orders" if share <= 0.15 else "some orders" if share <= 0.4 else "all orders"


_CARRIED = (
    "ai",
    "machine",
    "override",
    "about",
    "attack_talk",
    "example",
    "quiet",
    "send",
    "marker",
    "announce",
    "system",
    "order",
    "howto",
    "you",
    "ends colon",
    "role",
)


@dataclass(frozen=True, slots=True)
class PassageTraits:
    """The traits of one passage in its text, from which its features are made."""

    own: frozenset[str]
    paired: tuple[str, ...]
    """Of these, each pair is a feature, and each with a trait of the text or of a neighbour."""
    beside: tuple[str, ...]


def place(passages: Sequence[TextPassage], number: int, text: Surroundings) -> PassageTraits:
    """The traits of a passage where it stands."""
    passage = passages[number]
    traits = set(passage.traits)
    if passage.script != text.script:
        traits.add("other script")
    if number == text.count - 1 and text.count > 1:
        traits.add("last")
    if number == 0:
        traits.add("begins")
    near: set[str] = set()
    for other in (number - 2, number - 1, number + 1, number + 2):
        if 0 <= other < text.count:
            near |= passages[other].traits
    if number >= text.count - 3 and text.count > 4:
        traits.add("near end")
    paired = sorted(
        name for name in traits - _UNPAIRED if not name.startswith("opens") and " > " not in name
    )
    return PassageTraits(
        frozenset(traits), tuple(paired), tuple(name for name in _CARRIED if name in near)
    )


def trait_names(placed: PassageTraits, text: Surroundings) -> Iterator[str]:
    """The traits of a passage where it stands: its own, those of the text and of its neighbours."""
    yield from placed.own
    yield from text.traits
    yield from (f"beside {name}" for name in placed.beside)


def describe(placed: PassageTraits, text: Surroundings) -> Iterator[str]:
    """Names of the features of one passage for the linear model."""
    yield from trait_names(placed, text)
    yield from (f"{left} & {right}" for left, right in combinations(placed.paired, 2))
    yield from (f"{name} in {where}" for name in placed.paired for where in text.traits)
    yield from (f"{name} by {other}" for name in placed.paired for other in placed.beside)


def read(text: str, shape: frozenset[str] | None = None) -> tuple[list[TextPassage], Surroundings]:
    """The passages of a text, and what the text adds to each. A part of a text has the shape of the
    whole."""
    spans = list(split_passages(text))
    lows = [text[start:end].lower() for start, end in spans]
    passages = [
        read_passage(text, start, end, low, named)
        for (start, end), low, named in zip(spans, lows, phrase_classes(lows), strict=True)
    ]
    return passages, read_surroundings(passages, shape_of(text) if shape is None else shape)


def candidates(passages: Iterable[TextPassage]) -> list[int]:
    """Numbers of the passages that pass the gate."""
    return [number for number, each in enumerate(passages) if passes_gate(each)]

"""Undoes disguises: rot13, reversed text, leetspeak and spaced letters.

Any text can be read in these ways, so it is done only around places where something comes out:
one pass looks for the words of instructions, and for encoded runs, as they look in disguise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

from cellwall.guard.normalise.confusables import COMMON_WORDS
from cellwall.guard.normalise.encoded_runs import ROT13, Decoded
from cellwall.guard.normalise.offsets import DecodedPiece
from cellwall.parsing.budget import AttemptBudget
from cellwall.parsing.matching import Pattern

_REACH_CHARS = 600
"""Around a place where something comes out."""

# Words that instructions to a model are made of, in lower case and ASCII; none is part of ordinary
# words when turned by 13 letters or around. They decide where it is worth to look again, never what
# is found.
STEMS = (
    "ignore", "disregard", "instruction", "previous", "system prompt", "override",
    "forget everything", "forget all", "reveal", "password", "passwd", "credential", "secret",
    "api key", "api_key", "jailbreak", "developer mode", "you are now", "pretend", "bypass",
    "unrestricted", "restriction", "guidelines", "confidential", "assistant", "execute",
    "transfer", "curl http", "https://", "send the", "send all", "delete all", "print the",
    "prompt", "ignoriere", "anweisung", "vergiss", "instruccion", "instrucoes", "ignora",
    "oublie", "precedente"
)  # fmt: skip
_ROT13 = {code: ROT13[code] for code in range(128)}
_LEET = {
    "a": "4@",
    "b": "8",
    "e": "3",
    "g": "96",
    "i": "1!|",
    "l": "1|",
    "o": "0",
    "s": "5$",
    "t": "7+",
    "z": "2",
}
_UNLEET = str.maketrans("04@835$7+9!|1", "oaabesstt" + "giii")
_MIN_LEET = 5
_MIN_SPACED = 5
_MAX_SPELLED_CHARS = 4096

_MORE = "[0-9A-Za-z]{0,6}"
_DENSE = {
    # Runs of single encoded characters, as `inline` would find them out of disguise.
    "rot13": (
        f"(?:[%=][2-7][0-9N-Sn-s]{_MORE}){{4,}}",
        "(?:\\\\[kK][2-7][0-9N-Sn-s]){4,}",
        "(?:\\\\[hH]\\{?00[2-7][0-9N-Sn-s]\\}?){4,}",
        "(?:&#[kK][2-7][0-9N-Sn-s];){4,}",
    ),
    "reversed": (
        f"(?:[0-9A-Fa-f][2-7][%=]{_MORE}){{4,}}",
        "(?:[0-9A-Fa-f][2-7]x\\\\){4,}",
        "(?:\\}?[0-9A-Fa-f][2-7]00\\{?[uU]\\\\){4,}",
        "(?:;[0-9]{2,3}#&){4,}",
        "(?:;[0-9A-Fa-f][2-7][xX]#&){4,}",
    ),
    "both": (
        f"(?:[0-9N-Sn-s][2-7][%=]{_MORE}){{4,}}",
        "(?:[0-9N-Sn-s][2-7]k\\\\){4,}",
        "(?:[0-9N-Sn-s][2-7]00\\{?[hH]\\\\){4,}",
        "(?:;[0-9N-Sn-s][2-7][kK]#&){4,}",
    ),
}
_DIGITS = re.compile(rb"[0-9A-Fa-f]{2}")
_TURNED = re.compile(rb"[%=][2-7][N-Sn-s]")
_SPACED = "[A-Za-z0-9?@$!+/=](?:[ \\t\\n.*_|~,-]{1,4}[A-Za-z0-9?@$!+/=]){5,}"
_SPACES = b" \t\n.*_~,-"
"""Which of them no other disguise has in its second place; a bar is also a letter in leet."""


def rot13(text: str) -> str:
    """Apply ROT13, which is its own inverse."""
    return text.translate(_ROT13)


@cache
def _words() -> dict[str, str]:
    rot = [rot13(stem) for stem in STEMS]
    both = [stem[::-1] for stem in rot]
    leet = [stem for stem in STEMS if len(stem) >= _MIN_LEET and stem.isalpha()]
    return {
        "rot13": "|".join(map(re.escape, rot)),
        "reversed": "|".join(re.escape(stem[::-1]) for stem in STEMS),
        "both": "|".join(map(re.escape, both)),
        "leet": "|".join(form for stem in leet for form in _leet_forms(stem)),
    }


def _leet_forms(stem: str) -> Iterator[str]:
    """With at least one letter that is none; for each place where the first can be."""
    for at, letter in enumerate(stem):
        if letter in _LEET:
            rest = "".join(_leet_letter(later) for later in stem[at + 1 :])
            yield f"{stem[:at]}[{re.escape(_LEET[letter])}]{rest}"


def _leet_letter(letter: str) -> str:
    return f"[{letter}{re.escape(_LEET[letter])}]" if letter in _LEET else letter


@cache
def _gate() -> Pattern:
    dense = "|".join(pattern for patterns in _DENSE.values() for pattern in patterns)
    return Pattern(f"(?i:{'|'.join(_words().values())})|{dense}|{_SPACED}")


@cache
def _kinds() -> tuple[tuple[str, Pattern], ...]:
    """Patterns that identify the disguise at the few matches of the gate."""
    return tuple(
        (kind, Pattern(f"\\A(?:{'|'.join([f'(?i:{words})', *_DENSE.get(kind, ())])})\\z"))
        for kind, words in _words().items()
    )


def undo_disguises(
    plain: str, image: bytes, worn: frozenset[str], attempts: AttemptBudget
) -> Iterator[Decoded]:
    """Readings of the lines in which a disguise was seen; `worn` were undone just before."""
    places: dict[str, list[tuple[int, int]]] = {}
    for start, end in _gate().spans(image):
        if not attempts.spend():
            break
        found = image[start:end]
        if kind := _classify(found, image[end : end + 2]):
            places.setdefault(kind, []).append((start, end))
    for kind, spans in places.items():
        if kind not in worn:
            for piece in _READERS[kind](plain, spans):
                yield Decoded((kind,), piece)


def _classify(found: bytes, after: bytes) -> str | None:
    if found[1] in _SPACES:
        return "spaced"
    for kind, pattern in _kinds():
        if not pattern.matches(found):
            continue
        # What is encoded and not disguised looks nearly the same.
        if found[:1] in b"%=" and not _TURNED.search(found):
            return None
        if found[-1:] in b"%=" and _DIGITS.fullmatch(after):
            return None
        # Of two disguises one is undone now, and the other is found in what comes out.
        return "rot13" if kind == "both" else kind
    return "spaced"


def _windows(plain: str, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The surroundings of places, in order; those that overlap as one."""
    first = last = -1
    for start, end in spans:
        if first >= 0 and start - _REACH_CHARS > last:
            yield first, last
            first = -1
        if first < 0:
            first = max(0, start - _REACH_CHARS)
        last = min(len(plain), end + _REACH_CHARS)
    if first >= 0:
        yield first, last


def _read_turned(plain: str, spans: list[tuple[int, int]]) -> Iterator[DecodedPiece]:
    for start, end in _windows(plain, spans):
        yield DecodedPiece(rot13(plain[start:end]), start, end)


def _read_mirrored(plain: str, spans: list[tuple[int, int]]) -> Iterator[DecodedPiece]:
    for start, end in _windows(plain, spans):
        yield DecodedPiece(plain[start:end][::-1], start, end, is_mirrored=True)


_ONES = re.compile(r"(?<=[A-Za-z4@])1(?=1)|(?<=[A-Za-z4@]1)1")


def _read_leet(plain: str, spans: list[tuple[int, int]]) -> Iterator[DecodedPiece]:
    for start, end in _windows(plain, spans):
        text = _ONES.sub("l", plain[start:end]).translate(_UNLEET)
        yield DecodedPiece(text, start, end)


_SEPARATORS = re.compile(r"[ \t\n.*_|~,-]+")
_DROP = dict.fromkeys(map(ord, " \t\n.*_|~,-"))


class _GapTable(dict[int, str]):
    """For `translate`: each separator as a space, and each other character as a letter."""

    def __missing__(self, code: int) -> str:
        return "x"


_GAPS = _GapTable(dict.fromkeys(_DROP, " "))
_MAX_GAP = 4  # of `_SPACED`


def _read_spaced(plain: str, spans: list[tuple[int, int]]) -> Iterator[DecodedPiece]:
    for span in spans:
        start, end = _whole_letters(plain, *span)
        run = plain[start:end]
        closed = run.translate(_DROP)
        letters = len(closed) if closed.isalpha() else sum(map(str.isalpha, closed))
        # A row of a table has digits for the most part.
        if letters >= _MIN_SPACED and letters * 4 >= len(closed) * 3:
            yield DecodedPiece(_join_letters(run, closed), start, end)


def _whole_letters(plain: str, start: int, end: int) -> tuple[int, int]:
    """Without a first or last letter that belongs to a word outside."""
    if start and plain[start - 1].isalnum():
        start += 1
    if plain[end : end + 1].isalnum():
        end -= 1
    while start < end and _SEPARATORS.match(plain, start):
        start += 1
    while end > start and _SEPARATORS.match(plain, end - 1):
        end -= 1
    return start, end


def _join_letters(run: str, closed: str) -> str:
    """Letters put together again; wider gaps were spaces between words. `closed` has no gaps.

    By passes over the whole run: a run may be as long as the text, as in the output of `yes`.
    """
    gaps = run.translate(_GAPS)
    narrow = next((size for size in range(1, _MAX_GAP) if f"x{' ' * size}x" in gaps), _MAX_GAP)
    if " " * (narrow + 1) in gaps:
        # No control character is in a run but those that separate.
        words = re.sub(rf"[ \t\n.*_|~,-]{{{narrow + 1},}}", "\0", run)
        return words.translate(_DROP).replace("\0", " ")
    return _split_words(closed) if len(closed) <= _MAX_SPELLED_CHARS else closed


@cache
def _known() -> re.Pattern[str]:
    words = sorted((word for word in COMMON_WORDS if len(word) > 1), key=len, reverse=True)
    return re.compile("|".join(words), re.IGNORECASE)


def _split_words(text: str) -> str:
    """With spaces between the words of it that are known."""
    return " ".join(_known().sub(lambda word: f" {word[0]} ", text).split())


_READERS: dict[str, Callable[[str, list[tuple[int, int]]], Iterator[DecodedPiece]]] = {
    "rot13": _read_turned,
    "reversed": _read_mirrored,
    "leet": _read_leet,
    "spaced": _read_spaced,
}

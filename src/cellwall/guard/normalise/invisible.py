"""Text hidden in invisible characters: decodes it, and reports that it is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import islice, permutations

from cellwall.core.outcomes import Severity
from cellwall.guard.normalise.characters import (
    BIDI_CONTROLS,
    MAX_MARKS,
    SELECTORS,
    SOFT_HYPHEN,
    TAGS,
    ZERO_WIDTH,
    flood,
    places,
    re2_class,
    re_class,
)
from cellwall.guard.normalise.encoded_runs import Decoded, decode_readable
from cellwall.guard.normalise.offsets import DecodedPiece
from cellwall.guard.report import Hit
from cellwall.parsing.matching import Pattern

CATEGORY = "hidden"
_MAX_HITS = 64
_MAX_PLACES = 20_000
"""Of one kind that are looked at; beyond them there is nothing new to say."""
_NEAR_CHARS = 24
_MIN_RUN = 4
_MIN_BITS = 24
_MIN_INSIDE = 3

_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]+")
_FROM_RIGHT = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")

# Each trick has a gate in front of it, which is many times quicker than the look behind it, and is
# itself asked only where the letters are there at all: most texts with an odd character in them
# have one kind of it.
_ZERO_WIDTH = f"[{re2_class(ZERO_WIDTH)}\u200e\u200f\u00ad]"
_SELECTOR = f"[{re2_class(SELECTORS)}]"
_INSIDE = f"[{re2_class(ZERO_WIDTH)}{re2_class(SOFT_HYPHEN)}]"
_GATES = {
    "tags": (f"[{re2_class(TAGS)}]", f"[{re2_class(TAGS)}]"),
    "selectors": (_SELECTOR, f"{_SELECTOR}{{2}}|[ -~]{_SELECTOR}"),
    "bidi": (f"[{re2_class(BIDI_CONTROLS)}]", f"[{re2_class(BIDI_CONTROLS)}]"),
    "zero-width": (_ZERO_WIDTH, f"{_ZERO_WIDTH}{{{_MIN_RUN}}}"),
    "inside": (_INSIDE, f"[A-Za-z]{_INSIDE}"),
    "marks": ("\\pM", f"\\pM{{{MAX_MARKS + 2}}}"),
}
_OPENING = {kind: (Pattern(one), Pattern(some)) for kind, (one, some) in _GATES.items()}


def kinds_in(text: str, letters: str) -> frozenset[str]:
    """Kinds of tricks that may be in the text, without the ordinary uses by emoji and scripts.
    `letters`: its characters that are not plain ASCII."""
    known = letters.encode()
    maybe = [(kind, gate) for kind, (letter, gate) in _OPENING.items() if letter.matches(known)]
    if not maybe:
        return frozenset()
    data = text.encode(errors="replace")
    return frozenset(kind for kind, gate in maybe if gate.matches(data))


@cache
def _tags() -> re.Pattern[str]:
    # Flags of countries' parts are written so, after a black flag.
    return re.compile(
        "\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f"
        f"|(?P<run>[{re_class(TAGS)}]+)"
    )


@cache
def _tag() -> re.Pattern[str]:
    return re.compile(f"[{re_class(TAGS)}]")


@cache
def _selectors() -> re.Pattern[str]:
    return re.compile(f"(?<=[\\x00-\\x7f])[{re_class(SELECTORS)}]+|[{re_class(SELECTORS)}]{{2,}}")


@cache
def _zero_width_runs() -> re.Pattern[str]:
    return re.compile(f"[{re_class(ZERO_WIDTH)}\u200e\u200f\u00ad]{{{_MIN_RUN},}}")


_INVISIBLE = f"[{re2_class(ZERO_WIDTH)}]+|\u00ad"
_BROKEN_WORDS = Pattern(f"[A-Za-z](?:(?:{_INVISIBLE})[A-Za-z])+")


@cache
def _invisible() -> re.Pattern[str]:
    return re.compile(f"[{re_class(ZERO_WIDTH)}]+|\u00ad")


def _inside_words(text: str) -> Iterator[tuple[int, int]]:
    """Where invisible ones stand between two letters."""
    for start, end in places(_BROKEN_WORDS, text.encode(errors="replace")):
        for match in _invisible().finditer(text, start, end):
            yield match.span()


def hidden_messages(text: str, kinds: frozenset[str]) -> Iterator[Decoded]:
    """Texts decoded from invisible characters."""
    if "tags" in kinds:
        yield from _tag_messages(text)
    if "selectors" in kinds:
        yield from _selector_messages(text)
    if "zero-width" in kinds:
        yield from _bit_messages(text)


def _tag_messages(text: str) -> Iterator[Decoded]:
    runs = [
        match.span("run") for match in islice(_tags().finditer(text), _MAX_PLACES) if match["run"]
    ]
    for _, (start, end) in _clusters(runs):
        decoded = "".join(map(_tag_letter, _tag().findall(text, start, end)))
        if decoded.strip():
            yield Decoded(("tags",), DecodedPiece(decoded, start, end))


def _tag_letter(tag: str) -> str:
    letter = chr(ord(tag) & 0x7F)
    return letter if letter.isprintable() else " "


def _selector_messages(text: str) -> Iterator[Decoded]:
    """A variation selector for each byte, in a run or one behind each letter."""
    runs = _selector_runs(text)
    if not runs:
        return
    for start, end in runs:
        decoded = decode_readable(_selected(text[start:end]))
        if decoded is not None:
            yield Decoded(("variation-selectors",), DecodedPiece(decoded, start, end))
    scattered = [(start, end) for start, end in runs if end - start < _MIN_RUN]
    decoded = decode_readable(_selected("".join(text[start:end] for start, end in scattered)))
    if decoded is not None:
        yield Decoded(
            ("variation-selectors",), DecodedPiece(decoded, scattered[0][0], scattered[-1][1])
        )


def _selector_runs(text: str) -> list[tuple[int, int]]:
    return [
        match.span()
        for match in islice(_selectors().finditer(text), _MAX_PLACES)
        if match[0] not in ("\ufe0e", "\ufe0f")
    ]


def _selected(run: str) -> bytes:
    return bytes(code - 0xFE00 if code < 0xFE10 else code - 0xE0100 + 16 for code in map(ord, run))


def _bit_messages(text: str) -> Iterator[Decoded]:
    for match in _zero_width_runs().finditer(text):
        run = match[0]
        if len(run) >= _MIN_BITS and (decoded := _from_bits(run)) is not None:
            yield Decoded(("zero-width",), DecodedPiece(decoded, match.start(), match.end()))


def _from_bits(run: str) -> str | None:
    """Two of the signs are the bits of bytes; a third, if any, stands between the bytes."""
    signs = sorted(set(run))
    if len(signs) not in (2, 3):
        return None
    for zero, one in permutations(signs, 2):
        rest = [sign for sign in signs if sign not in (zero, one)]
        bits = run.translate({ord(zero): "0", ord(one): "1", **{ord(sign): " " for sign in rest}})
        words = bits.split() if rest else [bits[at : at + 8] for at in range(0, len(bits) - 7, 8)]
        if all(len(word) <= 8 for word in words):
            decoded = decode_readable(bytes(int(word, 2) for word in words))
            if decoded is not None:
                return decoded
    return None


def invisible_hits(text: str, kinds: frozenset[str]) -> Iterator[Hit]:
    """Hits for invisible characters, with positions in `text`; a few of each kind."""
    for kind, find in _HITS.items():
        if kind in kinds:
            yield from islice(find(text), _MAX_HITS)


def invisible_hit(
    rule: str, severity: Severity, message: str, span: tuple[int, int], score: float
) -> Hit:
    """A hit of the category `hidden`."""
    return Hit(
        category=CATEGORY,
        severity=severity,
        rule=f"hidden.{rule}",
        message=message,
        start=span[0],
        end=span[1],
        score=score,
    )


def _tag_hits(text: str) -> Iterator[Hit]:
    runs = [
        match.span("run") for match in islice(_tags().finditer(text), _MAX_PLACES) if match["run"]
    ]
    for count, span in _clusters(runs):
        if count >= _MIN_RUN:
            yield invisible_hit("tags", "high", "text in invisible tag characters", span, 0.8)
        else:
            yield invisible_hit("tags", "low", "invisible tag characters", span, 0.3)


def _selector_hits(text: str) -> Iterator[Hit]:
    runs = _selector_runs(text)
    for count, span in _clusters(runs):
        if count >= _MIN_RUN:
            message = "bytes in a run of variation selectors"
            yield invisible_hit("variation-selectors", "high", message, span, 0.7)


def _bidi_hits(text: str) -> Iterator[Hit]:
    """Controls that change the order of what is shown. Isolates and embeddings belong into texts
    in scripts that are written from the right, overrides hardly anywhere."""
    is_mixed = _FROM_RIGHT.search(text) is not None
    for match in _BIDI.finditer(text):
        is_override = any(one in match[0] for one in "\u202d\u202e")
        if is_override:
            message = "letters shown in another order than they are written (bidi override)"
            yield invisible_hit("bidi", "medium", message, match.span(), 0.5)
        elif not is_mixed:
            yield invisible_hit(
                "bidi", "low", "bidi controls in a text without need", match.span(), 0.2
            )


def _zero_width_hits(text: str) -> Iterator[Hit]:
    for match in _zero_width_runs().finditer(text):
        yield invisible_hit(
            "zero-width", "medium", "a run of invisible characters", match.span(), 0.5
        )


def _inside_hits(text: str) -> Iterator[Hit]:
    for count, span in _clusters(list(islice(_inside_words(text), _MAX_PLACES))):
        if count >= _MIN_INSIDE and not _are_hyphens(text, span):
            message = "words with invisible characters between their letters"
            yield invisible_hit("zero-width", "medium", message, span, 0.5)
        elif not _are_hyphens(text, span):
            message = "an invisible character inside of a word"
            yield invisible_hit("zero-width", "low", message, span, 0.2)


def _are_hyphens(text: str, span: tuple[int, int]) -> bool:
    """Soft hyphens, as typesetting puts them: every few letters, and never letter by letter."""
    part = text[max(0, span[0] - 1) : span[1] + 1]
    hidden = [part[start:end] for start, end in _inside_words(part)]
    return set(hidden) == {"\u00ad"} and span[1] - span[0] >= 3 * len(hidden) - 2


def _flood_hits(text: str) -> Iterator[Hit]:
    floods = islice(flood().finditer(text), _MAX_PLACES)
    for count, span in _clusters([match.span() for match in floods]):
        message = "letters under a pile of marks"
        yield invisible_hit(
            "marks", "medium" if count > 2 * _MIN_RUN else "low", message, span, 0.4
        )


_HITS = {
    "tags": _tag_hits,
    "selectors": _selector_hits,
    "bidi": _bidi_hits,
    "zero-width": _zero_width_hits,
    "inside": _inside_hits,
    "marks": _flood_hits,
}


def _clusters(spans: list[tuple[int, int]]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Merge spans near each other; yields the number of characters and the span."""
    count = start = end = 0
    for first, last in spans:
        if count and first - end > _NEAR_CHARS:
            yield count, (start, end)
            count = 0
        if not count:
            start = first
        count += last - first
        end = last
    if count:
        yield count, (start, end)

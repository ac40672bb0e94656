"""Removes invisible characters and normalises to NFKC, with a map to the original."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

from cellwall.guard.normalise.characters import (
    HAS_ODD_MARKS,
    HAS_STRAY_MARKS,
    IS_FLOODED,
    JOINERS,
    MARKS,
    UNSTABLE,
    as_image,
    cased_of,
    erasing,
    flood,
    in_lower_case,
    invisible,
    is_mark,
    places,
    stray_marks,
    those,
    uncommon,
    unstable,
    without_surrogates,
)
from cellwall.guard.normalise.confusables import fold_confusables
from cellwall.guard.normalise.excerpt import take_excerpt
from cellwall.guard.normalise.offsets import IDENTITY, Edit, EditedMap, OffsetMap, without
from cellwall.parsing.budget import AttemptBudget
from cellwall.parsing.matching import Pattern

_USUAL = "\u00a0\u3000\uff01\uff08\uff09\uff0c\uff0e\uff1a\uff1b\uff1f\u2011\u00b2\u00b5"
_USUAL_LONGER = "\u2026\u2122\u00bd\ufb01\ufb02\u0e33"
_SIMPLE = tuple((one, unicodedata.normalize("NFKC", one)) for one in _USUAL)
"""Ordinary in Chinese, in Thai and in typeset text; to replace them first is far faster."""
_LONGER = tuple((one, unicodedata.normalize("NFKC", one)) for one in _USUAL_LONGER)
_IS_LONGER = re.compile(f"[{_USUAL_LONGER}]")
_DONE = dict.fromkeys(map(ord, _USUAL + _USUAL_LONGER))

_SWELLING = (
    "[\u2057\u2152\u2167\u2177\u247d-\u2487\u2a0c\u321d\u321e"
    "\u3300-\u3357\u337f-\u33df\ufdf2-\ufdfc]"
)
"""Become up to 18 characters each; a text full of them would be a bomb."""
_SWELLS = Pattern(_SWELLING)
_MAX_SWELLING = 10_000
_MAX_PARTS = 20_000
_FEW_PARTS = 500
"""Looked at before it is asked whether all of a text is normal already, which takes longer."""
_FEW_LETTERS = 8
"""Taken out one after the other; more of them by a pattern, which takes as long as so many."""

_FINE_CHARS = 1 << 16
"""A changed part up to this length is gone through unit by unit to find a place in it."""


class Cleaned(NamedTuple):
    """The cleaned text, its offset map, and the words written in confusables."""

    plain: str
    lower: bytes
    """`plain` in lower case, character by character, in UTF-8."""
    image: bytes
    """`plain` with a byte for each character."""
    track: OffsetMap
    masked: tuple[tuple[int, int], ...] = ()
    is_odd: bool = False
    """Whether something invisible was in it."""
    cased: str = ""
    """Letters beyond ASCII that are left and have a lower case."""
    letters: str = ""
    """Each once that is in the text as it was and not in plain ASCII."""
    excerpt: str = ""
    """All of the text as it was that has such letters, with what stands around them."""
    excerpt_track: OffsetMap = IDENTITY


def clean_text(text: str, parent: OffsetMap, attempts: AttemptBudget) -> Cleaned:
    """`text`, a part of the original that `parent` leads to, as it is read."""
    try:
        data = text.encode()
    except UnicodeEncodeError:
        text = without_surrogates(text)
        data = text.encode()
    letters = uncommon(data)
    if not letters:
        return Cleaned(text, data.lower(), data, parent)
    # Of a flood that is counted nothing may be left out.
    part = None if re.search(_SWELLING, letters) else take_excerpt(text, data, parent)
    if part is None:
        found = _clean_part(text, data, letters, parent, attempts)
        plain = found.plain
        lower = in_lower_case(plain, found.cased)
        return found._replace(lower=lower, image=as_image(plain))
    found = _clean_part(part.text, part.text.encode(), letters, part.track, attempts)
    whole = part.restore(found.plain, found.track, found.masked, found.cased)
    return found._replace(
        plain=whole.plain,
        lower=whole.lower,
        image=whole.image,
        track=whole.track,
        masked=whole.words,
    )


def _clean_part(
    text: str, data: bytes, letters: str, parent: OffsetMap, attempts: AttemptBudget
) -> Cleaned:
    """Leaves `lower` and `image` to the caller: they may belong to a longer text."""
    original = Cleaned(text, b"", b"", parent, letters=letters, excerpt=text, excerpt_track=parent)
    is_ascii = text.isascii()
    hidden = those(invisible(), letters)
    if hidden:
        text, parent = _without_invisible(text, hidden, parent)
        letters = letters.translate(dict.fromkeys(map(ord, hidden)))
    if is_ascii:
        return Cleaned(text, b"", b"", parent)
    has_marks = MARKS.matches(letters.encode())
    is_odd = bool(hidden) or (has_marks and HAS_ODD_MARKS.matches(data))
    if has_marks and is_odd and IS_FLOODED.matches(text.encode()):
        text, parent = _remove_matches(text, flood(), parent)
    text, parent = _normalise(text, letters, parent)
    # Some are two characters afterwards, of which one may be a mark or of another script.
    letters += unicodedata.normalize("NFKC", "\n".join(letters))
    has_marks = MARKS.matches(letters.encode())
    if is_odd and has_marks and HAS_STRAY_MARKS.matches(text.encode()):
        text, parent = _remove_matches(text, stray_marks(), parent)
    plain, masked = fold_confusables(text, letters, attempts)
    return original._replace(
        plain=plain,
        track=parent,
        masked=masked,
        is_odd=is_odd,
        # A mark can make a letter of another one that is not among these, and so can a mask.
        cased=cased_of(uncommon(plain.encode()) if has_marks or plain is not text else letters),
    )


def _without_invisible(text: str, hidden: str, parent: OffsetMap) -> tuple[str, OffsetMap]:
    """Remove these characters, and the text that overstrikes and sequences erase."""
    for pattern in erasing(text):
        # What erases a letter erases the one that is seen.
        text, parent = _without(text, JOINERS, parent)
        text, parent = _remove_matches(text, pattern, parent)
    return _without(text, hidden, parent)


def _without(text: str, letters: str, parent: OffsetMap) -> tuple[str, OffsetMap]:
    """Remove these invisible characters."""
    if len(letters) > _FEW_LETTERS:
        return _remove_matches(text, invisible(), parent)
    left = text
    for letter in letters:
        left = left.replace(letter, "")
    if len(left) == len(text):
        return text, parent
    return left, EditedMap(lambda: without(sorted(_each(text, letters))), parent)


def _each(text: str, letters: str) -> Iterator[tuple[int, int]]:
    """Where these letters stand: one search for each is faster than a pattern of all."""
    for letter in letters:
        at = text.find(letter)
        while at >= 0:
            yield at, at + 1
            at = text.find(letter, at + 1)


def _remove_matches(
    text: str, pattern: re.Pattern[str], parent: OffsetMap
) -> tuple[str, OffsetMap]:
    left = pattern.sub("", text)
    if len(left) == len(text):
        return text, parent
    return left, EditedMap(partial(_removal_edits, text, pattern), parent)


def _removal_edits(text: str, pattern: re.Pattern[str]) -> list[Edit]:
    return without(match.span() for match in pattern.finditer(text))


def _normalise(text: str, letters: str, parent: OffsetMap) -> tuple[str, OffsetMap]:
    changing = those(unstable(), letters)
    for character, plain in _SIMPLE:
        if character in changing:
            text = text.replace(character, plain)
    longer = [(character, plain) for character, plain in _LONGER if character in changing]
    if longer:
        text, parent = _lengthen(text, longer, parent)
    if not changing.translate(_DONE):
        return text, parent
    if len(text) > _MAX_SWELLING and re.search(_SWELLING, changing):
        swelling = islice(_SWELLS.spans(text.encode()), _MAX_SWELLING)
        if sum(1 for _ in swelling) == _MAX_SWELLING:
            text = re.sub(_SWELLING, " ", text)
    parts = list(islice(_parts(text, places(UNSTABLE, text.encode())), _FEW_PARTS))
    if len(parts) == _FEW_PARTS:
        if unicodedata.is_normalized("NFKC", text):
            return text, parent
        parts = list(islice(_all_parts(text), _MAX_PARTS))
    if len(parts) == _MAX_PARTS:
        # So many that it is faster to do it at once, and to ask for the places when one is needed.
        normal = unicodedata.normalize("NFKC", text)
        return normal, EditedMap(
            lambda: _edits(_all_parts(text)), parent, partial(_refine_edit, text)
        )
    if all(text[start:end] == normal for start, end, normal in parts):
        return text, parent
    pieces: list[str] = []
    done = 0
    for start, end, normal in parts:
        pieces += text[done:start], normal
        done = end
    pieces.append(text[done:])
    edits = _edits(parts)
    return "".join(pieces), EditedMap(lambda: edits, parent, partial(_refine_edit, text))


def _all_parts(text: str) -> Iterator[tuple[int, int, str]]:
    return _parts(text, (match.span() for match in unstable().finditer(text)))


def _parts(text: str, spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int, str]]:
    """What normalising may change, each with the letter before it, which it may join."""
    done = 0
    for first, end in spans:
        start = max(done, first - 1)
        yield start, end, unicodedata.normalize("NFKC", text[start:end])
        done = end


def _edits(parts: Iterable[tuple[int, int, str]]) -> list[Edit]:
    edits: list[Edit] = []
    grown = 0
    for start, end, normal in parts:
        edits.append(Edit(start, end, start + grown, start + grown + len(normal)))
        grown += len(normal) - (end - start)
    return edits


def _lengthen(
    text: str, longer: Iterable[tuple[str, str]], parent: OffsetMap
) -> tuple[str, OffsetMap]:
    whole = text
    for character, plain in longer:
        whole = whole.replace(character, plain)
    return whole, EditedMap(partial(_lengthening_edits, text), parent)


def _lengthening_edits(text: str) -> list[Edit]:
    sizes = {one: len(plain) for one, plain in _LONGER}
    edits: list[Edit] = []
    grown = 0
    for match in _IS_LONGER.finditer(text):
        start, end = match.span()
        size = sizes[match[0]]
        edits.append(Edit(start, end, start + grown, start + grown + size))
        grown += size - 1
    return edits


def _refine_edit(text: str, edit: Edit) -> list[Edit]:
    """The same edit letter by letter, where it is not longer than anybody writes."""
    part = text[edit.source_start : edit.source_end]
    if len(part) > _FINE_CHARS:
        return [edit]
    finer: list[Edit] = []
    size = edit.start
    for start, end in _units(part):
        length = len(unicodedata.normalize("NFKC", part[start:end]))
        at = edit.source_start
        finer.append(Edit(at + start, at + end, size, size + length))
        size += length
    return finer if size == edit.end else [edit]


def _units(part: str) -> Iterator[tuple[int, int]]:
    start = 0
    for at in range(1, len(part)):
        if not is_mark(part[at]):
            yield start, at
            start = at
    if part:
        yield start, len(part)

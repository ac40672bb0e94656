"""Words written in letters of other scripts that look like Latin ones.

Only a word that mixes scripts, or that as a whole reads like a Latin one where Latin is written,
is folded; the words of Russian or Greek stay what they are.
"""

# ruff: noqa: PLC0415  # late imports: few texts need the table of confusable characters
from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import pairwise

from cellwall.guard.normalise.characters import Ranges, re2_class, re_class
from cellwall.parsing.budget import AttemptBudget
from cellwall.parsing.matching import Pattern

_COMMON = """
a about above access account act action after all also always and answer any api are as ask
assistant at bank base be before begin bypass can change code command confidential content copy
credential credentials data database delete developer disregard do document email end every
everything exact exec execute file files follow following for forget from full get give guideline
guidelines hack has have hello hidden how i if ignore important in inject instead instruction
instructions is it jailbreak just keep key keys know list login mail me message mode model must my
never new no not now obey of on only open or other out output override paste pay paypal please
policy previous print prior private prompt prompts provide read remove repeat reply request reset
restriction restrictions reveal role root rule rules run safe safety say secret secrets send share
show stop system task tell text than that the their them then there these they this those to token
tokens tool trust unrestricted update upload url use user using via was we what when where which
who why will with without word words work write you your
"""
COMMON_WORDS = frozenset(_COMMON.split())
"""Words that are worth a look when they turn out to be written in another script."""
_SCRIPTS = (
    "Greek Cyrillic Armenian Cherokee Lisu Coptic Deseret Canadian_Aboriginal Tifinagh Osage "
    "Warang_Citi Carian Lycian Old_Italic Elbasan Runic Georgian Gothic"
)
_OTHER = "".join(f"\\p{{{name}}}" for name in _SCRIPTS.split())
_STYLED: Ranges = (
    # Small capitals and phonetic letters that no language is written in.
    *((0x251, 0x251), (0x261, 0x262), (0x26A, 0x26A), (0x274, 0x274), (0x280, 0x280)),
    *((0x28F, 0x28F), (0x299, 0x299), (0x29C, 0x29C), (0x29F, 0x29F), (0x1D00, 0x1D2B)),
    *((0xA730, 0xA731),),
    # In circles, boxes and flags.
    *((0x1F150, 0x1F169), (0x1F170, 0x1F189), (0x1F1E6, 0x1F1FF)),
)
"""Latin letters for show; each stands for itself, in whatever word."""
_TWINS = (
    # Cyrillic, small and large; Greek, small and large.
    "\u0430\u0441\u0435\u043e\u0440\u0445\u0443\u0456\u0455\u0458\u04bb\u0501\u051b\u051d\u04cf"
    "\u0410\u0412\u0415\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0423\u0425\u0406\u0405\u0408"
    "\u03bf\u03b1\u03c1\u03bd\u03b9\u03c5"
    "\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5\u03a7"
)
"""Letters of which a whole word can look Latin, in the two scripts that are used for that."""

_SUSPECTS = Pattern(
    f"[{re2_class(_STYLED)}]|[A-Za-z][{_OTHER}]|[{_OTHER}][A-Za-z]"
    f"|\\p{{Cyrillic}}[\\p{{Greek}}\\p{{Armenian}}]|[\\p{{Greek}}\\p{{Armenian}}]\\p{{Cyrillic}}"
    "|[\\p{Cherokee}\\p{Lisu}\\p{Deseret}\\p{Coptic}\\p{Tifinagh}\\p{Osage}\\p{Warang_Citi}]{3}"
    f"|(?:^|[^\\pL])[{_TWINS}]{{3,32}}(?:[^\\pL]|$)"
)
_MASKS = Pattern(f"[{re2_class(_STYLED)}{_OTHER}]")
"""A letter of which one at least stands in every suspect."""
_SHOWN = re.compile(f"[{re_class(_STYLED)}]")
_WORD = re.compile(r"[^\W_]+")
_MAX_WORD_CHARS = 64

_ALSO = str.maketrans(
    # Used so in attacks, though Unicode's table has them not: Cyrillic, Greek, Latin with a stroke.
    "\u0432\u043a\u043c\u043d\u0442\u044a\u0454\u025b"
    "\u03b5\u03b7\u03ba\u03c4\u03c9\u03c7\u03b2"
    "\u0142\u0111\u0127\u0167\u00f8\u0237",
    "bkmhtbeeenktwxbldhtoj",
)
_NAMED = re.compile(
    "(?:LATIN LETTER SMALL CAPITAL|NEGATIVE CIRCLED LATIN CAPITAL LETTER"
    "|NEGATIVE SQUARED LATIN CAPITAL LETTER|REGIONAL INDICATOR SYMBOL LETTER) ([A-Z])"
)


def fold_confusables(
    text: str, letters: str, attempts: AttemptBudget
) -> tuple[str, tuple[tuple[int, int], ...]]:
    """The text with confusable words in ASCII, same length, and the spans of mixed-script words
    that read as Latin. `letters`: at least all non-ASCII characters of the text."""
    if not _MASKS.matches(letters.encode()):
        return text, ()
    data = text.encode()
    if not _SUSPECTS.matches(data):
        return text, ()
    if _SHOWN.search(letters):
        text = _SHOWN.sub(lambda letter: _ascii_twin(letter[0]), text)
        data = text.encode()
    parts: list[str] = []
    masked: list[tuple[int, int]] = []
    done = 0
    for start, end in _suspect_words(text, data, attempts):
        word = text[start:end]
        plain = _latin_reading(word, text, start, end)
        if plain is None:
            continue
        if plain.isascii() and _is_mask(word, plain):
            masked.append((start, end))
        parts += text[done:start], plain
        done = end
    parts.append(text[done:])
    return "".join(parts), tuple(masked)


def _suspect_words(text: str, data: bytes, attempts: AttemptBudget) -> Iterator[tuple[int, int]]:
    at_byte = at = done = 0
    for first_byte, last_byte in _SUSPECTS.spans(data):
        if not attempts.spend():
            return
        at += len(data[at_byte:first_byte].decode())
        at_byte = first_byte
        size = len(data[first_byte:last_byte].decode())
        if at + size <= done:
            continue
        start, end = at, at + size
        while start > done and at - start < _MAX_WORD_CHARS and text[start - 1].isalnum():
            start -= 1
        limit = end + _MAX_WORD_CHARS
        while end < len(text) and end < limit and text[end].isalnum():
            end += 1
        for match in _WORD.finditer(text, max(start, done), end):
            yield match.span()
        done = end


def _latin_reading(word: str, text: str, start: int, end: int) -> str | None:
    """The word in Latin letters, or None if it is genuine."""
    plain, is_sure = _guess_latin(word)
    if plain is None or is_sure:
        return plain
    return plain if _stands_in_latin(text, start, end) else None


@lru_cache(maxsize=4096)
def _guess_latin(word: str) -> tuple[str | None, bool]:
    """The word in Latin letters, if it can be one, and whether that needs no Latin around it."""
    if word.isascii():
        return None, False
    scripts = {_script(character) for character in word} - {""}
    if scripts & {"CJK", "HIRAGANA", "KATAKANA", "HANGUL"}:
        return None, False
    plain = "".join(
        character if character < "\x80" else _ascii_twin(character) for character in word
    )
    if len(scripts) > 1:
        return plain, True
    if not plain.isascii() or len(plain) < 3:
        return None, False
    return plain, len(plain) > 3 and plain.lower() in COMMON_WORDS


def _stands_in_latin(text: str, start: int, end: int) -> bool:
    """Whether the words before and after are written in plain letters."""
    before, after = text[max(0, start - 24) : start], text[end : end + 24]
    if not before.isascii() or not after.isascii():
        return False
    return bool(_LATIN_BEFORE.search(before) and _LATIN_AFTER.match(after))


_LATIN_BEFORE = re.compile(r"[A-Za-z]{2}\W{1,3}\Z")
_LATIN_AFTER = re.compile(r"\W{1,3}[A-Za-z]{2}")


def _is_mask(word: str, plain: str) -> bool:
    """Whether the mix is implausible: not a unit, a formula or a foreign word with an ending."""
    if len(word) < 4:
        return False
    scripts = [script for script in map(_script, word) if script]
    changes = sum(one != other for one, other in pairwise(scripts))
    return changes > 1 or (changes == 1 and plain.lower() in COMMON_WORDS)


@cache
def _script(character: str) -> str:
    if character < "\x80":
        return "LATIN" if character.isalpha() else ""
    if not character.isalpha():
        return ""
    return unicodedata.name(character, "").split(" ", 1)[0]


@cache
def _ascii_twin(character: str) -> str:
    """The ASCII letter that the character looks like, or the character itself."""
    if match := _NAMED.fullmatch(unicodedata.name(character, "")):
        letter = match[1]
        return letter.lower() if "SMALL" in match[0] else letter
    # Read when a first masked word is met: its table takes 50 ms to load.
    from confusable_homoglyphs.confusables import confusables_data

    for other in confusables_data.get(character, ()):
        letter = other["c"]
        if len(letter) == 1 and letter < "\x80" and letter.isalpha():
            # The table knows shapes only: a large letter that looks like "l" is an "I".
            return "I" if letter == "l" and character.isupper() else letter
    return character.translate(_ALSO)

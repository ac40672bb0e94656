"""Package names in one spelling, and the popular name that a name imitates (PKG-1).

The analysis needs no network and no feed: it compares a name with the ranked names of its registry.
A ranked name is not flagged here. Every other name is compared by several keys that a squatter's
trick leaves equal (separators removed, digits read as letters, letters sorted, …), and by one edit
on the lookalike key. How popular the target must be depends on the length of the name and on how
typical the edit is of a typing error: short names are all one edit apart from one another.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import chain

from cellwall.core.errors import BadInput

MAX_NAME_CHARACTERS = 214  # npm's own limit; PyPI's longest name is shorter
_UNRANKED = 10**9


class Ecosystem(Enum):
    """A registry that packages come from."""

    PYPI = "pypi"
    NPM = "npm"


class NameTrick(Enum):
    """How a name differs from the name that it resembles."""

    REFERENCE = "reference"  # a product or module of that name has no such package
    PLACEHOLDER = "placeholder"
    SEPARATOR = "separator"
    LOOKALIKE = "lookalike"
    WORD_ORDER = "word-order"
    ANAGRAM = "anagram"
    REPLACEMENT = "replacement"
    TRANSPOSITION = "transposition"
    ADDITION = "addition"
    OMISSION = "omission"
    VOWELS = "vowels"
    VERSION = "version"
    AFFIX = "affix"
    COMBINATION = "combination"
    SCOPE = "scope"
    ECOSYSTEM = "ecosystem"


@dataclass(frozen=True, slots=True)
class Resemblance:
    """One popular name that a name imitates. `rank` counts from 1; references have none."""

    trick: NameTrick
    target: str
    rank: int | None


_PYPI_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?", re.IGNORECASE | re.ASCII)
_NPM_NAME = re.compile(
    r"(?:@[a-z0-9~][a-z0-9._~-]*/)?[a-z0-9~][a-z0-9._~-]*", re.IGNORECASE | re.ASCII
)


def canonical_name(ecosystem: Ecosystem, name: str) -> str:
    """The registry's own spelling: PEP 503 for PyPI, lower case for npm.

    npm kept the capital letters of names from before 2014; none of those is popular, and a name
    that differs from another by case alone is a squatter's trick, so the two count as one name.
    """
    pattern = _PYPI_NAME if ecosystem is Ecosystem.PYPI else _NPM_NAME
    if len(name) > MAX_NAME_CHARACTERS or not pattern.fullmatch(name):
        raise BadInput(
            f"not a package name of {ecosystem.value}: {_printable(name)}",
            hint="A name has ASCII letters, digits, '-', '_' and '.'; on npm also a @scope/.",
            code="CW-BAD-PACKAGE",
        )
    lowered = name.lower()
    return re.sub(r"[-_.]+", "-", lowered) if ecosystem is Ecosystem.PYPI else lowered


def _printable(name: str) -> str:
    shown = ascii(name)
    return shown if len(shown) <= 80 else f"{shown[:80]}… ({len(name)} characters)"


# A digit for the letter that it resembles, as in `r3quests` and `1odash`.
_DIGIT_LETTERS = str.maketrans("0134578", "oleastb")
_SEPARATORS = str.maketrans("_./@", "----")
_TRAILING_VERSION = re.compile(r"(?<=[a-z]{3})v?\d+$")
_REPEATED = re.compile(r"(.)\1+")
_VOWELS = frozenset("aeiou")
_WITHOUT_VOWELS = dict.fromkeys(map(ord, "aeiouy"))
_PLACEHOLDER = re.compile(
    r"(?:my|your|our|some|the|a|example|sample|test|foo)-?(?:python-?|node-?)?"
    r"(?:package|module|lib|library|project|app|name|dependency|dep)s?(?:-?name)?\d*"
)


def _words(name: str) -> list[str]:
    return [word for word in name.translate(_SEPARATORS).split("-") if word]


def _singular(word: str) -> str:
    is_plural = len(word) > 4 and word[-1] == "s" and word[-2] != "s"
    return word[:-1] if is_plural else word


@lru_cache(maxsize=16_384)
def _stem(word: str) -> str:
    return _singular(_REPEATED.sub(r"\1", word))


def lookalike_key(name: str) -> str:
    """Equal for names that a reader takes for each other."""
    return _lookalike_key(_words(name))


def _lookalike_key(words: Iterable[str]) -> str:
    """The letters without separators, plurals, a version at the end and doubled letters."""
    joined = "".join(map(_stem, words))
    unversioned = _TRAILING_VERSION.sub("", joined) if joined[-1:].isdigit() else joined
    letters = unversioned.translate(_DIGIT_LETTERS).replace("rn", "m").replace("vv", "w")
    return _REPEATED.sub(r"\1", letters)


def _spelled_key(words: Iterable[str]) -> str:
    """As `_lookalike_key`, with the `s` of a plural."""
    letters = "".join(words).translate(_DIGIT_LETTERS).replace("rn", "m").replace("vv", "w")
    return _REPEATED.sub(r"\1", letters)


def _consonants(key: str) -> str:
    return key[:1] + key[1:].translate(_WITHOUT_VOWELS)


def _sorted_letters(squashed: str) -> str:
    return squashed[:1] + "".join(sorted(squashed))


def _halves(key: str, size: int) -> tuple[tuple[int, str], tuple[int, str]]:
    """The letters before and behind the middle of a key of `size` letters that an edit made `key`.

    An edit changes one letter or two neighbours, and so never both sides of the middle letter: two
    keys that are an edit apart share a half.
    """
    middle = (size - 1) // 2
    return (size, key[:middle]), (-size, key[len(key) - (size - middle - 1) :])


def _neighbours() -> frozenset[tuple[str, str]]:
    """Pairs of keys that touch each other on a QWERTY keyboard."""
    places = {
        letter: (row, column + 0.3 * row)
        for row, letters in enumerate(("1234567890", "qwertyuiop", "asdfghjkl", "zxcvbnm"))
        for column, letter in enumerate(letters)
    }
    return frozenset(
        (one, other)
        for one, (row, column) in places.items()
        for other, (other_row, other_column) in places.items()
        if one != other and abs(row - other_row) <= 1 and abs(column - other_column) <= 1.1
    )


_NEIGHBOURS = _neighbours()


def _single_edit(key: str, target: str) -> tuple[NameTrick, int] | None:
    """The one edit that makes `key` of `target`, and the place of the edit."""
    shorter = min(len(key), len(target))
    at = next((i for i in range(shorter) if key[i] != target[i]), shorter)
    rest, target_rest = key[at:], target[at:]
    if rest[1:] == target_rest[1:] and rest and target_rest:
        return NameTrick.REPLACEMENT, at
    if rest[1:] == target_rest and rest:
        return NameTrick.ADDITION, at
    if rest == target_rest[1:] and target_rest:
        return NameTrick.OMISSION, at
    is_swapped = len(rest) > 1 and rest[:2] == target_rest[1::-1] and rest[2:] == target_rest[2:]
    return (NameTrick.TRANSPOSITION, at) if is_swapped else None


# How popular a target of this many letters must be, where an edit is typical of a typing error
# (a neighbouring key, another vowel, two letters swapped) and where an edit is not. Chosen on the
# upper half of the PyPI ranking so that about one in twenty of the lower half is flagged.
_TYPICAL_EDIT_RANKS: Mapping[int, int] = {4: 300, 5: 1500, 6: 6000}
_OTHER_EDIT_RANKS: Mapping[int, int] = {4: 60, 5: 500, 6: 3000, 7: 9000}
_MIN_EDIT_LETTERS = 4

# Words that squatters add to a popular name, and that a package of the same project might have too.
# fmt: off
_AFFIXES = frozenset((
    "aio", "api", "async", "base", "cli", "client", "common", "core", "cpu", "cuda", "darwin",
    "dev", "easy", "fast", "fix", "fixed", "gpu", "helper", "http", "https", "io", "js", "latest",
    "lib", "libs", "linux", "lite", "macos", "new", "node", "nodejs", "official", "org", "patch",
    "plus", "pro", "py", "py3", "python", "python3", "sdk", "secure", "security", "simd",
    "simple", "test", "tool", "tools", "ts", "update", "updates", "util", "utils", "web", "win",
    "windows",
))
# fmt: on
_FAMILY_MEMBERS = 8  # a first word that so many ranked names share is a family: pytest-, types-


class NameIndex:
    """The ranked names of one registry, keyed for comparison. Immutable and safe for threads."""

    def __init__(self, ranked: Sequence[str], references: Iterable[str] = ()) -> None:
        self._ranks = {name: rank for rank, name in reversed(list(enumerate(ranked, 1)))}
        self._references = frozenset(references) - self._ranks.keys()
        self._squashed: dict[str, str] = {}
        self._lookalikes: dict[str, str] = {}
        self._word_sets: dict[str, str] = {}
        self._consonants: dict[str, str] = {}
        self._anagrams: dict[str, str] = {}
        self._by_half: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
        self._keys: dict[str, str] = {}
        names = (*dict.fromkeys(ranked), *sorted(self._references))
        words_of = {name: _words(name) for name in names}
        self._family_sizes = Counter(words[0] for words in words_of.values())
        self._vocabulary = Counter(chain.from_iterable(map(set, words_of.values())))
        for name, words in words_of.items():
            self._add(name, words)

    def _add(self, name: str, words: list[str]) -> None:
        squashed, key = "".join(words), _lookalike_key(words)
        self._keys[name] = key
        self._squashed.setdefault(squashed, name)
        self._lookalikes.setdefault(key, name)
        self._word_sets.setdefault(" ".join(sorted(map(_singular, words))), name)
        if len(key) >= 6:
            self._consonants.setdefault(_consonants(key), name)
        if len(squashed) >= 6:
            self._anagrams.setdefault(_sorted_letters(squashed), name)
        if len(key) >= _MIN_EDIT_LETTERS:
            for half in _halves(key, len(key)):
                self._by_half[half].append(name)

    def rank(self, name: str) -> int | None:
        """The place of a canonical name in the ranking."""
        return self._ranks.get(name)

    def resemblances(self, name: str) -> tuple[Resemblance, ...]:
        """The popular names that this canonical name imitates, the most popular first."""
        if name in self._ranks:
            return ()
        if name in self._references:
            return (Resemblance(NameTrick.REFERENCE, name, None),)
        if _PLACEHOLDER.fullmatch(name):
            return (Resemblance(NameTrick.PLACEHOLDER, name, None),)
        found: dict[str, NameTrick] = {}
        for trick, target in self._compare(name):
            if target != name:
                found.setdefault(target, trick)
        listed = sorted(found, key=self._popularity)
        return tuple(Resemblance(found[each], each, self._ranks.get(each)) for each in listed)

    def _popularity(self, name: str) -> int:
        # A reference is a well-known product: as popular as the thousand most popular packages.
        return self._ranks.get(name, 800 if name in self._references else _UNRANKED)

    def _compare(self, name: str) -> Iterator[tuple[NameTrick, str]]:
        words = _words(name)
        squashed, key = "".join(words), _lookalike_key(words)
        if not key:
            return
        yield from self._compare_keys(words, squashed, key)
        yield from self._compare_edits(words, key)
        if (spelled := _spelled_key(words)) != key:
            # The letter behind the `s` may be the one that is missing: `lodas` is no plural.
            yield from self._compare_edits(words, spelled)
        yield from self._compare_parts(words, squashed)

    def _compare_keys(
        self, words: list[str], squashed: str, key: str
    ) -> Iterator[tuple[NameTrick, str]]:
        size = len(squashed)
        equal = (
            (NameTrick.SEPARATOR, self._squashed.get(squashed), _UNRANKED if size > 3 else 0),
            (NameTrick.LOOKALIKE, self._lookalikes.get(key), self._limit(len(key), 4, 6)),
            (
                NameTrick.WORD_ORDER,
                self._word_sets.get(" ".join(sorted(map(_singular, words)))),
                _UNRANKED if size > 5 else 1500,
            ),
            (
                NameTrick.ANAGRAM,
                self._anagrams.get(_sorted_letters(squashed)),
                3000 if size < 8 else _UNRANKED,
            ),
            (NameTrick.VOWELS, self._same_consonants(key), 3000),
        )
        for trick, target, limit in equal:
            if target is not None and self._popularity(target) <= limit:
                yield trick, target

    @staticmethod
    def _limit(size: int, least: int, free: int) -> int:
        return 0 if size < least else 1500 if size < free else _UNRANKED

    def _same_consonants(self, key: str) -> str | None:
        consonants = _consonants(key)
        target = self._consonants.get(consonants) if len(consonants) >= 4 else None
        if target is None or abs(len(key) - len(self._keys[target])) > 1:
            return None
        return target

    def _compare_edits(self, words: list[str], key: str) -> Iterator[tuple[NameTrick, str]]:
        sizes = range(max(len(key) - 1, _MIN_EDIT_LETTERS), len(key) + 2)
        halves = (half for size in sizes for half in _halves(key, size))
        candidates = {name for half in halves for name in self._by_half.get(half, ())}
        for target in candidates:
            other = self._keys[target]
            # An edit that changes the letter at an end leaves the rest as it is. Most candidates
            # fail here, at a fifth of the cost.
            if other[-1] != key[-1] and not key.startswith(other[:-2]):
                continue
            if other[0] != key[0] and not key.endswith(other[2:]):
                continue
            edit = _single_edit(key, other)
            if edit is not None and self._is_misspelling(words, key, target, edit):
                yield edit[0], target

    def _is_misspelling(
        self, words: list[str], key: str, target: str, edit: tuple[NameTrick, int]
    ) -> bool:
        target_words, target_key = _words(target), self._keys[target]
        changed = [pair for pair in zip(words, target_words, strict=False) if pair[0] != pair[1]]
        if len(words) == len(target_words) > 1 and len(changed) == 1:
            # `types-s3` and `types-ec2` differ by a word of their own: a family, no misspelling.
            word, target_word = changed[0]
            if min(len(word), len(target_word)) <= 3 or self._vocabulary[word] >= 3:
                return False
        is_typical = _is_typing_error(key, target_key, edit)
        limits = _TYPICAL_EDIT_RANKS if is_typical else _OTHER_EDIT_RANKS
        limit = limits.get(len(target_key), _UNRANKED)
        return len(target_key) >= _MIN_EDIT_LETTERS and self._popularity(target) <= limit

    def _compare_parts(self, words: list[str], squashed: str) -> Iterator[tuple[NameTrick, str]]:
        name = "-".join(words)
        versioned = re.fullmatch(r"(.*[a-z])-?v?\d[\d-]*", name)
        if versioned and self._popularity(versioned[1]) <= 3000:
            yield NameTrick.VERSION, versioned[1]
        if len(words) == 1:
            yield from self._compare_joined(squashed)
            return
        kept = [word for word in words if word not in _AFFIXES]
        if kept and len(kept) < len(words):
            is_family = max(self._family_sizes[words[0]], self._family_sizes[kept[0]])
            limit = 300 if is_family >= _FAMILY_MEMBERS else 1500
            if self._popularity("-".join(kept)) <= limit and len("-".join(kept)) > 3:
                yield NameTrick.AFFIX, "-".join(kept)
        for at in range(1, len(words)):
            parts = "-".join(words[:at]), "-".join(words[at:])
            if self._family_sizes[words[0]] < 4 and self._are_popular(parts, 1500, 4):
                yield NameTrick.COMBINATION, self._versioned(parts[0])

    def _compare_joined(self, squashed: str) -> Iterator[tuple[NameTrick, str]]:
        for at in range(2, len(squashed) - 1):
            first, second = squashed[:at], squashed[at:]
            if self._are_popular((first, second), 800, 5):
                yield NameTrick.COMBINATION, first
            for affix, rest in ((first, second), (second, first)):
                if affix in _AFFIXES and len(rest) > 4 and self._popularity(rest) <= 200:
                    yield NameTrick.AFFIX, rest

    def _are_popular(self, parts: tuple[str, str], limit: int, least: int) -> bool:
        return all(
            len(part) >= least and self._popularity(self._versioned(part)) <= limit
            for part in parts
        )

    def _versioned(self, part: str) -> str:
        """The most popular of the name and its numbered successors: beautifulsoup4, urllib3."""
        return min((part, *(f"{part}{number}" for number in "234")), key=self._popularity)


def _is_typing_error(key: str, target: str, edit: tuple[NameTrick, int]) -> bool:
    trick, at = edit
    if trick is NameTrick.REPLACEMENT:
        pair = key[at], target[at]
        return pair in _NEIGHBOURS or _VOWELS.issuperset(pair)
    if trick is NameTrick.OMISSION:
        return 0 < at < len(target) - 1 or len(target) >= 8
    if trick is NameTrick.ADDITION:
        return 0 < at < len(target)
    return True

"""Credentials in a text of an audit record, found by the shipped rules, strictly (GRD-11). Pure.

The rules take a tenth of a second to compile, and most texts contain none of their keywords. So the
keywords are searched for first, from `words.txt`, without loading the rules; and most keywords
occur where no value can follow. A test compares that list with the rules.
"""

# ruff: noqa: PLC0415  # late imports: the rule set compiles slowly, and most texts need none of it

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall.parsing.credentials.rule_set import SecretRules
    from cellwall.parsing.matching import WordIndex

_MANY_TEXTS = 64
"""After this number of texts the word index pays off: it takes a tenth of the time per text."""
_NAME_CHARACTERS = 64
_MANY_PLACES = 1 << 40
_SHAPE, _NAME, _WHOLE_NAME, _LEAD, _ADDRESS = "=", ":", "!", "+", "@"
"""Kinds of keywords: directly before a value; a name before a value; the same, and the name ends
there; before any text; an address, which may contain a password."""
_VALUE = re.compile(r"[a-z0-9+/=_.~%!:$@\\-]{6}")
_ASSIGNED = re.compile(
    r"[a-z0-9_.\-]{0,32}"
    r"(?:(?:\\{0,7}[\"'`]|&[a-z0-9#]{2,5};){0,2}[\])]{0,2}\s{0,20}[:=?+|<,%>{]|[\"']?[ \t\-.:_])"
)
"""Wider than the leads of `named_rules`: without a match here, no named rule matches."""
_CONTINUATION = bytes(range(0x80, 0xC0))


class _ScanState:
    texts = 0
    index: WordIndex | None = None


def may_hold(text: str) -> bool:
    """Whether a keyword of any rule is where that rule may match."""
    lowered = text.lower()
    # Searched for once: a search for each of many addresses would be quadratic.
    has_at = "@" in lowered
    for kind, end in _places(lowered):
        if has_at if kind == _ADDRESS else _may_follow(kind, lowered, end):
            return True
    return False


def _places(lowered: str) -> Iterable[tuple[str, int]]:
    index = _index()
    if index is not None and lowered.isascii():
        found = index.places(lowered.encode(), _MANY_PLACES)
        kinds = _kinds() if found else ()
        return [(kinds[number], end) for number, end in found]
    return _places_of_words(lowered)


def _places_of_words(lowered: str) -> Iterator[tuple[str, int]]:
    kind_of = _kind_by_word()
    for word in filter(lowered.__contains__, kind_of):
        end = lowered.find(word) + len(word)
        while end >= len(word):
            yield kind_of[word], end
            end = lowered.find(word, end) + len(word)


def _may_follow(kind: str, lowered: str, end: int) -> bool:
    if kind == _SHAPE:
        return _VALUE.match(lowered, end) is not None
    if kind == _WHOLE_NAME and lowered[end : end + 1].isalpha():
        return False
    if kind in (_NAME, _WHOLE_NAME):
        return _ASSIGNED.match(lowered, end) is not None
    return kind == _LEAD


def spans_of(text: str) -> list[tuple[int, int, str]]:
    """Start, end and rule of each credential, in characters, in order and apart.

    The fixed prefix (`ghp_`) is part of the credential; a name before it is not.
    """
    if not may_hold(text):
        return []
    from cellwall.parsing.credentials.rule_set import shipped, spans_in

    rules, data = shipped(), text.encode("utf-8", "surrogatepass")
    spans = [
        (span.start - rules.prefix_bytes(span, data), span.end, span.rule)
        for span in spans_in(rules, data, is_strict=True)
    ]
    return spans if len(data) == len(text) else list(_in_characters(data, spans))


def named_as_secret(name: str, value: str) -> str:
    """The rule that makes a value a credential because of its name; empty if there is none."""
    if not name or not value or not _may_name(name):
        return ""
    # Written as in a file, so that the same named rules apply.
    introduction = f'{name[-_NAME_CHARACTERS:]}": "'
    quoted_value = value.replace("\\", "\\\\").replace('"', '\\"')
    rules = (
        rule
        for start, _, rule in spans_of(introduction + quoted_value)
        if start >= len(introduction)
    )
    return next(rules, "")


def _may_name(name: str) -> bool:
    return may_hold(name) if len(name) > _NAME_CHARACTERS else _may_name_short(name)


@lru_cache(maxsize=1024)
def _may_name_short(name: str) -> bool:
    """Cached: the same few names recur in all records."""
    return may_hold(name)


def listed_words(rules: SecretRules) -> list[str]:
    """The content of `words.txt`: each keyword prefixed by its kind."""
    return sorted(_kind(rules, word) + word.decode() for word, _ in rules.by_word)


def _kind(rules: SecretRules, word: bytes) -> str:
    if word == b"://":
        return _ADDRESS
    shapes = [rule for rule in rules.shapes if word in map(bytes.lower, rule.words)]
    if any(rule.lead is not None for rule in shapes):
        return _LEAD
    if any(word in rule.words for rule in rules.named):
        is_whole = word[1:] == b"pat" or word == b"pass"
        return _LEAD if shapes else _WHOLE_NAME if is_whole else _NAME
    return _SHAPE


@cache
def words() -> tuple[str, ...]:
    """Keywords of all shipped rules in lower case, each prefixed by its kind."""
    file = resources.files("cellwall.parsing.credentials").joinpath("words.txt")
    return tuple(file.read_text("utf-8").splitlines())


@cache
def _kind_by_word() -> dict[str, str]:
    return {line[1:]: line[0] for line in words()}


@cache
def _kinds() -> tuple[str, ...]:
    """By the number of the word in the index of the rules."""
    from cellwall.parsing.credentials.rule_set import shipped

    kinds = _kind_by_word()
    return tuple(kinds[word.decode()] for word, _ in shipped().by_word)


def _index() -> WordIndex | None:
    if _ScanState.index is None:
        _ScanState.texts += 1
        if _ScanState.texts == _MANY_TEXTS:
            # In the background: a writer of a record must not wait a tenth of a second.
            threading.Thread(target=_make_ready, name="cellwall-credential-rules").start()
    return _ScanState.index


def _make_ready() -> None:
    from cellwall.parsing.credentials.rule_set import shipped

    index = shipped().index
    index.places(b"x", 1)
    _ScanState.index = index


def _in_characters(
    data: bytes, spans: list[tuple[int, int, str]]
) -> Iterator[tuple[int, int, str]]:
    at = characters = 0
    for start, end, rule in spans:
        first = characters + _length(data[at:start])
        at, characters = end, first + _length(data[start:end])
        yield first, characters, rule


def _length(data: bytes) -> int:
    # Counts the first bytes of characters, so a part that begins within a character is right, too.
    return len(data.translate(None, _CONTINUATION))

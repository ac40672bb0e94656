"""Credentials in a text of a record, found by the shipped rules, strictly (GRD-11). Pure.

The rules take a tenth of a second to make ready, and most texts of a record hold no word of any of
them. So the words alone are looked for first; `packs/words.txt` lists them, so that not even the
rules have to be read for that. A test compares that list with the rules.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cellwall.parsing.credentials.rules import SecretRules
    from cellwall.parsing.matching import WordIndex

_MANY_TEXTS = 1000
"""After so many the engine for words pays for making it ready: a looked-up text takes a tenth."""
_NAME_CHARACTERS = 64
_CONTINUATION = bytes(range(0x80, 0xC0))


class _Counted:
    texts = 0
    index: WordIndex | None = None


def may_hold(text: str) -> bool:
    """Whether a word of any rule stands in the text; where none does, no rule finds anything."""
    lowered = text.lower()
    index = _index()
    if index is None:
        return any(map(lowered.__contains__, words()))
    return bool(index.places(lowered.encode("utf-8", "surrogatepass"), 1))


def spans_of(text: str) -> list[tuple[int, int, str]]:
    """Start, end and rule of each credential, in characters, in order and apart.

    The beginning that all of its kind share (`ghp_`) is a part of it; a name before it is not.
    """
    if not may_hold(text):
        return []
    from cellwall.parsing.credentials.looking import spans_in  # noqa: PLC0415  # see above
    from cellwall.parsing.credentials.rules import shipped  # noqa: PLC0415  # see above

    rules, data = shipped(), text.encode("utf-8", "surrogatepass")
    found = [
        (span.start - rules.prefix_bytes(span, data), span.end, span.rule)
        for span in spans_in(rules, data, is_strict=True)
    ]
    return found if len(data) == len(text) else list(_in_characters(data, found))


def named_as_secret(name: str, value: str) -> str:
    """The rule by which a value is a credential because of its name; empty if it is none."""
    if not name or not value or not may_hold(name):
        return ""
    # As it would stand in a file: the rules for names are the same there.
    introduction = f'{name[-_NAME_CHARACTERS:]}": "'
    written = value.replace("\\", "\\\\").replace('"', '\\"')
    found = (
        rule for start, _, rule in spans_of(introduction + written) if start >= len(introduction)
    )
    return next(found, "")


def least_words(rules: SecretRules) -> list[str]:
    """What `words.txt` must hold."""
    every = sorted(word.decode() for word, _ in rules.by_word)
    return [word for word in every if not any(one != word and one in word for one in every)]


@cache
def words() -> tuple[str, ...]:
    """Of all shipped rules, in small letters; those that hold another one are left out."""
    folder = resources.files("cellwall.parsing.credentials").joinpath("packs")
    return tuple(folder.joinpath("words.txt").read_text("utf-8").splitlines())


def _index() -> WordIndex | None:
    if _Counted.index is None:
        _Counted.texts += 1
        if _Counted.texts == _MANY_TEXTS:
            # Beside the writers: a tenth of a second is long for those who wait for a record.
            threading.Thread(target=_make_ready, name="cellwall-credential-rules").start()
    return _Counted.index


def _make_ready() -> None:
    from cellwall.parsing.credentials.rules import shipped  # noqa: PLC0415  # see above

    index = shipped().index
    index.places(b"x", 1)
    _Counted.index = index


def _in_characters(
    data: bytes, found: list[tuple[int, int, str]]
) -> Iterator[tuple[int, int, str]]:
    at = characters = 0
    for start, end, rule in found:
        first = characters + _length(data[at:start])
        at, characters = end, first + _length(data[start:end])
        yield first, characters, rule


def _length(data: bytes) -> int:
    # Bytes that begin a character; so it holds for a part that was cut within one, too.
    return len(data.translate(None, _CONTINUATION))

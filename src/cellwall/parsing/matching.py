"""Finds many words at once and patterns in linear time; nothing here can backtrack.

Two engines: hyperscan says in one pass which words stand in a text, at memory's speed; RE2 then
looks for the few patterns whose words were there. Neither knows look-around or back-references,
which is what makes their time a straight line over the input.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import hyperscan
import re2

from cellwall.core.errors import BadInput
from cellwall.parsing.derived_cache import cached

_MAX_STATE_BYTES = 32 << 20
"""For the automaton of one pattern; beyond it RE2 works slower, not longer."""


_MADE_BY = f"{hyperscan.__version__} {os.uname().machine}".encode()  # type: ignore[attr-defined]  # not in its types
_Note = Callable[..., "bool | None"]


class WordIndex:
    """Words, searched for all at once. Over bytes: to ignore case, fold the words and the text,
    or pass `ignore_case`, which folds ASCII letters only."""

    def __init__(self, words: Sequence[bytes], *, ignore_case: bool = False) -> None:
        if not all(words):
            raise BadInput("a word to search for is empty")
        self._words = tuple(words)
        self._flags = hyperscan.HS_FLAG_CASELESS if ignore_case else 0
        self._own = threading.local()

    def present(self, data: bytes) -> set[int]:
        """Which of the words stand in the data, by number."""
        found: set[int] = set()
        if self._words and data:
            self._scan(self._once, data, lambda number, *_: found.add(number))
        return found

    def places(self, data: bytes, most: int, *, apart_bytes: int = 0) -> list[tuple[int, int]]:
        """Number and end of each occurrence, in order; after `most` of them it looks no further.
        One that ends less than `apart_bytes` behind the last is left out."""
        found: list[tuple[int, int]] = []
        least = 0

        def note(number: int, _start: int, end: int, *_: object) -> bool | None:
            nonlocal least
            if end < least:
                return None
            least = end + apart_bytes
            found.append((number, end))
            return len(found) >= most or None

        if self._words and data:
            self._scan(self._each, data, note)
        return found

    def _scan(self, database: hyperscan.Database, data: bytes, note: _Note) -> None:
        # Its working memory serves one scan at a time, and scans let other threads run.
        own = self._own.__dict__
        key = str(id(database))
        scratch = own.get(key)
        if scratch is None:
            scratch = own[key] = database.scratch.clone()
        try:
            database.scan(data, match_event_handler=note, scratch=scratch)
        except hyperscan.ScanTerminated:
            pass  # as `note` has asked for

    @cached_property
    def _once(self) -> hyperscan.Database:
        return self._compiled(self._flags | hyperscan.HS_FLAG_SINGLEMATCH)

    @cached_property
    def _each(self) -> hyperscan.Database:
        return self._compiled(self._flags)

    def _compiled(self, flags: int) -> hyperscan.Database:
        def make() -> bytes:
            database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
            database.compile(
                expressions=[_literal(word) for word in self._words],
                ids=list(range(len(self._words))),
                flags=[flags] * len(self._words),
            )
            return bytes(hyperscan.dumpb(database))

        parts = [_MADE_BY, str(flags).encode(), *self._words]
        source = b"".join(b"%d:%s" % (len(part), part) for part in parts)
        ready = cached(source, make)
        try:
            database = hyperscan.loadb(ready, hyperscan.HS_MODE_BLOCK)
        except hyperscan.HyperscanError:  # of another machine, or damaged: made anew
            database = hyperscan.loadb(make(), hyperscan.HS_MODE_BLOCK)
        database.scratch = hyperscan.Scratch(database)
        return database


def _literal(word: bytes) -> bytes:
    return b"".join(b"\\x%02x" % byte for byte in word)


@dataclass(frozen=True)
class Pattern:
    """An expression in RE2's language over UTF-8; compiled when it is first needed."""

    source: str

    def check(self) -> None:
        """Compile it now; `BadInput` if it is none."""
        _ = self._compiled

    def spans(
        self, data: bytes, start: int = 0, end: int | None = None, *, group: int | str = 0
    ) -> Iterator[tuple[int, int]]:
        """Where it matches, from left to right, without overlaps. Empty matches are left out."""
        for match in self._compiled.finditer(data, start, len(data) if end is None else end):
            first, last = match.span(group)
            if first >= 0 and last > first:
                yield first, last

    def at(self, data: bytes, place: int) -> tuple[int, int] | None:
        """Where it matches from this very place on."""
        match = self._compiled.match(data, place)
        return match.span() if match else None

    def matches(self, data: bytes) -> bool:
        return self._compiled.search(data) is not None

    @cached_property
    def _compiled(self) -> Any:  # noqa: ANN401  # the library has no types
        options = re2.Options()
        options.log_errors = False
        options.max_mem = _MAX_STATE_BYTES
        try:
            return re2.compile(self.source, options)
        except re2.error as error:
            told = error.args[0] if error.args else ""
            told = told.decode("utf-8", "replace") if isinstance(told, bytes) else str(told)
            raise BadInput(
                f"a pattern is not one that RE2 reads: {told}",
                hint="Write it without look-around and back-references.",
            ) from None


def words_of(texts: Sequence[str]) -> tuple[bytes, ...]:
    """Words as they stand in folded text."""
    return tuple(text.casefold().encode() for text in texts)

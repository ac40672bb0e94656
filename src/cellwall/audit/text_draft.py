"""A chunk of the text index while records are added to it."""

from __future__ import annotations

from contextlib import closing

from cellwall.audit.merkle import leaf_hash
from cellwall.audit.records import parse_link
from cellwall.audit.text_chunk import (
    BadChunk,
    ChunkHeader,
    TextUnit,
    encode_chunk,
    open_chunk,
    pack_names,
)
from cellwall.audit.text_filter import (
    MAX_UNIT_GRAMS,
    MAX_UNIT_RECORDS,
    MAX_UNITS,
    MIN_UNIT_BYTES,
    PAGES,
    FilterRows,
    add_grams,
)
from cellwall.core.ports import SessionKeysPort

_KEY_SUBJECT = "audit text index"


class ChunkDraft:
    """Records from `first` on, which begin at the offset `end` of their segment."""

    def __init__(self, segment: int, first: int, start: int) -> None:
        self.segment, self._first, self._start = segment, first, start
        self._rows, self._units = FilterRows(), list[TextUnit]()
        self._opened_with: dict[str, None] = {}
        self._key = ""
        self._grams: set[int] = set()
        self._unit_first, self._unit_start = first, start
        self.last, self.end = first - 1, start
        self._last_line = b""

    @classmethod
    def of(cls, path: str, keys: SessionKeysPort) -> ChunkDraft:
        """A chunk that goes on; raises `BadChunk` or `OSError`."""
        with closing(open_chunk(path, keys)) as chunk:
            known = chunk.header
            draft = cls(known.segment, known.first, known.start)
            pages = [chunk.page(number) for number in range(PAGES)]
            draft._rows, draft._units = FilterRows.of(pages, known.units), chunk.units()
            draft._opened_with = dict.fromkeys(known.opened_with)
            draft._key = known.key
            draft.last, draft.end = known.last, known.end
            draft._unit_first, draft._unit_start = known.last + 1, known.end
            return draft

    @property
    def is_full(self) -> bool:
        return len(self._units) == MAX_UNITS

    def add(self, line: bytes, text: bytes, key: str | None) -> None:
        """Add the next record, by its stored line and its text; `key` has opened its body."""
        add_grams(self._grams, text)
        if key is not None:
            self._opened_with[key] = None
        self.last, self.end, self._last_line = self.last + 1, self.end + len(line) + 1, line
        is_full = (
            len(self._grams) >= MAX_UNIT_GRAMS
            or self.last + 1 - self._unit_first >= MAX_UNIT_RECORDS
        )
        if is_full and self.end - self._unit_start >= MIN_UNIT_BYTES:
            self._end_unit()

    def _end_unit(self) -> None:
        if self.last < self._unit_first:
            return
        self._rows.add(len(self._units), self._grams)
        self._units.append(TextUnit(self._unit_first, self._unit_start, self.end))
        self._unit_first, self._unit_start = self.last + 1, self.end
        self._grams = set()

    def encode(self, keys: SessionKeysPort) -> tuple[bytes, ChunkHeader]:
        """The file, under a key of its own; raises `BadChunk` or `VaultError`."""
        self._end_unit()
        if parse_link(self._last_line).seq != self.last:
            raise BadChunk("numbers of records are missing")
        if not self._key:
            self._key, _ = keys.new_key(_KEY_SUBJECT)
        header = ChunkHeader(
            segment=self.segment,
            first=self._first,
            last=self.last,
            start=self._start,
            end=self.end,
            leaf=leaf_hash(self._last_line),
            last_bytes=len(self._last_line) + 1,
            key=self._key,
            salt=b"",
            units=len(self._units),
            key_names=pack_names(self._opened_with),
        )
        pages = self._rows.pages(len(self._units))
        return encode_chunk(header, self._units, pages, keys), header

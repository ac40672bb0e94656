"""Which parts of a segment a search for a text has to read.

$CELLWALL_HOME/audit/text-index/SEGMENT.FIRST.text: chunks of filters (text_chunk.py), named by the
first record of their segment and their own. Chunks may be missing, late or damaged: what no valid
chunk covers is scanned, so that they never hide a record.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing

from cellwall.audit.merkle import leaf_hash
from cellwall.audit.searchable_text import encoded_text
from cellwall.audit.segment_content import SegmentContent
from cellwall.audit.segments import Segment
from cellwall.audit.text_chunk import BadChunk, ChunkHeader, TextUnit, open_chunk
from cellwall.audit.text_filter import query_places
from cellwall.core.ports import SessionKeysPort

_FOLDER = "text-index"
_FILE_NAME = re.compile(r"([0-9]{16})\.([0-9]{16})\.text")
Span = tuple[int, int]
"""Offsets in a segment, at borders of records."""


def text_folder(directory: str) -> str:
    """The folder of the chunks of a log."""
    return os.path.join(directory, _FOLDER)


def chunk_name(segment: int, first: int) -> str:
    """The file name of a chunk."""
    return f"{segment:016d}.{first:016d}.text"


def list_chunks(directory: str) -> dict[int, list[int]]:
    """The first records of chunks, in order, by the first record of their segment."""
    try:
        names = os.listdir(text_folder(directory))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    found: dict[int, list[int]] = {}
    for match in filter(None, map(_FILE_NAME.fullmatch, sorted(names))):
        found.setdefault(int(match[1]), []).append(int(match[2]))
    return found


def is_of_content(header: ChunkHeader, content: SegmentContent) -> bool:
    """Whether the last record of a chunk is in its place. A batch may have been rolled back after
    it was indexed, or the segment may come from a backup."""
    line = content.read(header.end - header.last_bytes, header.end - 1)
    return bool(line) and leaf_hash(line) == header.leaf


class TextIndex:
    """The chunks of a log, asked for one text."""

    def __init__(
        self, directory: str, keys: SessionKeysPort, text: str, *, before: int | None = None
    ) -> None:
        self._folder, self._keys, self._before = text_folder(directory), keys, before
        self._places = query_places(encoded_text(text))
        self._chunks = list_chunks(directory) if self._places else {}

    def spans(self, segment: Segment, content: SegmentContent) -> Iterator[Span]:
        """The parts of a segment that may have the text, the last first."""
        end, is_proven = content.size_bytes, False
        for first in reversed(self._chunks.get(segment.first, [])):
            try:
                header, units = self._ask(segment, first)
            except (BadChunk, OSError):
                continue
            # The hash of a chunk's last record commits to the records of earlier chunks, and a
            # chunk was written only where the one before it was valid.
            is_proven = is_proven or is_of_content(header, content)
            if not is_proven or header.end > end:
                continue
            if header.end < end:
                yield header.end, end
            for unit in units:
                if self._before is None or unit.first < self._before:
                    yield unit.start, unit.end
            end = header.start
        if end > 0:
            yield 0, end

    def _ask(self, segment: Segment, first: int) -> tuple[ChunkHeader, list[TextUnit]]:
        path = os.path.join(self._folder, chunk_name(segment.first, first))
        with closing(open_chunk(path, self._keys)) as chunk:
            header = chunk.header
            if (header.segment, header.first) != (segment.first, first):
                raise BadChunk("renamed")
            return header, chunk.candidates(self._places)

"""Where the last segment ends, and what a crash left there."""

from __future__ import annotations

import os
from typing import NamedTuple

from holdfast.audit.failures import altered
from holdfast.audit.merkle import leaf_hash
from holdfast.audit.records import (
    GENESIS,
    MAX_RECORD_BYTES,
    BadRecord,
    Link,
    link_of,
    parse_record,
)

_FIRST_LOOK_BYTES = 4096
_MOST_TORN_BYTES = 16 * 1024 * 1024
"""A batch is smaller; more than this was not torn by a crash of ours."""


class Tail(NamedTuple):
    """The end of the growing segment when we last looked; another size makes us look again."""

    size_bytes: int
    seq: int
    prev: str
    kind: bytes

    @classmethod
    def of_empty(cls, first: int, prev: str = GENESIS) -> Tail:
        return cls(0, first - 1, prev, b"")


def find_tail(file: int, size_bytes: int, first: int, prev: str | None) -> tuple[Tail, bytes]:
    """The end of the whole records, and the torn bytes after it.

    A crash leaves lines that are no records, after all that are. A record that reads well but does
    not follow is evidence and is never cut: it is found by `verify`. `prev` is what a first record
    would be linked to.
    """
    look_bytes = _FIRST_LOOK_BYTES
    while True:
        start = max(0, size_bytes - look_bytes)
        data = os.pread(file, size_bytes - start, start)
        if len(data) != size_bytes - start:
            raise altered("the audit log became shorter while it was read")
        found = _last_record(data, is_from_start=start == 0)
        if found is not None:
            line, link, end = found
            try:
                parse_record(line)
            except BadRecord as problem:
                raise altered(f"the last record of the audit log was altered: {problem}") from None
            if link.seq < first:
                raise altered("the last record of the audit log has a number from before its file")
            tail = Tail(start + end, link.seq, leaf_hash(line).hex(), link.kind)
            return tail, data[end:]
        if start == 0:
            if prev is None:
                raise altered("a segment of the audit log has lost all its records")
            return Tail.of_empty(first, prev), data
        if look_bytes >= _MOST_TORN_BYTES + MAX_RECORD_BYTES:
            raise altered("the end of the audit log is not made of records")
        look_bytes *= 16


def _last_record(data: bytes, *, is_from_start: bool) -> tuple[bytes, Link, int] | None:
    """The last line that is a record, what it says, and where the next one begins."""
    end = data.rfind(b"\n")
    while end >= 0:
        begin = data.rfind(b"\n", 0, end)
        if begin < 0 and not is_from_start:
            return None  # its beginning may lie further back
        line = data[begin + 1 : end]
        try:
            return line, link_of(line), end + 1
        except BadRecord:
            end = begin
    return None

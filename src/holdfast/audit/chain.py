"""How a record is written down and linked to the one before it. Pure: no I/O, no clock.

A record is one line of canonical JSON (sorted keys, no spaces, ASCII only). `prev` is the SHA-256
of the previous line's bytes, `hash` the SHA-256 of this record's canonical form without `hash`.
A line is accepted only if it is byte for byte what sealing its content gives, so spaces, doubled
keys or another spelling of the same value are alterations too.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NoReturn

from holdfast.core.events import EventKind
from holdfast.core.types import Json

VERSION = 1
GENESIS = "0" * 64
MAX_FIELD_BYTES = 8 * 1024
"""The most a text may be allowed: one that just fits, escaped sixfold, must not burst a record."""
MAX_NAME_BYTES = 256
MAX_RECORD_BYTES = 256 * 1024
"""A longer line is no record; it bounds what a reader ever holds in memory."""

_MAX_BODY_BYTES = 192 * 1024
_MAX_DEPTH = 16
_MAX_ENTRIES = 4096
_MAX_INTEGER_BITS = 64
_KEYS = {
    *("action_id", "body", "hash", "id", "interface", "kind"),
    *("prev", "principal", "seq", "time", "v"),
}
_KINDS = frozenset(kind.value for kind in EventKind)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode
_encode = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False
).encode


class BadRecord(Exception):
    """A line that is not the record it should be; the text says why."""


class NotJson(BadRecord):
    """Bytes that no finished write leaves behind: what a crash tore, or nobody's record."""


def line_digest(line: bytes) -> str:
    """What the next record's `prev` must be; `line` is without its newline."""
    return sha256(line).hexdigest()


def seal(record: Mapping[str, Json]) -> bytes:
    """The line, without newline, of a record that has every field but `hash`."""
    head, tail = _halves(record)
    return _join(head, sha256(f"{head},{tail}".encode("ascii")).hexdigest(), tail)


def parse(line: bytes) -> dict[str, Any]:
    """The record in a line (without newline) if its own seal is intact, else `BadRecord`."""
    if len(line) > MAX_RECORD_BYTES:
        raise BadRecord("it is longer than any record")
    try:
        record = _decode(line.decode("ascii"))
    except (ValueError, RecursionError):
        raise NotJson("it is not JSON") from None
    if not isinstance(record, dict) or record.keys() != _KEYS:
        raise BadRecord("it does not have the fields of a record")
    if type(record["v"]) is not int or record["v"] != VERSION:
        raise BadRecord("it is of an unknown version")
    if type(record["seq"]) is not int or str(record["kind"]) not in _KINDS:
        raise BadRecord("a field has no allowed value")
    try:
        head, tail = _halves(record)
    except (ValueError, RecursionError):
        raise BadRecord("its spelling was altered") from None
    digest = sha256(f"{head},{tail}".encode("ascii")).hexdigest()
    if record["hash"] != digest:
        raise BadRecord("its content does not match its hash")
    if _join(head, digest, tail) != line:
        raise BadRecord("its spelling was altered")
    return record


def follow(line: bytes, *, seq: int, prev: str) -> dict[str, Any]:
    """The record in a line if it is intact and stands where it belongs, else `BadRecord`."""
    record = parse(line)
    if record["seq"] != seq:
        raise BadRecord(f"it says it is record {record['seq']}")
    if record["prev"] != prev:
        raise BadRecord("it was chained to another record than the one before it")
    return record


def _halves(record: Mapping[str, Json]) -> tuple[str, str]:
    """The canonical form without `hash`, split where `hash` belongs: one encoding serves both."""
    head = _encode({"action_id": record["action_id"], "body": record["body"]})
    tail = _encode(
        {key: value for key, value in record.items() if key not in ("action_id", "body", "hash")}
    )
    return head[:-1], tail[1:]


def _join(head: str, digest: str, tail: str) -> bytes:
    return f'{head},"hash":"{digest}",{tail}'.encode("ascii")


def cut_text(text: str, *, max_bytes: int) -> str:
    """The text itself, or its first `max_bytes` bytes and a marker with length and SHA-256.

    A text that is longer than `max_bytes` in the record was therefore always cut by us: a payload
    cannot fake the marker.
    """
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        # Lone surrogates (undecodable file names) are no Unicode; strict readers of the log would
        # refuse the whole line.
        data = text.encode("utf-8", "backslashreplace")
        text = data.decode("utf-8")
    if len(data) <= max_bytes:
        return text
    return data[:max_bytes].decode("utf-8", "ignore") + _marker(data)


def bound_body(body: Mapping[str, Json], *, max_field_bytes: int) -> dict[str, Json]:
    """The body as plain JSON data, with every text, number and list and the whole of it bounded.

    The start of what is too long is always kept: padding an action must not hide it.
    """
    return _bound_mapping(body, _Room(max_field_bytes), depth=1)


@dataclass(slots=True)
class _Room:
    """What is left of a body's bounds. The bound on entries also bounds the work."""

    max_field_bytes: int
    entries: int = _MAX_ENTRIES
    encoded_bytes: int = _MAX_BODY_BYTES

    def take(self, encoded_bytes: int) -> None:
        self.encoded_bytes -= encoded_bytes

    @property
    def is_full(self) -> bool:
        return self.entries <= 0 or self.encoded_bytes <= 0


def _bound(value: object, room: _Room, *, depth: int) -> Json:
    room.entries -= 1
    if isinstance(value, str):
        return _bound_text(value, room)
    if value is None or isinstance(value, bool):
        room.take(6)
        return value
    if isinstance(value, int):
        if (
            value.bit_length() > _MAX_INTEGER_BITS
        ):  # decimal digits of a huge one cost quadratic time
            return _bound_text(hex(value), room)
        room.take(22)
        return value
    if isinstance(value, float):
        room.take(26)
        return value if math.isfinite(value) else str(value)  # JSON has no NaN and no infinity
    if isinstance(value, bytes | bytearray | memoryview):
        return {"base64": _bound_bytes(bytes(value), room)}
    if depth >= _MAX_DEPTH:
        return _bound_text("[cut: nested too deeply]", room)
    if isinstance(value, Mapping):
        return _bound_mapping(value, room, depth=depth + 1)
    if isinstance(value, Sequence):
        return _bound_sequence(value, room, depth=depth + 1)
    # Never its repr: that may hold anything.
    return _bound_text(f"[not plain data: {type(value).__name__}]", room)


def _bound_text(text: str, room: _Room) -> str:
    text = cut_text(text, max_bytes=room.max_field_bytes)
    room.take(len(_encode(text)) + 1)
    return text


def _bound_bytes(data: bytes, room: _Room) -> str:
    most = room.max_field_bytes * 3 // 4  # what fits as base64
    text = base64.b64encode(data[:most]).decode("ascii")
    text += _marker(data) if len(data) > most else ""
    room.take(len(text) + 16)
    return text


def _bound_mapping(mapping: Mapping[str, Json], room: _Room, *, depth: int) -> dict[str, Json]:
    room.take(3)
    kept: dict[str, Json] = {}
    for position, (key, value) in enumerate(mapping.items()):
        if room.is_full:
            kept["[cut]"] = len(mapping) - position
            break
        name = cut_text(str(key), max_bytes=MAX_NAME_BYTES)
        room.take(len(_encode(name)) + 1)
        kept[name] = _bound(value, room, depth=depth)
    return kept


def _bound_sequence(sequence: Sequence[object], room: _Room, *, depth: int) -> list[Json]:
    room.take(3)
    kept: list[Json] = []
    for position, value in enumerate(sequence):
        if room.is_full:
            kept.append(f"[cut: {len(sequence) - position} entries]")
            break
        kept.append(_bound(value, room, depth=depth))
    return kept


def _marker(data: bytes) -> str:
    return f"[cut: {len(data)} bytes, sha256 {sha256(data).hexdigest()}]"

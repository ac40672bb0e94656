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

_MAX_BODY_BYTES = 128 * 1024
_MAX_DEPTH = 16
_MAX_ENTRIES = 4096
_MAX_INTEGER_BITS = 64
_FIELDS: dict[str, type] = {
    **dict.fromkeys(("action_id", "hash", "id", "interface", "kind"), str),
    **dict.fromkeys(("prev", "principal", "time"), str),
    "body": dict,
    "seq": int,
    "v": int,
}
_SCALAR = (str, int, float, type(None))
_BINARY = (bytes, bytearray, memoryview)
_CONSTANTS = {None: "null", True: "true", False: "false"}
_KINDS = frozenset(kind.value for kind in EventKind)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


_quote = json.encoder.encode_basestring_ascii
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


def seal(fields: Mapping[str, str | int], *, body: str) -> bytes:
    """The line, without newline, of a record: its plain fields and its encoded body."""
    head, tail = _halves(fields, body)
    return _join(head, sha256(f"{head},{tail}".encode("ascii")).hexdigest(), tail)


def parse(line: bytes) -> dict[str, Any]:
    """The record in a line (without newline) if its own seal is intact, else `BadRecord`."""
    if len(line) > MAX_RECORD_BYTES:
        raise BadRecord("it is longer than any record")
    try:
        record = _decode(line.decode("ascii"))
    except (ValueError, RecursionError):
        raise NotJson("it is not JSON") from None
    if not isinstance(record, dict) or record.keys() != _FIELDS.keys():
        raise BadRecord("it does not have the fields of a record")
    if record["v"] != VERSION:
        raise BadRecord("it is of an unknown version")
    if any(type(record[name]) is not kind for name, kind in _FIELDS.items()):
        raise BadRecord("a field is not of its type")
    if record["kind"] not in _KINDS:
        raise BadRecord("it is of an unknown kind")
    try:
        head, tail = _halves(record, _encode(record["body"]))
    except (ValueError, RecursionError):  # a number that JSON spells and a float cannot hold
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


def _halves(fields: Mapping[str, Any], body: str) -> tuple[str, str]:
    """The canonical form without `hash`, split where `hash` belongs: one encoding serves both.

    Spelled out and not left to the encoder, since it is on the path of every action.
    """
    head = f'{{"action_id":{_quote(fields["action_id"])},"body":{body}'
    tail = (
        f'"id":{_quote(fields["id"])},"interface":{_quote(fields["interface"])},'
        f'"kind":{_quote(fields["kind"])},"prev":{_quote(fields["prev"])},'
        f'"principal":{_quote(fields["principal"])},"seq":{fields["seq"]},'
        f'"time":{_quote(fields["time"])},"v":{VERSION}}}'
    )
    return head, tail


def _join(head: str, digest: str, tail: str) -> bytes:
    return f'{head},"hash":"{digest}",{tail}'.encode("ascii")


def cut_text(text: str, *, max_bytes: int) -> str:
    """The text itself, or its first `max_bytes` bytes and a marker with length and SHA-256.

    A text that is longer than `max_bytes` in the record was therefore always cut by us: a payload
    cannot fake the marker.
    """
    if text.isascii() and len(text) <= max_bytes:
        return text
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


def encode_body(body: Mapping[str, Json], *, max_field_bytes: int) -> str:
    """The body as canonical JSON, with every text, number and list and the whole of it bounded.

    The start of what is too long is always kept: padding an action must not hide it.
    """
    try:
        text = _encode(body)
    except (TypeError, ValueError, RecursionError):
        return _encode_mapping(body, _Room(max_field_bytes), depth=1)
    # Nearly every body: so short that nothing in it can be too long, too many or too deep, and
    # nothing that looks like a surrogate. The walk costs four times as much.
    if (
        len(text) <= max_field_bytes
        and "\\ud" not in text
        and text.count("[") + text.count("{") <= _MAX_DEPTH
    ):
        return text
    return _encode_mapping(body, _Room(max_field_bytes), depth=1)


@dataclass(slots=True)
class _Room:
    """What is left of a body's bounds. The bound on entries also bounds the work."""

    max_field_bytes: int
    entries: int = _MAX_ENTRIES
    encoded_bytes: int = _MAX_BODY_BYTES

    @property
    def is_full(self) -> bool:
        return self.entries <= 0 or self.encoded_bytes <= 0


def _encode_value(value: object, room: _Room, *, depth: int) -> str:
    room.entries -= 1
    # Scalars first: asking for `Mapping` or `Sequence` costs more than encoding does.
    if not isinstance(value, _SCALAR) and depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            return _encode_mapping(value, room, depth=depth + 1)
        if isinstance(value, Sequence) and not isinstance(value, _BINARY):
            return _encode_sequence(value, room, depth=depth + 1)
    text = _encode_scalar(value, room.max_field_bytes)
    room.encoded_bytes -= len(text) + 1
    return text


def _encode_scalar(value: object, max_bytes: int) -> str:
    if isinstance(value, str):
        return _quote(cut_text(value, max_bytes=max_bytes))
    if value is None or isinstance(value, bool):
        return _CONSTANTS[value]
    if isinstance(value, int):
        # A huge integer costs quadratic time as decimal digits; as hexadecimal it does not.
        is_small = value.bit_length() <= _MAX_INTEGER_BITS
        return int.__repr__(value) if is_small else f'"{cut_text(hex(value), max_bytes=max_bytes)}"'
    if isinstance(value, float):
        return float.__repr__(value) if math.isfinite(value) else f'"{value}"'
    if isinstance(value, _BINARY):
        return f'{{"base64":"{_bound_base64(bytes(value), max_bytes)}"}}'
    # Too deep, or no plain data at all. Never its repr: that may hold anything.
    return _quote(f"[cut: {type(value).__name__:.64}]")


def _encode_mapping(mapping: Mapping[str, Json], room: _Room, *, depth: int) -> str:
    kept: dict[str, str] = {}
    for key, value in mapping.items():
        if room.is_full:
            kept["[cut]"] = f'"[cut]":{len(mapping) - len(kept)}'
            break
        name = cut_text(str(key), max_bytes=room.max_field_bytes)
        quoted = _quote(name)
        room.encoded_bytes -= len(quoted) + 3
        kept[name] = f"{quoted}:{_encode_value(value, room, depth=depth)}"
    return "{" + ",".join([kept[name] for name in sorted(kept)]) + "}"


def _encode_sequence(sequence: Sequence[object], room: _Room, *, depth: int) -> str:
    kept: list[str] = []
    for value in sequence:
        if room.is_full:
            kept.append(f'"[cut: {len(sequence) - len(kept)} entries]"')
            break
        kept.append(_encode_value(value, room, depth=depth))
    return "[" + ",".join(kept) + "]"


def _bound_base64(data: bytes, max_bytes: int) -> str:
    most = max_bytes * 3 // 4  # what fits as base64
    text = base64.b64encode(data[:most]).decode("ascii")
    return text if len(data) <= most else text + _marker(data)


def _marker(data: bytes) -> str:
    return f"[cut: {len(data)} bytes, sha256 {sha256(data).hexdigest()}]"

"""One record of the log: a line of canonical JSON, linked to its predecessor. Pure.

Keys are sorted, there are no spaces, everything is ASCII. `prev` is the leaf hash of the previous
record, so every record commits to the whole past; `seq` counts from 1.

Version 2 has the body in clear. In version 3 the body is sealed under the key of its session
(FS-5): `key` names the key, `sealed` is the ciphertext, and a few codes stay in clear
(sealed_bodies.py). Links and signatures cover the ciphertext, so a log verifies without any key,
and still verifies after a key was destroyed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn, TypeAlias

VERSION = 2
SEALED_VERSION = 3
GENESIS = "0" * 64
MAX_NAME_BYTES = 256
MAX_RECORD_BYTES = 256 * 1024
"""A longer line is not a record; bounds the memory of every reader."""

_FIELDS: dict[str, type] = {
    **dict.fromkeys(("action_id", "id", "interface", "kind", "prev"), str),
    **dict.fromkeys(("principal", "session_id", "time"), str),
    "body": dict,
    "seq": int,
    "v": int,
}
_TEXT = rb'"((?:[^"\\]|\\.)*+)"'
_HEAD = b'{"action_id":"'
_TAIL_MARK = b'},"id":"evt_'
# No text can contain an unescaped quote, so the last match of the tail pattern is the end of the
# body.
_TAIL = re.compile(
    rb'\},"id":"(evt_[0-9a-z]+)","interface":' + _TEXT + rb',"kind":"([a-z]+)"'
    rb',"prev":"([0-9a-f]{64})","principal":' + _TEXT + rb',"seq":([1-9][0-9]{0,17})'
    rb',"session_id":' + _TEXT + rb',"time":"([0-9T:.Z-]+)","v":[23]\}'
)


Encoded: TypeAlias = tuple[str, str, str, str, str, str, str, int]
"""The fields of a record that do not depend on its place, encoded: action_id, body, id,
interface, kind, principal, session_id and v."""


class BadRecord(Exception):
    """A line that is not a valid record; the text says why."""


class IncompleteRecord(BadRecord):
    """Bytes that no completed write leaves behind: torn by a crash, or not written by us."""


class RecordLink(NamedTuple):
    """The fields that bind a record to its place."""

    kind: bytes
    prev: bytes
    seq: int


class TailFields(NamedTuple):
    """The fields after the body, as spelled."""

    id: bytes
    interface: bytes
    kind: bytes
    prev: bytes
    principal: bytes
    seq: bytes
    session_id: bytes
    time: bytes


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


_quote = json.encoder.encode_basestring_ascii
_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode
_encode = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False
).encode


def record_line(
    fields: Mapping[str, str],
    *,
    body: str,
    seq: int,
    time: str,
    prev: str,
    version: int = VERSION,
) -> bytes:
    """The line, without newline, of a record from plain fields and an encoded body."""
    encoded = (
        _quote(fields["action_id"]),
        body,
        _quote(fields["id"]),
        _quote(fields["interface"]),
        _quote(fields["kind"]),
        _quote(fields["principal"]),
        _quote(fields["session_id"]),
        version,
    )
    return encoded_line(encoded, seq, time, prev)


def encoded_line(encoded: Encoded, seq: int, time: str, prev: str) -> bytes:
    """The same from encoded fields.

    Formatted by hand instead of by the JSON encoder, since it is on the path of every action.
    """
    action_id, body, event_id, interface, kind, principal, session_id, version = encoded
    return (
        f'{{"action_id":{action_id},"body":{body},"id":{event_id},"interface":{interface},'
        f'"kind":{kind},"prev":"{prev}","principal":{principal},"seq":{seq},'
        f'"session_id":{session_id},"time":"{time}","v":{version}}}'
    ).encode("ascii")


def parse_link(line: bytes) -> RecordLink:
    """The link fields, without parsing the body: fast enough for millions of records."""
    found = match_tail(line)
    return RecordLink(found[3], found[4], int(found[6]))


def tail_fields(line: bytes) -> TailFields:
    """All fields after the body."""
    return TailFields(*match_tail(line).groups())


def match_tail(line: bytes) -> re.Match[bytes]:
    """The fields after the body, in the order of `TailFields`, and their places."""
    found = _TAIL.fullmatch(line, max(0, line.rfind(_TAIL_MARK)))
    if found is None or not line.startswith(_HEAD) or len(line) > MAX_RECORD_BYTES:
        raise IncompleteRecord("it is not a record")
    return found


def parse_record(line: bytes) -> dict[str, Any]:
    """The record in a line (without newline), if it has the one allowed spelling."""
    if len(line) > MAX_RECORD_BYTES:
        raise BadRecord("it is longer than any record")
    try:
        record = _decode(line.decode("ascii"))
    except (ValueError, RecursionError):
        raise IncompleteRecord("it is not JSON") from None
    if not isinstance(record, dict) or record.keys() != _FIELDS.keys():
        raise BadRecord("it does not have the fields of a record")
    if record["v"] not in (VERSION, SEALED_VERSION):
        raise BadRecord("it is of an unknown version")
    if any(type(record[name]) is not kind for name, kind in _FIELDS.items()):
        raise BadRecord("a field is not of its type")
    if record["v"] == SEALED_VERSION and not _is_sealed(record["body"]):
        raise BadRecord("its body is not a sealed one")
    fields = {name: record[name] for name in _FIELDS if name not in ("body", "seq", "v")}
    try:
        spelled = record_line(
            fields,
            body=_encode(record["body"]),
            seq=record["seq"],
            time=record["time"],
            prev=record["prev"],
            version=record["v"],
        )
    # A JSON number that a float cannot hold, or a time or hash of other characters than ASCII.
    except (ValueError, RecursionError):
        raise BadRecord("its spelling was altered") from None
    if spelled != line:
        raise BadRecord("its spelling was altered")
    return record


def _is_sealed(body: dict[str, Any]) -> bool:
    return all(type(body.get(name)) is str for name in ("key", "sealed"))

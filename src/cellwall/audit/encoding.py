"""How the body of an event is written down: canonical JSON, bounded, without secrets. Pure.

Every text, number and list and the whole of it is bounded, and what is cut is told with its length
and SHA-256. What looks like a credential is taken out before anything is cut: half a key would
still be half a key.
"""

from __future__ import annotations

import base64
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256

from cellwall.audit.records import MAX_NAME_BYTES, Encoded
from cellwall.audit.redaction import (
    BINARY,
    SequenceRedactor,
    may_hold_secrets,
    redact_named_value,
    redact_start,
    redact_text,
)
from cellwall.core.events import Event
from cellwall.core.types import Json, new_id

MAX_FIELD_BYTES = 8 * 1024
"""The most a text may be allowed: one that just fits, escaped sixfold, must not burst a record."""

_MAX_BODY_BYTES = 128 * 1024
_MAX_DEPTH = 16
_SHORT_CHARACTERS = 4096
_MAX_ENTRIES = 4096
_MAX_INTEGER_BITS = 64
_SCALAR = (str, int, float, type(None))
_CONSTANTS = {None: "null", True: "true", False: "false"}

quote = json.encoder.encode_basestring_ascii
_canonical = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False
)


def _encoder() -> Callable[[object], str]:
    """`_canonical.encode` with the C part made once: to make it is a third of the time."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return _canonical.encode
    parts = make(None, _canonical.default, quote, None, ":", ",", True, False, False)
    return lambda value: "".join(parts(value, 0))


_encode = _encoder()


_is_number_as_name = re.compile(r'[-0-9]|true"|false"|null"').match


def cut_text(text: str, *, max_bytes: int) -> str:
    """The text itself, or its first `max_bytes` bytes and a marker with length and SHA-256.

    A text that is longer than `max_bytes` in the record was therefore always cut by us: a payload
    cannot fake the marker.
    """
    text = redact_start(text, max_bytes)
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


def is_short(body: Mapping[str, Json]) -> bool:
    """Whether it is looked through in a moment, whatever it holds."""
    try:
        return len(_encode(body)) <= _SHORT_CHARACTERS
    except (TypeError, ValueError, RecursionError):
        return False


def encode_body(body: Mapping[str, Json], *, max_field_bytes: int) -> str:
    """The body as canonical JSON, with every text, number and list and the whole of it bounded.

    The start of what is too long is always kept: padding an action must not hide it.
    """
    text = encode_simple(body, max_field_bytes)
    return encode_bounded(body, max_field_bytes) if text is None else text


def encode_simple(
    body: Mapping[str, Json], max_field_bytes: int, *, beside: str = ""
) -> str | None:
    """The body if nothing in it needs a closer look, as in nearly every one of them.

    So short that nothing in it can be too long, too many or too deep, and nothing that looks like a
    surrogate or a secret, also not in what stands beside it. The walk costs four times as much.
    """
    try:
        text = _encode(body)
    except (TypeError, ValueError, RecursionError):
        return None
    if (
        len(text) <= max_field_bytes
        and ("\\" not in text or "\\ud" not in text)
        and not may_hold_secrets(beside + text)
        and not _may_have_number_as_name(text)
        and text.count("[") + text.count("{") <= _MAX_DEPTH
    ):
        return text
    return None


def _may_have_number_as_name(text: str) -> bool:
    """Names that are no texts are sorted before they become texts: no canonical order.

    They are never mixed with texts (that cannot be sorted), so the first of a mapping tells, and a
    brace before a quote stands nowhere else but at the end of a text.
    """
    at = text.find('{"') + 2
    while at > 1:
        if text[at] in "-0123456789tfn" and _is_number_as_name(text, at):
            return True
        at = text.find('{"', at) + 2
    return False


def encode_bounded(body: Mapping[str, Json], max_field_bytes: int) -> str:
    """The same, looking at every part."""
    return _encode_mapping(body, _Budget(max_field_bytes), depth=1)


@dataclass(slots=True)
class _Budget:
    """What is left of a body's bounds. The bound on entries also bounds the work."""

    max_field_bytes: int
    entries: int = _MAX_ENTRIES
    encoded_bytes: int = _MAX_BODY_BYTES

    @property
    def is_full(self) -> bool:
        return self.entries <= 0 or self.encoded_bytes <= 0


def _encode_value(value: object, room: _Budget, *, depth: int) -> str:
    room.entries -= 1
    # Scalars first: asking for `Mapping` or `Sequence` costs more than encoding does.
    if not isinstance(value, _SCALAR) and depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            return _encode_mapping(value, room, depth=depth + 1)
        if isinstance(value, Sequence) and not isinstance(value, BINARY):
            return _encode_sequence(value, room, depth=depth + 1)
    text = _encode_scalar(value, room.max_field_bytes)
    room.encoded_bytes -= len(text) + 1
    return text


def _encode_scalar(value: object, max_bytes: int) -> str:
    if isinstance(value, str):
        return quote(cut_text(value, max_bytes=max_bytes))
    if value is None or isinstance(value, bool):
        return _CONSTANTS[value]
    if isinstance(value, int):
        # A huge integer costs quadratic time as decimal digits; as hexadecimal it does not.
        is_small = value.bit_length() <= _MAX_INTEGER_BITS
        return int.__repr__(value) if is_small else f'"{cut_text(hex(value), max_bytes=max_bytes)}"'
    if isinstance(value, float):
        return float.__repr__(value) if math.isfinite(value) else f'"{value}"'
    if isinstance(value, BINARY):
        clean = redact_start(bytes(value).decode("latin-1"), max_bytes).encode("latin-1")
        return f'{{"base64":"{_encode_base64(clean, max_bytes)}"}}'
    # Too deep, or no plain data at all. Never its repr: that may hold anything.
    return quote(f"[cut: {type(value).__name__:.64}]")


def _encode_mapping(mapping: Mapping[str, Json], room: _Budget, *, depth: int) -> str:
    kept: dict[str, str] = {}
    times: dict[str, int] = {}
    for key, value in mapping.items():
        if room.is_full:
            name = _unique_name("[cut]", kept, times)
            kept[name] = f"{quote(name)}:{len(mapping) - len(kept)}"
            break
        text = _name_text(key)
        name = _unique_name(cut_text(text, max_bytes=room.max_field_bytes), kept, times)
        quoted = quote(name)
        room.encoded_bytes -= len(quoted) + 3
        # Names of the first level are ours: the public `key` of the log itself is one of them.
        is_ours = depth == 1
        clean = (
            redact_named_value(text, value, is_ours=is_ours) if isinstance(value, str) else value
        )
        kept[name] = f"{quoted}:{_encode_value(clean, room, depth=depth)}"
    return "{" + ",".join([kept[name] for name in sorted(kept)]) + "}"


def _name_text(key: object) -> str:
    # As JSON spells them. What is no plain data is not spelled at all: that may hold anything.
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, BINARY):
        return bytes(key).decode("utf-8", "backslashreplace")
    if key is None or isinstance(key, bool):
        return _CONSTANTS[key]
    if isinstance(key, int):
        return int.__repr__(key) if key.bit_length() <= _MAX_INTEGER_BITS else hex(key)
    return float.__repr__(key) if isinstance(key, float) else f"[cut: {type(key).__name__:.64}]"


def _unique_name(name: str, kept: Mapping[str, str], times: dict[str, int]) -> str:
    """The name, numbered if it is taken: without their secrets two may be the same, and the later
    one must not hide the earlier one."""
    if name not in kept:
        return name
    # Counted on and not from the start, or a row of equal names would cost quadratic time.
    count = times.get(name, 1) + 1
    while (numbered := f"{name} [{count}]") in kept:
        count += 1
    times[name] = count
    return numbered


def _encode_sequence(sequence: Sequence[object], room: _Budget, *, depth: int) -> str:
    kept: list[str] = []
    cleaner = SequenceRedactor()
    for value in sequence:
        if room.is_full:
            kept.append(f'"[cut: {len(sequence) - len(kept)} entries]"')
            break
        kept.append(_encode_value(cleaner.redact(value), room, depth=depth))
    return "[" + ",".join(kept) + "]"


def _encode_base64(data: bytes, max_bytes: int) -> str:
    most = max_bytes * 3 // 4  # what fits as base64
    text = base64.b64encode(data[:most]).decode("ascii")
    return text if len(data) <= most else text + _marker(data)


def _marker(data: bytes) -> str:
    return f"[cut: {len(data)} bytes, sha256 {sha256(data).hexdigest()}]"


_IDS_AT_ONCE = 64
_ids: list[str] = []
# A child that went on with its parent's would give the same names to other events.
os.register_at_fork(after_in_child=_ids.clear)


class RecordDraft:
    """A record that has no place in the log yet."""

    __slots__ = ("body", "encoded", "id", "kind")

    def __init__(self, event: Event, max_field_bytes: int = MAX_FIELD_BYTES) -> None:
        # On the path of every action, after a flush that has left nothing of this in the caches of
        # the processor: one look at everything, and not one at each part.
        action_id, interface = quote(event.action_id), quote(event.interface)
        principal, session_id = quote(event.principal), quote(event.session_id)
        names = action_id + interface + principal + session_id
        body = None
        if len(names) <= MAX_NAME_BYTES and "\\" not in names:
            body = encode_simple(event.body, max_field_bytes, beside=names)
        if body is None:
            action_id, interface = _encode_name(event.action_id), _encode_name(event.interface)
            principal, session_id = _encode_name(event.principal), _encode_name(event.session_id)
            body = encode_bounded(event.body, max_field_bytes)
        self.id, self.kind = name, kind = _new_id(), str.__str__(event.kind)
        self.body = body
        self.encoded: Encoded = (
            action_id,
            body,
            f'"{name}"',
            interface,
            f'"{kind}"',
            principal,
            session_id,
        )


def _new_id() -> str:
    """Many are made at once: one by one each would take as long as four of them."""
    try:
        return _ids.pop()
    except IndexError:
        _ids.extend([new_id("evt") for _ in range(_IDS_AT_ONCE)])
        return new_id("evt")


def _encode_name(text: str) -> str:
    """A name, quoted."""
    if len(text) <= MAX_NAME_BYTES:
        return quote(_redact_name(text))
    return quote(cut_text(text, max_bytes=MAX_NAME_BYTES))


@lru_cache(maxsize=1024)
def _redact_name(text: str) -> str:
    """The same few names come again and again."""
    return redact_text(text) if text.isascii() else cut_text(text, max_bytes=MAX_NAME_BYTES)

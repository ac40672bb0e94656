"""Encodes events as record fields: canonical JSON, bounded, without secrets. Pure.

Every text, number, list and the whole body are bounded; a truncation marker holds the length and
SHA-256 of the original. Credentials are redacted before anything is truncated: half a key would
still be half a key.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import sha256

from cellwall.audit.records import MAX_NAME_BYTES, SEALED_VERSION, VERSION, Encoded
from cellwall.audit.redaction import (
    BINARY,
    SequenceRedactor,
    may_hold_secrets,
    redact_named_value,
    redact_start,
    redact_text,
)
from cellwall.audit.sealed_bodies import CLEAR_KINDS, seal_body
from cellwall.core.forks import call_in_child
from cellwall.core.ids import new_id
from cellwall.core.outcomes import Event
from cellwall.core.ports import SessionKeysPort
from cellwall.core.types import Json

MAX_FIELD_BYTES = 8 * 1024
"""The upper limit of the setting: a text of this size, escaped to six times its length, still
fits into a record."""

_MAX_BODY_BYTES = 128 * 1024
_MAX_DEPTH = 16
_SHORT_CHARACTERS = 4096
_MAX_ENTRIES = 4096
_MAX_INTEGER_BITS = 64
_CACHED_CHARACTERS = 64
_SCALAR = (str, int, float, type(None))
_CONSTANTS = {None: "null", True: "true", False: "false"}

quote = json.encoder.encode_basestring_ascii
_canonical = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False
)


def _encoder() -> Callable[[object], str]:
    """`_canonical.encode` with the C encoder built once: building it takes a third of the time."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return _canonical.encode
    parts = make(None, _canonical.default, quote, None, ":", ",", True, False, False)
    return lambda value: "".join(parts(value, 0))


_encode = _encoder()


# Begins with a fixed text, which `re` looks for several times as fast as for a look-behind.
_without_digests = partial(re.compile(r'_sha256":"[0-9a-f]{64}"').sub, '_sha256":""')
_is_number_as_name = re.compile(r'[-0-9]|true"|false"|null"').match


def cut_text(text: str, *, max_bytes: int) -> str:
    """The text, or its first `max_bytes` bytes and a marker with length and SHA-256.

    A text longer than `max_bytes` in the log was therefore always truncated by us: a payload cannot
    fake the marker.
    """
    text = redact_start(text, max_bytes)
    if text.isascii() and len(text) <= max_bytes:
        return text
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        # Lone surrogates (undecodable file names) are not valid Unicode; strict readers of the log
        # would reject the whole line.
        data = text.encode("utf-8", "backslashreplace")
        text = data.decode("utf-8")
    if len(data) <= max_bytes:
        return text
    return data[:max_bytes].decode("utf-8", "ignore") + _marker(data)


def encode_short(body: Mapping[str, Json]) -> str | None:
    """The body as canonical JSON if scanning it is fast whatever it contains, else None."""
    try:
        text = _encode(body)
    except (TypeError, ValueError, RecursionError):
        return None
    return text if len(text) <= _SHORT_CHARACTERS else None


def encode_body(body: Mapping[str, Json], *, max_field_bytes: int) -> str:
    """The body as canonical JSON, with every text, number, list and the whole bounded.

    The start of a long value is always kept: padding an action must not hide it.
    """
    text = encode_simple(body, max_field_bytes)
    return encode_bounded(body, max_field_bytes) if text is None else text


def encode_simple(
    body: Mapping[str, Json], max_field_bytes: int, *, beside: str = "", text: str | None = None
) -> str | None:
    """The body if nothing in it needs a closer look, as is the case for nearly all bodies.

    `text` is the result of `encode_short` for this body, if that was called.

    It is so short that nothing in it can exceed a bound, and contains nothing that looks like a
    surrogate or a secret, also across the border to `beside`. The full walk costs four times as
    much.
    """
    if text is None:
        try:
            text = _encode(body)
        except (TypeError, ValueError, RecursionError):
            return None
    if (
        len(text) <= max_field_bytes
        and ("\\" not in text or "\\ud" not in text)
        and not _may_hold_secrets(beside + text)
        and not _may_have_number_as_name(text)
        and text.count("[") + text.count("{") <= _MAX_DEPTH
    ):
        return text
    return None


def _may_hold_secrets(text: str) -> bool:
    """Without the digests that stand in most records: one in forty holds the three characters that
    some kinds of tokens begin with, and no such token is 64 hexadecimal digits. Quotes in texts are
    escaped, so the pattern matches whole values alone."""
    return may_hold_secrets(_without_digests(text) if '_sha256":"' in text else text)


def _may_have_number_as_name(text: str) -> bool:
    """Non-string keys are sorted before they become strings, so their order is not canonical.

    They are never mixed with string keys (that cannot be sorted), so the first key of a mapping
    decides; a brace before a quote occurs nowhere else but at the end of a string.
    """
    at = text.find('{"') + 2
    while at > 1:
        if text[at] in "-0123456789tfn" and _is_number_as_name(text, at):
            return True
        at = text.find('{"', at) + 2
    return False


def encode_bounded(body: Mapping[str, Json], max_field_bytes: int) -> str:
    """Like `encode_simple`, checking every part."""
    return _encode_mapping(body, _BodyBudget(max_field_bytes), depth=1)


@dataclass(slots=True)
class _BodyBudget:
    """What is left of a body's limits. The limit on entries also bounds the work."""

    max_field_bytes: int
    entries: int = _MAX_ENTRIES
    encoded_bytes: int = _MAX_BODY_BYTES

    @property
    def is_full(self) -> bool:
        return self.entries <= 0 or self.encoded_bytes <= 0


def _encode_value(value: object, budget: _BodyBudget, *, depth: int) -> str:
    budget.entries -= 1
    # Scalars first: the `Mapping` and `Sequence` checks cost more than encoding.
    if not isinstance(value, _SCALAR) and depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            return _encode_mapping(value, budget, depth=depth + 1)
        if isinstance(value, Sequence) and not isinstance(value, BINARY):
            return _encode_sequence(value, budget, depth=depth + 1)
    text = _encode_scalar(value, budget.max_field_bytes)
    budget.encoded_bytes -= len(text) + 1
    return text


def _encode_scalar(value: object, max_bytes: int) -> str:
    if isinstance(value, str):
        return quote(cut_text(value, max_bytes=max_bytes))
    if value is None or isinstance(value, bool):
        return _CONSTANTS[value]
    if isinstance(value, int):
        # Decimal conversion of a huge integer takes quadratic time; hexadecimal does not.
        is_small = value.bit_length() <= _MAX_INTEGER_BITS
        return int.__repr__(value) if is_small else f'"{cut_text(hex(value), max_bytes=max_bytes)}"'
    if isinstance(value, float):
        return float.__repr__(value) if math.isfinite(value) else f'"{value}"'
    if isinstance(value, BINARY):
        clean = redact_start(bytes(value).decode("latin-1"), max_bytes).encode("latin-1")
        return f'{{"base64":"{_encode_base64(clean, max_bytes)}"}}'
    # Too deep, or not plain data. Never the repr: it may contain anything.
    return quote(f"[cut: {type(value).__name__:.64}]")


def _encode_mapping(mapping: Mapping[str, Json], budget: _BodyBudget, *, depth: int) -> str:
    kept: dict[str, str] = {}
    times: dict[str, int] = {}
    for key, value in mapping.items():
        if budget.is_full:
            name = _unique_name("[cut]", kept, times)
            kept[name] = f"{quote(name)}:{len(mapping) - len(kept)}"
            break
        text = _name_text(key)
        name = _unique_name(_cut_name(text, budget.max_field_bytes), kept, times)
        quoted = quote(name)
        budget.encoded_bytes -= len(quoted) + 3
        # Top-level names are ours: the public `key` of the log itself is one of them.
        is_ours = depth == 1
        clean = (
            redact_named_value(text, value, is_ours=is_ours) if isinstance(value, str) else value
        )
        kept[name] = f"{quoted}:{_encode_value(clean, budget, depth=depth)}"
    return "{" + ",".join([kept[name] for name in sorted(kept)]) + "}"


def _name_text(key: object) -> str:
    # As JSON spells them. Other objects are not converted to text: their repr may contain anything.
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, BINARY):
        return bytes(key).decode("utf-8", "backslashreplace")
    if key is None or isinstance(key, bool):
        return _CONSTANTS[key]
    if isinstance(key, int):
        return int.__repr__(key) if key.bit_length() <= _MAX_INTEGER_BITS else hex(key)
    return float.__repr__(key) if isinstance(key, float) else f"[cut: {type(key).__name__:.64}]"


def _cut_name(text: str, max_bytes: int) -> str:
    if len(text) <= _CACHED_CHARACTERS and text.isascii():
        return _redact_name(text)
    return cut_text(text, max_bytes=max_bytes)


def _unique_name(name: str, kept: Mapping[str, str], times: dict[str, int]) -> str:
    """The name, numbered if it is taken: after redaction two names may be equal, and the later
    one must not hide the earlier one."""
    if name not in kept:
        return name
    # Continue the count: starting at 1 each time would take quadratic time for equal names.
    count = times.get(name, 1) + 1
    while (numbered := f"{name} [{count}]") in kept:
        count += 1
    times[name] = count
    return numbered


def _encode_sequence(sequence: Sequence[object], budget: _BodyBudget, *, depth: int) -> str:
    kept: list[str] = []
    cleaner = SequenceRedactor()
    for value in sequence:
        if budget.is_full:
            kept.append(f'"[cut: {len(sequence) - len(kept)} entries]"')
            break
        kept.append(_encode_value(cleaner.redact(value), budget, depth=depth))
    return "[" + ",".join(kept) + "]"


def _encode_base64(data: bytes, max_bytes: int) -> str:
    most = max_bytes * 3 // 4
    text = base64.b64encode(data[:most]).decode("ascii")
    return text if len(data) <= most else text + _marker(data)


def _marker(data: bytes) -> str:
    return f"[cut: {len(data)} bytes, sha256 {sha256(data).hexdigest()}]"


_IDS_AT_ONCE = 64
_ids: list[str] = []
# A forked child that reused the parent's ids would give them to other events.
call_in_child(_ids.clear)


class RecordDraft:
    """A record that has no place in the log yet."""

    __slots__ = ("body", "encoded", "id", "kind")

    def __init__(
        self,
        event: Event,
        max_field_bytes: int = MAX_FIELD_BYTES,
        keys: SessionKeysPort | None = None,
        text: str | None = None,
    ) -> None:
        """`text` is the result of `encode_short` for the body, if that was called."""
        # On the path of every action, after a flush that evicted this code from the processor
        # caches: one check over everything instead of one per field.
        action_id, interface = quote(event.action_id), quote(event.interface)
        principal, session_id = quote(event.principal), quote(event.session_id)
        names = action_id + interface + principal + session_id
        body = None
        if len(names) <= MAX_NAME_BYTES and "\\" not in names:
            body = encode_simple(event.body, max_field_bytes, beside=names, text=text)
        if body is None:
            action_id, interface = _encode_name(event.action_id), _encode_name(event.interface)
            principal, session_id = _encode_name(event.principal), _encode_name(event.session_id)
            body = encode_bounded(event.body, max_field_bytes)
        self.id, self.kind = name, kind = _new_id(), str.__str__(event.kind)
        version = VERSION
        if keys is not None and kind not in CLEAR_KINDS:
            names = f'"{name}","{kind}",{action_id},{session_id}'
            body, version = seal_body(keys, event, names, body), SEALED_VERSION
        self.body = body
        self.encoded: Encoded = (
            action_id,
            body,
            f'"{name}"',
            interface,
            f'"{kind}"',
            principal,
            session_id,
            version,
        )


def _new_id() -> str:
    """Ids are made in batches: one at a time, each takes four times as long."""
    try:
        return _ids.pop()
    except IndexError:
        _ids.extend([new_id("evt") for _ in range(_IDS_AT_ONCE)])
        return new_id("evt")


def _encode_name(text: str) -> str:
    """A bounded, redacted, quoted name."""
    if len(text) <= MAX_NAME_BYTES:
        return quote(_redact_name(text))
    return quote(cut_text(text, max_bytes=MAX_NAME_BYTES))


@lru_cache(maxsize=1024)
def _redact_name(text: str) -> str:
    """Cached: the same few names recur."""
    return redact_text(text) if text.isascii() else cut_text(text, max_bytes=MAX_NAME_BYTES)

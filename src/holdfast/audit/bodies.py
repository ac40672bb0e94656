"""How the body of an event is written down: canonical JSON, bounded, without secrets. Pure.

Every text, number and list and the whole of it is bounded, and what is cut is told with its length
and SHA-256. What looks like a credential is taken out before anything is cut: half a key would
still be half a key.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from holdfast.core.types import Json

MAX_FIELD_BYTES = 8 * 1024
"""The most a text may be allowed: one that just fits, escaped sixfold, must not burst a record."""

_MAX_BODY_BYTES = 128 * 1024
_MAX_DEPTH = 16
_MAX_ENTRIES = 4096
_MAX_INTEGER_BITS = 64
_LONGEST_SECRET_BYTES = 16 * 1024
_SCALAR = (str, int, float, type(None))
_BINARY = (bytes, bytearray, memoryview)
_CONSTANTS = {None: "null", True: "true", False: "false"}

# Shapes that are credentials and next to nothing else; each begins with a text of its own, so that
# looking for them costs little. Before one may stand the escape of a quoted text, as in "\\nghp_".
# A JWT begins where no letter of one stands before it, or a row of beginnings would cost minutes.
_SECRETS = re.compile(
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:[^\"\\-]|\\.|-(?!----END))*"
    r"(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
    r"|(?<![0-9A-Z])A(?:KIA|SIA)[0-9A-Z]{16}(?![0-9A-Z])"
    r"|gh[pousr]_[0-9A-Za-z]{36,255}"
    r"|github_pat_[0-9A-Za-z_]{22,255}"
    r"|glpat-[0-9A-Za-z_-]{20,255}"
    r"|(?:(?<![0-9A-Za-z])|(?<=\\[nrt]))sk-[0-9A-Za-z_-]{20,255}"
    r"|sk_live_[0-9A-Za-z]{16,255}"
    r"|xox[abprs]-[0-9A-Za-z-]{10,255}"
    r"|AIza[0-9A-Za-z_-]{35}"
    r"|npm_[0-9A-Za-z]{36}"
    r"|pypi-[0-9A-Za-z_-]{50,1000}"
    r"|(?:(?<![0-9A-Za-z_-])|(?<=\\[nrt]))eyJ[0-9A-Za-z_-]{10,4000}\.eyJ[0-9A-Za-z_-]{10,8000}\.[0-9A-Za-z_-]{10,4000}"
)
_SIGNS = (
    *("PRIVATE KEY-----", "AKIA", "ASIA", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    *("glpat-", "sk-", "sk_live_", "xox", "AIza", "npm_", "pypi-", "eyJ"),
)

_quote = json.encoder.encode_basestring_ascii
_encode = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False
).encode


def without_secrets(text: str) -> str:
    """The text with a marker in the place of everything that has the shape of a credential."""
    # Looking for a text is many times quicker than looking for a shape, and mostly there is none.
    return _SECRETS.sub(_redacted, text) if _may_hold_secrets(text) else text


def _may_hold_secrets(text: str) -> bool:
    return any(map(text.__contains__, _SIGNS))


def _redacted(found: re.Match[str]) -> str:
    # No digest: a weak credential could be guessed from it.
    return f"[redacted: {len(found[0])} characters]"


def cut_text(text: str, *, max_bytes: int) -> str:
    """The text itself, or its first `max_bytes` bytes and a marker with length and SHA-256.

    A text that is longer than `max_bytes` in the record was therefore always cut by us: a payload
    cannot fake the marker.
    """
    text = _with_clean_start(text, max_bytes)
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


def _with_clean_start(text: str, length: int) -> str:
    """The text without the secrets that begin in its first `length` characters, counted without
    them: what is taken out makes room for what follows."""
    if not _may_hold_secrets(text):
        return text
    parts, at = [], 0
    while at < len(text) and length > 0:
        found = _SECRETS.search(text, at, at + length + _LONGEST_SECRET_BYTES)
        if found is None or found.start() >= at + length:
            break
        parts += [text[at : found.start()], _redacted(found)]
        length -= len(parts[-2]) + len(parts[-1])
        at = found.end()
    return "".join([*parts, text[at:]])


def encode_body(body: Mapping[str, Json], *, max_field_bytes: int) -> str:
    """The body as canonical JSON, with every text, number and list and the whole of it bounded.

    The start of what is too long is always kept: padding an action must not hide it.
    """
    try:
        text = _encode(body)
    except (TypeError, ValueError, RecursionError):
        return _encode_mapping(body, _Room(max_field_bytes), depth=1)
    # Nearly every body: so short that nothing in it can be too long, too many or too deep, and
    # nothing that looks like a surrogate or a secret. The walk costs four times as much.
    if (
        len(text) <= max_field_bytes
        and "\\ud" not in text
        and not _may_hold_secrets(text)
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
        clean = _with_clean_start(bytes(value).decode("latin-1"), max_bytes).encode("latin-1")
        return f'{{"base64":"{_bound_base64(clean, max_bytes)}"}}'
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

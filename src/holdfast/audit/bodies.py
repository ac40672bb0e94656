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
import sys
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
_MAX_KEY_LINES = 1024
_WHOLE = sys.maxsize // 4
_SCALAR = (str, int, float, type(None))
_BINARY = (bytes, bytearray, memoryview)
_CONSTANTS = {None: "null", True: "true", False: "false"}

_KEY_HEADER = r"-----BEGIN (?P<key>[0-9A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?)-----"

# What may stand before a credential although it ends in a letter: the escape of a quoted text or of
# an address, as in "\\nsk-", "\\u000ask-" and "%2Fsk-". It is asked for behind the beginning, since
# a shape that begins with a text of its own costs little to look for.
_ESCAPES = (r"\\[bfnrt]", r"\\x[0-9A-Fa-f]{2}", r"\\u[0-9A-Fa-f]{4}", r"%[0-9A-Fa-f]{2}")


def _not_after(letters: str, beginning: str) -> str:
    after_escape = "|".join(f"(?<={escape}{beginning})" for escape in _ESCAPES)
    return f"{beginning}(?:(?<!{letters}{beginning})|{after_escape})"


# Shapes that are credentials and next to nothing else. Where a shape has a group, only that is the
# credential, and what stands around it is kept. Of a private key it is only the header: its end is
# looked for by itself. Nothing here is repeated without a bound, and nothing can be read in two
# ways. A JWT begins where no letter of one stands before it, or a row of beginnings would cost
# minutes.
_SECRETS = re.compile(
    rf"{_KEY_HEADER}"
    rf"|{_not_after('[A-Z]', 'A[KS]IA')}[0-9A-Z]{{16}}(?![0-9A-Z])"
    r"|gh[pousr]_[0-9A-Za-z]{36,255}"
    r"|github_pat_[0-9A-Za-z_]{22,255}"
    r"|glpat-[0-9A-Za-z_-]{20,255}"
    rf"|{_not_after('[A-Za-z]', 'sk-')}[0-9A-Za-z_-]{{20,255}}"
    r"|[rs]k_(?:live|test)_[0-9A-Za-z]{16,255}"
    r"|xox[abprs]-[0-9A-Za-z-]{10,255}"
    r"|xapp-[0-9A-Za-z-]{10,255}"
    r"|AIza[0-9A-Za-z_-]{35}"
    r"|GOCSPX-[0-9A-Za-z_-]{20,255}"
    r"|ya29\.[0-9A-Za-z._-]{20,4000}"
    r"|npm_[0-9A-Za-z]{36}"
    r"|pypi-[0-9A-Za-z_-]{50,1000}"
    r"|hf_[0-9A-Za-z]{30,255}"
    r"|SG\.[0-9A-Za-z_-]{16,255}\.[0-9A-Za-z_-]{16,255}"
    r"|do[opr]_v1_[0-9A-Za-z]{32,255}"
    r"|[Aa](?i:ge-secret-key-(?:pq-)?1[0-9a-z]{40,4000})"
    rf"|{_not_after('[0-9A-Za-z_-]', 'eyJ')}"
    r"[0-9A-Za-z_-]{10,4000}\.eyJ[0-9A-Za-z_-]{10,8000}\.[0-9A-Za-z_-]{10,4000}"
    r"|[Aa](?i:uthorization[\\\"'\s:=,]{1,12}(?:basic|bearer)\s{1,4})([0-9A-Za-z._~+/=-]{6,8000})"
    # Without the name of the header it is a word like any other: a token is long or has a digit.
    r"|[Bb](?i:earer)(?:[\s:=+]|%20){1,4}"
    r"((?=[A-Za-z._~+/-]{0,64}[0-9])[0-9A-Za-z._~+/-]{12,8000}={0,2}|[A-Za-z]{24,8000})"
    r"|[Bb](?i:asic)(?:\s|%20){1,4}(?P<basic>[0-9A-Za-z+/]{8,1000}={0,2})"
    r"|://[^\s/?#:@\"'<>]{0,255}:([^\s/?#\"'<>]{1,1000})@"
    r"|[Ss](?i:ecret[_ -]?access[_ -]?key)[\\\"'\s:=,]{1,12}"
    r"((?:[0-9A-Za-z+/]|\\{1,3}/){16,255}={0,2})"
)
_SECRET_NAMES = ("secret_access_key", "secretaccesskey")
_find_github_sign = re.compile("gh[pousr]_").search
_find_key = re.compile(_KEY_HEADER).search
_is_named_secret = re.compile(r"\s{0,9}[0-9A-Za-z+/=]{16,255}\s{0,9}").fullmatch

_quote = json.encoder.encode_basestring_ascii
_encode = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False, check_circular=False
).encode
# Names that are no texts are sorted before they become texts: no canonical order. They are never
# mixed with texts (that cannot be sorted), so the first of a mapping tells, and a brace before a
# quote stands nowhere else but at the end of a text.
_find_number_as_name = re.compile(r'\{"(?:[-0-9]|true"|false"|null")').search


def without_secrets(text: str) -> str:
    """The text with a marker in the place of everything that has the shape of a credential."""
    return _with_clean_start(text, _WHOLE)


def _may_hold_secrets(text: str) -> bool:
    """Whether it holds the beginning of a shape. Every shape must have one here."""
    # Looking for a text is many times quicker than looking for a shape, and mostly there is none.
    # Spelled out, since a loop costs half as much again; and where several share a character that
    # few texts have, one look at that stands for all of them.
    return (
        ("sk-" in text or "k_live_" in text or "k_test_" in text or "hf_" in text)
        or ("xox" in text or "xapp-" in text or "npm_" in text or "pypi-" in text)
        or ("github_pat_" in text or "glpat-" in text or "ya29." in text or "_v1_" in text)
        or ("earer" in text or "asic" in text or "ecret" in text)
        or ("gh" in text and _find_github_sign(text) is not None)
        or ("I" in text and ("AKIA" in text or "ASIA" in text or "AIza" in text))
        or ("I" in text and ("PRIVATE KEY" in text or "ASIC" in text))
        or ("R" in text and ("ECRET" in text or "EARER" in text))
        or ("G" in text and ("GOCSPX-" in text or "SG." in text))
        or ("J" in text and "eyJ" in text)
        or ("@" in text and "://" in text)
    )


def _redacted(length: int) -> str:
    # No digest: a weak credential could be guessed from it.
    return f"[redacted: {length} characters]"


def _span(found: re.Match[str], text: str) -> tuple[int, int]:
    """From where to where the credential goes; nowhere if it is none after all."""
    start, end = found.span(found.lastindex or 0)
    if found.lastgroup == "key":
        # Quotes, commas and line ends are how keys stand in source code, and end nothing.
        return found.start(), _end_of_key(text, _key_end(found), found.end())
    if found.lastgroup == "basic" and not _is_name_and_password(found["basic"]):
        return start, start
    return start, end


def _key_end(header: re.Match[str]) -> str:
    return f"-----END {header['key']}-----"


def _end_of_key(text: str, key_end: str, start: int = 0) -> int:
    at = text.find(key_end, start)
    return len(text) if at < 0 else at + len(key_end)


def _is_name_and_password(token: str) -> bool:
    token = token.rstrip("=")
    try:
        return b":" in base64.b64decode(token + "=" * (-len(token) % 4))
    except ValueError:
        return False


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
    parts: list[str] = []
    at = 0
    while at < len(text) and length > 0:
        found = _SECRETS.search(text, at, at + length + _LONGEST_SECRET_BYTES)
        if found is None or found.start() >= at + length:
            break
        start, end = _span(found, text)
        parts += [text[at:start], _redacted(end - start) if start < end else ""]
        length -= len(parts[-2]) + len(parts[-1])
        at = end
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
        and ("\\" not in text or "\\ud" not in text)
        and not _may_hold_secrets(text)
        and _find_number_as_name(text) is None
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
    times: dict[str, int] = {}
    for key, value in mapping.items():
        if room.is_full:
            name = _new_name("[cut]", kept, times)
            kept[name] = f"{_quote(name)}:{len(mapping) - len(kept)}"
            break
        text = _text_of_name(key)
        name = _new_name(cut_text(text, max_bytes=room.max_field_bytes), kept, times)
        quoted = _quote(name)
        room.encoded_bytes -= len(quoted) + 3
        clean = _without_named_secret(text, value) if isinstance(value, str) else value
        kept[name] = f"{quoted}:{_encode_value(clean, room, depth=depth)}"
    return "{" + ",".join([kept[name] for name in sorted(kept)]) + "}"


def _text_of_name(key: object) -> str:
    # As JSON spells them. What is no plain data is not spelled at all: that may hold anything.
    if isinstance(key, str):
        return str.__str__(key)
    if isinstance(key, _BINARY):
        return bytes(key).decode("utf-8", "backslashreplace")
    if key is None or isinstance(key, bool):
        return _CONSTANTS[key]
    if isinstance(key, int):
        return int.__repr__(key) if key.bit_length() <= _MAX_INTEGER_BITS else hex(key)
    return float.__repr__(key) if isinstance(key, float) else f"[cut: {type(key).__name__:.64}]"


def _new_name(name: str, kept: Mapping[str, str], times: dict[str, int]) -> str:
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


def _encode_sequence(sequence: Sequence[object], room: _Room, *, depth: int) -> str:
    kept: list[str] = []
    cleaner = _LineCleaner()
    for value in sequence:
        if room.is_full:
            kept.append(f'"[cut: {len(sequence) - len(kept)} entries]"')
            break
        kept.append(_encode_value(cleaner.clean(value), room, depth=depth))
    return "[" + ",".join(kept) + "]"


@dataclass(slots=True)
class _LineCleaner:
    """Takes out what is a credential only together with the texts before it in a sequence: a key
    as a list of its lines, or a name and then its value."""

    before: str = ""
    key_end: str = ""
    key_lines: int = 0

    def clean(self, value: object) -> object:
        if isinstance(value, _BINARY):
            data = bytes(value)
            text = data.decode("latin-1")
            clean = self._clean_text(text)
            return data if clean == text else clean.encode("latin-1")
        return self._clean_text(value) if isinstance(value, str) else value

    def _clean_text(self, text: str) -> str:
        value, self.before = _without_named_secret(self.before, text), text[-64:]
        start = 0
        if self.key_end:
            start = _end_of_key(text, self.key_end)
            value = (_redacted(start) if start else "") + text[start:]
            # Bounded, or the mere header of a key would hide all the rest of an action.
            self.key_lines += 1
            if self.key_lines >= _MAX_KEY_LINES or text.endswith(self.key_end, 0, start):
                self.key_end = ""
        self._look_for_open_key(text, start)
        return value

    def _look_for_open_key(self, text: str, start: int) -> None:
        if "PRIVATE KEY" not in text:
            return
        while found := _find_key(text, start):
            self.key_end, self.key_lines = _key_end(found), 0
            start = _end_of_key(text, self.key_end, found.end())
            if text.endswith(self.key_end, found.end(), start):
                self.key_end = ""


def _without_named_secret(name: str, value: str) -> str:
    """The value, unless its name says that it is a secret: its shape alone says nothing."""
    name = name[-64:].rstrip(" :=\"'").lower().replace("-", "_")
    is_secret = name.endswith(_SECRET_NAMES) and _is_named_secret(value)
    return _redacted(len(value)) if is_secret else value


def _bound_base64(data: bytes, max_bytes: int) -> str:
    most = max_bytes * 3 // 4  # what fits as base64
    text = base64.b64encode(data[:most]).decode("ascii")
    return text if len(data) <= most else text + _marker(data)


def _marker(data: bytes) -> str:
    return f"[cut: {len(data)} bytes, sha256 {sha256(data).hexdigest()}]"

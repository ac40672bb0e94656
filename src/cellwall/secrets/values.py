"""Values, each encrypted for its own place, and keyed digests of every value ever stored.

Plaintext is held in buffers that are wiped. The digests are encrypted in the vault and keyed with a
key inside it, so they reveal nothing to an attacker who has only the file: they suffice to find a
value, not to guess it. Current values are found exactly, by `VaultStore.values`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from cellwall.secrets import failures
from cellwall.secrets.failures import tampered
from cellwall.secrets.format import NAMESPACE, Secret, Version
from cellwall.secrets.sealing import (
    BadSeal,
    KeyBytes,
    KeyPage,
    mac_of,
    pad,
    record_aad,
    seal,
    unpad,
    unseal,
    wipe,
)

MAX_VALUE_BYTES = 64 * 1024
MIN_LENT_BYTES = 8
"""A shorter value occurs by chance and can be guessed: it cannot be redacted reliably (SEC-5)."""
_COMMON = frozenset(
    (
        *("password", "passw0rd", "password1", "password123", "changeme", "changeit", "letmein"),
        *("welcome1", "iloveyou", "sunshine", "princess", "football", "baseball", "superman"),
        *("trustno1", "qwertyui", "qwerty123", "1q2w3e4r", "abcd1234", "12345678", "123456789"),
        *("1234567890", "11111111", "00000000", "administrator", "username", "anonymous"),
        *("localhost", "undefined", "example.com", "database", "postgres", "rabbitmq"),
        *("production", "development", "staging1", "testtest", "authorization", "content-type"),
        *("application", "response", "document", "function", "directory", "computer", "internet"),
    )
)


def check_value(value: bytes | bytearray) -> None:
    """Raises `BadInput` for an empty or too long value."""
    if not 0 < len(value) <= MAX_VALUE_BYTES:
        raise failures.bad_input(
            f"a value has 1 to {MAX_VALUE_BYTES} bytes",
            hint="Give it on standard input, or at the prompt.",
            code="CW-VAULT-VALUE",
        )


def weakness(name: str, value: bytes | bytearray) -> str:
    """Why a value cannot be distinguished from other text, or ""; never contains the value."""
    if len(value) < MIN_LENT_BYTES:
        return f"it is shorter than {MIN_LENT_BYTES} bytes: no lease gives it out"
    folded = bytes(value).lower()
    if folded in name.lower().encode():
        return "it is part of its own name, which is not secret"
    if folded in {word.encode() for word in _COMMON}:
        return "it is a common word: easy to guess, and requests that contain it are refused"
    return ""


def is_lendable(page: KeyPage, name: str, version: Version) -> bool:
    """True if the value is long enough; leaves no copy of the value behind."""
    plain = _decrypt(page, name, version)
    try:
        with unpad(plain) as value:
            return len(value) >= MIN_LENT_BYTES
    except BadSeal:
        raise failures.tampered("a value has no length") from None
    finally:
        wipe(plain)


def new_version(
    page: KeyPage, name: str, number: int, value: bytes | bytearray, *, made_s: float
) -> Version:
    """Encrypt a value for its place."""
    plain = pad(value)
    try:
        return Version(number, made_s, seal(page.buffer("seal"), plain, _value_aad(name, number)))
    finally:
        wipe(plain)


def decrypt_value(page: KeyPage, name: str, version: Version) -> bytes:
    """The value as `bytes`, which cannot be wiped: only for putting it on the wire."""
    plain = _decrypt(page, name, version)
    try:
        return bytes(unpad(plain))
    except BadSeal:
        raise failures.tampered("a value has no length") from None
    finally:
        wipe(plain)


def reseal(name: str, secret: Secret, old: KeyPage, new: KeyPage) -> Secret:
    """The same values under another vault key."""

    def reseal_version(version: Version) -> Version:
        plain = _decrypt(old, name, version)
        try:
            sealed = seal(new.buffer("seal"), plain, _value_aad(name, version.number))
            return replace(version, sealed=sealed)
        finally:
            wipe(plain)

    previous = None if secret.previous is None else reseal_version(secret.previous)
    return replace(secret, current=reseal_version(secret.current), previous=previous)


def _decrypt(page: KeyPage, name: str, version: Version) -> bytearray:
    try:
        return unseal(page.buffer("seal"), version.sealed, _value_aad(name, version.number))
    except BadSeal:
        raise failures.tampered("a value does not open") from None


def _value_aad(name: str, number: int) -> bytes:
    return record_aad(namespace=NAMESPACE, name=name, version=number)


MIN_KNOWN_BYTES = 6
"""Shorter values occur in any text by chance."""
_DIGEST_BYTES = 16
_PLAIN = re.compile(rb"[^\s\"'`<>\\\x00-\x1f]+")
_BORDER = re.compile(rb"[=:,;&?#@/(){}\[\]|]")
_MAX_BORDERS = 24


def digest_of(key: KeyBytes, value: bytes | bytearray | memoryview) -> str:
    """Short enough to keep thousands, long enough that none matches by chance."""
    return mac_of(key, bytes(value))[:_DIGEST_BYTES].hex()


@dataclass(frozen=True, slots=True)
class KnownDigests:
    """Grouped by length, since a text is hashed only where a value could be."""

    by_length: dict[int, dict[str, str]] = field(default_factory=dict)
    """length -> digest -> the name of the first secret with this value."""

    def with_value(self, key: KeyBytes, name: str, value: bytes | bytearray) -> KnownDigests:
        lengths = {length: dict(each) for length, each in self.by_length.items()}
        lengths.setdefault(len(value), {}).setdefault(digest_of(key, value), name)
        return KnownDigests(lengths)

    def find(self, key: KeyBytes, text: bytes) -> tuple[str, ...]:
        """The names of the values that occur in the text as separate tokens."""
        names_found = {
            name
            for token in tokens(text)
            if (names := self.by_length.get(len(token))) is not None
            and len(token) >= MIN_KNOWN_BYTES
            and (name := names.get(digest_of(key, token))) is not None
        }
        return tuple(sorted(names_found))

    def to_bytes(self) -> bytes:
        rows = [
            [length, digest, name]
            for length, each in self.by_length.items()
            for digest, name in each.items()
        ]
        return json.dumps(rows, separators=(",", ":")).encode()


def parse_known(data: bytes | bytearray) -> KnownDigests:
    """The inverse of `to_bytes`."""
    lengths: dict[int, dict[str, str]] = {}
    try:
        for length, digest, name in json.loads(data):
            lengths.setdefault(length, {})[digest] = name
    except (ValueError, TypeError, RecursionError):
        raise tampered("the digests") from None
    return KnownDigests(lengths)


def tokens(text: bytes) -> Iterator[bytes]:
    """Pieces of a text that could be a value: between blanks and quotes, and between delimiters
    within them, as in `key=VALUE` or `user:VALUE@host`; a value may contain delimiters."""
    for match in _PLAIN.finditer(text):
        yield from _token_pieces(match[0])


def _token_pieces(piece: bytes) -> Iterable[bytes]:
    borders = [each.start() for each in _BORDER.finditer(piece)]
    if not borders:
        return (piece,)
    # Bounded, otherwise a long run of delimiters would take quadratic time.
    near = borders[:_MAX_BORDERS] + borders[-_MAX_BORDERS:]
    starts = sorted({0, *(at + 1 for at in near)})
    ends = sorted({len(piece), *near, *(at + 1 for at in near)})
    return {piece[start:end] for start in starts for end in ends if start < end}

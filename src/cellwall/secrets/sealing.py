"""AES-256-GCM with associated data, key derivation, and the memory page that holds keys.

Key material is read from and written to buffers of the caller, who wipes them. Limit: a value that
Python returned as `bytes` stays in memory until Python reuses it.
"""

# ruff: noqa: PLC0415  # late imports: cryptography loads slowly, and most runs open no vault

from __future__ import annotations

import hmac
import json
import mmap
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from cellwall.core.forks import OwnerProcess
from cellwall.core.types import Json

SCHEMA = "cellwall.vault/1"
KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
MAC_BYTES = 32
_LENGTH_BYTES = 4
_BLOCK_BYTES = 64

KeyBytes = bytes | bytearray | memoryview


class BadSeal(Exception):
    """Wrong key or wrong associated data."""


@dataclass(frozen=True, slots=True)
class Ciphertext:
    """Encrypted bytes with their nonce."""

    nonce: bytes
    data: bytes


def canonical(value: Mapping[str, Json]) -> bytes:
    """One spelling per value: authenticated data must not have two spellings."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def record_aad(*, namespace: str, name: str, version: int) -> bytes:
    """Binds a value to its place: it does not decrypt in any other (SEC-1, SEC-7)."""
    return canonical({"schema": SCHEMA, "namespace": namespace, "name": name, "version": version})


def part_aad(*, vault: str, part: str) -> bytes:
    """Binds internal data to its vault; no record has these keys."""
    return canonical({"schema": SCHEMA, "vault": vault, "part": part})


def seal(key: KeyBytes, plain: bytes | bytearray | memoryview, aad: bytes) -> Ciphertext:
    """Random nonces: 2^32 of them per key are safe, and `rekey` creates a new key."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    nonce = os.urandom(NONCE_BYTES)
    return Ciphertext(nonce, AESGCM(key).encrypt(nonce, plain, aad))


def unseal_into(
    key: KeyBytes, sealed: Ciphertext, aad: bytes, buffer: bytearray | memoryview
) -> None:
    """Decrypt into a buffer of exactly the plaintext's length; raises `BadSeal`."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    try:
        AESGCM(key).decrypt_into(sealed.nonce, sealed.data, aad, buffer)
    except (InvalidTag, ValueError):
        raise BadSeal from None


def unseal(key: KeyBytes, sealed: Ciphertext, aad: bytes) -> bytearray:
    """The plaintext, which the caller wipes."""
    buffer = bytearray(max(0, len(sealed.data) - TAG_BYTES))
    unseal_into(key, sealed, aad, buffer)
    return buffer


def pad(value: bytes | bytearray) -> bytearray:
    """Length prefix and zeros to full blocks: the file shows the size of a value only roughly."""
    size = _LENGTH_BYTES + len(value)
    buffer = bytearray(size + -size % _BLOCK_BYTES)
    buffer[:_LENGTH_BYTES] = len(value).to_bytes(_LENGTH_BYTES, "big")
    buffer[_LENGTH_BYTES:size] = value
    return buffer


def unpad(plain: bytearray) -> memoryview:
    """The value without its padding; raises `BadSeal` if the padding is malformed."""
    size = int.from_bytes(plain[:_LENGTH_BYTES], "big")
    if len(plain) % _BLOCK_BYTES or size > len(plain) - _LENGTH_BYTES:
        raise BadSeal
    return memoryview(plain)[_LENGTH_BYTES : _LENGTH_BYTES + size]


def derive_into(key: KeyBytes, label: str, buffer: bytearray | memoryview) -> None:
    """Derive a key for one purpose from a random key (HKDF-Expand)."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    info = f"{SCHEMA} {label}".encode()
    HKDFExpand(algorithm=SHA256(), length=len(buffer), info=info).derive_into(key, buffer)


def extract_into(secret: KeyBytes, salt: bytes, buffer: bytearray | memoryview) -> None:
    """Derive a key from random bytes of any length and form (HKDF)."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = f"{SCHEMA} key".encode()
    HKDF(algorithm=SHA256(), length=len(buffer), salt=salt, info=info).derive_into(secret, buffer)


def mac_of(key: KeyBytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 over parts; the caller makes their borders unambiguous."""
    return hmac.digest(key, b"".join(parts), "sha256")


digests_equal: Callable[[bytes, bytes], bool] = hmac.compare_digest


# In <linux/mman.h> on every architecture with Python wheels, but not in the module.
_MAP_LOCKED = 0x2000
_MADV_WIPEONFORK = 18
_KEY_BYTES = 32


def wipe(memory: bytearray | memoryview | mmap.mmap) -> None:
    """Overwrite with zeros."""
    memory[:] = bytes(len(memory))


class KeyPage:
    """Named 32-byte keys in one page that is not swapped, dumped or inherited: a forked child
    reads zeros, and `is_live` is False there."""

    __slots__ = ("_map", "_names", "_owner")

    def __init__(self) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            self._map = mmap.mmap(-1, mmap.PAGESIZE, flags=flags | _MAP_LOCKED)
        except OSError:  # over RLIMIT_MEMLOCK: the page may then be swapped out, as any memory
            self._map = mmap.mmap(-1, mmap.PAGESIZE, flags=flags)
        for advice in (mmap.MADV_DONTDUMP, _MADV_WIPEONFORK):
            with suppress(OSError):
                self._map.madvise(advice)
        self._names: dict[str, int] = {}
        self._owner = OwnerProcess()

    def __repr__(self) -> str:
        return f"KeyPage({', '.join(self._names)})"

    @property
    def is_live(self) -> bool:
        """True if the keys are usable: not wiped, and not in a forked child."""
        return bool(self._names) and self._owner.is_current

    def buffer(self, name: str) -> memoryview:
        """The buffer of a key, allocated for a new name."""
        at = self._names.setdefault(name, len(self._names) * _KEY_BYTES)
        return memoryview(self._map)[at : at + _KEY_BYTES]

    def make(self, name: str) -> memoryview:
        """A new random key."""
        buffer = self.buffer(name)
        # readinto leaves no copy behind; os.urandom would.
        with open("/dev/urandom", "rb", buffering=0) as source:
            if source.readinto(buffer) != _KEY_BYTES:
                raise OSError("no random bytes")
        return buffer

    def wipe(self) -> None:
        if self._owner.is_current:
            wipe(self._map)
        self._names.clear()

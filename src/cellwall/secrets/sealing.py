"""AES-256-GCM under names that are bound to it, and keys from keys. Pure.

Key material is read from and written to buffers of the caller, who wipes them.
"""

from __future__ import annotations

import hmac
import json
import mmap
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from cellwall.core.types import Json

SCHEMA = "cellwall.vault/1"
KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16
MAC_BYTES = 32
_LENGTH_BYTES = 4
_BLOCK_BYTES = 64

Key = bytes | bytearray | memoryview


class BadSeal(Exception):
    """Not sealed with this key, or not for this place."""


@dataclass(frozen=True, slots=True)
class Ciphertext:
    """What was encrypted, with its nonce."""

    nonce: bytes
    data: bytes


def canonical(value: Mapping[str, Json]) -> bytes:
    """One text for one value: what is authenticated must not be spelled in two ways."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def record_aad(*, namespace: str, name: str, version: int) -> bytes:
    """Binds a value to its place: it does not open in any other one (SEC-1, SEC-7)."""
    return canonical({"schema": SCHEMA, "namespace": namespace, "name": name, "version": version})


def part_aad(*, vault: str, part: str) -> bytes:
    """Binds what is not a secret of the user to its vault; no record has these words."""
    return canonical({"schema": SCHEMA, "vault": vault, "part": part})


def seal(key: Key, plain: bytes | bytearray | memoryview, aad: bytes) -> Ciphertext:
    """Random nonces: 2^32 of them with one key are safe, and `rekey` makes a new key."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  # heavy

    nonce = os.urandom(NONCE_BYTES)
    return Ciphertext(nonce, AESGCM(key).encrypt(nonce, plain, aad))


def unseal_into(key: Key, sealed: Ciphertext, aad: bytes, buffer: bytearray | memoryview) -> None:
    """The plain bytes into a buffer of exactly their length; `BadSeal` if there are none."""
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415  # heavy
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  # heavy

    try:
        AESGCM(key).decrypt_into(sealed.nonce, sealed.data, aad, buffer)
    except (InvalidTag, ValueError):
        raise BadSeal from None


def unseal(key: Key, sealed: Ciphertext, aad: bytes) -> bytearray:
    """The plain bytes, which the caller wipes."""
    buffer = bytearray(max(0, len(sealed.data) - TAG_BYTES))
    unseal_into(key, sealed, aad, buffer)
    return buffer


def pad(value: bytes | bytearray) -> bytearray:
    """With its length and zeros to full blocks: the file shows the size of a value but roughly."""
    size = _LENGTH_BYTES + len(value)
    buffer = bytearray(size + -size % _BLOCK_BYTES)
    buffer[:_LENGTH_BYTES] = len(value).to_bytes(_LENGTH_BYTES, "big")
    buffer[_LENGTH_BYTES:size] = value
    return buffer


def unpad(plain: bytearray) -> memoryview:
    """The value without its padding; `BadSeal` if it has none of ours."""
    size = int.from_bytes(plain[:_LENGTH_BYTES], "big")
    if len(plain) % _BLOCK_BYTES or size > len(plain) - _LENGTH_BYTES:
        raise BadSeal
    return memoryview(plain)[_LENGTH_BYTES : _LENGTH_BYTES + size]


def derive_into(key: Key, label: str, buffer: bytearray | memoryview) -> None:
    """A key for one purpose out of a key that is random already (HKDF, its second half)."""
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415  # heavy
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand  # noqa: PLC0415  # heavy

    info = f"{SCHEMA} {label}".encode()
    HKDFExpand(algorithm=SHA256(), length=len(buffer), info=info).derive_into(key, buffer)


def extract_into(secret: Key, salt: bytes, buffer: bytearray | memoryview) -> None:
    """A key out of random bytes of any length and form (HKDF as a whole)."""
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415  # heavy
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415  # heavy

    info = f"{SCHEMA} key".encode()
    HKDF(algorithm=SHA256(), length=len(buffer), salt=salt, info=info).derive_into(secret, buffer)


def mac_of(key: Key, *parts: bytes) -> bytes:
    """HMAC-SHA256 over parts whose borders the caller has made plain."""
    return hmac.digest(key, b"".join(parts), "sha256")


digests_equal: Callable[[bytes, bytes], bool] = hmac.compare_digest


# In <linux/mman.h> for every architecture that Python has wheels for, but not in the module.
_MAP_LOCKED = 0x2000
_MADV_WIPEONFORK = 18
_KEY_BYTES = 32


def wipe(memory: bytearray | memoryview | mmap.mmap) -> None:
    """Zeros over all of it."""
    memory[:] = bytes(len(memory))


class KeyPage:
    """Named keys of 32 bytes each. A forked child finds zeros, and is told so."""

    __slots__ = ("_map", "_names", "_owner")

    def __init__(self) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            self._map = mmap.mmap(-1, mmap.PAGESIZE, flags=flags | _MAP_LOCKED)
        except OSError:  # more than RLIMIT_MEMLOCK: then it may be swapped out, as any memory
            self._map = mmap.mmap(-1, mmap.PAGESIZE, flags=flags)
        for advice in (mmap.MADV_DONTDUMP, _MADV_WIPEONFORK):
            with suppress(OSError):
                self._map.madvise(advice)
        self._names: dict[str, int] = {}
        self._owner = os.getpid()

    def __repr__(self) -> str:
        return f"KeyPage({', '.join(self._names)})"

    @property
    def is_live(self) -> bool:
        """Whether its keys can be used: not wiped, and not in a child."""
        return bool(self._names) and self._owner == os.getpid()

    def buffer(self, name: str) -> memoryview:
        """Where a key is, or goes if it is a new one."""
        at = self._names.setdefault(name, len(self._names) * _KEY_BYTES)
        return memoryview(self._map)[at : at + _KEY_BYTES]

    def make(self, name: str) -> memoryview:
        """A new random key."""
        buffer = self.buffer(name)
        # The only way into a buffer that leaves no copy behind.
        with open("/dev/urandom", "rb", buffering=0) as source:
            if source.readinto(buffer) != _KEY_BYTES:
                raise OSError("no random bytes")
        return buffer

    def wipe(self) -> None:
        if self._owner == os.getpid():
            wipe(self._map)
        self._names.clear()

"""Keys of sessions, in slots that can be destroyed (FS-5).

A key is derived (HKDF) from two halves: a secret shared with the recipient by X25519, whose public
part is in the slot, and 32 random bytes that are in the slot alone. Without the private key the
slot is useless, and without the slot the private key is. After its slot is destroyed, all data
under a key is unreadable, in every copy of the data. The name of a key has the number of its slot.
A changed slot gives another key, under which nothing decrypts.

A process reserves slots in blocks, flushed before any of them is used, so that a new session costs
no flush of its own. A slot gets the digest of its session when it is first used, without a flush:
after a power cut it may be missing, so `destroy` also takes names of keys, which records state. A
key is used by one process, for one session, for at most a day; a destroyed key is not used again.
"""

# ruff: noqa: PLC0415  # late imports: cryptography loads slowly

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from cellwall.core.errors import VaultError
from cellwall.core.forks import forget_in_child
from cellwall.secrets import failures
from cellwall.secrets.key_slots import (
    SLOTS_PER_FILE,
    SessionKeySlot,
    SlotFiles,
    id_place,
    pack_slot,
)
from cellwall.secrets.recipients import Recipients, VaultKey
from cellwall.secrets.sealing import KEY_BYTES, NONCE_BYTES, extract_into, mac_of, wipe

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_KEY_NAME = re.compile(r"([0-9a-f]{8})-([0-9a-f]{32})")
_MAX_RESERVED = 64
_MAX_CACHED = 4096
_HOUR_S = 3600
_MAX_USE_HOURS = 24


class _LiveKey(NamedTuple):
    """A key that this process made."""

    name: str
    number: int
    file_number: int
    id: bytes
    id_at: int
    """Where its slot has the id."""
    until_s: float
    key: bytes
    cipher: AESGCM


class SessionKeys:
    """The keys of one state folder; implements `SessionKeysPort`. Safe for threads, processes and
    forks."""

    def __init__(self, home: str, vault_key: VaultKey | None = None) -> None:
        self._directory = os.path.join(home, "session-keys")
        self._recipients = Recipients(self._directory, vault_key)
        self._opened: dict[str, AESGCM] = {}
        self._shared: dict[bytes, bytearray] = {}
        self._slots = SlotFiles(self._directory)
        self.forget_parent()
        forget_in_child(self)

    def forget_parent(self) -> None:
        """A forked child must not give the parent's reserved keys to other sessions."""
        self._lock = threading.Lock()
        self._live: dict[str, _LiveKey] = {}
        self._reserved: list[_LiveKey] = []
        self._next_block = 1

    def close(self) -> None:
        """Forget every key and close the files."""
        with self._lock:
            self._live.clear()
            self._reserved.clear()
            self._opened.clear()
            self._shared.clear()
            self._slots.close()

    def adopt(self, vault: str, key: bytes | bytearray | memoryview) -> None:
        """Move the private keys under this unlocked vault; see `Recipients.adopt`."""
        self._recipients.adopt(vault, key)

    # Writing

    def seal(self, session: str, plain: bytes, aad: bytes) -> tuple[str, bytes]:
        """Random nonces: 2^32 of them per key are safe, and no process writes as much in a day."""
        live = self._live.get(session)
        if live is None or not self._is_usable(live):
            live = self._new_live_key(session)
        nonce = os.urandom(NONCE_BYTES)
        return live.name, nonce + live.cipher.encrypt(nonce, plain, aad)

    def new_key(self, session: str) -> tuple[str, bytes]:
        """A key of its own for one archive."""
        try:
            with self._lock:
                live = self._take(session)
                self._slots.flush(live.number)
            return live.name, live.key
        except (OSError, VaultError) as error:
            raise failures.session_keys_failed(error) from None

    def _new_live_key(self, session: str) -> _LiveKey:
        try:
            with self._lock:
                live = self._live.get(session)
                if live is None or not self._is_usable(live):
                    while len(self._live) >= _MAX_CACHED:
                        del self._live[next(iter(self._live))]
                    live = self._live[session] = self._take(session)
                return live
        except (OSError, VaultError) as error:
            raise failures.session_keys_failed(error) from None

    def _is_usable(self, live: _LiveKey) -> bool:
        """False once the key was destroyed, by any process, or is too old."""
        # On the path of every record, after a flush that evicted this code from the processor
        # caches: few calls.
        file = self._slots.descriptors.get(live.file_number)
        if file is None or time.time() >= live.until_s:
            return False
        try:
            return os.pread(file, 16, live.id_at) == live.id
        except OSError:  # closed by another thread
            return False

    def _take(self, session: str) -> _LiveKey:
        """A reserved key, assigned to this session."""
        while True:
            if not self._reserved:
                self._reserved = self._reserve(self._next_block)[::-1]
                self._next_block = min(2 * self._next_block, _MAX_RESERVED)
            live = self._reserved.pop()
            if time.time() < live.until_s:
                break
        self._slots.assign(live.number, session)
        return live

    def _reserve(self, count: int) -> list[_LiveKey]:
        """New keys in new slots, durable when this returns."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import (
            X25519PrivateKey,
            X25519PublicKey,
        )
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        recipient = self._recipients.current()
        pair = X25519PrivateKey.generate()
        ephemeral = pair.public_key().public_bytes_raw()
        shared = pair.exchange(X25519PublicKey.from_public_bytes(recipient.public))
        hour, keys, slots = _hour(), [], []
        middle = _shared_key(shared, ephemeral, recipient.public)
        for _ in range(count):
            fresh = os.urandom(16 + KEY_BYTES)
            name, random = fresh[:16], fresh[16:]
            slots.append(
                pack_slot(
                    hour=hour, recipient=recipient.id, id=name, ephemeral=ephemeral, random=random
                )
            )
            keys.append((name, _session_key(middle, name, random)))
        wipe(middle)
        first = self._slots.append(b"".join(slots), count)
        return [
            _LiveKey(
                name=f"{number:08x}-{name.hex()}",
                number=number,
                file_number=number // SLOTS_PER_FILE,
                id=name,
                id_at=id_place(number),
                until_s=float((hour + _MAX_USE_HOURS) * _HOUR_S),
                key=key,
                cipher=AESGCM(key),
            )
            for number, (name, key) in enumerate(keys, start=first)
        ]

    # Reading

    def unseal(self, key: str, sealed: bytes, aad: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        cipher = self._opened_cipher(key)
        try:
            return cipher.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], aad)
        except (InvalidTag, ValueError):
            raise failures.session_damaged("a ciphertext") from None

    def key_bytes(self, key: str) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        slot = self._read_slot(key)
        # Slots that were reserved together have one ephemeral key.
        middle = self._shared.get(slot.recipient + slot.ephemeral)
        if middle is None:
            private = self._recipients.private(slot.recipient)
            public = private.public_key().public_bytes_raw()
            try:
                shared = private.exchange(X25519PublicKey.from_public_bytes(slot.ephemeral))
            except ValueError:
                raise failures.session_damaged("a slot") from None
            middle = _shared_key(shared, slot.ephemeral, public)
            with self._lock:
                while len(self._shared) >= _MAX_CACHED:
                    del self._shared[next(iter(self._shared))]
                self._shared[slot.recipient + slot.ephemeral] = middle
        return _session_key(middle, slot.id, slot.random)

    def is_destroyed(self, key: str) -> bool:
        """True if nothing can ever read data under this key."""
        try:
            self._read_slot(key)
        except VaultError as error:
            return error.code == failures.session_erased.code
        return False

    def _opened_cipher(self, key: str) -> AESGCM:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        cipher = self._opened.get(key)
        if cipher is None:
            cipher = AESGCM(self.key_bytes(key))
            with self._lock:
                while len(self._opened) >= _MAX_CACHED:
                    del self._opened[next(iter(self._opened))]
                self._opened[key] = cipher
        elif self.is_destroyed(key):  # erased means erased, also for a reader with a cache
            self._opened.pop(key, None)
            raise failures.session_erased(key)
        return cipher

    def _read_slot(self, key: str) -> SessionKeySlot:
        name = _KEY_NAME.fullmatch(key)
        if name is None:
            raise failures.session_damaged("a malformed name of a key")
        number = int(name[1], 16)
        try:
            slot = self._slots.read(number)
        except OSError as error:
            raise failures.session_locked(error) from None
        if slot is None or slot.id.hex() != name[2]:
            raise failures.session_erased(key)
        if not slot.is_key:
            raise failures.session_damaged("a slot")
        return slot

    # Destroying

    def destroy(self, session: str, names: Iterable[str] = ()) -> int:
        """Destroy all keys of a session, and the keys of these names; durable when this returns.
        Returns how many."""
        numbers = set(self._slots.numbers_of(session))
        for name in names:
            with suppress(VaultError):
                self._read_slot(name)
                numbers.add(int(name[:8], 16))
        return self._overwrite(numbers)

    def destroy_key(self, key: str) -> None:
        """Destroy one key, such as that of an archive; durable when this returns."""
        with suppress(VaultError):
            self._read_slot(key)
            self._overwrite([int(key[:8], 16)])

    def expire(self, before_s: float) -> int:
        """Destroy every key that was last used before this time; returns how many."""
        count = self._overwrite(self._expired(before_s))
        self._slots.remove_empty()
        return count

    def count_expired(self, before_s: float) -> int:
        """How many keys `expire` would destroy."""
        return len(self._expired(before_s))

    def _expired(self, before_s: float) -> list[int]:
        oldest = int(before_s // _HOUR_S) - _MAX_USE_HOURS
        slots = self._slots.slots()
        return [number for number, slot in slots if slot.is_key and slot.hour < oldest]

    def _overwrite(self, numbers: Iterable[int]) -> int:
        count = self._slots.destroy(numbers)
        with self._lock:
            self._opened.clear()
        return count


def _shared_key(shared: bytes, ephemeral: bytes, public: bytes) -> bytearray:
    middle = bytearray(KEY_BYTES)
    extract_into(shared, ephemeral + public, middle)
    return middle


def _session_key(middle: bytearray, name: bytes, random: bytes) -> bytes:
    """HKDF-Expand (RFC 5869) to one block, which is one HMAC: done for every session."""
    return mac_of(middle, b"cellwall session key " + name + random + b"\x01")


def _hour() -> int:
    return int(time.time() // _HOUR_S)

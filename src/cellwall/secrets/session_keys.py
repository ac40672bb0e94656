"""Keys of sessions, in slots that can be destroyed (FS-5).

$CELLWALL_HOME/session-keys/NNNNNNNN.keys: slots of 128 bytes. A key is derived (HKDF) from two
halves: a secret shared with the recipient by X25519, whose public part is in the slot, and 32
random bytes that are in the slot alone. Without the private key the slot is useless, and without
the slot the private key is. To destroy a key is to overwrite its slot, in place and flushed: all
data under it is unreadable from then on, in every copy of the data. The name of a key has the
number of its slot, so finding it takes one read. A changed slot gives another key, under which
nothing decrypts.

A process reserves slots in blocks, flushed before any of them is used, so that a new session costs
no flush of its own. A slot gets the digest of its session when it is first used, without a flush:
after a power cut it may be missing, so `destroy` also takes names of keys, which records state. A
key is used by one process, for one session, for at most a day; a destroyed key is not used again.
"""

# ruff: noqa: PLC0415  # late imports: cryptography loads slowly

from __future__ import annotations

import os
import re
import struct
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from cellwall.core.errors import VaultError
from cellwall.core.forks import forget_in_child
from cellwall.secrets import failures
from cellwall.secrets.folder import closing_fd, open_directory, open_folder
from cellwall.secrets.recipients import Recipient, Recipients, VaultKey
from cellwall.secrets.sealing import (
    KEY_BYTES,
    NONCE_BYTES,
    extract_into,
    mac_of,
    wipe,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_SLOT = struct.Struct(">4sI8s16s16s32s32s16x")
SLOT_BYTES = _SLOT.size
_MAGIC = b"cwk1"
_DESTROYED = b"\xff" * SLOT_BYTES
"""Not zeros: those are slots that no process has reserved yet."""
_NO_SESSION = bytes(16)
_ID_AT, _SESSION_AT = 16, 32
_SLOTS_PER_FILE = 65_536
_FILE_BYTES = _SLOTS_PER_FILE * SLOT_BYTES
_PREALLOCATION_BYTES = 64 * 1024
"""Flushing a write within a file costs a fraction of flushing one that extends it."""
_FILE_NAME = re.compile(r"([0-9a-f]{8})\.keys")
_KEY_NAME = re.compile(r"([0-9a-f]{8})-([0-9a-f]{32})")
_MAX_RESERVED = 64
_MAX_CACHED = 4096
_HOUR_S = 3600
_MAX_USE_HOURS = 24
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class _SlotContent(NamedTuple):
    magic: bytes
    hour: int
    recipient: bytes
    id: bytes
    session: bytes
    ephemeral: bytes
    random: bytes


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
        self._files: dict[int, int] = {}
        weakref.finalize(self, _close_files, self._files)
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
            _close_files(self._files)

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
                os.fdatasync(self._file(live.number))
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
        file = self._files.get(live.file_number)
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
        at = _offset(live.number) + _SESSION_AT
        os.pwrite(self._file(live.number), session_digest(session), at)
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
                _SLOT.pack(_MAGIC, hour, recipient.id, name, _NO_SESSION, ephemeral, random)
            )
            keys.append((name, _session_key(middle, name, random)))
        wipe(middle)
        first = self._append(b"".join(slots), count)
        return [
            _LiveKey(
                name=f"{number:08x}-{name.hex()}",
                number=number,
                file_number=number // _SLOTS_PER_FILE,
                id=name,
                id_at=_offset(number) + _ID_AT,
                until_s=float((hour + _MAX_USE_HOURS) * _HOUR_S),
                key=key,
                cipher=AESGCM(key),
            )
            for number, (name, key) in enumerate(keys, start=first)
        ]

    def _append(self, slots: bytes, count: int) -> int:
        """Write slots after all others; returns the number of the first."""
        with open_folder(self._directory, alone=True, make=True):
            names = self._file_numbers()
            number = names[-1] if names else 0
            used = _used_slots(self._open_file(number)) if names else 0
            if used + count > _SLOTS_PER_FILE:
                number, used = number + 1, 0
            file = self._open_file(number, make=True)
            start = used * SLOT_BYTES
            if start + len(slots) > os.fstat(file).st_size:
                end = -(-(start + len(slots)) // _PREALLOCATION_BYTES) * _PREALLOCATION_BYTES
                slots += bytes(end - start - len(slots))
            if os.pwrite(file, slots, start) != len(slots):
                raise OSError("short write of keys")
            os.fdatasync(file)
            if start == 0:
                with open_directory(self._directory) as folder:
                    os.fsync(folder)
            return number * _SLOTS_PER_FILE + used

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
        private = self._recipients.private(slot.recipient)
        public = private.public_key().public_bytes_raw()
        try:
            shared = private.exchange(X25519PublicKey.from_public_bytes(slot.ephemeral))
        except ValueError:
            raise failures.session_damaged("a slot") from None
        return _session_key(_shared_key(shared, slot.ephemeral, public), slot.id, slot.random)

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

    def _read_slot(self, key: str) -> _SlotContent:
        name = _KEY_NAME.fullmatch(key)
        if name is None:
            raise failures.session_damaged("a malformed name of a key")
        number = int(name[1], 16)
        try:
            data = os.pread(self._file(number), SLOT_BYTES, _offset(number))
        except FileNotFoundError:
            data = b""
        except OSError as error:
            raise failures.session_locked(error) from None
        slot = _SlotContent(*_SLOT.unpack(data)) if len(data) == SLOT_BYTES else None
        if slot is None or slot.id.hex() != name[2]:
            raise failures.session_erased(key)
        if slot.magic != _MAGIC:
            raise failures.session_damaged("a slot")
        return slot

    # Destroying

    def destroy(self, session: str, names: Iterable[str] = ()) -> int:
        """Destroy all keys of a session, and the keys of these names; durable when this returns.
        Returns how many."""
        digest = session_digest(session)
        numbers = set(self._numbers_of(digest))
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
        self._remove_empty_files()
        return count

    def count_expired(self, before_s: float) -> int:
        """How many keys `expire` would destroy."""
        return len(self._expired(before_s))

    def _expired(self, before_s: float) -> list[int]:
        oldest = int(before_s // _HOUR_S) - _MAX_USE_HOURS
        slots = self._slots()
        return [number for number, slot in slots if slot.magic == _MAGIC and slot.hour < oldest]

    def _overwrite(self, numbers: Iterable[int]) -> int:
        count, files = 0, set()
        try:
            with open_folder(self._directory, alone=True):
                for number in list(numbers):
                    file = self._file(number)
                    os.pwrite(file, _DESTROYED, _offset(number))
                    files.add(file)
                    count += 1
                for file in files:
                    os.fdatasync(file)
        except VaultError as error:
            if error.code != failures.missing.code:
                raise
        except OSError as error:
            raise failures.session_keys_failed(error) from None
        with self._lock:
            self._opened.clear()
        return count

    def _numbers_of(self, digest: bytes) -> Iterator[int]:
        for file_number, data in self._contents():
            at = data.find(digest)
            while at >= 0:
                if at % SLOT_BYTES == _SESSION_AT:
                    yield file_number * _SLOTS_PER_FILE + at // SLOT_BYTES
                at = data.find(digest, at + 1)

    def _slots(self) -> Iterator[tuple[int, _SlotContent]]:
        for file_number, data in self._contents():
            whole = data[: len(data) // SLOT_BYTES * SLOT_BYTES]
            for place, fields in enumerate(_SLOT.iter_unpack(whole)):
                yield file_number * _SLOTS_PER_FILE + place, _SlotContent(*fields)

    def _contents(self) -> Iterator[tuple[int, bytes]]:
        for number in self._file_numbers():
            with suppress(FileNotFoundError):
                yield number, os.pread(self._open_file(number), _FILE_BYTES, 0)

    def _remove_empty_files(self) -> None:
        """All but the last file, which gives new slots their numbers."""
        with suppress(VaultError), open_folder(self._directory, alone=True):
            for number in self._file_numbers()[:-1]:
                path = self._path(number)
                with closing_fd(os.open(path, _READ)) as file:
                    is_empty = not os.pread(file, _FILE_BYTES, 0).strip(b"\xff\0")
                if is_empty:
                    os.unlink(path)

    # Files

    def _file_numbers(self) -> list[int]:
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        found = (_FILE_NAME.fullmatch(name) for name in names)
        return sorted(int(each[1], 16) for each in found if each is not None)

    def _path(self, number: int) -> str:
        return os.path.join(self._directory, f"{number:08x}.keys")

    def _file(self, slot_number: int) -> int:
        return self._open_file(slot_number // _SLOTS_PER_FILE)

    def _open_file(self, number: int, *, make: bool = False) -> int:
        file = self._files.get(number)
        if file is None:
            flags = _WRITE | os.O_CREAT if make else _WRITE
            opened = os.open(self._path(number), flags, 0o600)
            file = self._files.setdefault(number, opened)
            if file != opened:
                os.close(opened)
        return file


def _close_files(files: dict[int, int]) -> None:
    while files:
        os.close(files.popitem()[1])


def session_digest(session: str) -> bytes:
    """Names a session in a slot, so that a stolen folder does not list sessions."""
    text = session.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=16, person=b"cellwall-session").digest()


def _shared_key(shared: bytes, ephemeral: bytes, public: bytes) -> bytearray:
    middle = bytearray(KEY_BYTES)
    extract_into(shared, ephemeral + public, middle)
    return middle


def _session_key(middle: bytearray, name: bytes, random: bytes) -> bytes:
    """HKDF-Expand (RFC 5869) to one block, which is one HMAC: done for every session."""
    return mac_of(middle, b"cellwall session key " + name + random + b"\x01")


def _used_slots(file: int) -> int:
    """How many slots are reserved. Every slot begins with a byte that is not zero; bytes of a torn
    write are skipped, since their keys were never used."""
    size_bytes = os.fstat(file).st_size
    start = max(0, (size_bytes - 1) // _PREALLOCATION_BYTES * _PREALLOCATION_BYTES)
    used_bytes = len(os.pread(file, _PREALLOCATION_BYTES, start).rstrip(b"\0"))
    return -(-(start + used_bytes) // SLOT_BYTES)


def _offset(number: int) -> int:
    return number % _SLOTS_PER_FILE * SLOT_BYTES


def _hour() -> int:
    return int(time.time() // _HOUR_S)


__all__ = ["SLOT_BYTES", "Recipient", "SessionKeys", "session_digest"]

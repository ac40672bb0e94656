"""Slots of session keys, in files that all processes of a state folder share (FS-5).

$CELLWALL_HOME/session-keys/NNNNNNNN.keys: slots of 128 bytes. The number of a slot gives its file
and its place there, so finding a slot takes one read. To destroy a key is to overwrite its slot, in
place and flushed.
"""

from __future__ import annotations

import os
import re
import struct
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple

from cellwall.core.errors import VaultError
from cellwall.secrets import failures
from cellwall.secrets.folder import closing_fd, open_directory, open_folder

_SLOT = struct.Struct(">4sI8s16s16s32s32s16x")
SLOT_BYTES = _SLOT.size
_MAGIC = b"cwk1"
_DESTROYED = b"\xff" * SLOT_BYTES
"""Not zeros: those are slots that no process has reserved yet."""
_NO_SESSION = bytes(16)
_ID_AT, _SESSION_AT = 16, 32
SLOTS_PER_FILE = 65_536
_FILE_BYTES = SLOTS_PER_FILE * SLOT_BYTES
_PREALLOCATION_BYTES = 64 * 1024
"""Flushing a write within a file costs a fraction of flushing one that extends it."""
_FILE_NAME = re.compile(r"([0-9a-f]{8})\.keys")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class SessionKeySlot(NamedTuple):
    """The content of one slot."""

    magic: bytes
    hour: int
    recipient: bytes
    id: bytes
    session: bytes
    ephemeral: bytes
    random: bytes

    @property
    def is_key(self) -> bool:
        """False for a slot that is free, destroyed or damaged."""
        return self.magic == _MAGIC


def pack_slot(*, hour: int, recipient: bytes, id: bytes, ephemeral: bytes, random: bytes) -> bytes:  # noqa: A002  # the field's name
    """A slot of a key that no session uses yet."""
    return _SLOT.pack(_MAGIC, hour, recipient, id, _NO_SESSION, ephemeral, random)


def session_digest(session: str) -> bytes:
    """Names a session in a slot, so that a stolen folder does not list sessions."""
    text = session.encode("utf-8", "surrogatepass")
    return blake2b(text, digest_size=16, person=b"cellwall-session").digest()


def id_place(number: int) -> int:
    """Where the file of this slot has the id of its key."""
    return _offset(number) + _ID_AT


class SlotFiles:
    """The slots of one state folder."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self.descriptors: dict[int, int] = {}
        """Number of a file -> its descriptor, of files that are open."""
        weakref.finalize(self, _close_files, self.descriptors)

    def close(self) -> None:
        """Close the files; a later use opens them again."""
        _close_files(self.descriptors)

    def append(self, slots: bytes, count: int) -> int:
        """Write slots after all others, durably; returns the number of the first."""
        with open_folder(self._directory, alone=True, make=True):
            names = self._file_numbers()
            number = names[-1] if names else 0
            used = _used_slots(self._open_file(number)) if names else 0
            if used + count > SLOTS_PER_FILE:
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
            return number * SLOTS_PER_FILE + used

    def assign(self, number: int, session: str) -> None:
        """Note the session of a slot, without a flush."""
        os.pwrite(self._file(number), session_digest(session), _offset(number) + _SESSION_AT)

    def flush(self, number: int) -> None:
        """Make the file of this slot durable."""
        os.fdatasync(self._file(number))

    def read(self, number: int) -> SessionKeySlot | None:
        """None where no file has the slot."""
        try:
            data = os.pread(self._file(number), SLOT_BYTES, _offset(number))
        except FileNotFoundError:
            return None
        return SessionKeySlot(*_SLOT.unpack(data)) if len(data) == SLOT_BYTES else None

    def destroy(self, numbers: Iterable[int]) -> int:
        """Overwrite slots; durable when this returns. Returns how many."""
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
        return count

    def numbers_of(self, session: str) -> Iterator[int]:
        """The slots of a session."""
        digest = session_digest(session)
        for file_number, data in self._contents():
            at = data.find(digest)
            while at >= 0:
                if at % SLOT_BYTES == _SESSION_AT:
                    yield file_number * SLOTS_PER_FILE + at // SLOT_BYTES
                at = data.find(digest, at + 1)

    def slots(self) -> Iterator[tuple[int, SessionKeySlot]]:
        """Every slot with its number."""
        for file_number, data in self._contents():
            whole = data[: len(data) // SLOT_BYTES * SLOT_BYTES]
            for place, fields in enumerate(_SLOT.iter_unpack(whole)):
                yield file_number * SLOTS_PER_FILE + place, SessionKeySlot(*fields)

    def remove_empty(self) -> None:
        """Remove files without a key, but for the last, which gives new slots their numbers."""
        with suppress(VaultError), open_folder(self._directory, alone=True):
            for number in self._file_numbers()[:-1]:
                path = self._path(number)
                with closing_fd(os.open(path, _READ)) as file:
                    is_empty = not os.pread(file, _FILE_BYTES, 0).strip(b"\xff\0")
                if is_empty:
                    os.unlink(path)

    def _contents(self) -> Iterator[tuple[int, bytes]]:
        for number in self._file_numbers():
            with suppress(FileNotFoundError):
                yield number, os.pread(self._open_file(number), _FILE_BYTES, 0)

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
        return self._open_file(slot_number // SLOTS_PER_FILE)

    def _open_file(self, number: int, *, make: bool = False) -> int:
        file = self.descriptors.get(number)
        if file is None:
            flags = _WRITE | os.O_CREAT if make else _WRITE
            opened = os.open(self._path(number), flags, 0o600)
            file = self.descriptors.setdefault(number, opened)
            if file != opened:
                os.close(opened)
        return file


def _close_files(files: dict[int, int]) -> None:
    while files:
        os.close(files.popitem()[1])


def _used_slots(file: int) -> int:
    """How many slots are reserved. Every slot begins with a byte that is not zero; bytes of a torn
    write are skipped, since their keys were never used."""
    size_bytes = os.fstat(file).st_size
    start = max(0, (size_bytes - 1) // _PREALLOCATION_BYTES * _PREALLOCATION_BYTES)
    used_bytes = len(os.pread(file, _PREALLOCATION_BYTES, start).rstrip(b"\0"))
    return -(-(start + used_bytes) // SLOT_BYTES)


def _offset(number: int) -> int:
    return number % SLOTS_PER_FILE * SLOT_BYTES

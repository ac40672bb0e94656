"""The file of an incident bundle: a payload, and a note signed by the audit log's key (OBS-3).

    payload.tar | payload.sealed     files of the bundle; sealed: encrypted for a recipient
    seal.note                        size and SHA-256 of the payload, which log it is of, signatures

The file is a plain tar archive, so that any tool can take it apart. A changed byte of the payload
does not match the digest, and only the key of the log can sign another one; that can be checked
without the passphrase of a sealed payload.

A sealed payload is `cellwall-incident 1 JSON\\n` and then chunks of AES-256-GCM, as sealed_files.py
writes them, with that line as associated data. The key comes from a passphrase (Argon2id) or from
X25519 with a key pair that is used once.

The file appears under its name when it is complete and on disk: it is written without a name
(O_TMPFILE), or under another one where the file system has no such files.
"""

# ruff: noqa: PLC0415  # late imports: cryptography loads slowly

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import secrets
import tarfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Any

from cellwall.admin.bundle_seals import BundleSeal
from cellwall.core.errors import BadInput, CellwallError, WorkspaceError
from cellwall.core.notes import MAX_NOTE_BYTES
from cellwall.sandbox.files.descriptors import closing_fd, write_all
from cellwall.sandbox.workspace.sealed_files import SealedChunkReader, SealedChunkWriter

FORMAT = "cellwall.incident/1"
PLAIN, SEALED, NOTE = "payload.tar", "payload.sealed", "seal.note"
_BLOCK = 512
_MAGIC = b"cellwall-incident 1 "
_MAX_HEAD_BYTES = 1024
_MAX_PAYLOAD_BYTES = 8 * 1024**3 - 1  # of one member of a plain tar archive
_READ_BYTES = 1024 * 1024


# Writing


@dataclass(frozen=True, slots=True)
class PayloadDigest:
    """What the note states about the payload."""

    name: str
    size: int
    sha256: str


class _PlainSink:
    """The payload as it is."""

    def __init__(self, file: int) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        write_all(self._file, data)
        return len(data)

    def finish(self) -> None:
        """Nothing is buffered."""


@contextmanager
def new_bundle(
    path: str, seal: BundleSeal | None, sign: Callable[[PayloadDigest], bytes]
) -> Iterator[tarfile.TarFile]:
    """The archive of the payload; the file gets its name after the block, unless it raised."""
    folder, name = os.path.split(os.path.abspath(path))
    try:
        with _draft(folder, name) as (file, publish):
            os.lseek(file, _BLOCK, os.SEEK_SET)  # the header needs the size: written last
            sink: Any = _PlainSink(file)
            if seal is not None:
                key, head = seal.new_key()
                line = _MAGIC + json.dumps(head, sort_keys=True).encode() + b"\n"
                write_all(file, line)
                sink = SealedChunkWriter(file, key, line, None)
            with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT) as payload:
                yield payload
            sink.finish()
            size = os.lseek(file, 0, os.SEEK_CUR) - _BLOCK
            if size > _MAX_PAYLOAD_BYTES:
                raise _too_large()
            digest = _digest(file, SEALED if seal else PLAIN, size)
            _write_member(file, NOTE, sign(digest), at=_BLOCK + _rounded(size))
            os.pwrite(file, _header(digest.name, size), 0)
            os.fsync(file)
            publish()
    except FileExistsError:
        raise BadInput(
            f"{name[:100]!r} exists already", hint="Choose another name.", code="CW-INCIDENT-FILE"
        ) from None
    except OSError as error:
        raise CellwallError(
            f"the bundle could not be written: {error.strerror}",
            hint="Choose a folder with space left that you can write.",
            code="CW-INCIDENT-FILE",
            detail=str(error),
        ) from error


def add_member(payload: tarfile.TarFile, name: str, data: bytes) -> None:
    """Names are Cellwall's own; names that code chose are in the data only."""
    payload.addfile(_info(name, len(data)), io.BytesIO(data))


def add_file(payload: tarfile.TarFile, name: str, file: IO[bytes], size: int) -> None:
    """The same with the next bytes of a file."""
    payload.addfile(_info(name, size), file)


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.mode, info.mtime = size, 0o600, int(time.time())
    return info


@contextmanager
def _draft(folder: str, name: str) -> Iterator[tuple[int, Callable[[], None]]]:
    flags = os.O_RDWR | os.O_CLOEXEC
    target = os.path.join(folder, name)
    try:
        file = os.open(folder, flags | os.O_TMPFILE, 0o600)
        source, is_named = f"/proc/self/fd/{file}", False
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
        source, is_named = os.path.join(folder, f".{name}.{secrets.token_hex(8)}"), True
        file = os.open(source, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)

    def publish() -> None:
        with closing_fd(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as place:
            # Never replaces a file. With a descriptor: Python would call link(2), which does not
            # follow the link of /proc to the file without a name.
            os.link(source, target, src_dir_fd=place, follow_symlinks=not is_named)
            os.fsync(place)

    try:
        yield file, publish
    finally:
        if is_named:
            with suppress(OSError):
                os.unlink(source)
        os.close(file)


def _digest(file: int, name: str, size: int) -> PayloadDigest:
    found, at = hashlib.sha256(), 0
    while at < size:
        part = os.pread(file, min(_READ_BYTES, size - at), _BLOCK + at)
        if not part:
            break
        found.update(part)
        at += len(part)
    return PayloadDigest(name, size, found.hexdigest())


def _write_member(file: int, name: str, data: bytes, *, at: int) -> None:
    os.lseek(file, at, os.SEEK_SET)
    end = bytes(_rounded(len(data)) - len(data) + 2 * _BLOCK)
    write_all(file, _header(name, len(data)) + data + end)


def _header(name: str, size: int) -> bytes:
    """The one header for this name and size, so that a changed byte of it is noticed: the time is
    in the note."""
    info = _info(name, size)
    info.mtime = 0
    return info.tobuf(format=tarfile.USTAR_FORMAT)


def _rounded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


# Reading: the file may come from anywhere.


class BadBundle(Exception):
    """Not a bundle, or not intact; the text says why."""


@dataclass(frozen=True, slots=True)
class OpenedBundle:
    """A bundle whose structure is right; nothing of it is proven yet."""

    file: int
    payload: PayloadDigest
    note: bytes

    @property
    def is_sealed(self) -> bool:
        return self.payload.name == SEALED

    @contextmanager
    def members(self, seal: BundleSeal | None) -> Iterator[tarfile.TarFile]:
        """The archive of the payload, to be read once and in order."""
        os.lseek(self.file, _BLOCK, os.SEEK_SET)
        with os.fdopen(os.dup(self.file), "rb") as raw:
            stream: Any = _PayloadReader(raw, self.payload.size)
            if self.is_sealed:
                stream = _Unsealed(stream, seal)
            try:
                with tarfile.open(fileobj=stream, mode="r|") as payload:
                    yield payload
            except tarfile.TarError as error:
                raise BadBundle(f"its payload is no archive: {error}") from None
            except WorkspaceError:
                raise BadBundle(
                    "the passphrase or key is wrong, or the payload is damaged"
                ) from None


@contextmanager
def open_bundle(path: str) -> Iterator[OpenedBundle]:
    """Raises `BadBundle` unless the file has the structure of one."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise BadInput(
            f"{os.path.basename(path)[:100]!r} cannot be read", hint="Check the path.",
            detail=str(error),
        ) from None  # fmt: skip
    with closing_fd(file):
        total = os.fstat(file).st_size
        name, size = _read_header(file, 0, total)
        if name not in (PLAIN, SEALED):
            raise BadBundle("it does not begin with a payload")
        at = _BLOCK + _rounded(size)
        note_name, note_size = _read_header(file, at, total)
        if note_name != NOTE or note_size > MAX_NOTE_BYTES:
            raise BadBundle("it has no signed note")
        if os.pread(file, at - _BLOCK - size, _BLOCK + size).strip(b"\0"):
            raise BadBundle("something is between its payload and its note")
        note = os.pread(file, note_size, at + _BLOCK)
        rest = os.pread(file, 64 * 1024, at + _BLOCK + note_size)
        if rest.strip(b"\0") or at + _BLOCK + note_size + len(rest) < total:
            raise BadBundle("something is appended to it")
        yield OpenedBundle(file, _digest(file, name, size), note)


def _read_header(file: int, at: int, total: int) -> tuple[str, int]:
    try:
        block = os.pread(file, _BLOCK, at)
        info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError, OSError):
        raise BadBundle("it is no incident bundle") from None
    if not info.isreg() or not 0 <= info.size <= min(total - at - _BLOCK, _MAX_PAYLOAD_BYTES):
        raise BadBundle("it is cut short")
    if info.name in (PLAIN, SEALED, NOTE) and block != _header(info.name, info.size):
        raise BadBundle("one of its headers was changed")
    return info.name, info.size


class _PayloadReader:
    """The bytes of the payload and nothing behind it."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = self._file.read(wanted)
        self._left -= len(data)
        return data


class _Unsealed:
    """The decrypted payload; no byte of a chunk that fails is returned."""

    def __init__(self, stream: _PayloadReader, seal: BundleSeal | None) -> None:
        head = bytearray()
        while not head.endswith(b"\n") and len(head) < _MAX_HEAD_BYTES and (part := stream.read(1)):
            head += part
        if seal is None:
            raise BadBundle("it is sealed: give the passphrase or the key of the recipient")
        try:
            facts = json.loads(bytes(head).removeprefix(_MAGIC))
            key = seal.key_of(facts)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise BadBundle("it is sealed in another way") from None
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        source: Any = stream
        self._reader = SealedChunkReader(source, AESGCM(key), bytes(head))

    def read(self, size: int = _BLOCK) -> bytes:
        parts: list[bytes] = []
        while size > 0 and not self._reader.is_at_end:
            part = self._reader.read_some(size)
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


def _too_large() -> CellwallError:
    return CellwallError(
        "the bundle is too large", hint="Narrow it: --since TIME.", code="CW-INCIDENT-FILE"
    )

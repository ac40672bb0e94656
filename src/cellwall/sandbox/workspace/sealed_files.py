"""A directory tree as one encrypted file: how workspaces lie on disk between runs (FS-5).

    cellwall-workspace 1 KEY-NAME\n      then chunks of AES-256-GCM, each 64 KiB of plaintext

The nonce of a chunk is its number and a flag for the last one (STREAM): chunks that are reordered,
cut off or appended do not decrypt. Each archive has a key of its own, so nonces never repeat. The
associated data binds the chunks to the key's name and the session.

The plaintext is a sequence of entries: a length and a JSON header, then for a file its extents (an
offset, a length, the bytes; holes are left out), ended by an extent of length 0. Entries come
parents first. Code chose the names and bytes of the tree, so nothing of it is trusted: entries are
made by descriptor, beneath the new root, without following links.
"""

# ruff: noqa: PLC0415  # late imports: cryptography loads slowly

from __future__ import annotations

import errno
import json
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, Final

from cellwall.core.errors import WorkspaceError
from cellwall.sandbox.files.descriptors import closing_fd, proc_path, unlock, write_all
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.files.walking import WalkStep

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_MAGIC = b"cellwall-workspace 1 "
_MAX_HEAD_BYTES = 256
_CHUNK_BYTES = 64 * 1024
_TAG_BYTES = 16
_READ_BYTES = 1024 * 1024
_EXTENT = struct.Struct(">QQ")
_LENGTH = struct.Struct(">I")
_MAX_HEADER_BYTES = 1024 * 1024
MAX_ENTRIES: Final = 10_000_000
_MAX_PATH_BYTES = 4095
"""What lies deeper cannot be opened by its path, and not be applied either; see changes.py."""
_NODE = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_OVERLAY_XATTRS = frozenset(
    f"{space}.overlay.{name}"
    for space in ("user", "trusted")
    for name in ("opaque", "redirect", "whiteout")
)
"""Those that changes.py reads; code could make others longer than any header."""

Progress = Callable[[int], None]
"""Gets the bytes done so far."""


class SealedChunkWriter:
    """Encrypts a stream in chunks."""

    def __init__(self, file: int, key: bytes, aad: bytes, progress: Progress | None) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._file, self._cipher, self._aad, self._progress = file, AESGCM(key), aad, progress
        self._buffer, self._count = bytearray(), 0

    def write(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) > _CHUNK_BYTES:  # the last chunk is never empty but in an empty one
            self._emit(bytes(self._buffer[:_CHUNK_BYTES]), is_last=False)
            del self._buffer[:_CHUNK_BYTES]

    def finish(self) -> None:
        self._emit(bytes(self._buffer), is_last=True)

    def _emit(self, plain: bytes, *, is_last: bool) -> None:
        nonce = _nonce(self._count, is_last=is_last)
        write_all(self._file, self._cipher.encrypt(nonce, plain, self._aad))
        self._count += 1
        if self._progress is not None:
            self._progress(self._count * _CHUNK_BYTES)


class SealedChunkReader:
    """Decrypts and authenticates a stream; never returns a byte of a chunk that fails."""

    def __init__(self, file: IO[bytes], cipher: AESGCM, aad: bytes) -> None:
        self._file, self._cipher, self._aad = file, cipher, aad
        self._buffer, self._count, self._is_done = b"", 0, False
        self._ahead = file.read(_CHUNK_BYTES + _TAG_BYTES)

    def read(self, size: int) -> bytes:
        """Exactly this many bytes."""
        parts, left = [], size
        while left:
            if not self._buffer:
                if self._is_done:
                    raise _damaged("it ends too early")
                self._buffer = self._next()
                continue
            part, self._buffer = self._buffer[:left], self._buffer[left:]
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def read_some(self, max_bytes: int) -> bytes:
        """The next bytes of the current chunk; empty at the end."""
        if self.is_at_end:
            return b""
        part, self._buffer = self._buffer[:max_bytes], self._buffer[max_bytes:]
        return part

    @property
    def is_at_end(self) -> bool:
        while not self._buffer and not self._is_done:
            self._buffer = self._next()
        return not self._buffer

    def _next(self) -> bytes:
        from cryptography.exceptions import InvalidTag

        sealed, self._ahead = self._ahead, self._file.read(_CHUNK_BYTES + _TAG_BYTES)
        self._is_done = not self._ahead
        try:
            nonce = _nonce(self._count, is_last=self._is_done)
            plain = self._cipher.decrypt(nonce, sealed, self._aad)
        except (InvalidTag, ValueError):
            raise _damaged(f"chunk {self._count}") from None
        self._count += 1
        return plain


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([is_last])


def _aad(session: str, key_name: str) -> bytes:
    return f"cellwall.workspace/1 {key_name} {session}".encode()


def _damaged(detail: str) -> WorkspaceError:
    return WorkspaceError(
        "a stored workspace was changed or is damaged",
        hint="Restore it from a backup, or remove it with `cellwall erase`.",
        code="CW-WORKSPACE-DAMAGED",
        detail=detail,
    )


# Writing


def write_archive(
    roots: dict[str, Root],
    file: int,
    *,
    session: str,
    key_name: str,
    key: bytes,
    progress: Progress | None = None,
) -> None:
    """Write these trees, each below its name, into an open file. Directories that code has locked
    are opened for it: the caller removes the trees afterwards."""
    write_all(file, _MAGIC + key_name.encode("ascii") + b"\n")
    out = SealedChunkWriter(file, key, _aad(session, key_name), progress)
    links: dict[tuple[int, int], str] = {}
    for name, root in roots.items():
        _put_header(out, {"p": name, "t": "d", **_attributes(root.fd, os.fstat(root.fd))})

        def can_be_opened(step: WalkStep, top: str = name) -> bool:
            return len(os.fsencode(f"{top}/{step.path}")) <= _MAX_PATH_BYTES

        for step in root.walk(max_entries=MAX_ENTRIES, descend=can_be_opened):
            _put_entry(out, name, step, links)
    out.finish()


def _put_entry(
    out: SealedChunkWriter, top: str, step: WalkStep, links: dict[tuple[int, int], str]
) -> None:
    status, path = step.status, f"{top}/{step.path}"
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFLNK:
        target = os.readlink(step.name, dir_fd=step.dir_fd)
        _put_header(out, {"p": path, "t": "l", "to": target, **_owner(status)})
        return
    is_whiteout = kind == stat.S_IFCHR and status.st_rdev == 0  # how overlayfs marks a removed name
    if kind not in (stat.S_IFDIR, stat.S_IFREG, stat.S_IFIFO) and not is_whiteout:
        # Sockets and devices cannot be applied. Left out before links: a link to one would be a
        # link to nothing.
        return
    identity = (status.st_dev, status.st_ino)
    if kind != stat.S_IFDIR and status.st_nlink > 1:
        if identity in links:
            _put_header(out, {"p": path, "t": "h", "to": links[identity]})
            return
        links[identity] = path
    if kind == stat.S_IFDIR:
        unlock(step.dir_fd, step.name)  # the walk enters it next
    with closing_fd(os.open(step.name, _NODE, dir_fd=step.dir_fd)) as node:
        about = {"p": path, **_attributes(node, status)}
        if kind == stat.S_IFDIR:
            _put_header(out, {"t": "d", **about})
        elif kind == stat.S_IFREG:
            _put_header(out, {"t": "f", "n": status.st_size, **about})
            _put_extents(out, node, status)
        else:
            _put_header(out, {"t": "w" if is_whiteout else "p", **about})


def _put_header(out: SealedChunkWriter, header: dict[str, Any]) -> None:
    data = json.dumps(header, separators=(",", ":")).encode("ascii")
    out.write(_LENGTH.pack(len(data)) + data)


def _attributes(node: int, status: os.stat_result) -> dict[str, Any]:
    path = proc_path(node)
    names = [name for name in os.listxattr(path) if name in _OVERLAY_XATTRS]
    found = {name: os.getxattr(path, name).hex() for name in names}
    mode = stat.S_IMODE(status.st_mode)
    return {"m": mode, "mt": status.st_mtime_ns, "x": found, **_owner(status)}


def _owner(status: os.stat_result) -> dict[str, int]:
    return {"u": status.st_uid, "g": status.st_gid}


def _put_extents(out: SealedChunkWriter, node: int, status: os.stat_result) -> None:
    try:
        opened = os.open(proc_path(node), os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:  # code took its own permissions away
        os.chmod(proc_path(node), stat.S_IMODE(status.st_mode) | stat.S_IRUSR)
        opened = os.open(proc_path(node), os.O_RDONLY | os.O_CLOEXEC)
    with closing_fd(opened) as file:
        for start, end in _extents(file, status.st_size):
            while start < end:
                data = os.pread(file, min(_READ_BYTES, end - start), start)
                if not data:
                    break
                out.write(_EXTENT.pack(start, len(data)) + data)
                start += len(data)  # noqa: PLW2901  # the rest of this extent
    out.write(_EXTENT.pack(0, 0))


def _extents(file: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    """Where a file has data: a sparse file of a terabyte must not become one of zeros."""
    at = 0
    while at < size_bytes:
        try:
            start = os.lseek(file, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return
            raise
        at = os.lseek(file, start, os.SEEK_HOLE)
        yield start, min(at, size_bytes)


# Reading


def read_key_name(file: IO[bytes]) -> str:
    """The name of the key of an archive, from its first line."""
    head = file.readline(_MAX_HEAD_BYTES)
    if not head.startswith(_MAGIC) or not head.endswith(b"\n") or not head.isascii():
        raise _damaged("its first line")
    return head[len(_MAGIC) : -1].decode("ascii")


def extract(
    file: IO[bytes],
    folder: int,
    *,
    session: str,
    key_name: str,
    key: bytes,
    progress: Progress | None = None,
) -> None:
    """Make the trees of an archive below a new, empty directory. `file` is after its first line."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    source = SealedChunkReader(file, AESGCM(key), _aad(session, key_name))
    directories: list[dict[str, Any]] = []
    done = 0
    with Root(os.dup(folder)) as root:
        for _ in range(MAX_ENTRIES):
            if source.is_at_end:
                break
            header = _get_header(source)
            done += _make_entry(root, header, source)
            if header["t"] == "d":
                directories.append(header)
            if progress is not None:
                progress(done)
        # Last, the deepest first: a directory may be read-only, and each entry changes its time.
        for header in reversed(directories):
            _set_attributes_below(root, header)


def _get_header(source: SealedChunkReader) -> dict[str, Any]:
    (length,) = _LENGTH.unpack(source.read(_LENGTH.size))
    if length > _MAX_HEADER_BYTES:
        raise _damaged("a header is too long")
    header: dict[str, Any] = json.loads(source.read(length))
    return header


def _make_entry(root: Root, header: dict[str, Any], source: SealedChunkReader) -> int:
    """Returns the bytes of its content."""
    parent, _, name = header["p"].rpartition("/")
    flags = os.O_RDONLY | os.O_DIRECTORY
    with closing_fd(root.open_below(parent or ".", flags, links=False)) as folder:
        match header["t"]:
            case "d":
                os.mkdir(name, 0o700, dir_fd=folder)
                return 0
            case "l":
                os.symlink(header["to"], name, dir_fd=folder)
                with suppress(PermissionError):
                    os.chown(name, header["u"], header["g"], dir_fd=folder, follow_symlinks=False)
                return 0
            case "h":
                above, _, target = header["to"].rpartition("/")
                with closing_fd(root.open_below(above or ".", flags, links=False)) as there:
                    os.link(
                        target, name, src_dir_fd=there, dst_dir_fd=folder, follow_symlinks=False
                    )
                return 0
            case "w":
                os.mknod(name, stat.S_IFCHR | 0o600, 0, dir_fd=folder)
            case "p":
                os.mkfifo(name, 0o600, dir_fd=folder)
            case "f":
                return _make_file(folder, name, header, source)
            case _:
                raise _damaged("an entry of an unknown kind")
    _set_attributes_below(root, header)
    return 0


def _make_file(folder: int, name: str, header: dict[str, Any], source: SealedChunkReader) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    written = 0
    with closing_fd(os.open(name, flags, 0o600, dir_fd=folder)) as file:
        os.ftruncate(file, header["n"])
        while True:
            offset, length = _EXTENT.unpack(source.read(_EXTENT.size))
            if not length:
                break
            if length > _READ_BYTES:
                raise _damaged("an extent is too long")
            data = source.read(length)
            if os.pwrite(file, data, offset) != length:
                raise OSError(errno.ENOSPC, "short write")
            written += length
        _set_attributes(file, header)
    return written


def _set_attributes_below(root: Root, header: dict[str, Any]) -> None:
    with (
        root.parent(header["p"]) as (folder, name),  # its own path may be too long
        closing_fd(os.open(name, _NODE, dir_fd=folder)) as node,
    ):
        _set_attributes(node, header)


def _set_attributes(node: int, header: dict[str, Any]) -> None:
    path = proc_path(node)
    if os.geteuid() == 0:
        os.chown(path, header["u"], header["g"])
    for name, value in header["x"].items():
        if name in _OVERLAY_XATTRS:
            os.setxattr(path, name, bytes.fromhex(value))
    os.chmod(path, header["m"])
    os.utime(path, ns=(header["mt"], header["mt"]))

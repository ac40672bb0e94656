"""Wheels, source archives and npm tarballs, read without writing a file or trusting a size.

The reader yields regular files only. Everything that an extractor could follow to another place
(absolute paths, `..`, links, devices, names that differ by case) makes the archive unsafe as a
whole: no installer needs any of these, and installers differ in what they do with them.
"""

from __future__ import annotations

import hashlib
import lzma
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Protocol

from cellwall.core.limits import MIB
from cellwall.packages.inspection.tar_reader import (
    AmbiguousTar,
    DamagedTar,
    TarHeaderTooLarge,
    TarKind,
    read_tar,
)
from cellwall.packages.inspection.zip_structure import AmbiguousZip, check_zip

MAX_MEMBERS = 200_000
MAX_UNPACKED_BYTES = 8 * 1024 * MIB
MAX_RATIO = 200
"""Unpacked to packed bytes. Source code compresses to a tenth; DEFLATE's limit is 1,032."""
_RATIO_FREE_BYTES = 32 * MIB
MAX_NAME_BYTES = 1024
MAX_NAME_PARTS = 64
_CHUNK_BYTES = 64 * 1024


class UnsafeArchive(Exception):
    """The archive must not be unpacked; `code` is stable, the text is for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Member:
    """A regular file. `read` returns at most that many of its first bytes."""

    name: str
    size: int
    is_executable: bool
    sha256: bytes
    """Of the whole file; empty for a member of a tar file, which has no list of hashes."""
    read: Callable[[int], bytes]


class _UnpackBudget:
    """Counts members and real unpacked bytes; sizes in headers are claims of the archive."""

    def __init__(self, packed_bytes: int) -> None:
        self._packed_bytes = packed_bytes
        self._bytes = self._members = 0
        self._names: set[str] = set()
        self._folders: set[str] = set()

    def add_member(self, name: str) -> str:
        self._members += 1
        if self._members > MAX_MEMBERS:
            raise UnsafeArchive("too-many-files", f"more than {MAX_MEMBERS:,} files")
        if name.startswith("./"):  # npm and pip count the dot as the folder of all files
            raise UnsafeArchive("ambiguous", f"a path begins with a dot: {name[:100]!a}")
        clean = check_name(name)
        # Some file systems fold case and Unicode forms, and keep one of such files.
        folded = unicodedata.normalize("NFKC", clean).casefold()
        parts = folded.split("/")
        above = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
        if folded in self._names or folded in self._folders or above & self._names:
            raise UnsafeArchive("duplicate-name", f"two files have the name {clean!a}")
        self._names.add(folded)
        self._folders |= above
        return clean

    def add_bytes(self, count: int) -> None:
        self._bytes += count
        is_bomb = self._bytes > max(_RATIO_FREE_BYTES, self._packed_bytes * MAX_RATIO)
        if is_bomb or self._bytes > MAX_UNPACKED_BYTES:
            raise UnsafeArchive("bomb", f"unpacks to more than {self._bytes // MIB:,} MiB")


def check_name(name: str) -> str:
    """The path below the archive's root; `UnsafeArchive` for every other path."""
    parts = name.split("/")
    is_plain = (
        name
        and len(name.encode("utf-8", "surrogateescape")) <= MAX_NAME_BYTES
        and name.isprintable()
        and not name.startswith(("/", "~"))
        and "\\" not in name
        and ":" not in parts[0]
        and ".." not in parts
        and len(parts) <= MAX_NAME_PARTS
    )
    if not is_plain:
        raise UnsafeArchive("path", f"a file has an unsafe path: {name[:100]!a}")
    return "/".join(part for part in parts if part not in ("", "."))


def read_archive(stream: IO[bytes], filename: str, packed_bytes: int) -> Iterator[Member]:
    """The regular files of an archive, in its order. Reads each file to its end exactly once."""
    budget = _UnpackBudget(packed_bytes)
    try:
        if filename.endswith((".whl", ".zip", ".egg")):
            check_zip(stream, packed_bytes)
            yield from _read_zip(stream, budget)
        elif filename.endswith((".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar")):
            yield from _read_tar(stream, budget)
        else:
            raise UnsafeArchive("format", "not a wheel, a zip file or a tar file")
    except (AmbiguousZip, AmbiguousTar) as error:
        raise UnsafeArchive("ambiguous", f"the archive can be read in two ways: {error}") from None
    except TarHeaderTooLarge as error:
        raise UnsafeArchive("header", str(error)) from None
    except (
        zipfile.BadZipFile, DamagedTar, zlib.error, lzma.LZMAError, EOFError, OSError,
        ValueError, NotImplementedError, RuntimeError, struct.error,
    ) as error:  # fmt: skip
        raise UnsafeArchive("damaged", f"the archive is damaged ({type(error).__name__})") from None


def strip_root(members: Iterable[Member]) -> Iterator[tuple[str, Member]]:
    """Each file with its path below the one folder that holds all files.

    npm removes the first part of each path, whatever it is, and so unites several folders; pip
    removes the first part only where all files share it. `UnsafeArchive` where both would differ.
    """
    root = None
    for member in members:
        first, _, path = member.name.partition("/")
        if not path or root not in (None, first):
            raise UnsafeArchive("ambiguous", "the files are not in one folder")
        root = first
        yield path, member


def _read_zip(stream: IO[bytes], budget: _UnpackBudget) -> Iterator[Member]:
    with zipfile.ZipFile(stream) as archive:
        for info in archive.infolist():
            mode = info.external_attr >> 16
            if info.flag_bits & 0x1:
                raise UnsafeArchive("encrypted", "the archive is encrypted")
            if info.is_dir():
                check_name(info.filename.rstrip("/"))
                continue
            if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                raise UnsafeArchive("link", f"not a regular file: {info.filename[:100]!a}")
            # `filename` was cut at a NUL byte; the raw name is what other tools may see.
            if info.orig_filename != info.filename:
                raise UnsafeArchive("path", f"an ambiguous path: {info.filename[:100]!a}")
            name = budget.add_member(info.filename)
            with archive.open(info) as opened:
                is_executable = bool(mode & 0o111)
                yield _open_member(
                    name,
                    info.file_size,
                    opened,
                    budget,
                    is_executable=is_executable,
                    hashing=hashlib.sha256(),
                )


def _read_tar(stream: IO[bytes], budget: _UnpackBudget) -> Iterator[Member]:
    for each in read_tar(stream, budget.add_bytes):
        if each.kind is TarKind.FOLDER:
            check_name(each.name.rstrip("/") or ".")
            continue
        if each.kind is not TarKind.FILE:
            raise UnsafeArchive("link", f"not a regular file: {each.name[:100]!a}")
        name = budget.add_member(each.name)
        is_executable = bool(each.mode & 0o111)
        yield _open_member(name, each.size, each.content, budget, is_executable=is_executable)


class _Readable(Protocol):
    def read(self, count: int, /) -> bytes: ...


def _open_member(
    name: str,
    size: int,
    opened: _Readable,
    budget: _UnpackBudget,
    *,
    is_executable: bool,
    hashing: hashlib._Hash | None = None,
) -> Member:
    """Unpack the file in chunks, keep its first bytes, and check the claimed size."""
    kept, real = bytearray(), 0
    while chunk := opened.read(_CHUNK_BYTES):
        real += len(chunk)
        budget.add_bytes(len(chunk))
        if hashing is not None:
            hashing.update(chunk)
        if len(kept) < _KEPT_BYTES:
            kept += chunk[: _KEPT_BYTES - len(kept)]
    if real != size:
        raise UnsafeArchive("size", f"{name!a} has {real:,} bytes instead of {size:,}")
    content = bytes(kept)
    digest = b"" if hashing is None else hashing.digest()
    return Member(name, real, is_executable, digest, lambda count: content[:count])


_KEPT_BYTES = 4 * MIB
"""As much of a file is inspected; longer source files are reported as not inspected."""

"""Artifacts by their hash: written once, read-only, shared between the sessions of one owner.

A file appears under its hash by one rename, after its bytes have that hash: a download that was
cut, killed or forged never becomes an artifact.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from typing import IO

from cellwall.core.errors import CellwallError
from cellwall.core.limits import MIB

MAX_ARTIFACT_BYTES = 2048 * MIB
_ALGORITHMS = {"sha256": 64, "sha512": 128}
_DRAFT = ".draft-"
_MAX_DRAFT_AGE_S = 3600.0


class ArtifactRefused(CellwallError):
    """The bytes are not those that were judged, or are too many."""

    default_code = "CW-PACKAGE-HASH"


class ArtifactStore:
    """One folder of artifacts. Safe for threads and processes."""

    def __init__(self, folder: str, *, max_bytes: int = 8 * 1024 * MIB) -> None:
        self._folder = folder
        self._max_bytes = max_bytes

    def open(self, algorithm: str, digest: str) -> BufferedReader | None:
        """The artifact, open for reading; None where the store does not have it."""
        # A link or a pipe is no artifact; without O_NONBLOCK, opening a pipe would wait.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path(algorithm, digest), flags)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENXIO):
                return None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        opened = open(descriptor, "rb")  # noqa: SIM115  # the caller closes
        with suppress(OSError):  # the time of use, for `trim`; a read-only store has none
            os.utime(opened.fileno())
        return opened

    def has(self, algorithm: str, digest: str) -> bool:
        """Whether the store has the artifact."""
        return os.path.isfile(self._path(algorithm, digest))

    def check(self, algorithm: str, digest: str, stream: BufferedReader) -> bool:
        """Whether an open artifact still has its hash; a damaged one is removed.

        A host that lost power may have the name of a file without its content.
        """
        stream.seek(0)
        if hashlib.file_digest(stream, algorithm).hexdigest() == digest:
            return True
        with suppress(FileNotFoundError):
            os.unlink(self._path(algorithm, digest))
        return False

    @contextmanager
    def create(
        self, algorithm: str, digest: str, *, max_bytes: int = MAX_ARTIFACT_BYTES
    ) -> Iterator[ArtifactWriter]:
        """A writer; leaving the block checks the hash and makes the artifact visible."""
        path = self._path(algorithm, digest)
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        draft = os.path.join(self._folder, f"{_DRAFT}{secrets.token_hex(8)}")
        try:
            with open(draft, "xb") as written:
                writer = ArtifactWriter(written, hashlib.new(algorithm), max_bytes)
                yield writer
                if writer.digest != digest:
                    raise ArtifactRefused(
                        "the downloaded file does not have the hash that the index names",
                        hint="Try again; a registry or a proxy may have changed the file.",
                    )
                os.fchmod(written.fileno(), 0o444)
            os.replace(draft, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft)

    def trim(self) -> int:
        """Remove the artifacts that were not used for the longest time; the bytes that are left.

        Drafts of writers that were killed go too; those of running writers stay.
        """
        entries, total = [], 0
        for path, found in self._scan():
            is_draft = os.path.basename(path).startswith(_DRAFT)
            if is_draft and time.time() - found.st_mtime > _MAX_DRAFT_AGE_S:
                with suppress(FileNotFoundError):
                    os.unlink(path)
                continue
            total += found.st_size
            if not is_draft:
                entries.append((found.st_mtime, found.st_size, path))
        for _, size, path in sorted(entries):
            if total <= self._max_bytes:
                break
            with suppress(FileNotFoundError):
                os.unlink(path)
            total -= size
        return total

    def _scan(self) -> Iterator[tuple[str, os.stat_result]]:
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for each in entries:
                with suppress(FileNotFoundError):  # another process trims as well
                    yield each.path, each.stat(follow_symlinks=False)

    def _path(self, algorithm: str, digest: str) -> str:
        if not re.fullmatch(rf"[0-9a-f]{{{_ALGORITHMS[algorithm]}}}", digest):
            raise ValueError("not a hash")
        return os.path.join(self._folder, f"{algorithm}-{digest}")


class ArtifactWriter:
    """Hashes and counts while it writes."""

    def __init__(self, stream: IO[bytes], hashing: hashlib._Hash, max_bytes: int) -> None:
        self._stream = stream
        self._hashing = hashing
        self._max_bytes = max_bytes
        self.size = 0

    @property
    def digest(self) -> str:
        return self._hashing.hexdigest()

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > self._max_bytes:
            raise ArtifactRefused(
                f"the file is larger than {self._max_bytes:,} bytes",
                code="CW-PACKAGE-TOO-LARGE",
            )
        self._hashing.update(data)
        self._stream.write(data)

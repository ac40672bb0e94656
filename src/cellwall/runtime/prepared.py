"""Keeps between processes what takes long to make and always comes out the same.

Compiling some thousand words costs a tenth of a second and more, reading them back a thousandth.
What is kept lies in the user's own cache folder, under the digest of all that it was made from, and
is made anew wherever it cannot be trusted or read: nothing depends on it but time.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256

_MAX_BYTES = 64 << 20
_MAX_FILES = 64
_DIGEST_BYTES = 32
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class PreparedFiles:
    """In a folder of the user's own."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, source: bytes, make: Callable[[], bytes]) -> bytes:
        """What `make` returns, or has returned for the same source before."""
        name = sha256(source).hexdigest()
        kept = self._read(name)
        if kept is None:
            kept = make()
            with suppress(OSError):  # a full disk costs time, and nothing else
                self._write(name, kept)
        return kept

    def _read(self, name: str) -> bytes | None:
        try:
            descriptor = os.open(os.path.join(self._folder, name), _READ)
        except OSError:
            return None
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            is_ours = status.st_uid == os.geteuid() and not status.st_mode & 0o077
            if not is_ours or not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                return None
            data = file.read(_MAX_BYTES)
        kept, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        return kept if sha256(kept).digest() == digest else None

    def _write(self, name: str, data: bytes) -> None:
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        self._make_room()
        draft = os.path.join(self._folder, f".{secrets.token_hex(8)}")
        try:
            with os.fdopen(os.open(draft, _NEW, 0o600), "wb") as file:
                file.write(data + sha256(data).digest())
            os.rename(draft, os.path.join(self._folder, name))
        except BaseException:
            with suppress(OSError):
                os.unlink(draft)
            raise

    def _make_room(self) -> None:
        """Of old versions nothing is left for ever."""
        names = os.listdir(self._folder)
        if len(names) < _MAX_FILES:
            return
        for name in names:
            with suppress(OSError):
                os.unlink(os.path.join(self._folder, name))

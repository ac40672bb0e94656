"""Seals what an ended session keeps: the layers of a copy-on-write workspace, or the files of a
private one; opens it for a reader, or restores it for a new session (FS-5).

  seal:   (1) write the archive under a temporary name; flush it; rename it; flush the folder;
          (2) remove the layers or files in clear.
  open:   (1) extract into a directory of its own, locked; (2) read; (3) remove the directory.

A kill in seal (1) leaves the layers, in (2) the archive and what is left of the layers, which are
then removed: there is always one complete copy. An archive is never changed. A directory of a
killed reader is found by its lock and removed.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cellwall.core.errors import CellwallError
from cellwall.core.ports import SessionKeysPort
from cellwall.sandbox.files.descriptors import closing_fd, remove_tree, unlock_root
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.workspace.sealed_files import (
    MAX_ENTRIES,
    extract,
    read_key_name,
    write_archive,
)

_SEALED = "sealed"
_DRAFT = "sealed.draft"
_LAYERS = "layers"
_FILES = "files"
_IN_CLEAR = {_LAYERS: (_LAYERS,), _FILES: ("quarantine", _FILES)}
"""What is removed once an archive has replaced it. The quarantine of a private workspace has what
its limits refused, and is not kept."""
_OPENED = "opened."
_LOCK_TIMEOUT_S = 10.0
_PAUSE_S = 0.01
_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def is_sealed(folder: str) -> bool:
    """Whether this workspace has an archive."""
    return os.path.lexists(os.path.join(folder, _SEALED))


class SealedLayers:
    """Without keys, layers stay in clear: for tests of the sandbox alone."""

    def __init__(self, keys: SessionKeysPort | None) -> None:
        self._keys = keys

    def seal(self, session: str, folder: str) -> None:
        """Encrypt the layers and remove them. A failure leaves them as they are; `tidy` tries
        again."""
        if self._keys is None:
            return
        with suppress(OSError, CellwallError), closing_fd(os.open(folder, _FOLDER)) as fd:
            if not _try_lock(fd, fcntl.LOCK_EX):
                return
            if not is_sealed(folder):
                self._write(session, folder, fd)
            for kept, names in _IN_CLEAR.items():
                if not os.path.isdir(os.path.join(folder, kept)):
                    continue
                for name in names:
                    with suppress(FileNotFoundError):
                        remove_tree(fd, name, max_entries=MAX_ENTRIES)

    def _write(self, session: str, folder: str, fd: int) -> None:
        assert self._keys is not None  # noqa: S101  # by `seal`
        key_name, key = self._keys.new_key(session)
        is_private = os.path.isdir(os.path.join(folder, _FILES))
        name, place = (_FILES, _FILES) if is_private else ("upper", f"{_LAYERS}/upper")
        try:
            with (
                closing_fd(os.open(_DRAFT, _NEW, 0o600, dir_fd=fd)) as file,
                Root.open(os.path.join(folder, place)) as tree,
            ):
                unlock_root(tree.fd)
                write_archive({name: tree}, file, session=session, key_name=key_name, key=key)
                os.fsync(file)
        except BaseException:
            with suppress(OSError):
                os.unlink(_DRAFT, dir_fd=fd)
            raise
        os.rename(_DRAFT, _SEALED, src_dir_fd=fd, dst_dir_fd=fd)
        os.fsync(fd)

    @contextmanager
    def opened(self, session: str, folder: str) -> Iterator[str]:
        """The folder that has the layers in clear: the workspace's own while its session lives."""
        with closing_fd(os.open(folder, _FOLDER)) as fd:
            fcntl.flock(fd, fcntl.LOCK_SH)  # sealing removes no layers that are being read
            if not is_sealed(folder) or self._keys is None:
                yield folder
                return
            fcntl.flock(fd, fcntl.LOCK_UN)
            name = _OPENED + secrets.token_hex(8)
            os.mkdir(name, 0o700, dir_fd=fd)
            with closing_fd(os.open(name, _FOLDER, dir_fd=fd)) as own:
                try:
                    fcntl.flock(own, fcntl.LOCK_EX)
                    os.mkdir(_LAYERS, 0o700, dir_fd=own)
                    with closing_fd(os.open(_LAYERS, _FOLDER, dir_fd=own)) as layers:
                        self._extract(session, folder, layers)
                    yield os.path.join(folder, name)
                finally:
                    remove_tree(fd, name, max_entries=MAX_ENTRIES)

    def restore(self, session: str, folder: str, target: str) -> None:
        """Decrypt the files of a private workspace into the folder of a new one. The archive stays
        as it is."""
        with closing_fd(os.open(target, _FOLDER)) as own:
            self._extract(session, folder, own)

    def _extract(self, session: str, folder: str, target: int) -> None:
        assert self._keys is not None  # noqa: S101  # without keys there is no archive
        with open(os.path.join(folder, _SEALED), "rb") as file:
            key_name = read_key_name(file)
            key = self._keys.key_bytes(key_name)
            extract(file, target, session=session, key_name=key_name, key=key)

    def is_erased(self, folder: str) -> bool:
        """Whether there is an archive that nothing can read any more."""
        name = self._key_name(folder)
        return name is not None and self._keys is not None and self._keys.is_destroyed(name)

    def destroy_key(self, folder: str) -> None:
        """Before an archive is removed: its blocks may stay on the disk."""
        name = self._key_name(folder)
        if name is not None and self._keys is not None:
            self._keys.destroy_key(name)

    def _key_name(self, folder: str) -> str | None:
        with suppress(OSError, CellwallError), open(os.path.join(folder, _SEALED), "rb") as file:
            return read_key_name(file)
        return None

    def tidy(self, session: str, folder: str) -> None:
        """Seal what is still in clear, and remove what killed readers left."""
        if any(os.path.isdir(os.path.join(folder, name)) for name in _IN_CLEAR):
            self.seal(session, folder)
        with closing_fd(os.open(folder, _FOLDER)) as fd:
            for name in os.listdir(fd):
                if not name.startswith(_OPENED):
                    continue
                with suppress(OSError), closing_fd(os.open(name, _FOLDER, dir_fd=fd)) as left:
                    fcntl.flock(left, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove_tree(fd, name, max_entries=MAX_ENTRIES)


def _try_lock(fd: int, kind: int) -> bool:
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_S)
        else:
            return True

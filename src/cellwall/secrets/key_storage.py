"""Keys in a file or in the system's key ring: one line each, written by us.

    VAULT-ID KEY-ID BASE64

Several lines, since a killed rekey leaves two: the vault states which one is current, so no key is
lost at any moment (SEC-6).
"""

# ruff: noqa: PLC0415  # late imports: keyring is an optional dependency

from __future__ import annotations

import base64
import binascii
import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from cellwall.secrets import failures
from cellwall.secrets.folder import (
    closing_fd,
    draft_of,
    hold_lock,
    open_directory,
    replace_file,
    sweep_draft,
)
from cellwall.secrets.sealing import KEY_BYTES

_SERVICE = "cellwall-vault"
_MAX_BYTES = 64 * 1024
_LINE = re.compile(
    rb"([a-z]{1,4}_[0-9a-z]{20,32}) ([a-z]{1,4}_[0-9a-z]{20,32}) ([A-Za-z0-9+/=]{44})"
)

StoredKeys = dict[tuple[str, str], bytes]
"""(vault, key) -> the key's base64."""


class KeyStorage(Protocol):
    """Where key lines are stored. The caller holds the vault's lock."""

    def change(self) -> AbstractContextManager[None]:
        """Held around read and write: other vaults store their keys there, too."""

    def has_draft(self) -> bool:
        """True if a writer was killed."""

    def read(self, vault: str) -> StoredKeys: ...

    def write(self, vault: str, keys: StoredKeys) -> None: ...


def read_key(storage: KeyStorage, vault: str, key_id: str) -> bytearray:
    """The key, which the caller wipes."""
    text = storage.read(vault).get((vault, key_id))
    if text is None:
        raise failures.no_key(
            "the key of this vault is not where the configuration says",
            hint="Set [vault] key_file in the configuration to the file that `cellwall vault init` "
            "or `rekey` made; without its key a vault stays shut.",
        )
    return _decode_key(text)


def add_key(storage: KeyStorage, vault: str, key_id: str) -> bytearray:
    """A new key, durable before anything is encrypted with it."""
    key = bytearray(os.urandom(KEY_BYTES))
    with storage.change():
        keys = storage.read(vault)
        keys[vault, key_id] = base64.b64encode(key)
        storage.write(vault, keys)
    return key


def has_others(storage: KeyStorage, vault: str, key_id: str) -> bool:
    """True if an old key of the vault is left."""
    is_left = any(owner == vault and each != key_id for owner, each in storage.read(vault))
    return is_left or storage.has_draft()


def drop_others(storage: KeyStorage, vault: str, key_id: str) -> None:
    """Remove every key of this vault but one; keys of other vaults stay."""
    if not has_others(storage, vault, key_id):
        return  # nothing to write: no lock file beside a file that may be read-only
    with storage.change():
        keys = storage.read(vault)
        remaining = {
            (owner, each): text
            for (owner, each), text in keys.items()
            if owner != vault or each == key_id
        }
        if remaining != keys:
            storage.write(vault, remaining)


def _decode_key(text: bytes) -> bytearray:
    try:
        key = bytearray(binascii.a2b_base64(text, strict_mode=True))
    except ValueError:
        key = bytearray()
    if len(key) != KEY_BYTES:
        raise failures.no_key("the key is damaged", hint="Restore it from a backup.")
    return key


def _parse(data: bytes) -> StoredKeys:
    keys: StoredKeys = {}
    for line in data.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            raise failures.no_key(
                "the key file or key ring entry was not made by Cellwall",
                hint="Name a file that does not exist yet; `cellwall vault init` makes it.",
            )
        keys[match[1].decode(), match[2].decode()] = match[3]
    return keys


def _format_lines(keys: Mapping[tuple[str, str], bytes]) -> bytes:
    return b"".join(
        b"%b %b %b\n" % (vault.encode(), key_id.encode(), text)
        for (vault, key_id), text in sorted(keys.items())
    )


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A file of mode 0600, ideally on another disk than the vault. `path` is absolute."""

    path: str

    @contextmanager
    def change(self) -> Iterator[None]:
        """Locks a file beside the key file: the key file itself is replaced, and a lock on it would
        then be on an unlinked file.

        Without the lock, two vaults with one key file could each write back an old list, without
        the key that the other has added.
        """
        directory, name = os.path.split(self.path)
        try:
            with (
                open_directory(directory) as folder,
                hold_lock(folder, f".{name}.lock", alone=True),
            ):
                sweep_draft(folder, name)
                yield
        except OSError as error:
            raise _key_file_unusable(error) from None

    def has_draft(self) -> bool:
        directory, name = os.path.split(self.path)
        return os.path.lexists(os.path.join(directory, draft_of(name)))

    def read(self, vault: str) -> StoredKeys:  # noqa: ARG002  # one file for all vaults
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path, flags)
        except FileNotFoundError:
            return {}
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise failures.unsafe("the key file") from None
            raise _key_file_unusable(error) from None
        with closing_fd(descriptor):
            info = os.fstat(descriptor)
            is_plain = stat.S_ISREG(info.st_mode) and info.st_uid == os.geteuid()
            if not is_plain or info.st_mode & 0o077:
                raise failures.unsafe("the key file")
            if info.st_size > _MAX_BYTES:  # a truncated read would lose keys at the next write
                raise failures.no_key(
                    "the key file is too large", hint="Name another file; each vault takes a line."
                )
            return _parse(os.read(descriptor, _MAX_BYTES))

    def write(self, vault: str, keys: StoredKeys) -> None:  # noqa: ARG002  # one file for all vaults
        directory, name = os.path.split(self.path)
        data = _format_lines(keys)
        if len(data) > _MAX_BYTES:
            raise failures.full(f"a key file has at most {_MAX_BYTES >> 10} KiB")
        try:
            with open_directory(directory) as folder:
                replace_file(folder, name, data)
                if not keys:
                    os.unlink(name, dir_fd=folder)
        except OSError as error:
            raise _key_file_unusable(error) from None


def _key_file_unusable(error: OSError) -> Exception:
    return failures.no_key(
        "the key file cannot be read or written",
        hint="Its folder must exist; the file must be a plain one of yours with mode 0600.",
        detail=str(error),
    )


@dataclass(frozen=True, slots=True)
class KeyRing:
    """The system's key ring, through the library `keyring`; one entry per vault."""

    def change(self) -> AbstractContextManager[None]:
        return nullcontext()  # an entry holds the keys of one vault

    def has_draft(self) -> bool:
        return False

    def read(self, vault: str) -> StoredKeys:
        return _parse((self._call("get_password", vault) or "").encode())

    def write(self, vault: str, keys: StoredKeys) -> None:
        self._call("set_password", vault, _format_lines(keys).decode())
        if self.read(vault) != keys:
            raise _keyring_unusable("it did not keep the key")

    @staticmethod
    def _call(name: str, *words: str) -> str | None:
        try:
            import keyring
            from keyring.errors import KeyringError
        except ImportError as error:
            raise failures.no_key(
                "the library for the key ring is missing",
                hint="pip install 'cellwall[keyring]'",
                detail=str(error),
            ) from None
        try:
            backend = keyring.get_keyring()
            home = type(backend).__module__
            # The first two store nothing, the third stores in clear text.
            if home.startswith(("keyring.backends.fail", "keyring.backends.null", "keyrings.alt")):
                raise _keyring_unusable("no backend that stores keys safely")
            password = getattr(backend, name)(_SERVICE, *words)
        except (KeyringError, OSError, RuntimeError) as error:
            raise _keyring_unusable(str(error)) from None
        return password if isinstance(password, str) else None


def _keyring_unusable(detail: str) -> Exception:
    return failures.no_key(
        "the system's key ring cannot be used",
        hint="Unlock it, or choose another key: `cellwall vault init --key file`.",
        detail=detail,
    )

"""The key pair that keys of sessions are encrypted to (FS-5).

The public key lies in clear: every process can write data of a session, also while the vault is
locked. The private key, which reads the data, is sealed under a key of the vault; without a vault
it lies in a file of its own, mode 0600, which protects against no one who has the whole state
folder.

recipient    the public key, and the vault that has the private one
private      private keys in clear, while there is no vault
VAULT-ID     private keys sealed under this vault; a vault adopts the keys that lie in clear
"""

# ruff: noqa: PLC0415  # late imports: cryptography loads slowly

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from cellwall.core.errors import VaultError
from cellwall.secrets import failures
from cellwall.secrets.folder import VaultFolder, open_folder, peek_folder
from cellwall.secrets.format import parse_vault_id
from cellwall.secrets.sealing import (
    NONCE_BYTES,
    BadSeal,
    Ciphertext,
    KeyBytes,
    part_aad,
    seal,
    unseal,
    wipe,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

_RECIPIENT = "recipient"
_PRIVATE = "private"
_PART = "session keys"
_MAX_BYTES = 64 * 1024
ID_BYTES = 8

VaultKey = Callable[[str], KeyBytes]
"""The key of the vault with this id for private keys; raises `VaultError` while it is locked."""


@dataclass(frozen=True, slots=True)
class Recipient:
    """A public key."""

    public: bytes
    vault: str = ""
    """The vault that has the private key; empty while it lies in clear."""

    @property
    def id(self) -> bytes:
        return recipient_id(self.public)


def recipient_id(public: bytes) -> bytes:
    """Names a key pair in a slot."""
    return sha256(b"cellwall session recipient " + public).digest()[:ID_BYTES]


class Recipients:
    """The key pairs of one state folder."""

    def __init__(self, directory: str, vault_key: VaultKey | None = None) -> None:
        self._directory = directory
        self._vault_key = vault_key
        self._private: dict[bytes, bytes] = {}

    def current(self) -> Recipient:
        """The public key for new data; a new key pair on first use."""
        try:
            with peek_folder(self._directory) as folder:
                found = _read_recipient(folder)
        except VaultError as error:
            if error.code != failures.missing.code:
                raise
            found = None
        if found is not None:
            return found
        with open_folder(self._directory, alone=True, make=True) as folder:
            found = _read_recipient(folder)
            if found is None:
                private, public = _new_pair()
                _write_private(folder, [private])
                found = Recipient(public)
                _write_recipient(folder, found)
            return found

    def adopt(self, vault: str, key: KeyBytes) -> None:
        """Move the private keys under an unlocked vault, and make a new pair for new data: the old
        private key was on the disk in clear.

        A kill leaves every private key readable: the sealed file is complete before the recipient
        names the vault, and the clear file goes last.
        """
        if self._is_adopted(vault):
            return
        with open_folder(self._directory, alone=True, make=True) as folder:
            folder.sweep()
            kept = [*_read_sealed(folder, vault, key), *_read_private(folder)]
            recipient = _read_recipient(folder)
            if recipient is None or recipient.vault != vault:
                private, public = _new_pair()
                kept.append(private)
                recipient = Recipient(public, vault)
            _write_sealed(folder, vault, key, list(dict.fromkeys(kept)))
            _write_recipient(folder, recipient)
            folder.shred(_PRIVATE)

    def _is_adopted(self, vault: str) -> bool:
        try:
            with peek_folder(self._directory) as folder:
                recipient = _read_recipient(folder)
        except VaultError:
            return False
        is_clear = os.path.lexists(os.path.join(self._directory, _PRIVATE))
        return recipient is not None and recipient.vault == vault and not is_clear

    def private(self, wanted: bytes) -> X25519PrivateKey:
        """The private key of a recipient; raises `VaultError` if no vault opens that has it."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        if wanted not in self._private:
            self._load(wanted)
        found = self._private.get(wanted)
        if found is None:
            raise failures.session_locked("no key file and no vault has this private key")
        return X25519PrivateKey.from_private_bytes(found)

    def _load(self, wanted: bytes) -> None:
        with peek_folder(self._directory) as folder:
            self._remember(_read_private(folder))
            if wanted in self._private:
                return
            vaults = sorted(each for each in os.listdir(self._directory) if each.startswith("vlt_"))
            for vault in vaults:
                if self._vault_key is None:
                    break
                try:
                    self._remember(_read_sealed(folder, vault, self._vault_key(vault)))
                except VaultError as error:
                    if vault == vaults[-1]:
                        raise failures.session_locked(error.code) from None

    def _remember(self, privates: list[bytes]) -> None:
        self._private |= {recipient_id(public_of(each)): each for each in privates}


def public_of(private: bytes) -> bytes:
    """The public key of a private one."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def _new_pair() -> tuple[bytes, bytes]:
    private = os.urandom(32)
    return private, public_of(private)


def _read_recipient(folder: VaultFolder) -> Recipient | None:
    found = folder.read(_RECIPIENT, max_bytes=_MAX_BYTES)
    if found is None:
        return None
    try:
        fields = json.loads(found.data)
        public = bytes.fromhex(fields["public"])
        vault = parse_vault_id(fields["vault"]) if fields["vault"] else ""
        if len(public) != 32:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise failures.session_damaged("the recipient of session keys") from None
    return Recipient(public, vault)


def _write_recipient(folder: VaultFolder, recipient: Recipient) -> None:
    fields = {"public": recipient.public.hex(), "vault": recipient.vault}
    folder.replace(_RECIPIENT, json.dumps(fields).encode())


def _read_private(folder: VaultFolder) -> list[bytes]:
    found = folder.read(_PRIVATE, max_bytes=_MAX_BYTES)
    return [] if found is None else _parse_private(found.data)


def _write_private(folder: VaultFolder, privates: list[bytes]) -> None:
    folder.replace(_PRIVATE, json.dumps([each.hex() for each in privates]).encode())


def _parse_private(text: bytes | bytearray) -> list[bytes]:
    try:
        privates = [bytes.fromhex(each) for each in json.loads(text)]
        if any(len(each) != 32 for each in privates):
            raise ValueError
    except (ValueError, TypeError, RecursionError):
        raise failures.session_damaged("the private keys of sessions") from None
    return privates


def _read_sealed(folder: VaultFolder, vault: str, key: KeyBytes) -> list[bytes]:
    found = folder.read(vault, max_bytes=_MAX_BYTES)
    if found is None:
        return []
    sealed = Ciphertext(found.data[:NONCE_BYTES], found.data[NONCE_BYTES:])
    try:
        plain = unseal(key, sealed, part_aad(vault=vault, part=_PART))
    except BadSeal:
        raise failures.session_damaged("the sealed private keys of sessions") from None
    try:
        return _parse_private(plain)
    finally:
        wipe(plain)


def _write_sealed(folder: VaultFolder, vault: str, key: KeyBytes, privates: list[bytes]) -> None:
    plain = bytearray(json.dumps([each.hex() for each in privates]).encode())
    try:
        sealed = seal(key, plain, part_aad(vault=vault, part=_PART))
    finally:
        wipe(plain)
    folder.replace(vault, sealed.nonce + sealed.data)

"""Private keys in files: created on first use, readable by their owner alone."""

# ruff: noqa: PLC0415  # late imports: cryptography takes longer to import than most runs last

from __future__ import annotations

import os
import secrets
import stat
from base64 import b64decode, b64encode
from contextlib import suppress
from typing import TYPE_CHECKING

from cellwall.core.errors import KeyFailed
from cellwall.core.notes import PublicKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_MAX_KEY_BYTES = 16 * 1024
# All but the 32 key bytes is constant in such a file (RFC 8410).
_BEGIN, _END = b"-----BEGIN PRIVATE KEY-----\n", b"\n-----END PRIVATE KEY-----\n"
_PKCS8 = bytes.fromhex("302e020100300506032b657004220420")
_SEED_BYTES = 32


class SigningKey:
    """An Ed25519 key with the name of its signatures."""

    def __init__(self, name: str, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.public = PublicKey(name, private.public_key().public_bytes_raw())

    def __repr__(self) -> str:
        return f"SigningKey({self.public})"  # never the private part

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data)


def load_key(path: str, name: str) -> SigningKey:
    """An unencrypted PKCS #8 PEM file, such as `openssl genpkey -algorithm ed25519` writes."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            info = os.fstat(descriptor)
            text = file.read(_MAX_KEY_BYTES + 1) if stat.S_ISREG(info.st_mode) else b""
    except FileNotFoundError:
        raise
    except OSError as error:
        raise KeyFailed(
            "the signing key cannot be read",
            hint="It must be a plain file of yours with mode 0600.",
            detail=str(error),
        ) from None
    if info.st_uid not in (os.geteuid(), 0) or stat.S_IMODE(info.st_mode) & 0o077:
        raise KeyFailed(
            "the signing key is open to other users",
            hint="chmod 600 it; if others may have read it, make a new one.",
            code="CW-KEY-UNSAFE",
        )
    key = _parse_pem(text)
    if key is None:
        raise KeyFailed(
            "the signing key is no unencrypted Ed25519 key in PEM form",
            hint="Make one with `openssl genpkey -algorithm ed25519`.",
        )
    return SigningKey(name, key)


def _parse_pem(text: bytes) -> Ed25519PrivateKey | None:
    from cryptography.hazmat.primitives.asymmetric import ed25519

    if text.startswith(_BEGIN) and text.endswith(_END):
        with suppress(ValueError):
            der = b64decode(text[len(_BEGIN) : -len(_END)], validate=True)
            if der.startswith(_PKCS8) and len(der) == len(_PKCS8) + _SEED_BYTES:
                return ed25519.Ed25519PrivateKey.from_private_bytes(der[len(_PKCS8) :])
    # A PEM file in another form. Its parser takes longer to load than a whole run.
    from cryptography.hazmat.primitives import serialization

    try:
        key = serialization.load_pem_private_key(text, password=None)
    except (ValueError, TypeError):
        return None
    return key if isinstance(key, ed25519.Ed25519PrivateKey) else None


def make_key(path: str, name: str) -> SigningKey:
    """Create a key, durable before its first use; a key of a faster process wins."""
    from cryptography.hazmat.primitives.asymmetric import ed25519

    private = ed25519.Ed25519PrivateKey.generate()
    text = _BEGIN + b64encode(_PKCS8 + private.private_bytes_raw()) + _END
    directory = os.path.dirname(path)
    draft = f"{path}.{secrets.token_hex(8)}"
    try:
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)
        descriptor = os.open(
            draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        with os.fdopen(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        try:
            os.link(draft, path)  # which, unlike a rename, never replaces a key
        except FileExistsError:
            return load_key(path, name)
        _sync(directory)
    except OSError as error:
        raise KeyFailed(
            "the signing key cannot be made",
            hint="Check space and permissions of the Cellwall state folder.",
            detail=str(error),
        ) from None
    finally:
        with suppress(OSError):
            os.unlink(draft)
    return SigningKey(name, private)


def _sync(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

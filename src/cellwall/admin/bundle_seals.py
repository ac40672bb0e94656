"""Keys for the payload of an incident bundle: from a passphrase, or for the holder of a key."""

# ruff: noqa: PLC0415  # late imports: cryptography and argon2 load slowly

from __future__ import annotations

import base64
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cellwall.core.errors import BadInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

_PASSES, _MEMORY_KIB, _LANES = 3, 64 * 1024, 4
_MAX_MEMORY_KIB, _MAX_PASSES, _MAX_LANES = 1024 * 1024, 16, 16
_KEY_BYTES, _SALT_BYTES = 32, 16
_INFO: Final = b"cellwall.incident/1 key"


@dataclass(frozen=True, slots=True)
class PassphraseSeal:
    """Encrypts for all who know a passphrase."""

    passphrase: bytes

    def new_key(self) -> tuple[bytes, dict[str, Any]]:
        salt = os.urandom(_SALT_BYTES)
        head = {"kdf": "argon2id", "salt": _encode(salt), "memory_kib": _MEMORY_KIB}
        head |= {"passes": _PASSES, "lanes": _LANES}
        return self.key_of(head), head

    def key_of(self, head: dict[str, Any]) -> bytes:
        from argon2.low_level import Type, hash_secret_raw

        memory, passes, lanes = (int(head[name]) for name in ("memory_kib", "passes", "lanes"))
        # A hostile file must not choose how much memory and time its check takes.
        if not (
            8 <= memory <= _MAX_MEMORY_KIB
            and 1 <= passes <= _MAX_PASSES
            and 1 <= lanes <= _MAX_LANES
        ):
            raise ValueError
        salt = base64.b64decode(head["salt"], validate=True)
        return hash_secret_raw(self.passphrase, salt, passes, memory, lanes, _KEY_BYTES, Type.ID)


@dataclass(frozen=True, slots=True)
class RecipientSeal:
    """Encrypts for the holder of a private X25519 key; decrypts with that key."""

    public: X25519PublicKey | None = None
    private: X25519PrivateKey | None = None

    @classmethod
    def from_pem(cls, text: bytes) -> RecipientSeal:
        """A key in PEM form, as `openssl genpkey -algorithm x25519` makes it."""
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import x25519

        with suppress(ValueError, TypeError):
            if b"PRIVATE KEY" in text:
                private = serialization.load_pem_private_key(text, password=None)
                if isinstance(private, x25519.X25519PrivateKey):
                    return cls(private.public_key(), private)
            else:
                public = serialization.load_pem_public_key(text)
                if isinstance(public, x25519.X25519PublicKey):
                    return cls(public)
        raise BadInput(
            "the key of the recipient is no X25519 key in PEM form",
            hint="Make one: openssl genpkey -algorithm x25519 -out key.pem; "
            "openssl pkey -in key.pem -pubout -out recipient.pem",
            code="CW-INCIDENT-KEY",
        )

    def new_key(self) -> tuple[bytes, dict[str, Any]]:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        assert self.public is not None  # noqa: S101  # by `from_pem`
        once = X25519PrivateKey.generate()
        theirs, ours = self.public.public_bytes_raw(), once.public_key().public_bytes_raw()
        head = {"kdf": "x25519", "once": _encode(ours), "recipient": _encode(theirs)}
        return _derived(once.exchange(self.public), ours + theirs), head

    def key_of(self, head: dict[str, Any]) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        if self.private is None or self.public is None:
            raise BadInput("a public key decrypts nothing", hint="Give the private key.")
        ours = base64.b64decode(head["once"], validate=True)
        shared = self.private.exchange(X25519PublicKey.from_public_bytes(ours))
        return _derived(shared, ours + self.public.public_bytes_raw())


BundleSeal = PassphraseSeal | RecipientSeal


def _derived(secret: bytes, salt: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=salt, info=_INFO).derive(secret)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")

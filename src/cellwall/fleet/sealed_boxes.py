"""Boxes that one host alone can open: X25519, HKDF-SHA256 and ChaCha20-Poly1305. Pure.

Each box has an ephemeral key pair, so its key is used once and the nonce is constant. The context
is authenticated and not sent: who opens a box states what the box must be about.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_KEY_BYTES = 32
_NONCE = bytes(12)
_INFO = b"cellwall fleet: sealed box 1"


class BadBox(Exception):
    """Sealed for another host or another context, or changed."""


def seal_box(recipient: bytes, plain: bytes | bytearray, context: bytes) -> bytes:
    """Seal for the holder of this raw X25519 key; raises `BadBox` for an unusable key."""
    ephemeral = X25519PrivateKey.generate()
    own = ephemeral.public_key().public_bytes_raw()
    try:
        shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(recipient))
    except ValueError:
        raise BadBox from None
    cipher = ChaCha20Poly1305(_derive(shared, own + recipient))
    return own + cipher.encrypt(_NONCE, bytes(plain), context)


def open_box(private: X25519PrivateKey, box: bytes, context: bytes) -> bytes:
    """The content; raises `BadBox`."""
    recipient = private.public_key().public_bytes_raw()
    try:
        shared = private.exchange(X25519PublicKey.from_public_bytes(box[:_KEY_BYTES]))
        cipher = ChaCha20Poly1305(_derive(shared, box[:_KEY_BYTES] + recipient))
        return cipher.decrypt(_NONCE, box[_KEY_BYTES:], context)
    except (InvalidTag, ValueError):
        raise BadBox from None


def _derive(shared: bytes, public_keys: bytes) -> bytes:
    """Both public keys are in the salt: the same secret between other keys is another key."""
    return HKDF(SHA256(), _KEY_BYTES, salt=public_keys, info=_INFO).derive(shared)

"""The approver's key: an approval needs a passphrase, whatever processes run as the user.

`approvals.key` in the configuration is a salt and a public Ed25519 key. The private key is stored
nowhere: Argon2id derives it from passphrase and salt each time an approval is signed. The asking
process checks the signature, so a process that forges answers needs the passphrase as well.
"""

# ruff: noqa: PLC0415  # late imports: cryptography and argon2 take longer to import than most runs last

from __future__ import annotations

import base64
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellwall.config.models import Settings
from cellwall.core.approvals import Answer, Question
from cellwall.core.errors import BadInput, ConfigError
from cellwall.core.notes import is_signed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MIN_PASSPHRASE_BYTES = 12
_SALT_BYTES, _KEY_BYTES = 16, 32
_MEMORY_KIB, _PASSES, _LANES = 65_536, 3, 4
_FORM = re.compile(r"[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}")
_DOMAIN = b"cellwall approval 1"


@dataclass(frozen=True, slots=True)
class ApproverKey:
    """The key in the configuration."""

    salt: bytes
    public: bytes

    @classmethod
    def parse(cls, text: str) -> ApproverKey:
        if _FORM.fullmatch(text) is None:
            raise ConfigError(
                "approvals.key is not an approver's key",
                hint="Create one with `cellwall approvals key`, and copy the whole line.",
                code="CW-APPROVER-KEY",
            )
        salt, public = (_decode(part) for part in text.split("."))
        return cls(salt, public)

    @classmethod
    def make(cls, passphrase: bytearray) -> ApproverKey:
        """A new key; short passphrases are refused."""
        if len(passphrase) < MIN_PASSPHRASE_BYTES:
            raise BadInput(
                f"the passphrase has fewer than {MIN_PASSPHRASE_BYTES} bytes",
                hint="A reader of the configuration can guess offline: use several words.",
                code="CW-APPROVER-KEY",
            )
        salt = os.urandom(_SALT_BYTES)
        return cls(salt, _private_key(passphrase, salt).public_key().public_bytes_raw())

    def __str__(self) -> str:
        return f"{_encode(self.salt)}.{_encode(self.public)}"

    def sign(self, passphrase: bytearray, question: Question, answer: Answer) -> str:
        private = _private_key(passphrase, self.salt)
        if private.public_key().public_bytes_raw() != self.public:
            raise BadInput(
                "wrong passphrase of the approver",
                hint="Try again, or create a new key with `cellwall approvals key`.",
                code="CW-APPROVER-KEY",
            )
        return _encode(private.sign(_signed_text(question, answer)))

    def has_signed(self, question: Question, answer: Answer) -> bool:
        try:
            signature = _decode(answer.signature)
            return is_signed(self.public, _signed_text(question, answer), signature)
        except ValueError:  # also `binascii.Error`: malformed base64
            return False


def approver_key(settings: Settings) -> ApproverKey | None:
    """The configured key, if any."""
    return ApproverKey.parse(settings.approvals.key) if settings.approvals.key else None


def _signed_text(question: Question, answer: Answer) -> bytes:
    """The signed text. No part holds a NUL: an id, digests, a word, a printable rule."""
    parts = (question.id, question.shown_sha256, question.call_sha256, answer.kind.value)
    return b"\0".join((_DOMAIN, *(part.encode() for part in parts), answer.rule.encode()))


def _private_key(passphrase: bytearray, salt: bytes) -> Ed25519PrivateKey:
    from argon2.low_level import Type, hash_secret_raw
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
    )

    made = hash_secret_raw(
        bytes(passphrase), salt, _PASSES, _MEMORY_KIB, _LANES, _KEY_BYTES, Type.ID
    )
    return Ed25519PrivateKey.from_private_bytes(made)


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

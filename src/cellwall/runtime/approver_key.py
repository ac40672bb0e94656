"""The approver's key: a salt and a public Ed25519 key in the configuration (POL-13).

The private key is stored nowhere: Argon2id derives it from passphrase and salt each time something
is signed. Each kind of signed text begins with words of its own, so that a signature under one is
none under another.
"""

# ruff: noqa: PLC0415  # late imports: cryptography and argon2 take longer to import than most runs last

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cellwall.config.models import Settings
from cellwall.core.errors import BadInput, ConfigError, Denied
from cellwall.core.keys import SigningKey
from cellwall.core.notes import PublicKey, is_signed

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

AskPassphrase = Callable[[], bytearray]
"""Asks the person at the terminal; the caller wipes what it returns."""

MIN_PASSPHRASE_BYTES = 12
SIGNER_NAME = "cellwall-approver"
_SALT_BYTES, _KEY_BYTES = 16, 32
_MEMORY_KIB, _PASSES, _LANES = 65_536, 3, 4
_FORM = re.compile(r"[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}")


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
        salt, public = (decode(part) for part in text.split("."))
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
        return f"{encode(self.salt)}.{encode(self.public)}"

    @property
    def verifier(self) -> PublicKey:
        """For signed notes, such as the manifest of a skill."""
        return PublicKey(SIGNER_NAME, self.public)

    def unlock(self, passphrase: bytearray) -> SigningKey:
        """The private key; raises for another passphrase."""
        found = SigningKey(SIGNER_NAME, _private_key(passphrase, self.salt))
        if found.public.raw != self.public:
            raise BadInput(
                "wrong passphrase of the approver",
                hint="Try again, or create a new key with `cellwall approvals key`.",
                code="CW-APPROVER-KEY",
            )
        return found

    def ask_for(self, what: str, ask: AskPassphrase | None, *, command: str) -> SigningKey:
        """The private key, for `what`; raises where no person can be asked for the passphrase.
        `command` is the one that asks."""
        if ask is None:
            raise Denied(
                f"{what} needs the passphrase of the approver",
                hint=f"In a terminal of the machine: {command}",
                code="CW-APPROVER-PASSPHRASE",
            )
        passphrase = ask()
        try:
            return self.unlock(passphrase)
        finally:
            passphrase[:] = bytes(len(passphrase))

    def has_signed(self, data: bytes, signature: str) -> bool:
        """Whether the text is a signature of the data; a malformed one is none."""
        try:
            return is_signed(self.public, data, decode(signature))
        except ValueError:  # also `binascii.Error`: malformed base64
            return False


def approver_key(settings: Settings) -> ApproverKey | None:
    """The configured key, if any."""
    return ApproverKey.parse(settings.approvals.key) if settings.approvals.key else None


def _private_key(passphrase: bytearray, salt: bytes) -> Ed25519PrivateKey:
    from argon2.low_level import Type, hash_secret_raw
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
    )

    made = hash_secret_raw(
        bytes(passphrase), salt, _PASSES, _MEMORY_KIB, _LANES, _KEY_BYTES, Type.ID
    )
    return Ed25519PrivateKey.from_private_bytes(made)


def encode(raw: bytes) -> str:
    """Base64 in the alphabet for names, without padding."""
    return base64.urlsafe_b64encode(raw).decode("ascii").rstrip("=")


def decode(text: str) -> bytes:
    """The inverse; raises `ValueError`."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))

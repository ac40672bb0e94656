"""Vaults for tests: quick to open, with values that can be looked for."""

from __future__ import annotations

import hashlib
from pathlib import Path

from cellwall.core.network import Binding
from cellwall.secrets.format import VaultSettings
from cellwall.secrets.store import VaultStore

# A guess costs next to nothing here, and nobody guesses.
QUICK = VaultSettings(argon2_memory_kib=64, argon2_passes=1, argon2_lanes=1)
BY_FILE = VaultSettings(key="file")
GITHUB = Binding(host="api.github.com")
VALUE = b"ghp_value-that-is-looked-for-0001"
OTHER = b"another value / with: borders=2"


def passphrase(text: str = "correct horse battery") -> bytearray:
    return bytearray(text.encode())


def at(home: Path) -> str:
    return str(home / "vault")


def made(home: Path, settings: VaultSettings = BY_FILE) -> VaultStore:
    """A vault with two secrets; TOKEN has a grant and an old value."""
    vault = VaultStore(at(home), settings)
    vault.init(passphrase() if settings.key == "passphrase" else None)
    vault.set("TOKEN", b"the value before")
    vault.rotate("TOKEN", VALUE)
    vault.set("OTHER", OTHER)
    vault.grant("TOKEN", GITHUB)
    return vault


def again(home: Path, settings: VaultSettings = BY_FILE) -> VaultStore:
    """The same, opened by somebody else."""
    vault = VaultStore(at(home), settings)
    vault.unlock(passphrase() if settings.key == "passphrase" else None)
    return vault


def resealed_frame(data: bytes) -> bytes:
    """The file with a right digest: what somebody writes who knows the format and no key."""
    body = data[data.index(b"\n") + 1 :]
    magic, version, _, _, mac = data[: data.index(b"\n")].split(b" ")
    digest = hashlib.sha256(mac + body).hexdigest().encode()
    return b"%b %b %010d %b %b\n%b" % (magic, version, len(body), digest, mac, body)

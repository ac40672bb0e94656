"""The keys of one host, made at the first start and never sent anywhere.

fleet/identity.pem   Ed25519: signs what the host states (joining, boxes, witnessed checkpoints)
fleet/box.key        X25519: opens what is sealed for this host alone
fleet/tls.key        ECDSA P-256: Ray's connections; gRPC has no certificates of Ed25519
"""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from cellwall.core.errors import KeyFailed
from cellwall.core.keys import SigningKey, load_key, make_key

FOLDER = "fleet"
CA_FILE, CA_KEY_FILE = "ca.pem", "ca.key"
TLS_FILE, TLS_KEY_FILE = "tls.pem", "tls.key"
_MAX_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, repr=False)
class HostKeys:
    """The private keys of a host."""

    host_id: str
    signing: SigningKey
    box: X25519PrivateKey
    tls: ec.EllipticCurvePrivateKey

    @property
    def box_public(self) -> bytes:
        return self.box.public_key().public_bytes_raw()


def open_host_keys(home: str, host_id: str) -> HostKeys:
    """The keys of this state folder; missing ones are made."""
    folder = fleet_folder(home)
    path, name = os.path.join(folder, "identity.pem"), signer_name(host_id)
    try:
        signing = load_key(path, name)
    except FileNotFoundError:
        signing = make_key(path, name)
    box = private_file(os.path.join(folder, "box.key"), secrets.token_bytes(32))
    tls = private_file(os.path.join(folder, TLS_KEY_FILE), ec_key_pem())
    try:
        return HostKeys(host_id, signing, X25519PrivateKey.from_private_bytes(box), load_ec(tls))
    except ValueError:
        raise _unusable("a key of this host is damaged") from None


def signer_name(host_id: str) -> str:
    """The name below statements of this host."""
    return f"cellwall-host/{host_id}"


def fleet_folder(home: str) -> str:
    """The folder of keys and certificates, mode 0700."""
    folder = os.path.join(home, FOLDER)
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    return folder


def private_file(path: str, new: bytes) -> bytes:
    """The content of a file of mode 0600; made with this content where it is missing. The file of
    a faster process wins."""
    draft = f"{path}.{secrets.token_hex(8)}"
    try:
        if not os.path.lexists(path):
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
                file.write(new)
                file.flush()
                os.fsync(file.fileno())
            with suppress(FileExistsError):
                os.link(draft, path)  # complete from the first moment, and never replaced
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags), "rb") as file:
            info = os.fstat(file.fileno())
            content = file.read(_MAX_BYTES)
    except OSError as error:
        raise _unusable("a key of this host cannot be read or made", str(error)) from None
    finally:
        with suppress(OSError):
            os.unlink(draft)
    is_open = bool(stat.S_IMODE(info.st_mode) & 0o077) or info.st_uid not in (0, os.geteuid())
    if is_open or not stat.S_ISREG(info.st_mode):
        raise KeyFailed(
            "a key of this host is open to other users",
            hint="Remove the folder `fleet` of the state folder, and join again with a new token.",
            code="CW-KEY-UNSAFE",
        )
    return content


def replace_private_file(path: str, content: bytes) -> None:
    """Write a file of mode 0600 that may be there already."""
    draft = f"{path}.{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(draft, flags, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        raise _unusable("a file of the fleet cannot be written", str(error)) from None


def ec_key_pem() -> bytes:
    """A new ECDSA key."""
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def load_ec(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Raises `ValueError` for another kind of key."""
    found = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ValueError("not an ECDSA key")  # noqa: TRY004  # the caller maps one exception
    return found


def _unusable(message: str, detail: str = "") -> KeyFailed:
    return KeyFailed(
        message,
        hint="Check space and permissions of the folder `fleet` in the state folder.",
        detail=detail,
    )

"""The vault file as bytes, and the settings of its key. Pure.

    cellwall-vault 1 LENGTH SHA-256 MAC        fixed length; digest of all that follows it
    {"generation":…,"schema":…,"slot":…,"vault":…}          the preamble, needed to open it
    {"keys":…,"known":…,"secrets":…}                        parsed only once the MAC is right

The digest distinguishes a failing disk from a wrong passphrase without a key; the MAC detects an
attacker. Everything before the MAC check is parsed strictly and within bounds: an attacker may have
written it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cellwall.core.errors import BadInput
from cellwall.core.types import Json
from cellwall.secrets import failures
from cellwall.secrets.leases import Grant, parse_grant
from cellwall.secrets.sealing import (
    KEY_BYTES,
    NONCE_BYTES,
    SCHEMA,
    TAG_BYTES,
    Ciphertext,
    canonical,
)

KeySource = Literal["passphrase", "file", "keyring", "command"]
KEY_SOURCES: tuple[KeySource, ...] = ("passphrase", "file", "keyring", "command")


ADVISED_MEMORY_KIB = 19_456
ADVISED_PASSES = 2
"""OWASP's minimum for Argon2id. Less is accepted, for small machines, and reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultSettings:
    """For a new vault, and for a new key of an existing one. How to open a vault is stored in
    it."""

    key: KeySource = "passphrase"
    key_file: str | None = None
    """Default: a file beside the vault's directory, which protects against no one who can read
    it."""
    key_command: tuple[str, ...] = ()
    # RFC 9106, second recommended option: about half a second on one small core, and 64 MiB for
    # each guess of an attacker.
    argon2_memory_kib: int = 65_536
    argon2_passes: int = 3
    argon2_lanes: int = 4

    @property
    def is_cheap_to_guess(self) -> bool:
        """True if guessing the passphrase of a stolen vault costs less than advised."""
        return self.key == "passphrase" and (
            self.argon2_memory_kib < ADVISED_MEMORY_KIB or self.argon2_passes < ADVISED_PASSES
        )


MAX_FILE_BYTES = 32 * 1024 * 1024
NAMESPACE = "default"
CHECK_BYTES = 16
SALT_BYTES = 16
_MAX_PREAMBLE_BYTES = 4096
_MAX_GENERATION = 1 << 53
_MAGIC = b"cellwall-vault 1 "
_HEADER = re.compile(_MAGIC + rb"(\d{10}) ([0-9a-f]{64}) ([0-9a-f]{64})\n")
_HEADER_BYTES = len(_MAGIC) + 10 + 1 + 64 + 1 + 64 + 1
_ID = re.compile(r"[a-z]{1,4}_[0-9a-hjkmnp-tv-z]{20,32}")


@dataclass(frozen=True, slots=True)
class Argon2:
    """The cost of one guess."""

    memory_kib: int
    passes: int
    lanes: int

    def __post_init__(self) -> None:
        # The upper bounds keep a forged file from using all memory or hours of time.
        if not (
            1 <= self.lanes <= 64
            and 1 <= self.passes <= 100
            and 8 * self.lanes <= self.memory_kib <= 4_194_304
        ):
            raise failures.bad_input(
                "these Argon2id parameters cannot be used",
                hint="At least 8 KiB for each of 1 to 64 lanes, at most 4 GiB; 1 to 100 passes.",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySlot:
    """The vault key, encrypted with a key from a person, a file or a service."""

    source: KeySource
    salt: bytes
    key_id: str = ""
    """Which key of a key file or key ring."""
    argon2: Argon2 | None = None
    check: bytes = b""
    """Commits to the key: AES-GCM alone is not key-committing, so one ciphertext can be made to
    decrypt under two keys."""
    sealed: Ciphertext = Ciphertext(b"", b"")

    def aad(self, vault: str) -> bytes:
        return canonical({"schema": SCHEMA, "vault": vault, "slot": self._public_fields()})

    def _public_fields(self) -> dict[str, Json]:
        argon2 = self.argon2
        return {
            "source": self.source,
            "salt": _encode_base64(self.salt),
            "key_id": self.key_id,
            "argon2id": None
            if argon2 is None
            else [argon2.memory_kib, argon2.passes, argon2.lanes],
        }

    def to_json(self) -> dict[str, Json]:
        return {
            **self._public_fields(),
            "check": _encode_base64(self.check),
            **_ciphertext_json(self.sealed),
        }


@dataclass(frozen=True, slots=True)
class VaultPreamble:
    """The part that is readable without the key."""

    vault: str
    generation: int
    slot: KeySlot


@dataclass(frozen=True, slots=True)
class Version:
    """One value of a secret."""

    number: int
    made_s: float
    sealed: Ciphertext


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret as stored. The previous value is known but never handed out (SEC-6)."""

    current: Version
    previous: Version | None = None
    grants: tuple[Grant, ...] = ()
    made_s: float = 0.0
    project: str = ""
    """The canonical path of the only folder whose sandboxes may use it. Empty: any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VaultContent:
    """The part that the MAC authenticates."""

    secrets: Mapping[str, Secret]
    keys: Ciphertext
    """The keys that survive a rekey: of digests, and of the note of the last generation."""
    known: Ciphertext
    """Digests of every value that was ever stored."""


@dataclass(frozen=True, slots=True)
class VaultFrame:
    """A complete file, not yet authenticated."""

    preamble: VaultPreamble
    signed: bytes
    """The bytes under the MAC."""
    content: bytes
    mac: bytes


def to_sign(preamble: VaultPreamble, content: VaultContent) -> bytes:
    """The bytes under the MAC of a new file."""
    first = canonical(
        {
            "schema": SCHEMA,
            "vault": preamble.vault,
            "generation": preamble.generation,
            "slot": preamble.slot.to_json(),
        }
    )
    return first + b"\n" + canonical(_content_json(content))


def finish_frame(signed: bytes, mac: bytes) -> bytes:
    """The whole file."""
    if len(signed) + _HEADER_BYTES > MAX_FILE_BYTES:
        raise failures.full(f"its file has at most {MAX_FILE_BYTES >> 20} MiB")
    mac_hex = mac.hex().encode()
    digest = hashlib.sha256(mac_hex + signed).hexdigest().encode()
    return b"%b%010d %b %b\n%b" % (_MAGIC, len(signed), digest, mac_hex, signed)


def read_frame(data: bytes) -> VaultFrame:
    """Raises `VaultError` for a truncated, changed or foreign file."""
    header = data[:_HEADER_BYTES]
    if not header.startswith(_MAGIC[: len(header)]):
        is_ours = re.match(rb"cellwall-vault \d+ ", header) is not None
        raise failures.unknown_format() if is_ours else failures.tampered("no header")
    if len(header) < _HEADER_BYTES:
        raise failures.truncated()
    match = _HEADER.fullmatch(header)
    if match is None:
        raise failures.tampered("bad header")
    length, digest, mac, signed = int(match[1]), match[2], match[3], data[_HEADER_BYTES:]
    if len(signed) < length:
        raise failures.truncated()
    if len(signed) > length or hashlib.sha256(mac + signed).hexdigest().encode() != digest:
        raise failures.tampered("the digest is another one")
    first, _, content = signed.partition(b"\n")
    return VaultFrame(_parse_preamble(first), signed, content, bytes.fromhex(mac.decode()))


def _parse_preamble(line: bytes) -> VaultPreamble:
    if len(line) > _MAX_PREAMBLE_BYTES:
        raise failures.tampered("the preamble is too long")
    try:
        fields = json.loads(line)
        if fields["schema"] != SCHEMA:
            raise failures.unknown_format()
        preamble = VaultPreamble(
            parse_vault_id(fields["vault"]),
            _parse_generation(fields["generation"]),
            _parse_slot(fields["slot"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise failures.tampered(f"the preamble: {type(error).__name__}") from None
    except BadInput:
        raise failures.tampered("the preamble: parameters") from None
    return preamble


def parse_vault_id(value: object) -> str:
    """Raises `ValueError`."""
    if not isinstance(value, str) or _ID.fullmatch(value) is None:
        raise ValueError
    return value


def _parse_generation(value: object) -> int:
    if type(value) is not int or not 0 < value < _MAX_GENERATION:
        raise ValueError
    return value


def _parse_slot(fields: Mapping[str, Any]) -> KeySlot:
    source, costs = fields["source"], fields["argon2id"]
    if source not in KEY_SOURCES or (source == "passphrase") != (costs is not None):
        raise ValueError
    if costs is not None and not all(type(cost) is int for cost in costs):
        raise ValueError
    slot = KeySlot(
        source=source,
        salt=_decode_base64(fields["salt"], SALT_BYTES),
        key_id=parse_vault_id(fields["key_id"]) if fields["key_id"] else "",
        argon2=None if costs is None else Argon2(*costs),
        check=_decode_base64(fields["check"], CHECK_BYTES),
        sealed=_parse_ciphertext(fields),
    )
    if len(slot.sealed.data) != KEY_BYTES + TAG_BYTES:
        raise ValueError
    return slot


def read_content(data: bytes) -> VaultContent:
    """The content of a frame whose MAC was right: an error here is our own."""
    try:
        fields = json.loads(data)
        stored = fields["secrets"][NAMESPACE]
        return VaultContent(
            secrets={name: _parse_secret(each) for name, each in stored.items()},
            keys=_parse_ciphertext(fields["keys"]),
            known=_parse_ciphertext(fields["known"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise failures.tampered(f"the content: {type(error).__name__}") from None


def _content_json(content: VaultContent) -> dict[str, Json]:
    secrets: dict[str, Json] = {
        name: {
            "made_s": each.made_s,
            "current": _version_json(each.current),
            "previous": None if each.previous is None else _version_json(each.previous),
            "grants": [grant.to_json() for grant in each.grants],
            **({"project": each.project} if each.project else {}),
        }
        for name, each in content.secrets.items()
    }
    return {
        "secrets": {NAMESPACE: secrets},
        "keys": _ciphertext_json(content.keys),
        "known": _ciphertext_json(content.known),
    }


def _parse_secret(fields: Mapping[str, Any]) -> Secret:
    previous = fields["previous"]
    return Secret(
        made_s=fields["made_s"],
        current=_parse_version(fields["current"]),
        previous=None if previous is None else _parse_version(previous),
        grants=tuple(parse_grant(each) for each in fields["grants"]),
        project=fields.get("project", ""),
    )


def _version_json(version: Version) -> dict[str, Json]:
    return {
        "number": version.number,
        "made_s": version.made_s,
        **_ciphertext_json(version.sealed),
    }


def _parse_version(fields: Mapping[str, Any]) -> Version:
    return Version(fields["number"], fields["made_s"], _parse_ciphertext(fields))


def _ciphertext_json(sealed: Ciphertext) -> dict[str, Json]:
    return {"nonce": _encode_base64(sealed.nonce), "sealed": _encode_base64(sealed.data)}


def _parse_ciphertext(fields: Mapping[str, Any]) -> Ciphertext:
    return Ciphertext(
        _decode_base64(fields["nonce"], NONCE_BYTES), _decode_base64(fields["sealed"])
    )


def _encode_base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode_base64(value: object, length: int | None = None) -> bytes:
    if not isinstance(value, str):
        raise TypeError
    data = base64.b64decode(value, validate=True)
    if length is not None and len(data) != length:
        raise ValueError
    return data

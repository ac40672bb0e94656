"""Signed notes: a text with Ed25519 signatures below it, as C2SP's signed-note has them.

    text, which ends with a newline
    (an empty line)
    — name base64(key id, signature)

Pure but for the signature itself, which is `cryptography`'s work.
"""

# ruff: noqa: PLC0415  # late imports: cryptography takes longer to import than most runs last

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

MAX_NOTE_BYTES = 1_000_000
"""The size bound of a note; a larger one is refused before it is read."""
_ED25519 = b"\x01"
_MAX_SIGNATURES = 100
_SIGNATURE_BYTES = 4 + 64
_SIGNER_NAME = re.compile(r"[^\s+]+")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f]")


class BadNote(Exception):
    """Not a signed note, or not by a known key; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A verifier key, written as `name+id+base64`."""

    name: str
    raw: bytes

    def __post_init__(self) -> None:
        if _SIGNER_NAME.fullmatch(self.name) is None or len(self.raw) != 32:
            raise BadNote("not a public key with a name")

    @property
    def id(self) -> bytes:
        """Four bytes that distinguish keys of one name; they prove nothing."""
        return sha256(self.name.encode() + b"\n" + _ED25519 + self.raw).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.id.hex()}+{base64.b64encode(_ED25519 + self.raw).decode()}"

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        name, _, rest = text.strip().partition("+")
        number, _, encoded = rest.partition("+")
        try:
            data = base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise BadNote("not a public key") from None
        if data[:1] != _ED25519:
            raise BadNote("not a public key of a known type")
        key = cls(name, data[1:])
        if key.id.hex() != number:
            raise BadNote("the public key does not match its own id")
        return key

    def has_signed(self, text: str, signature: bytes) -> bool:
        return is_signed(self.raw, text.encode(), signature)


def is_signed(public_key: bytes, data: bytes, signature: bytes) -> bool:
    """Whether the signature of the data is one by this raw Ed25519 key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, data)
    except InvalidSignature:
        return False
    return True


class Signer(Protocol):
    """Holds a private key."""

    @property
    def public(self) -> PublicKey: ...

    def sign(self, data: bytes) -> bytes: ...


def signed_note(text: str, *signers: Signer) -> bytes:
    """The text with a signature of each signer."""
    _check_text(text)
    lines = [text, "\n"]
    for signer in signers:
        data = signer.public.id + signer.sign(text.encode())
        lines.append(f"\u2014 {signer.public.name} {base64.b64encode(data).decode()}\n")
    return "".join(lines).encode()


def cosigned(note: bytes, signer: Signer) -> bytes:
    """The note with one more signature; those that it has stay, whether we know their keys or
    not."""
    text, _ = _text_and_signatures(note)
    data = signer.public.id + signer.sign(text.encode())
    line = f"\u2014 {signer.public.name} {base64.b64encode(data).decode()}\n"
    return note + line.encode()


def open_note(note: bytes, keys: Sequence[PublicKey]) -> tuple[str, tuple[PublicKey, ...]]:
    """The text, and which of these keys have signed it; `BadNote` if none has.

    Signatures by keys we do not know are passed over; a wrong one in the name of a key that we
    know is a forgery.
    """
    text, signatures = _text_and_signatures(note)
    known = {(key.name, key.id): key for key in keys}
    signed: list[PublicKey] = []
    for name, data in signatures:
        key = known.get((name, data[:4]))
        if key is None or key in signed:
            continue
        if not key.has_signed(text, data[4:]):
            raise BadNote(f"the signature of {name} is wrong")
        signed.append(key)
    if not signed:
        raise BadNote("no known key has signed it")
    return text, tuple(signed)


def _text_and_signatures(note: bytes) -> tuple[str, list[tuple[str, bytes]]]:
    if len(note) > MAX_NOTE_BYTES:
        raise BadNote("it is too long for a note")
    try:
        whole = note.decode("utf-8")
    except UnicodeDecodeError:
        raise BadNote("it is not text") from None
    text, gap, tail = whole.rpartition("\n\n")
    text += "\n"
    if not gap or not tail.endswith("\n"):
        raise BadNote("it has no signature")
    _check_text(text)
    lines = tail[:-1].split("\n")
    if len(lines) > _MAX_SIGNATURES:
        raise BadNote("it has too many signatures")
    return text, [_signature(line) for line in lines]


def _signature(line: str) -> tuple[str, bytes]:
    mark, _, rest = line.partition(" ")
    name, _, encoded = rest.partition(" ")
    try:
        data = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if mark != "\u2014" or _SIGNER_NAME.fullmatch(name) is None or len(data) < 5:
        raise BadNote("a line below the text is not a signature")
    # Other signature types have other lengths; the key identifies ours.
    return name, data if len(data) == _SIGNATURE_BYTES else b"\0\0\0\0"


def _check_text(text: str) -> None:
    if not text.endswith("\n") or _CONTROL.search(text):
        raise BadNote("its text does not have the form of a note")

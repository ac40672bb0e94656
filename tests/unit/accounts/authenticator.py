"""A software authenticator with the browser in front of it, as WebAuthn Level 3 describes them."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from typing import Any

import cbor2
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

PRESENT, VERIFIED, ATTESTED = 0x01, 0x04, 0x40


def encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


@dataclass
class Authenticator:
    """One discoverable credential on one device."""

    origin: str
    key: ec.EllipticCurvePrivateKey = field(
        default_factory=lambda: ec.generate_private_key(ec.SECP256R1())
    )
    credential_id: bytes = field(default_factory=lambda: os.urandom(32))
    user_handle: bytes = b""
    rp_id: str = ""
    sign_count: int = 0
    counts: bool = True
    flags: int = PRESENT | VERIFIED

    def create(self, options: dict[str, Any]) -> dict[str, Any]:
        """`navigator.credentials.create`."""
        self.rp_id = self.rp_id or options["rp"]["id"]
        self.user_handle = decode(options["user"]["id"])
        numbers = self.key.public_key().public_numbers()
        public = {
            1: 2,
            3: -7,
            -1: 1,
            -2: numbers.x.to_bytes(32, "big"),
            -3: numbers.y.to_bytes(32, "big"),
        }
        attested = bytes(16) + struct.pack(">H", len(self.credential_id)) + self.credential_id
        data = self._data(self.flags | ATTESTED) + attested + cbor2.dumps(public)
        statement = cbor2.dumps({"fmt": "none", "attStmt": {}, "authData": data})
        client = self._client("webauthn.create", options["challenge"])
        return self._answer(
            {"attestationObject": encode(statement), "clientDataJSON": encode(client)}
        )

    def get(self, options: dict[str, Any]) -> dict[str, Any]:
        """`navigator.credentials.get`."""
        if self.counts:
            self.sign_count += 1
        data = self._data(self.flags)
        client = self._client("webauthn.get", options["challenge"])
        signed = data + hashlib.sha256(client).digest()
        signature = self.key.sign(signed, ec.ECDSA(hashes.SHA256()))
        return self._answer({
            "authenticatorData": encode(data), "clientDataJSON": encode(client),
            "signature": encode(signature), "userHandle": encode(self.user_handle),
        })  # fmt: skip

    def _data(self, flags: int) -> bytes:
        hashed = hashlib.sha256(self.rp_id.encode()).digest()
        return hashed + struct.pack(">BI", flags, self.sign_count)

    def _client(self, kind: str, challenge: str) -> bytes:
        told = {"type": kind, "challenge": challenge, "origin": self.origin, "crossOrigin": False}
        return json.dumps(told).encode()

    def _answer(self, response: dict[str, str]) -> dict[str, Any]:
        named = encode(self.credential_id)
        return {"id": named, "rawId": named, "type": "public-key", "response": response,
                "clientExtensionResults": {}}  # fmt: skip

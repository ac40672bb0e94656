"""A certificate authority for one session, trusted in its cell alone (NET-6).

With it the proxy terminates TLS for the hosts whose rules or secrets need that. Its keys exist in
the memory of this process only.
"""

from __future__ import annotations

import os
import ssl
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = timedelta(days=1)
_SKEW = timedelta(hours=1)
_MAX_CONTEXTS = 256
_COMMON_NAME_CHARACTERS = 64


class Authority:
    """Signs one leaf for each host that the rules of the session allow."""

    def __init__(self, *, life: timedelta = _LIFE) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._life = life
        # The name must differ between sessions: OpenSSL finds an issuer by it.
        self._name = x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, f"Cellwall session {os.urandom(8).hex()}")]
        )
        self._certificate = self._sign_self()
        self._leaf_key = ec.generate_private_key(ec.SECP256R1())
        self._contexts: OrderedDict[tuple[str, str], ssl.SSLContext] = OrderedDict()

    @property
    def pem(self) -> bytes:
        """The authority's own certificate, for the cell."""
        return self._certificate.public_bytes(Encoding.PEM)

    def context_for(self, host: str, protocol: str = "http/1.1") -> ssl.SSLContext:
        """The server context of a connection that a client in the cell believes to be with `host`.

        `protocol` is the one that ALPN selects.
        """
        if (context := self._contexts.get((host, protocol))) is not None:
            self._contexts.move_to_end((host, protocol))
            return context
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([protocol])
        leaf = self._leaf_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        _load(context, self._sign(host).public_bytes(Encoding.PEM) + self.pem + leaf)
        self._contexts[host, protocol] = context
        if len(self._contexts) > _MAX_CONTEXTS:
            self._contexts.popitem(last=False)
        return context

    def _sign_self(self) -> x509.Certificate:
        own = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        return (
            self._unsigned(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .add_extension(own, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _sign(self, host: str) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:_COMMON_NAME_CHARACTERS])])
        public = self._leaf_key.public_key()
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            self._unsigned(name, public)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([_general_name(host)]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            # Python 3.13 verifies strictly (RFC 5280) and asks for this one.
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _unsigned(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + self._life)
        )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host.strip("[]")))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _load(context: ssl.SSLContext, pem: bytes) -> None:
    # OpenSSL needs a file name. A memfd is on no disk and vanishes with its descriptor.
    descriptor = os.memfd_create("cellwall-leaf", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)

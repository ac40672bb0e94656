"""The authority of a fleet, and what its certificates state.

The authority is a key on the first host. Each certificate binds the name of a host, its address and
its public keys together; so does the copy in the database, where a writer without the key of the
authority can add no host and exchange no key. Hosts trust this authority and no other.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.ids import check_id
from cellwall.core.notes import BadNote, PublicKey
from cellwall.fleet.identity import (
    CA_FILE,
    CA_KEY_FILE,
    ec_key_pem,
    fleet_folder,
    load_ec,
    private_file,
    signer_name,
)

_AUTHORITY_DAYS = 3650
_HOST_DAYS = 397
_SKEW = timedelta(hours=1)
_HOST, _IDENTITY, _BOX = "cellwall-host:", "cellwall-identity:", "cellwall-box:"


class CertificateRefused(CellwallError):
    """A certificate that is not of this fleet, or does not state what a host needs."""

    default_code = "CW-FLEET-CERTIFICATE"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCertificate:
    """What a valid certificate states."""

    host_id: str
    address: str
    identity: PublicKey
    box_key: bytes
    expires: datetime
    pem: str


class FleetAuthority:
    """The key that makes hosts of a fleet; only the first host has it."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, pem: str) -> None:
        self._key, self.pem = key, pem
        self._certificate = x509.load_pem_x509_certificate(pem.encode())

    @property
    def fingerprint(self) -> bytes:
        return fingerprint(self.pem)

    def token_hash(self, secret: bytes, expires_s: int) -> bytes:
        """Under which a join token is stored. Keyed: who can write to the database and does not
        have the authority can make no token and prolong none."""
        private = self._key.private_numbers().private_value.to_bytes(32, "big")
        key = hashlib.sha256(b"cellwall fleet join token\n" + private).digest()
        return hmac.digest(key, secret + expires_s.to_bytes(8, "big"), "sha256")

    def sign(self, text: bytes) -> bytes:
        """A statement of the authority; certificates have a form of their own."""
        return self._key.sign(text, ec.ECDSA(hashes.SHA256()))

    def issue(
        self,
        public: ec.EllipticCurvePublicKey,
        *,
        host_id: str,
        address: str,
        identity: PublicKey,
        box_key: bytes,
        names: Sequence[str] = (),
        now: datetime | None = None,
    ) -> str:
        """The certificate of one host, in PEM form. `names`: under which Ray in pods reaches it
        beside its address."""
        now = now or datetime.now(UTC)
        stated: list[x509.GeneralName] = [
            x509.IPAddress(ipaddress.ip_address(address)),
            x509.UniformResourceIdentifier(_HOST + host_id),
            x509.UniformResourceIdentifier(_IDENTITY + identity.raw.hex()),
            x509.UniformResourceIdentifier(_BOX + box_key.hex()),
            *map(_general_name, names),
        ]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        made = (
            x509.CertificateBuilder()
            .subject_name(_name(host_id))
            .issuer_name(self._certificate.subject)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _SKEW)
            .not_valid_after(now + timedelta(days=_HOST_DAYS))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(stated), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM).decode()


def open_authority(home: str, *, creates: bool) -> FleetAuthority:
    """The authority of this state folder. `creates`: at the first host, on its first start."""
    folder = fleet_folder(home)
    key_path = os.path.join(folder, CA_KEY_FILE)
    if not creates and not os.path.exists(key_path):
        raise BadInput(
            "this machine does not have the key of the fleet's authority",
            hint="Run this on the first host, as the user and with the state folder of "
            "`cellwall fleet up`.",
            code="CW-FLEET-AUTHORITY",
        )
    key = load_ec(private_file(key_path, ec_key_pem()))
    pem = private_file(os.path.join(folder, CA_FILE), _self_signed(key))
    found = x509.load_pem_x509_certificate(pem)
    if found.public_key() != key.public_key():
        raise CertificateRefused(
            "the authority's certificate in this state folder is of another key",
            hint="Restore the folder `fleet` of the state folder from a backup.",
        )
    return FleetAuthority(key, pem.decode())


def fingerprint(ca_pem: str) -> bytes:
    """SHA-256 of the authority's certificate; join tokens carry it."""
    try:
        return x509.load_pem_x509_certificate(ca_pem.encode()).fingerprint(hashes.SHA256())
    except ValueError:
        raise _refused("the authority's certificate cannot be read") from None


def has_signed(ca_pem: str, text: bytes, signature: bytes) -> bool:
    """Whether the authority of this certificate has made the statement."""
    try:
        key = x509.load_pem_x509_certificate(ca_pem.encode()).public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(signature, text, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


def read_host_certificate(pem: str, ca_pem: str, *, now: datetime | None = None) -> HostCertificate:
    """What a certificate states, if this authority has signed it and it is valid now."""
    now = now or datetime.now(UTC)
    try:
        found = x509.load_pem_x509_certificate(pem.encode())
        authority = x509.load_pem_x509_certificate(ca_pem.encode())
        found.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        raise _refused("the certificate of a host is not of this fleet's authority") from None
    if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
        raise _refused("the certificate of a host has expired, or the clock is wrong")
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        constraints = found.extensions.get_extension_for_class(x509.BasicConstraints).value
        address, *others = names.get_values_for_type(x509.IPAddress)
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
        host_id = check_id(_only(uris, _HOST), what="host")
        raw, box = bytes.fromhex(_only(uris, _IDENTITY)), bytes.fromhex(_only(uris, _BOX))
        identity = PublicKey(signer_name(host_id), raw)
        if constraints.ca or len(box) != 32 or not all(each.is_loopback for each in others):
            raise ValueError
    except (x509.ExtensionNotFound, ValueError, BadInput, BadNote):
        raise _refused("the certificate does not state a host of a fleet") from None
    return HostCertificate(
        host_id=host_id,
        address=str(address),
        identity=identity,
        box_key=box,
        expires=found.not_valid_after_utc,
        pem=pem,
    )


def _only(uris: list[str], prefix: str) -> str:
    (found,) = (each.removeprefix(prefix) for each in uris if each.startswith(prefix))
    return found


def _self_signed(key: ec.EllipticCurvePrivateKey) -> bytes:
    now = datetime.now(UTC)
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    made = (
        x509.CertificateBuilder()
        .subject_name(_name("cellwall fleet"))
        .issuer_name(_name("cellwall fleet"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=_AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _refused(message: str) -> CertificateRefused:
    return CertificateRefused(
        message, hint="Join again with a new token: `cellwall fleet token` on the first host."
    )

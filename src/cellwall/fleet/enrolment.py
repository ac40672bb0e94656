"""How a machine becomes a host: the messages, and what the authority checks.

(1) A person makes a token on the first host; it has the fingerprint of the authority, a secret,
    its end, and the address of the first host.
(2) The machine fetches the authority's certificate and compares the fingerprint; nothing secret
    was sent by then, so a man in the middle learns nothing and is found here.
(3) It connects again, now by TLS under this authority alone, and sends the secret, its name, its
    public keys and a request for a certificate, all signed by its own keys.
(4) The authority checks that the keys are the sender's and that the address is the one the
    connection comes from, and uses the token up in the database: once, before its end.
(5) The machine gets its certificate and the token of Ray.

A pod of a cluster joins in the same way with a token that the cluster has made for it
(`pod_tokens`): it has the authority's certificate by a file, and (4) begins with a question to the
cluster whose token it is.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cellwall.core.errors import BadInput, CellwallError, Denied
from cellwall.core.host_trust import HostAdmission, HostTrustPort, StoredCertificate
from cellwall.core.ids import check_id
from cellwall.core.notes import BadNote, PublicKey, open_note, signed_note
from cellwall.core.types import Json
from cellwall.fleet.certificates import (
    CertificateRefused,
    FleetAuthority,
    fingerprint,
    read_host_certificate,
)
from cellwall.fleet.identity import HostKeys, signer_name
from cellwall.fleet.pod_tokens import PodReviewer, PodToken

_PREFIX = "cwj_"
_SECRET_BYTES = 32
_TOKEN = re.compile(rf"{_PREFIX}([A-Za-z0-9_-]{{96}})@(.{{3,80}}):([0-9]{{1,5}})", re.ASCII)
_STATEMENT = "cellwall fleet: this machine joins"
_MALFORMED = (
    KeyError, ValueError, TypeError, binascii.Error, UnsupportedAlgorithm, BadNote, BadInput,
)  # fmt: skip
LOOPBACK_NAMES = ("127.0.0.1", "localhost")
"""KubeRay's probes and Ray in a pod use these beside the address."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class JoinToken:
    """What a person carries from the first host to a new machine; it opens the fleet, once."""

    fingerprint: bytes
    secret: bytes
    expires_s: int
    host: str
    port: int
    name: str = ""
    """In the certificate of the first host, where it was found by a name; else its address."""
    pod_token: str = ""
    """Of the cluster, for a pod; the secret is its hash."""

    @classmethod
    def of_pod(
        cls, text: str, *, authority: str, host: str, port: int, name: str = ""
    ) -> JoinToken:
        """With the authority's certificate, as a file of the pod has it."""
        found = PodToken.parse(text)
        return cls(
            fingerprint=fingerprint(authority),
            secret=found.secret,
            expires_s=found.expires_s,
            host=host,
            port=port,
            name=name,
            pod_token=found.text,
        )

    @classmethod
    def make(cls, authority: FleetAuthority, *, expires_s: int, host: str, port: int) -> JoinToken:
        return cls(
            fingerprint=authority.fingerprint,
            secret=secrets.token_bytes(_SECRET_BYTES),
            expires_s=expires_s,
            host=host,
            port=port,
        )

    def text(self) -> str:
        packed = self.fingerprint + self.secret + self.expires_s.to_bytes(8, "big")
        return f"{_PREFIX}{base64.urlsafe_b64encode(packed).decode()}@{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> JoinToken:
        found = _TOKEN.fullmatch(text.strip())
        try:
            if found is None:
                raise ValueError
            packed = base64.urlsafe_b64decode(found[1])
            host = ipaddress.ip_address(found[2]).compressed
        except ValueError:
            raise BadInput(
                "this is no join token",
                hint="Copy the whole line that `cellwall fleet token` has printed.",
                code="CW-FLEET-TOKEN",
            ) from None
        return cls(
            fingerprint=packed[:32],
            secret=packed[32:64],
            expires_s=int.from_bytes(packed[64:], "big"),
            host=host,
            port=int(found[3]),
        )


def join_request(keys: HostKeys, token: JoinToken, *, address: str) -> dict[str, Json]:
    """(3): what the machine sends."""
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, keys.host_id)])
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject)
    csr_pem = csr.sign(keys.tls, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    lines = _lines(keys.host_id, address, keys.box_public, csr_pem, token.secret)
    return {
        "host": keys.host_id,
        "address": address,
        "identity": str(keys.signing.public),
        "box": keys.box_public.hex(),
        "csr": csr_pem,
        "secret": token.secret.hex(),
        "expires_s": token.expires_s,
        "note": signed_note(lines, keys.signing).decode(),
        **({"pod_token": token.pod_token} if token.pod_token else {}),
    }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class _Asked:
    """A request whose sender has the keys that it names."""

    host_id: str
    address: str
    identity: PublicKey
    box_key: bytes
    secret: bytes
    expires_s: int
    public: ec.EllipticCurvePublicKey


def _parse_request(request: Mapping[str, Json]) -> _Asked:
    try:
        csr_pem = str(request["csr"])
        csr = x509.load_pem_x509_csr(csr_pem.encode())
        public = csr.public_key()
        if not isinstance(public, ec.EllipticCurvePublicKey) or not csr.is_signature_valid:
            raise ValueError  # one answer for all that is malformed
        asked = _Asked(
            host_id=check_id(request["host"], what="host"),
            address=ipaddress.ip_address(str(request["address"])).compressed,
            identity=PublicKey.parse(str(request["identity"])),
            box_key=bytes.fromhex(str(request["box"])),
            secret=bytes.fromhex(str(request["secret"])),
            expires_s=int(str(request["expires_s"])),
            public=public,
        )
        text, _ = open_note(str(request["note"]).encode(), [asked.identity])
        is_sound = (
            asked.host_id.startswith("svc_")
            and asked.identity.name == signer_name(asked.host_id)
            and len(asked.box_key) == len(asked.secret) == _SECRET_BYTES
            and 0 < asked.expires_s < 1 << 62
            and isinstance(public.curve, ec.SECP256R1)
            and text == _lines(asked.host_id, asked.address, asked.box_key, csr_pem, asked.secret)
        )
        if is_sound:
            return asked
    except _MALFORMED:
        pass
    raise BadInput(
        "the request to join is malformed, or not signed by the keys in it",
        hint="Use the same version of Cellwall on all hosts.",
        code="CW-FLEET-JOIN",
    )


async def admit(
    request: Mapping[str, Json],
    *,
    peer: str,
    authority: FleetAuthority,
    trust: HostTrustPort,
    pods: PodReviewer | None = None,
    now: datetime | None = None,
) -> str:
    """(4): the certificate of the new host; raises what the machine is told."""
    now = now or datetime.now(UTC)
    asked = _parse_request(request)
    if asked.address != peer:
        # Ray knows the other end by its address: a host with another one's certificate could
        # answer in its place.
        raise Denied(
            "the connection does not come from the address that the machine states",
            hint="Set node_address in [fleet] to the address under which the first host sees this "
            "machine.",
            code="CW-FLEET-ADDRESS",
        )
    if now.timestamp() >= asked.expires_s:
        raise refused_token()
    is_pod = "pod_token" in request
    if is_pod:
        await _review(request, asked, authority=authority, trust=trust, pods=pods)
    else:
        await _check_address_free(
            trust, authority, host_id=asked.host_id, address=asked.address, now=now
        )
    pem = authority.issue(
        asked.public,
        host_id=asked.host_id,
        address=asked.address,
        identity=asked.identity,
        box_key=asked.box_key,
        names=LOOPBACK_NAMES if is_pod else (),
        now=now,
    )
    found = await trust.admit_host(
        authority.token_hash(asked.secret, asked.expires_s, is_pod=is_pod),
        StoredCertificate(asked.host_id, pem, is_revoked=False),
        public_keys=public_keys(asked.identity, asked.box_key),
    )
    match found:
        case HostAdmission.ADMITTED:
            return pem
        case HostAdmission.NO_TOKEN:
            raise refused_token()
        case HostAdmission.OTHER_KEY:
            raise Denied(
                "there is a host of this name with other keys, or the host was removed",
                hint="Remove `service-id` and the folder `fleet` from the state folder of the new "
                "machine, so that it gets a name of its own.",
                code="CW-FLEET-NAME",
            )


async def _review(
    request: Mapping[str, Json],
    asked: _Asked,
    *,
    authority: FleetAuthority,
    trust: HostTrustPort,
    pods: PodReviewer | None,
) -> None:
    """The token of a pod gets a row that can be used up once, and that no request without a review
    finds. The cluster gives the address of a pod that has ended to another one: the connection
    shows whose it is now."""
    token = PodToken.parse(str(request["pod_token"]))
    if pods is None or (token.secret, token.expires_s) != (asked.secret, asked.expires_s):
        raise refused_token()
    pod = await pods.review(token)
    # A row of this token that is there stays as it is, also if it was used.
    await trust.add_join_token(
        authority.token_hash(token.secret, token.expires_s, is_pod=True),
        expires_s=token.expires_s,
        made_by=pod[:64],
    )


async def _check_address_free(
    trust: HostTrustPort,
    authority: FleetAuthority,
    *,
    host_id: str,
    address: str,
    now: datetime,
) -> None:
    """An address is that of one host, until the other one is removed."""
    for stored in await trust.list_certificates():
        if stored.is_revoked or stored.host_id == host_id:
            continue
        try:
            known = read_host_certificate(stored.pem, authority.pem, now=now)
        except CertificateRefused:
            continue  # expired, or not ours: no other host accepts it
        if known.address == address:
            raise Denied(
                "another host of the fleet has this address",
                hint="Remove that host first (`cellwall fleet remove`), or give this machine "
                "another node_address in [fleet].",
                code="CW-FLEET-ADDRESS",
            )


def public_keys(identity: PublicKey, box_key: bytes) -> str:
    """The keys that a name keeps."""
    return f"{identity} {box_key.hex()}"


def refused_token() -> CellwallError:
    """Says nothing about which of the reasons it is."""
    return Denied(
        "the join token is unknown, has been used, or has expired",
        hint="Make a new one with `cellwall fleet token` on the first host. If nobody of you has "
        "used this one, somebody else has: look for the host in `cellwall fleet status`.",
        code="CW-FLEET-TOKEN",
    )


def _lines(host_id: str, address: str, box_key: bytes, csr_pem: str, secret: bytes) -> str:
    """What the identity signs: bound to this token, so that it serves no second one."""
    digest = hashlib.sha256(csr_pem.encode()).hexdigest()
    token = hashlib.sha256(secret).hexdigest()
    return f"{_STATEMENT}\n{host_id}\n{address}\n{box_key.hex()}\n{digest}\n{token}\n"

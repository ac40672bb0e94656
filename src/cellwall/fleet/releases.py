"""Versions of what all hosts share, such as the policy, signed by the fleet's authority. Pure.

The database carries them and can do three things to a host: give the newest one, keep it back, or
give an old one again. The first is wanted. The host refuses requests in the other two cases as far
as it knows the newer version: it remembers what it had. Another content needs the authority's key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib

from cellwall.core.errors import CellwallError
from cellwall.core.host_trust import SignedRelease
from cellwall.fleet.certificates import FleetAuthority, has_signed

POLICY, FEED = "policy", "feed"
MAX_CONTENT_BYTES = {POLICY: 1 << 20, FEED: 64 << 20}
"""Of a release as it is carried; a feed is compressed."""
_HEAD = "cellwall fleet: release"


class ReleaseRefused(CellwallError):
    """A release that is forged, old or unusable."""

    default_code = "CW-FLEET-RELEASE"


def sign_release(
    authority: FleetAuthority, *, kind: str, version: int, content: bytes
) -> SignedRelease:
    """A new version; `kind` and `version` are signed with the content."""
    signature = authority.sign(_statement(kind, version, content))
    note = base64.b64encode(signature).decode()
    return SignedRelease(kind=kind, version=version, note=note, content=content)


def check_release(release: SignedRelease, authority: str, *, kind: str) -> None:
    """Raises `ReleaseRefused` unless the authority of this certificate has signed it."""
    try:
        signature = base64.b64decode(release.note, validate=True)
    except (binascii.Error, ValueError):
        signature = b""
    text = _statement(kind, release.version, release.content)
    is_small = len(release.content) <= MAX_CONTENT_BYTES[kind]
    if not is_small or release.kind != kind or not has_signed(authority, text, signature):
        raise ReleaseRefused(
            f"the {kind} in the database is not signed by the fleet's authority",
            hint="Somebody else has written it. Look at who can write to the database, and publish "
            f"the {kind} again on the first host: `cellwall fleet publish`.",
            code="CW-FLEET-FORGED",
        )


def check_successor(newest: SignedRelease | None, kept: SignedRelease | None) -> bool:
    """Whether the newest one is to be applied; raises `ReleaseRefused` where it is older than, or
    another than, what this host has."""
    if kept is None:
        return newest is not None
    if newest is None or newest.version < kept.version:
        raise ReleaseRefused(
            f"the database gives an older {kept.kind} than version {kept.version}, which this host "
            "has",
            hint=f"An old backup may have been restored. Publish the {kept.kind} again on the "
            "first host: `cellwall fleet publish`.",
            code="CW-FLEET-OLD",
        )
    if newest.version == kept.version and newest.content != kept.content:
        raise ReleaseRefused(
            f"there are two {kept.kind} releases of version {kept.version}",
            hint=f"Publish the {kept.kind} again on the first host: `cellwall fleet publish`.",
            code="CW-FLEET-OLD",
        )
    return newest.version > kept.version


def _statement(kind: str, version: int, content: bytes) -> bytes:
    """Begins with a word that no certificate begins with: the authority signs both."""
    digest = hashlib.sha256(content).hexdigest()
    return f"{_HEAD}\n{kind}\n{version}\n{digest}\n".encode()

"""Tokens that open one port of one sandbox, for links that people and programs hand on."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass

from cellwall.admin.accounts import Identity

MAX_LIFETIME_S = 24 * 3600.0
_MAX_OF_ACCOUNT = 1_000


@dataclass(slots=True)
class PreviewGrant:
    """What a token allows, and on whose account."""

    session_id: str
    port: int
    identity: Identity
    ends_s: float
    revision: int = -1


class PreviewGrants:
    """Those of one service, by digest. They end with the process, as the sandboxes do."""

    def __init__(self) -> None:
        self._grants: dict[bytes, PreviewGrant] = {}

    def issue(
        self, identity: Identity, session_id: str, port: int, *, lifetime_s: float
    ) -> tuple[str, PreviewGrant]:
        now = time.time()
        self._grants = {key: each for key, each in self._grants.items() if each.ends_s > now}
        own = [
            key for key, each in self._grants.items() if each.identity.user_id == identity.user_id
        ]
        if len(own) >= _MAX_OF_ACCOUNT:
            del self._grants[own[0]]  # its oldest: no account ends the links of another
        token = f"cwp_{secrets.token_urlsafe(32)}"
        grant = PreviewGrant(session_id, port, identity, now + min(lifetime_s, MAX_LIFETIME_S))
        self._grants[_digest(token)] = grant
        return token, grant

    def find(self, token: str, session_id: str, port: int) -> PreviewGrant | None:
        """A grant of exactly this port; by digest, so that no time of a comparison tells of it."""
        grant = self._grants.get(_digest(token))
        if grant is None or (grant.session_id, grant.port) != (session_id, port):
            return None
        return grant if grant.ends_s > time.time() else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()

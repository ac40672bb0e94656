"""From a bearer token to an identity, for every request.

A revocation holds at once: each request reads the revision of the database, and what was found out
about a token is kept only while the revision stays the same. An unseen token costs one signature
and one query, which returns the state of its user together with the revision.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from dataclasses import dataclass, replace

from cellwall.accounts import access_tokens, failures
from cellwall.accounts.access_tokens import AccessClaims
from cellwall.accounts.failures import TokenRefused
from cellwall.accounts.guesses import Guesses
from cellwall.accounts.identity import Identity
from cellwall.accounts.signing_keys import Clock, SigningKeys
from cellwall.core.account_ports import TokensPort
from cellwall.core.accounts import AccessState
from cellwall.core.types import Permission

SERVICE_PREFIX = "cws_"
REFRESH_PREFIX = "cwr_"
LINK_PREFIX = "cwl_"
_SECRET_BYTES = 32
_MAX_KEPT = 8192


def new_secret(prefix: str) -> str:
    """256 random bits; the prefix lets secret scanners recognise it."""
    return prefix + secrets.token_urlsafe(_SECRET_BYTES)


def hash_secret(secret: str) -> bytes:
    """What is stored of it. Unlike a password it cannot be guessed, so no slow hash is needed."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


@dataclass(frozen=True, slots=True)
class _KnownToken:
    identity: Identity
    audience: str | None
    """None: a service token, which is for every interface of this service."""


class Authentication:
    """Verifies access and service tokens of one issuer."""

    def __init__(
        self, store: TokensPort, keys: SigningKeys, guesses: Guesses, clock: Clock, *, issuer: str
    ) -> None:
        self._store, self._keys, self._guesses = store, keys, guesses
        self._clock, self._issuer = clock, issuer
        self._revision = -1
        self._known: OrderedDict[bytes, _KnownToken] = OrderedDict()

    async def authenticate(self, token: str, *, audience: str, address: str) -> Identity:
        """The identity of a token; raises `SignInRefused`."""
        if len(token) > access_tokens.MAX_TOKEN_CHARACTERS:
            raise failures.bad_token("too long")
        digest = hash_secret(token)
        known = self._known.get(digest)
        if known is not None:
            self._note_revision(await self._store.revision())
            known = self._known.get(digest)
        if known is None:
            self._guesses.require_unblocked(address)
            try:
                known = await self._find(token, digest, audience)
            except TokenRefused as refused:
                await self._guesses.note_bad_token(refused, address=address, kind="token")
                raise
        if known.audience not in (None, audience):
            raise failures.ended_token("another audience")
        if known.identity.expires_s <= self._clock():
            raise failures.ended_token("expired")
        return replace(known.identity, address=address)

    async def renewed(self, identity: Identity) -> Identity | None:
        """The identity with the role and the teams of now; None if it was revoked since.

        Unlike `authenticate` it does not mind that an access token has expired: what was begun
        with it may take longer.
        """
        state = await self._store.access_state(
            user_id=identity.user_id, family_id=identity.family_id, jti=identity.credential
        )
        if state is None or state.user.is_disabled or state.is_token_revoked:
            return None
        if identity.family_id:
            counts = state.is_family_live
        else:
            tokens = await self._store.list_service_tokens(identity.user_id)
            counts = identity.expires_s > self._clock() and any(
                each.id == identity.credential and not each.is_revoked for each in tokens
            )
        return replace(identity, role=state.user.role, teams=state.teams) if counts else None

    def _note_revision(self, revision: int) -> None:
        """Forget every token when a credential has ended since it was looked up."""
        if revision != self._revision:
            self._known.clear()
            self._revision = revision

    def _keep(self, digest: bytes, known: _KnownToken, revision: int) -> _KnownToken:
        # An answer that is older than another request's sets the revision back: the next request
        # then reads a newer one, and forgets both.
        self._note_revision(revision)
        self._known[digest] = known
        while len(self._known) > _MAX_KEPT:
            self._known.popitem(last=False)
        return known

    async def _find(self, token: str, digest: bytes, audience: str) -> _KnownToken:
        if token.startswith(SERVICE_PREFIX):
            return await self._find_service_token(digest)
        claims = await self._verify(token, audience)
        state = await self._store.access_state(
            user_id=claims.user_id, family_id=claims.family_id, jti=claims.jti
        )
        is_current = (
            state is not None
            and state.is_family_live
            and not state.is_token_revoked
            and state.generation == claims.generation
            and state.user.generation == claims.user_generation
        )
        if state is None or not is_current or state.user.is_disabled:
            raise failures.ended_token("revoked")
        if state.revision != self._keys.revision:
            claims = await self._verify(token, audience, revision=state.revision)
        identity = _identity_of(
            state, credential=claims.jti, family_id=claims.family_id, expires_s=claims.expires_s
        )
        return self._keep(digest, _KnownToken(identity, claims.audience), state.revision)

    async def _verify(
        self, token: str, audience: str, *, revision: int | None = None
    ) -> AccessClaims:
        """Without I/O while the keys are those of the last revision; the caller compares it with
        the revision of the token's state, which one query returns."""
        if revision is None and not self._keys.knows(access_tokens.key_id(token)):
            revision = await self._store.revision()
        keys = await self._keys.public(self._keys.revision if revision is None else revision)
        return access_tokens.verify(
            token, keys, issuer=self._issuer, audience=audience, now_s=self._clock()
        )

    async def _find_service_token(self, digest: bytes) -> _KnownToken:
        found = await self._store.find_service_token(digest)
        if found is None:
            raise failures.bad_token("unknown service token")
        token, state = found
        if state.user.is_disabled or token.is_revoked:
            raise failures.ended_token("revoked service token")
        known = {permission.value: permission for permission in Permission}
        scopes = frozenset(known[name] for name in token.scopes if name in known)
        identity = _identity_of(
            state, credential=token.id, expires_s=token.expires_s, scopes=scopes
        )
        return self._keep(digest, _KnownToken(identity, None), state.revision)


def _identity_of(
    state: AccessState,
    *,
    credential: str,
    expires_s: float,
    family_id: str = "",
    scopes: frozenset[Permission] | None = None,
) -> Identity:
    return Identity(
        user_id=state.user.id,
        name=state.user.name,
        role=state.user.role,
        teams=state.teams,
        scopes=scopes,
        credential=credential,
        family_id=family_id,
        expires_s=expires_s,
    )

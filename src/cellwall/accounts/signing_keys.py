"""The keys that sign access tokens: made on first use, replaced by age, kept until their last token
has expired. Private halves are stored sealed; a key that does not open is not trusted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cellwall.accounts.access_tokens import AccessClaims, VerificationKey, sign
from cellwall.core.account_ports import KeySealer, KeysPort
from cellwall.core.accounts import SealedKey
from cellwall.core.errors import KeyFailed
from cellwall.core.ids import new_id
from cellwall.core.types import Json

Clock = Callable[[], float]
_MARGIN_S = 60.0
"""Another process may sign with the old key for a moment after it was replaced."""


@dataclass(frozen=True, slots=True)
class _LoadedKeys:
    revision: int
    public: tuple[VerificationKey, ...]
    signing: SealedKey | None
    private: bytes = field(repr=False)


class SigningKeys:
    """The keys as of one revision of the database."""

    def __init__(
        self,
        store: KeysPort,
        sealer: KeySealer,
        clock: Clock,
        *,
        max_age_s: float,
        token_s: float,
    ) -> None:
        self._store, self._sealer, self._clock = store, sealer, clock
        self._max_age_s, self._token_s = max_age_s, token_s
        self._loaded = _LoadedKeys(-1, (), None, b"")

    @property
    def revision(self) -> int:
        """As of which the keys were loaded; -1: not yet."""
        return self._loaded.revision

    def knows(self, kid: str) -> bool:
        """Whether a key of this id was loaded."""
        return any(key.kid == kid for key in self._loaded.public)

    async def public(self, revision: int) -> tuple[VerificationKey, ...]:
        """All keys that a token may be signed with."""
        return (await self._load(revision)).public

    async def opens_newest(self) -> bool:
        """Whether the key that signs now was sealed with the key of this service, or there is none.

        Two services with two keys would replace the signing key of each other at each sign-in.
        """
        newest = [key for key in await self._store.signing_keys() if key.verify_until_s is None]
        return all(self._open(key) is not None for key in newest)

    async def jwks(self, revision: int) -> dict[str, Json]:
        """The public keys that still verify, as RFC 7517 writes them."""
        now_s = self._clock()
        keys = await self.public(revision)
        return {"keys": [key.to_jwk() for key in keys if key.is_live(now_s)]}

    async def sign(self, claims: AccessClaims, *, issuer: str, revision: int) -> str:
        """Sign with the newest key; a missing or old one is replaced first."""
        loaded = await self._load(revision)
        kid, private = loaded.signing.kid if loaded.signing else "", loaded.private
        if loaded.signing is None or loaded.signing.created_s + self._max_age_s <= self._clock():
            kid, private = await self.rotate()
        return sign(claims, issuer=issuer, kid=kid, private=private)

    async def rotate_aged(self, revision: int) -> bool:
        """Replace the signing key if it is old; whether it was. Without a key there is no need."""
        signing = (await self._load(revision)).signing
        if signing is None or signing.created_s + self._max_age_s > self._clock():
            return False
        await self.rotate()
        return True

    async def rotate(self) -> tuple[str, bytes]:
        """Make a new key. The others verify until their last token has expired."""
        private = Ed25519PrivateKey.generate()
        kid, now_s = new_id("kid"), self._clock()
        key = SealedKey(
            kid=kid,
            public=private.public_key().public_bytes_raw(),
            sealed=self._sealer.seal(private.private_bytes_raw(), name=kid),
            created_s=now_s,
            verify_until_s=None,
        )
        until_s = now_s + self._token_s + _MARGIN_S
        await self._store.add_signing_key(key, others_until_s=until_s)
        return kid, private.private_bytes_raw()

    async def _load(self, revision: int) -> _LoadedKeys:
        if self._loaded.revision == revision:
            return self._loaded
        opened = [(key, self._open(key)) for key in await self._store.signing_keys()]
        trusted = [(key, private) for key, private in opened if private is not None]
        signing = [each for each in trusted if each[0].verify_until_s is None]
        self._loaded = _LoadedKeys(
            revision,
            tuple(VerificationKey(key.kid, key.public, key.verify_until_s) for key, _ in trusted),
            *(signing[0] if signing else (None, b"")),
        )
        return self._loaded

    def _open(self, key: SealedKey) -> bytes | None:
        """The private half; None for a key that was not sealed here. Without this check, a writer
        of the database could add a public key of their own, and sign tokens with it."""
        try:
            private = self._sealer.unseal(key.sealed, name=key.kid)
        except KeyFailed:
            return None
        public = Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
        return private if public == key.public else None

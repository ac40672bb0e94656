"""Sign-in at an OpenID provider.

`begin` sends the browser to the provider, `finish` takes what it brings back:
  (1) the attempt counts as failed, by address, until it has succeeded;
  (2) the state is one of ours, unused, and of this browser, which holds a secret of its own: else
      an attacker could sign a victim's browser in to the attacker's account (login CSRF);
  (3) the answer is of this provider (RFC 9207) and holds a code;
  (4) the code is exchanged, with the verifier that only we know (PKCE);
  (5) the ID token is verified, with the nonce of this sign-in;
  (6) the account is found by issuer and subject, never by name or e-mail address, which another
      person can have at the provider; an unknown identity is refused or becomes a guest;
  (7) the sign-in is recorded, then tokens are issued.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode

from cellwall.accounts import failures
from cellwall.accounts.account_log import AccountLog
from cellwall.accounts.flows import PendingFlows
from cellwall.accounts.guesses import Guesses
from cellwall.accounts.identity import Identity
from cellwall.accounts.names import canonical_name
from cellwall.accounts.oidc.id_tokens import verify
from cellwall.accounts.oidc.provider import Provider
from cellwall.accounts.sign_in import SignIn, TokenPair
from cellwall.accounts.signing_keys import Clock
from cellwall.core.account_ports import AccountsPort
from cellwall.core.accounts import ExternalIdentity, IdentityTaken, LastOwner, NameTaken, User
from cellwall.core.errors import BadInput
from cellwall.core.ids import new_id
from cellwall.core.types import GUEST, ROLE_NAMES

_KIND = "oidc"
_MAX_CODE_CHARACTERS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings:
    """How identities of the provider become accounts."""

    redirect_uri: str
    scopes: tuple[str, ...] = ("openid", "profile")
    creates_guests: bool = False
    """Whether the first sign-in of an unknown identity creates an account."""
    name_claim: str = "preferred_username"
    role_claim: str = ""
    roles: Mapping[str, str] = field(default_factory=dict)
    """Value of the claim -> role, for accounts that the provider created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunSignIn:
    """Where the browser goes, and the secret that it keeps in a cookie until it comes back."""

    url: str
    browser_secret: str

    def __repr__(self) -> str:
        return "BegunSignIn()"  # never the secret


class OidcSignIn:
    """Sign-in at one provider."""

    def __init__(
        self,
        store: AccountsPort,
        provider: Provider,
        flows: PendingFlows,
        sign_in: SignIn,
        guesses: Guesses,
        log: AccountLog,
        clock: Clock,
        settings: OidcSettings,
    ) -> None:
        self._store, self._provider, self._flows = store, provider, flows
        self._sign_in, self._guesses, self._log = sign_in, guesses, log
        self._clock, self._settings = clock, settings

    async def close(self) -> None:
        await self._provider.close()

    async def begin_link(
        self, who: Identity, *, password: str | None, audience: str, address: str
    ) -> BegunSignIn:
        """The identity is added to the account of this person, who knows its password."""
        user = await self._sign_in.confirm(who, password, address=address)
        return await self.begin(audience=audience, address=address, link_to=user)

    async def begin(
        self, *, audience: str, address: str, link_to: User | None = None
    ) -> BegunSignIn:
        """`link_to`: the user to whom the identity is added."""
        metadata = await self._provider.metadata()
        nonce, verifier, browser = (secrets.token_urlsafe(32) for _ in range(3))
        state = await self._flows.begin(
            _KIND,
            {
                "nonce": nonce,
                "verifier": verifier,
                "browser": hashlib.sha256(browser.encode()).hexdigest(),
                "audience": audience,
                "user_id": "" if link_to is None else link_to.id,
                "generation": "" if link_to is None else str(link_to.generation),
            },
            address=address,
        )
        challenge = urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=")
        query = {
            "response_type": "code",
            "client_id": self._provider.settings.client_id,
            "redirect_uri": self._settings.redirect_uri,
            "scope": " ".join(self._settings.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge.decode(),
            "code_challenge_method": "S256",
        }
        separator = "&" if "?" in metadata.authorization_endpoint else "?"
        url = f"{metadata.authorization_endpoint}{separator}{urlencode(query)}"
        return BegunSignIn(url=url, browser_secret=browser)

    async def finish(
        self, answer: Mapping[str, str], *, browser_secret: str, address: str
    ) -> TokenPair:
        """`answer`: the query with which the provider sent the browser back."""
        await self._guesses.begin(address=address)  # (1)
        try:
            flow, claims = await self._identify(answer, browser_secret)
            user = await self._find_user(claims, flow)  # (6)
        except failures.IdentityRefused as refused:
            await self._log.sign_in("oidc", "refused", address=address, reason=refused.detail)
            raise
        await self._log.sign_in("oidc", "ok", address=address, user=user.name)  # (7)
        await self._guesses.succeeded(address=address)
        return await self._sign_in.issue_for(user, flow["audience"])

    async def _identify(
        self, answer: Mapping[str, str], browser_secret: str
    ) -> tuple[dict[str, str], dict[str, Any]]:
        flow = await self._flows.take(_KIND, answer.get("state", ""))  # (2)
        if flow is None:
            raise failures.bad_identity("unknown state")
        browser = hashlib.sha256(browser_secret.encode("utf-8", "surrogatepass")).hexdigest()
        if not hmac.compare_digest(browser, flow["browser"]):
            raise failures.bad_identity("another browser")
        settings = self._provider.settings
        metadata = await self._provider.metadata()  # (3)
        issuer = answer.get("iss", None if metadata.sends_issuer else settings.issuer)
        if issuer != settings.issuer:
            raise failures.bad_identity("an answer of another provider")
        code = answer.get("code", "")
        is_code = 0 < len(code) <= _MAX_CODE_CHARACTERS and code.isascii()
        if "error" in answer or not is_code:
            raise failures.bad_identity("the provider signed nobody in")
        token = await self._provider.exchange(  # (4)
            code, verifier=flow["verifier"], redirect_uri=self._settings.redirect_uri
        )
        return flow, await self._verify(token, nonce=flow["nonce"])  # (5)

    async def _verify(self, token: str, *, nonce: str) -> dict[str, Any]:
        settings = self._provider.settings
        for is_unknown in (False, True):
            keys = await self._provider.keys(is_unknown=is_unknown)
            try:
                return verify(
                    token,
                    keys,
                    issuer=settings.issuer,
                    client_id=settings.client_id,
                    nonce=nonce,
                    algorithms=settings.algorithms,
                    now_s=self._clock(),
                )
            except failures.UnknownKey:
                continue  # the provider has new keys, perhaps
        raise failures.bad_identity("unknown key")

    async def _find_user(self, claims: Mapping[str, Any], flow: Mapping[str, str]) -> User:
        link_to = flow["user_id"]
        if link_to:
            linked = await self._store.find_user(link_to)
            # A new password, a revocation or the end of the account also ends what was begun.
            generation = "" if linked is None or linked.is_disabled else str(linked.generation)
            if not generation or generation != flow.get("generation"):
                raise failures.bad_identity("the account has changed since")
        issuer, subject = self._provider.settings.issuer, str(claims["sub"])
        identity = await self._store.find_identity(issuer, subject)
        if identity is None:
            identity = await self._add(issuer, subject, claims, link_to=link_to)
        if link_to and identity.user_id != link_to:
            raise failures.bad_identity("the identity belongs to another account")
        user = await self._store.find_user(identity.user_id)
        if user is None or user.is_disabled:
            raise failures.bad_identity("disabled")
        return await self._with_role(user, claims) if identity.is_managed else user

    async def _add(
        self, issuer: str, subject: str, claims: Mapping[str, Any], *, link_to: str
    ) -> ExternalIdentity:
        now_s = self._clock()
        identity = ExternalIdentity(
            issuer=issuer, subject=subject, user_id=link_to, is_managed=False, created_s=now_s
        )
        if not link_to and not self._settings.creates_guests:
            raise failures.bad_identity("no account, and none is created")
        try:
            if link_to:
                await self._store.add_identity(identity, new_user=None)
                return identity
            for name in self._names(claims):
                user = User(
                    id=new_id("usr"), name=name, role=GUEST, password_hash=None,
                    is_disabled=False, generation=1, created_s=now_s,
                )  # fmt: skip
                created = replace(identity, user_id=user.id, is_managed=True)
                try:
                    await self._store.add_identity(created, new_user=user)
                except NameTaken:
                    continue
                return created
        except IdentityTaken:  # by a sign-in of the same person at the same time
            found = await self._store.find_identity(issuer, subject)
            if found is not None:
                return found
        raise failures.bad_identity("no free name")

    def _names(self, claims: Mapping[str, Any]) -> tuple[str, str]:
        """The name at the provider if it is free, else one with a random end. The name has no
        meaning: it links to no account that exists."""
        try:
            wished = canonical_name(str(claims.get(self._settings.name_claim, "")))
        except BadInput:
            wished = "user"
        return wished, f"{wished[:40]}-{secrets.token_hex(4)}"

    async def _with_role(self, user: User, claims: Mapping[str, Any]) -> User:
        """The highest role of all values of the claim; without one, a guest."""
        if not self._settings.role_claim:
            return user
        value = claims.get(self._settings.role_claim)
        values = value if isinstance(value, list) else [value]
        texts = [each for each in values if isinstance(each, str)]
        named = [self._settings.roles[each] for each in texts if each in self._settings.roles]
        role = max(named, key=ROLE_NAMES.index, default=GUEST)
        if role == user.role:
            return user
        try:
            await self._store.set_role(user.id, role)
        except LastOwner:
            raise failures.bad_identity("the last owner") from None
        return replace(user, role=role)

"""The accounts of one service, put together."""

from __future__ import annotations

import time
from dataclasses import dataclass

from cellwall.accounts.account_log import AccountLog
from cellwall.accounts.authentication import Authentication
from cellwall.accounts.directory import Directory
from cellwall.accounts.flows import PendingFlows
from cellwall.accounts.guesses import Guesses, GuessSettings
from cellwall.accounts.identity import Identity
from cellwall.accounts.live_sign_ins import LiveSignIns
from cellwall.accounts.oidc.provider import Provider, ProviderSettings
from cellwall.accounts.oidc.sign_in import OidcSettings, OidcSignIn
from cellwall.accounts.pairing import Pairings
from cellwall.accounts.passkeys import Passkeys, relying_party
from cellwall.accounts.passwords import Passwords, PasswordSettings
from cellwall.accounts.quotas import BudgetSettings, Quotas
from cellwall.accounts.rates import Rates, RateSettings
from cellwall.accounts.roles import Roles
from cellwall.accounts.sign_in import SignIn, TokenSettings
from cellwall.accounts.signing_keys import Clock, SigningKeys
from cellwall.core.account_ports import KeySealer
from cellwall.core.errors import LimitExceeded
from cellwall.core.messages import ServiceStore
from cellwall.core.ports import AuditPort
from cellwall.core.types import Json, Permission, Principal


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountSettings:
    """All settings of accounts."""

    tokens: TokenSettings
    passwords: PasswordSettings = PasswordSettings()
    guesses: GuessSettings = GuessSettings()
    rates: RateSettings = RateSettings()
    budgets: BudgetSettings = BudgetSettings()
    pairing_code_s: float = 600.0
    provider: ProviderSettings | None = None
    oidc: OidcSettings | None = None


class Accounts:
    """Sign-in, authentication and administration over one store."""

    def __init__(
        self,
        store: ServiceStore,
        *,
        sealer: KeySealer,
        audit: AuditPort,
        roles: Roles,
        settings: AccountSettings,
        clock: Clock = time.time,
    ) -> None:
        tokens = settings.tokens
        log = AccountLog(audit)
        passwords = Passwords(settings.passwords)
        guesses = Guesses(store, log, clock, settings.guesses)
        self._store, self._clock, self._log, self._roles = store, clock, log, roles
        self._keys = SigningKeys(
            store, sealer, clock, max_age_s=tokens.key_s, token_s=tokens.access_s
        )
        self._authentication = Authentication(
            store, self._keys, guesses, clock, issuer=tokens.issuer
        )
        self.sign_in = SignIn(store, self._keys, sealer, passwords, guesses, log, clock, tokens)
        self.rates = Rates(settings.rates, clock)
        self.quotas = Quotas(store, self.rates, settings.budgets, clock)
        self.pairings = Pairings(
            store,
            sealer=sealer,
            roles=roles,
            log=log,
            clock=clock,
            code_s=settings.pairing_code_s,
        )
        flows = PendingFlows(store, sealer, self.rates, clock)
        self.oidc: OidcSignIn | None = None
        """None: no provider is configured."""
        if settings.provider is not None and settings.oidc is not None:
            self.oidc = OidcSignIn(
                store, Provider(settings.provider, clock), flows, self.sign_in, guesses, log,
                clock, settings.oidc,
            )  # fmt: skip
        self.passkeys = Passkeys(
            store, flows, self.sign_in, guesses, log, clock, relying_party(tokens.issuer)
        )  # fmt: skip
        self.directory = Directory(store, roles, passwords, guesses, log, clock, tokens)
        self.live_sign_ins = LiveSignIns(store, roles, log, clock)

    async def close(self) -> None:
        """Close connections to other services."""
        await self.rates.close()
        if self.oidc is not None:
            await self.oidc.close()

    async def authenticate(self, token: str, *, audience: str, address: str) -> Identity:
        """The identity of a bearer token; raises `SignInRefused`."""
        return await self._authentication.authenticate(token, audience=audience, address=address)

    async def revision(self) -> int:
        """Another number after every change of users and tokens."""
        return await self._store.revision()

    async def renewed(self, identity: Identity) -> Identity | None:
        """The identity with the role and the teams of now; None if it does not count any more."""
        return await self._authentication.renewed(identity)

    async def count_request(self, address: str) -> None:
        """Count a request; raises `LimitExceeded`, which is recorded once per window."""
        try:
            await self.rates.count_request(address)
        except LimitExceeded as error:
            if not error.is_repeated:
                await self._log.sign_in("requests", "slowed", address=address)
            raise

    async def jwks(self) -> dict[str, Json]:
        """The public keys of access tokens, for `/.well-known/jwks.json`."""
        return await self._keys.jwks(await self._store.revision())

    async def opens_newest_key(self) -> bool:
        """Whether this service can sign with the key that the database has."""
        return await self._keys.opens_newest()

    async def rotate_keys(self, *, by: Principal) -> None:
        """A new signing key now; tokens of the old one stay valid until they expire."""
        self._roles.require(by, Permission.USERS_MANAGE)
        await self._log.change("rotate signing key", by=by)
        await self._keys.rotate()

    async def rotate_aged_keys(self, *, by: Principal) -> bool:
        """Replace a signing key that is too old, also while no user signs in."""
        if not await self._keys.rotate_aged(await self._store.revision()):
            return False
        await self._log.change("rotate signing key", by=by)
        return True

    async def purge(self) -> int:
        """Delete what has expired; to be called now and then."""
        return await self._store.purge(now_s=self._clock())

"""The accounts of the service, wired to their database, their key file and the audit log."""

from __future__ import annotations

import os
import stat
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import blake2b

import anyio

from cellwall.accounts.guesses import GuessSettings
from cellwall.accounts.identity import (
    Identity,
    address_subject,
    require_own,
    require_owner,
    require_tenant,
)
from cellwall.accounts.oidc.provider import ProviderSettings
from cellwall.accounts.oidc.sign_in import BegunSignIn, OidcSettings, OidcSignIn
from cellwall.accounts.passwords import PasswordSettings
from cellwall.accounts.quotas import RESOURCES, BudgetSettings
from cellwall.accounts.rates import RateSettings
from cellwall.accounts.service import Accounts, AccountSettings
from cellwall.accounts.sign_in import TokenPair, TokenSettings
from cellwall.admin.database import storage_settings
from cellwall.config.models import Settings
from cellwall.core.errors import ConfigError, KeyFailed
from cellwall.core.ids import new_id
from cellwall.core.ports import AuditPort
from cellwall.runtime.judging import roles_of
from cellwall.secrets import key_storage
from cellwall.secrets.key_storage import KeyFile
from cellwall.secrets.sealing import (
    KEY_BYTES,
    NONCE_BYTES,
    BadSeal,
    Ciphertext,
    canonical,
    seal,
    unseal,
)
from cellwall.storage.store import Store, open_store

__all__ = [
    "Accounts",
    "BegunSignIn",
    "Identity",
    "KeyFileSealer",
    "OidcSignIn",
    "TokenPair",
    "account_settings",
    "address_subject",
    "open_accounts",
    "require_own",
    "require_owner",
    "require_tenant",
]

_DAY_S = 86_400.0
_KEY_NAME = "accounts.key"
_MAX_SECRET_CHARACTERS = 4096
OIDC_CALLBACK = "/v1/auth/oidc/callback"
"""Where the provider sends the browser back; registered there below the address of the service."""
_OWNER_OF_KEYS = "acct_00000000000000000000"
"""The name in the key file, which may hold keys of vaults as well."""


class KeyFileSealer:
    """Implements `KeySealer` by AES-256-GCM under a key file of mode 0600, made on first use."""

    def __init__(self, path: str) -> None:
        self._storage = KeyFile(path)
        self._key: bytes | None = None

    def seal(self, plain: bytes, *, name: str) -> bytes:
        sealed = seal(self._load(), plain, _aad(name))
        return sealed.nonce + sealed.data

    def unseal(self, sealed: bytes, *, name: str) -> bytes:
        ciphertext = Ciphertext(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:])
        try:
            return bytes(unseal(self._load(), ciphertext, _aad(name)))
        except BadSeal:
            raise KeyFailed(
                "a signing key of the service does not open",
                hint="Restore the key file of [accounts]; otherwise a new signing key is made.",
                code="CW-KEY-SEALED",
            ) from None

    def digest(self, data: bytes) -> bytes:
        # The purpose makes it another function than any other use of the key.
        return blake2b(data, key=self._load(), person=b"cw-digest", digest_size=32).digest()

    def _load(self) -> bytes:
        if self._key is None:
            with self._storage.change():  # two processes that start at once make one key
                keys = self._storage.read(_OWNER_OF_KEYS)
                own = [key_id for owner, key_id in keys if owner == _OWNER_OF_KEYS]
                if not own:
                    own = [new_id("key")]
                    keys[_OWNER_OF_KEYS, own[0]] = b64encode(os.urandom(KEY_BYTES))
                    self._storage.write(_OWNER_OF_KEYS, keys)
            self._key = bytes(key_storage.read_key(self._storage, _OWNER_OF_KEYS, own[0]))
        return self._key


def _aad(name: str) -> bytes:
    return canonical({"schema": "cellwall-accounts-1", "signing_key": name})


def account_settings(settings: Settings, *, issuer: str) -> AccountSettings:
    """The settings of accounts as configured."""
    accounts = settings.accounts
    return AccountSettings(
        tokens=TokenSettings(
            issuer=issuer,
            access_s=accounts.access_token_s,
            family_s=accounts.refresh_token_days * _DAY_S,
            link_s=accounts.sign_in_link_s,
            max_service_s=accounts.max_service_token_days * _DAY_S,
            key_s=accounts.signing_key_days * _DAY_S,
            refresh_grace_s=accounts.refresh_grace_s,
        ),
        passwords=PasswordSettings(
            memory_kib=accounts.argon2_memory_kib,
            passes=accounts.argon2_passes,
            lanes=accounts.argon2_lanes,
            min_characters=accounts.min_password_characters,
        ),
        guesses=GuessSettings(
            free_per_account=accounts.free_guesses_per_account,
            free_per_address=accounts.free_guesses_per_address,
            max_delay_s=accounts.max_guess_delay_s,
        ),
        provider=_provider(settings),
        oidc=_oidc(settings, issuer),
        rates=_rates(settings),
        budgets=_budgets(settings),
        pairing_code_s=settings.messages.pairing_code_s,
    )


def _provider(settings: Settings) -> ProviderSettings | None:
    oidc = settings.oidc
    if not oidc.issuer:
        return None
    return ProviderSettings(
        issuer=oidc.issuer,
        client_id=oidc.client_id,
        client_secret=read_private_text(oidc.client_secret_file, what="[oidc]"),
        algorithms=oidc.algorithms,
        ca_file=oidc.ca_file,
    )


def _oidc(settings: Settings, issuer: str) -> OidcSettings:
    oidc = settings.oidc
    return OidcSettings(
        redirect_uri=issuer.rstrip("/") + OIDC_CALLBACK,
        scopes=oidc.scopes,
        creates_guests=oidc.new_users == "guest",
        name_claim=oidc.name_claim,
        role_claim=oidc.role_claim,
        roles=oidc.roles,
    )


def _rates(settings: Settings) -> RateSettings:
    rates = settings.rates
    return RateSettings(
        user_actions=rates.actions_per_minute_per_user,
        token_actions=rates.actions_per_minute_per_token,
        address_actions=rates.actions_per_minute_per_address,
        address_requests=rates.requests_per_minute_per_address,
        address_sign_ins=rates.sign_ins_per_minute_per_address,
        redis_url=rates.redis_url,
        redis_password=read_private_text(rates.redis_password_file, what="[rates]"),
    )


def _budgets(settings: Settings) -> BudgetSettings:
    budgets = settings.budgets
    return BudgetSettings(
        period_s=budgets.period_hours * 3600.0,
        user={each: float(getattr(budgets, f"user_{each}")) for each in RESOURCES},
        team={each: float(getattr(budgets, f"team_{each}")) for each in RESOURCES},
        prices=budgets.prices,
    )


def read_private_text(path: str | None, *, what: str) -> str | None:
    """The first line of a file that no other user can read; None without a path."""
    if path is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        with os.fdopen(descriptor, encoding="utf-8") as file:
            info = os.fstat(descriptor)
            text = file.read(_MAX_SECRET_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"a secret file that {what} names cannot be read", detail=str(error)
        ) from None
    if not stat.S_ISREG(info.st_mode) or stat.S_IMODE(info.st_mode) & 0o077:
        raise ConfigError(
            f"a secret file that {what} names is open to other users", hint="Run chmod 600 on it."
        )
    secret = text.strip("\r\n")
    if not secret or len(text) > _MAX_SECRET_CHARACTERS or "\n" in secret:
        raise ConfigError(f"a secret file that {what} names does not hold one line")
    return secret


@asynccontextmanager
async def open_accounts(
    home: str, settings: Settings, *, issuer: str, audit: AuditPort
) -> AsyncIterator[tuple[Accounts, Store]]:
    """The accounts of a state folder, and the store that sessions and budgets use as well."""
    path = settings.accounts.key_file or os.path.join(home, _KEY_NAME)
    async with open_store(storage_settings(home, settings)) as store:
        accounts = Accounts(
            store,
            sealer=KeyFileSealer(path),
            audit=audit,
            roles=roles_of(settings),
            settings=account_settings(settings, issuer=issuer),
        )
        try:
            yield accounts, store
        finally:
            with anyio.CancelScope(shield=True):
                await accounts.close()

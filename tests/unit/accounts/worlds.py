"""Accounts over a real store, a real audit log and a real key file, with a clock of their own."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from argon2 import PasswordHasher

from cellwall.accounts.authentication import new_secret
from cellwall.accounts.guesses import GuessSettings
from cellwall.accounts.identity import Identity
from cellwall.accounts.passwords import PasswordSettings
from cellwall.accounts.roles import Roles
from cellwall.accounts.service import Accounts, AccountSettings
from cellwall.accounts.sign_in import TokenPair, TokenSettings
from cellwall.admin.accounts import KeyFileSealer
from cellwall.audit.log import AuditLog
from cellwall.core.types import Principal
from cellwall.runtime.recording import audit_directory
from cellwall.storage.engine import StorageSettings
from cellwall.storage.store import Store
from databases import Result, in_store
from unit.storage import records

ISSUER = "https://cellwall.example"
AUDIENCE = "https://cellwall.example/v1"
ADDRESS = "192.0.2.7"
PASSWORD = "correct horse battery"
ROOT = Principal("root", "cli")
# A hash in a millisecond; the parameters are not what most tests are about.
QUICK = PasswordSettings(memory_kib=64, passes=1, lanes=1)
HASH = PasswordHasher(memory_cost=64, time_cost=1, parallelism=1).hash(PASSWORD)


@dataclass
class Clock:
    now_s: float = 1_800_000_000.5

    def __call__(self) -> float:
        return self.now_s


@dataclass
class World:
    """One service."""

    store: Store
    home: str
    audit: AuditLog
    clock: Clock = field(default_factory=Clock)
    settings: AccountSettings = AccountSettings(
        tokens=TokenSettings(issuer=ISSUER),
        passwords=QUICK,
        guesses=GuessSettings(free_per_account=3, free_per_address=6),
    )
    accounts: Accounts = field(init=False)

    def __post_init__(self) -> None:
        self.accounts = self.another()

    def another(self, **changes: Any) -> Accounts:
        """Another process of the same service, or one with other settings."""
        known: dict[str, Any] = {
            "sealer": KeyFileSealer(os.path.join(self.home, "accounts.key")),
            "audit": self.audit,
            "roles": Roles(),
            "settings": self.settings,
            "clock": self.clock,
        }
        return Accounts(self.store, **{**known, **changes})

    async def add(self, name: str, role: str = "user") -> str:
        """A user with a password; returns the id."""
        user = records.user(name.lower(), role=role, password_hash=HASH)
        await self.store.add_user(user)
        return user.id

    async def sign_in(
        self, name: str, password: str = PASSWORD, address: str = ADDRESS
    ) -> TokenPair:
        return await self.accounts.sign_in.by_password(
            name, password, address=address, audience=AUDIENCE
        )

    async def who(
        self, token: str, accounts: Accounts | None = None, address: str = ADDRESS
    ) -> Identity:
        found = accounts or self.accounts
        return await found.authenticate(token, audience=AUDIENCE, address=address)


def in_world(settings: StorageSettings, function: Callable[[World], Awaitable[Result]]) -> Result:
    """Run the function with an owner in an otherwise empty service."""

    async def go(store: Store) -> Result:
        with AuditLog.open(audit_directory(settings.home)) as audit:
            world = World(store, settings.home, audit)
            await world.add("root", "owner")
            return await function(world)

    return in_store(settings, go)


def some_service_token() -> str:
    return new_secret("cws_")

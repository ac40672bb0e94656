"""Accounts of the service, for the person who runs it, on the machine of the service.

Each change is one transaction of the database that a running service reads, so that it holds for
the service's next request; revocations as well. An agent outside of a sandbox must not give itself
an account, a role or a token: whatever grants something refuses an agent's shell (POL-13).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal, Self, TypeVar

import anyio

from cellwall.accounts.quotas import RESOURCES, BudgetUse
from cellwall.admin.accounts import Accounts, open_accounts
from cellwall.admin.connections import ConnectionAdmin
from cellwall.admin.database import DatabaseAdmin, storage_settings
from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.core.accounts import Meter, Passkey, ServiceToken, User
from cellwall.core.types import AccountRef, Permission, Principal
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.home import state_home
from cellwall.runtime.judging import require
from cellwall.runtime.recording import open_record
from cellwall.storage.schema import SchemaState, state_of

__all__ = ["RESOURCES", "AccountAdmin", "BudgetSubject", "BudgetUse", "ServiceToken", "User"]

_PAGE = 1000
_ISSUER = "cellwall"
"""Access tokens are issued by the service alone; the commands here issue none."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class BudgetSubject:
    """Whose budget: a user or a team, by name."""

    kind: Literal["user", "team"]
    name: str


class AccountAdmin:
    """The accounts of one state folder; every method is a command of its own."""

    def __init__(self, home: str, settings: Settings, principal: Principal) -> None:
        self._home, self._settings, self._who = home, settings, principal

    @classmethod
    def configured(
        cls, principal: Principal, *, config: str | None = None, profile: str | None = None
    ) -> Self:
        """The accounts of the configuration and the environment."""
        settings = load_settings(file=config, profile=profile, environ=os.environ)
        return cls(state_home(os.environ), settings, principal)

    @property
    def has_database(self) -> bool:
        """Whether the database exists with the current schema."""
        return state_of(storage_settings(self._home, self._settings)) is SchemaState.CURRENT

    def add_user(self, name: str, role: str, password: str | None) -> tuple[User, str | None]:
        """The user and, without a password, the secret of a one-time link that sets it."""
        refuse_agents("a new account")

        async def add(accounts: Accounts) -> tuple[User, str | None]:
            if password is not None:
                accounts.directory.check_password(password, name=name)
            user = await accounts.directory.add_user(name, role=role, by=self._who)
            if password is None:
                return user, await accounts.sign_in.make_link(user.id, by=self._who)
            await accounts.directory.set_password(user, password, by=self._who)
            return user, None

        return self._run(add)

    def list_users(self) -> tuple[User, ...]:
        """All users, by name."""
        return self._run(self._collect_users)

    async def _collect_users(self, accounts: Accounts) -> tuple[User, ...]:
        users: list[User] = []
        while True:
            after = users[-1].name if users else ""
            page = await accounts.directory.list_users(by=self._who, after=after, limit=_PAGE)
            users += page
            if len(page) < _PAGE:
                return tuple(users)

    def remove_user(self, name: str) -> None:
        refuse_agents("the removal of an account")

        async def remove(accounts: Accounts, user: User) -> None:
            await accounts.directory.remove_user(user.id, by=self._who)

        self._run_for(name, remove)
        ConnectionAdmin(self._home, self._settings).remove_all(name, by=self._who)

    def set_role(self, name: str, role: str) -> None:
        refuse_agents("a role")

        async def change(accounts: Accounts, user: User) -> None:
            await accounts.directory.set_role(user.id, role, by=self._who)

        self._run_for(name, change)

    def set_disabled(self, name: str, *, is_disabled: bool) -> None:
        refuse_agents("a change of an account")

        async def change(accounts: Accounts, user: User) -> None:
            await accounts.directory.set_disabled(user.id, is_disabled=is_disabled, by=self._who)

        self._run_for(name, change)

    def require_user(self, name: str) -> None:
        """Raise unless there is this user; before a person types a password."""
        refuse_agents("a password")

        async def look(_accounts: Accounts, _user: User) -> None:
            return None

        self._run_for(name, look)

    def set_password(self, name: str, password: str) -> None:
        """A new password; every token of the user ends."""
        refuse_agents("a password")

        async def change(accounts: Accounts, user: User) -> None:
            await accounts.directory.set_password(user, password, by=self._who)

        self._run_for(name, change)

    def make_link(self, name: str) -> str:
        """The secret of a new one-time link with which the user sets a password."""
        refuse_agents("a sign-in link")
        require(self._settings, self._who, Permission.USERS_MANAGE)

        async def make(accounts: Accounts, user: User) -> str:
            return await accounts.sign_in.make_link(user.id, by=self._who)

        return self._run_for(name, make)

    def create_token(
        self, user_name: str, *, name: str, scopes: Sequence[str], lives_s: float
    ) -> tuple[str, ServiceToken]:
        """The token itself, which is not kept, and its record."""
        refuse_agents("a token")

        async def create(accounts: Accounts, user: User) -> tuple[str, ServiceToken]:
            return await accounts.directory.create_token(
                user.id, name=name, scopes=scopes, lives_s=lives_s, by=self._who
            )

        return self._run_for(user_name, create)

    def list_tokens(self, user_name: str | None) -> tuple[tuple[User, ServiceToken], ...]:
        """The service tokens of one user or of all, with their users."""

        async def collect(accounts: Accounts) -> tuple[tuple[User, ServiceToken], ...]:
            directory = accounts.directory
            if user_name is None:
                users = await self._collect_users(accounts)
            else:
                users = (await directory.find_user(user_name, by=self._who),)
            found: list[tuple[User, ServiceToken]] = []
            for user in users:
                tokens = await directory.list_tokens(user.id, by=self._who)
                found += [(user, token) for token in tokens]
            return tuple(found)

        return self._run(collect)

    def revoke_token(self, token_id: str) -> None:
        """End a service token of any user, at once."""
        self._run(lambda accounts: accounts.directory.revoke_token(token_id, by=self._who))

    def revoke_user(self, name: str) -> None:
        """End every token and sign-in of a user, at once."""

        async def revoke(accounts: Accounts, user: User) -> None:
            await accounts.directory.revoke_user(user.id, by=self._who)

        self._run_for(name, revoke)

    def revoke_everybody(self) -> bool:
        """End every token and sign-in of every user, at once; False if the service has no database,
        and so no token."""
        if not self.has_database:
            return False
        self._run(lambda accounts: accounts.directory.revoke_everybody(by=self._who))
        return True

    def list_budgets(self, subject: BudgetSubject) -> tuple[BudgetUse, ...]:
        """The budgets that bind a user, with those of its teams, or a team, and their usage."""

        async def collect(accounts: Accounts) -> tuple[BudgetUse, ...]:
            meter = await self._meter(accounts, subject, "runs")
            if meter.kind == "team":
                return await accounts.quotas.usage_of_team(meter.subject)
            teams = await accounts.directory.teams_of(meter.subject, by=self._who)
            account = AccountRef(user_id=meter.subject, teams=teams, credential="", address="")
            return await accounts.quotas.usage_of(account)

        return self._run(collect)

    def set_budget(
        self, subject: BudgetSubject, resource: str, *, limit: float, period_s: float
    ) -> None:
        """A budget in place of the configured one; 0 permits nothing."""
        refuse_agents("a budget")

        async def change(accounts: Accounts) -> None:
            meter = await self._meter(accounts, subject, resource)
            await accounts.directory.set_budget(meter, limit=limit, period_s=period_s, by=self._who)

        self._run(change)

    def remove_budget(self, subject: BudgetSubject, resource: str) -> None:
        """The configured budget applies again."""
        refuse_agents("a budget")

        async def change(accounts: Accounts) -> None:
            meter = await self._meter(accounts, subject, resource)
            await accounts.directory.remove_budget(meter, by=self._who)

        self._run(change)

    async def _meter(self, accounts: Accounts, subject: BudgetSubject, resource: str) -> Meter:
        directory = accounts.directory
        if subject.kind == "team":
            team = await directory.find_team(subject.name, by=self._who)
            return Meter("team", team.id, resource)
        user = await directory.find_user(subject.name, by=self._who)
        return Meter("user", user.id, resource)

    def list_passkeys(self, name: str) -> tuple[Passkey, ...]:
        """The passkeys of a user, the oldest first."""

        async def collect(accounts: Accounts, user: User) -> tuple[Passkey, ...]:
            return await accounts.directory.list_passkeys(user.id, by=self._who)

        return self._run_for(name, collect)

    def remove_passkeys(self, name: str, passkey_id: str | None) -> int:
        """One passkey of a user, or all; returns how many."""
        refuse_agents("the removal of a passkey")

        async def remove(accounts: Accounts, user: User) -> int:
            directory = accounts.directory
            if passkey_id is None:
                return await directory.remove_passkeys(user.id, by=self._who)
            await directory.remove_passkey(passkey_id, user.id, by=self._who)
            return 1

        return self._run_for(name, remove)

    def _run_for(self, name: str, work: Callable[[Accounts, User], Awaitable[Result]]) -> Result:
        async def found(accounts: Accounts) -> Result:
            return await work(accounts, await accounts.directory.find_user(name, by=self._who))

        return self._run(found)

    def _run(self, work: Callable[[Accounts], Awaitable[Result]]) -> Result:
        require(self._settings, self._who, Permission.USERS_MANAGE)
        DatabaseAdmin(self._home, self._settings).prepare(self._who)

        async def run() -> Result:
            async with self._open() as accounts:
                return await work(accounts)

        return anyio.run(run)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Accounts]:
        with open_record(self._home, self._settings) as audit:
            async with open_accounts(self._home, self._settings, issuer=_ISSUER, audit=audit) as (
                accounts,
                _store,
            ):
                yield accounts

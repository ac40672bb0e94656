"""What authentication, ownership, rates and budgets cost a request, on SQLite."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import anyio

from cellwall.accounts.identity import Identity, require_own
from cellwall.accounts.passwords import PasswordSettings
from cellwall.accounts.quotas import BudgetSettings
from cellwall.accounts.roles import Roles
from cellwall.accounts.service import Accounts, AccountSettings
from cellwall.accounts.sign_in import TokenSettings
from cellwall.admin.accounts import KeyFileSealer
from cellwall.audit.log import AuditLog
from cellwall.core.accounts import SessionRecord
from cellwall.core.ids import new_id
from cellwall.core.outcomes import Outcome, Status, Usage
from cellwall.core.types import Action, Principal, RunCode
from cellwall.storage.engine import StorageSettings
from cellwall.storage.schema import migrate
from cellwall.storage.store import Store, open_store

_ISSUER = "https://cellwall.example"
_ADDRESS = "192.0.2.1"
_ROOT = Principal("root", "cli")
_PASSWORD = "correct horse battery"


def measure(rounds: int, *, quiet: bool) -> dict[str, Any]:
    home = os.environ["CELLWALL_HOME"]
    settings = StorageSettings(home=home)
    migrate(settings)
    if not quiet:
        print("... accounts", file=sys.stderr)
    with AuditLog.open(os.path.join(home, "audit")) as audit:
        return anyio.run(_measure, settings, audit, max(10, rounds))


async def _measure(settings: StorageSettings, audit: AuditLog, rounds: int) -> dict[str, Any]:
    async with open_store(settings) as store:
        plain = _accounts(store, settings.home, audit, BudgetSettings())
        limits = {"runs": 1e9, "cpu_s": 1e9, "sent_bytes": 1e15, "money": 1e9}
        paid = _accounts(store, settings.home, audit, BudgetSettings(user=limits))
        user = await plain.directory.add_user("ann", role="power-user", by=_ROOT)
        link = await plain.sign_in.make_link(user.id, by=_ROOT)
        first = await plain.sign_in.by_link(link, _PASSWORD, address=_ADDRESS, audience=_ISSUER)
        me = await _who(plain, first.access)
        by_password = partial(
            plain.sign_in.by_password, "ann", _PASSWORD, address=_ADDRESS, audience=_ISSUER
        )
        tokens = [(await by_password()).access for _ in range(rounds)]
        services = [
            (await plain.directory.create_own_token(me, name="x", scopes=(), lives_s=600.0))[0]
            for _ in range(rounds)
        ]
        session = SessionRecord(
            id=new_id("sbx"), owner_id=user.id, team_id=None, created_s=0.0, ended_s=None, about={}
        )
        calls: dict[str, list[Callable[[], Awaitable[object]]]] = {
            "unseen_access_token_us": [partial(_who, plain, each) for each in tokens],
            "unseen_service_token_us": [partial(_who, plain, each) for each in services],
            "known_token_us": [partial(_who, plain, first.access)] * rounds * 5,
            "ownership_us": [partial(_own, session, me)] * rounds * 5,
            "rates_us": [partial(_act, plain, me)] * rounds * 5,
            "four_budgets_us": [partial(_act, paid, me)] * rounds,
        }
        figures: dict[str, float] = {}
        for name, each in calls.items():
            figures |= await _spread(name, each)
        return figures


def _accounts(store: Store, home: str, audit: AuditLog, budgets: BudgetSettings) -> Accounts:
    return Accounts(
        store,
        sealer=KeyFileSealer(os.path.join(home, "accounts.key")),
        audit=audit,
        roles=Roles(),
        settings=AccountSettings(
            tokens=TokenSettings(issuer=_ISSUER),
            passwords=PasswordSettings(memory_kib=64, passes=1),  # not what is measured
            budgets=budgets,
        ),
    )


async def _who(accounts: Accounts, token: str) -> Identity:
    return await accounts.authenticate(token, audience=_ISSUER, address=_ADDRESS)


async def _own(session: SessionRecord, who: Identity) -> None:
    require_own(session, who, what="session")


async def _act(accounts: Accounts, who: Identity) -> None:
    """All that steps 2 and 10 of the pipeline do for an account."""
    action = Action(principal=who.principal("http"), operation=RunCode("python", b""))
    held = await accounts.quotas.reserve(action)
    held.start()
    await held.settle(Outcome(status=Status.OK, action_id=action.id, usage=Usage(cpu_s=0.01)))


async def _spread(name: str, calls: Iterable[Callable[[], Awaitable[object]]]) -> dict[str, float]:
    times = []
    for call in calls:
        started = time.perf_counter()
        await call()
        times.append(time.perf_counter() - started)
    ordered = sorted(times)
    return {
        f"{name}_p50": round(statistics.median(ordered) * 1e6, 1),
        f"{name}_p99": round(ordered[int(len(ordered) * 0.99)] * 1e6, 1),
    }

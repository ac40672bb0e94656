"""Probes of the budgets of a service's users: accounts, a database and runs of a trial host."""

from __future__ import annotations

import os
from dataclasses import replace
from time import time

import anyio

from cellwall.accounts.quotas import MONEY, RUNS, period_start_s
from cellwall.admin.ability import Ability
from cellwall.admin.accounts import open_accounts
from cellwall.admin.blast_radius import ProbeResult, ProbeState
from cellwall.admin.database import DatabaseAdmin
from cellwall.admin.radius_probes import Unprobed, ending, raised_limits
from cellwall.admin.redteam.trial_host import TrialHost, changed_settings
from cellwall.config.models import Settings
from cellwall.core.accounts import Charge
from cellwall.core.ids import new_id
from cellwall.core.outcomes import Outcome, Status
from cellwall.core.types import AccountRef, Action, RunCode

_REFUSED = "CW-BUDGET"
_CONTROL_LIMIT = 4.0
_SMALL_PRICE = 1e-6
_PRICED = "run_code"


async def probe_budget(host: TrialHost, line: Ability, *, is_limited: bool) -> ProbeResult:
    """A user who has used most of the budget runs; one who has used all of it does not."""
    resource = line.id.removeprefix("spend.user-").replace("-", "_")
    settings = host.app.settings
    if resource == MONEY:  # a run must cost something
        prices = settings.budgets.prices
        priced = {**prices, _PRICED: prices.get(_PRICED) or _SMALL_PRICE}
        settings = changed_settings(settings, budgets={"prices": priced})
    if is_limited:
        problem = await _find_problem(host, settings, resource, line.number)
        told = problem or "a user with a part of the budget left ran, one without did not"
    else:
        bounded = changed_settings(settings, budgets={f"user_{resource}": _CONTROL_LIMIT})
        failure = await _find_problem(host, bounded, resource, _CONTROL_LIMIT)
        if failure:
            raise Unprobed(f"the control failed: {failure}")
        problem = await _find_problem(host, settings, resource, None)
        told = problem or "a user without a budget ran; with one that is used up, a user did not"
    return ProbeResult(ProbeState.CONTRADICTED if problem else ProbeState.CONFIRMED, told)


async def _find_problem(
    host: TrialHost, settings: Settings, resource: str, limit: float | None
) -> str:
    """What differs from this limit; empty if nothing does."""
    home = os.path.join(host.folder, "budgets")
    os.makedirs(home, mode=0o700, exist_ok=True)
    await anyio.to_thread.run_sync(DatabaseAdmin(home, settings).prepare, host.who)
    account = AccountRef(
        user_id=new_id("usr"), teams=frozenset(), credential=new_id("tok"), address="127.0.0.1"
    )
    async with open_accounts(home, settings, issuer="http://127.0.0.1", audit=host.app.audit) as (
        accounts,
        store,
    ):
        runtime = host.app.metered(accounts.quotas).runtime
        who = replace(host.who, account=account)

        async def run() -> Outcome:
            limits = raised_limits(host.app.limits, frozenset())
            operation = RunCode("python", b"1")
            return await runtime.perform(Action(principal=who, operation=operation, limits=limits))

        budgets = [
            each
            for each in await accounts.quotas.budgets_of(account)
            if each.meter.resource == resource
        ]
        if limit is None:
            if budgets:
                return f"a user has a budget of {budgets[0].limit:g}"
            done = await run()
            return "" if done.status is Status.OK else f"a user was refused: {ending(done)}"
        if not budgets:
            return "a user has no budget"
        price = settings.budgets.prices.get(_PRICED, 0.0) if resource == MONEY else 0.0
        part = limit - 1 if resource == RUNS else max(min(0.75 * limit, limit - price), 0.0)
        start_s = period_start_s(budgets[0], time())
        await store.settle([Charge(budget=budgets[0], amount=part, period_start_s=start_s)])
        done = await run()
        if done.status is not Status.OK:
            return f"a user with a part of it left was refused: {ending(done)}"
        rest = limit - part
        await store.settle([Charge(budget=budgets[0], amount=rest, period_start_s=start_s)])
        refused = await run()
        if refused.error is None or refused.error.code != _REFUSED:
            return f"a user with nothing left: {ending(refused)}"
    return ""

"""`/v1/budgets`: what the caller has used, and budgets of single users and teams (RBAC-4)."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter

from cellwall.core.accounts import Meter
from cellwall.interfaces.http.bodies import ERRORS
from cellwall.interfaces.http.bodies.sign_in import BudgetBody, BudgetChange, BudgetList
from cellwall.interfaces.http.callers import CurrentCaller
from cellwall.interfaces.http.checked_route import CheckedRoute
from cellwall.interfaces.http.service import CurrentService

routes = APIRouter(route_class=CheckedRoute, tags=["accounts"], responses=ERRORS)
Kind = Literal["user", "team"]
Resource = Literal["runs", "cpu_s", "sent_bytes", "money"]
_ONE = "/budgets/{kind}/{subject}/{resource}"


@routes.get("/budgets")
async def list_budgets(service: CurrentService, caller: CurrentCaller) -> BudgetList:
    """The budgets that bind the caller, and what is used of them."""
    found = await service.accounts.quotas.usage_of(caller.identity.account)
    return BudgetList(
        budgets=[
            BudgetBody(
                of="user" if each.budget.meter.kind == "user" else each.budget.meter.subject,
                resource=each.budget.meter.resource,
                limit=each.budget.limit,
                used=each.used,
                period_s=each.budget.period_s,
                resets=each.resets_s,
            )
            for each in found
        ]
    )


@routes.put(_ONE, status_code=204)
async def set_budget(
    service: CurrentService,
    caller: CurrentCaller,
    kind: Kind,
    subject: str,
    resource: Resource,
    body: BudgetChange,
) -> None:
    """Set the budget of a user or a team, in place of the configured one."""
    await service.accounts.directory.set_budget(
        Meter(kind, subject, resource),
        limit=body.limit,
        period_s=body.period_s,
        by=caller.principal,
    )


@routes.delete(_ONE, status_code=204)
async def remove_budget(
    service: CurrentService, caller: CurrentCaller, kind: Kind, subject: str, resource: Resource
) -> None:
    """The configured budget applies again."""
    await service.accounts.directory.remove_budget(
        Meter(kind, subject, resource), by=caller.principal
    )

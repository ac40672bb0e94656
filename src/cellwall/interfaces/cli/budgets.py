"""`cellwall budget`: what users and teams of the service may use, on the machine of the service."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.interfaces.cli.account_options import account_options, complete_user, time_text
from cellwall.interfaces.cli.exit_codes import CHANGE_EXIT_CODES
from cellwall.interfaces.cli.options import Decorated
from cellwall.interfaces.cli.output import print_result
from cellwall.interfaces.cli.tokens import parse_duration
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.account_admin import AccountAdmin, BudgetSubject, BudgetUse
    from cellwall.core.types import Json

_RESOURCES = ("runs", "cpu_s", "sent_bytes", "money")
_resource = click.argument("resource", metavar="RESOURCE", type=click.Choice(_RESOURCES))


def _subject_options(command: Decorated) -> Decorated:
    for option in (
        click.option("--team", "team_name", metavar="NAME", help="The team that has the budget."),
        click.option(
            "--user",
            "user_name",
            metavar="NAME",
            shell_complete=complete_user,
            help="The user who has the budget.",
        ),
    ):
        command = option(command)
    return command


@click.group(
    epilog="""\b
Examples:
  cellwall budget list --user ann
  cellwall budget set cpu_s 3600 --user ann
  cellwall budget remove cpu_s --user ann
"""
)
def budget() -> None:
    """Show, set and remove budgets of users and teams.

    RESOURCE is runs, cpu_s, sent_bytes or money. A budget here replaces the one of `[budgets]` in
    the configuration. A running service follows at its next request.
    """


@budget.command(
    "list",
    epilog="""\b
Examples:
  cellwall budget list --user ann
  cellwall budget list --team blue --json
""",
)
@_subject_options
@account_options
def list_budgets(
    user_name: str | None, team_name: str | None, accounts: AccountAdmin, *, as_json: bool
) -> int:
    """List the budgets that bind a user or a team, and what is used of them."""
    uses = accounts.list_budgets(_subject(user_name, team_name))
    listed: list[Json] = [_use_json(each) for each in uses]
    lines = [_use_line(each) for each in uses] or ["no budgets: usage is not limited"]
    print_result({"budgets": listed}, "".join(f"{line}\n" for line in lines), as_json=as_json)
    return 0


@budget.command(
    "set",
    epilog=f"""\b
Examples:
  cellwall budget set runs 5000 --user ann
  cellwall budget set money 20 --team blue --period 30d
{CHANGE_EXIT_CODES}""",
)
@_resource
@click.argument("limit", metavar="LIMIT", type=float)
@_subject_options
@click.option(
    "--period", metavar="TIME", default="24h", show_default=True,
    help="It begins anew after this time: 90m, 24h, 30d.",
)  # fmt: skip
@account_options
def set_budget(
    resource: str,
    limit: float,
    user_name: str | None,
    team_name: str | None,
    period: str,
    accounts: AccountAdmin,
    *,
    as_json: bool,
) -> int:
    """Limit what a user or a team may use in each period; 0 permits nothing."""
    subject, period_s = _subject(user_name, team_name), parse_duration(period)
    if not math.isfinite(limit) or limit < 0:
        raise BadInput(
            "a limit is a number of at least 0",
            hint="`cellwall budget remove` returns to the configured limit.",
            code="CW-USAGE",
        )
    accounts.set_budget(subject, resource, limit=limit, period_s=period_s)
    result: dict[str, Json] = {**_subject_json(subject), "resource": resource}
    result |= {"limit": limit, "period_s": period_s}
    text = f"{one_line(subject.name)}: at most {limit:g} {resource} in {period}\n"
    print_result(result, text, as_json=as_json)
    return 0


@budget.command(
    epilog=f"""\b
Examples:
  cellwall budget remove runs --user ann
{CHANGE_EXIT_CODES}"""
)
@_resource
@_subject_options
@account_options
def remove(
    resource: str,
    user_name: str | None,
    team_name: str | None,
    accounts: AccountAdmin,
    *,
    as_json: bool,
) -> int:
    """Remove a budget; the configured one applies again. What was used stays counted."""
    subject = _subject(user_name, team_name)
    accounts.remove_budget(subject, resource)
    text = f"{one_line(subject.name)}: the configured budget of {resource} applies\n"
    result: dict[str, Json] = {**_subject_json(subject), "removed": resource}
    print_result(result, text, as_json=as_json)
    return 0


def _subject(user_name: str | None, team_name: str | None) -> BudgetSubject:
    from cellwall.admin.account_admin import BudgetSubject  # noqa: PLC0415  # SQLAlchemy, not for --help

    if (user_name is None) == (team_name is None):
        raise BadInput(
            "name one user, or one team", hint="Use --user NAME or --team NAME.", code="CW-USAGE"
        )
    if user_name is not None:
        return BudgetSubject("user", user_name)
    return BudgetSubject("team", team_name or "")


def _subject_json(subject: BudgetSubject) -> dict[str, Json]:
    return {"kind": subject.kind, "name": subject.name}


def _use_json(use: BudgetUse) -> dict[str, Json]:
    meter = use.budget.meter
    return {
        "kind": meter.kind,
        "subject": meter.subject,
        "resource": meter.resource,
        "limit": use.budget.limit,
        "used": use.used,
        "period_s": use.budget.period_s,
        "resets": time_text(use.resets_s),
    }


def _use_line(use: BudgetUse) -> str:
    meter = use.budget.meter
    whose = "user" if meter.kind == "user" else meter.subject
    amount = f"{use.used:g} of {use.budget.limit:g}"
    return f"{whose:30} {meter.resource:12} {amount:24} until {time_text(use.resets_s)}"

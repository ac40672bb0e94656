"""`cellwall connection` and `cellwall calendar`: accounts at other services, and their use."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from cellwall.interfaces.cli.exit_codes import EXIT_CODES
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    cli_principal,
    json_option,
    open_configured,
    place_options,
)
from cellwall.interfaces.cli.output import print_json, print_result, print_text
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.connections import ConnectionAdmin
    from cellwall.core.connections import ConnectedAccount, UseAccount
    from cellwall.core.outcomes import Outcome
    from cellwall.core.types import Json

_FOR = "For this account of the service.  [default: the user of this machine]"


@click.group(
    epilog="""\b
Examples:
  cellwall vault set OFFICE_CALENDAR
  cellwall vault grant OFFICE_CALENDAR --host cal.example.com --basic password --tool account
  cellwall connection add office --url https://cal.example.com/ann/office/ --username ann \\
    --secret OFFICE_CALENDAR
"""
)
def connection() -> None:
    """Connect accounts at other services, such as a calendar.

    Each account has one owner, who alone can use it. Its password is a secret of the vault, and is
    put into requests outside of every sandbox.
    """


@connection.command(
    "add",
    epilog=f"""\b
Examples:
  cellwall connection add office --url https://cal.example.com/ann/office/ --username ann \\
    --secret OFFICE_CALENDAR
{EXIT_CODES}""",
)
@click.argument("name")
@click.option("--url", required=True, help="The calendar collection, over https.")
@click.option("--username", required=True, help="The user name there.")
@click.option("--secret", required=True, metavar="NAME", help="The password, by its vault name.")
@click.option("--kind", type=click.Choice(["caldav"]), default="caldav", show_default=True)
@click.option("--user", metavar="NAME", help=_FOR)
@json_option("Print one JSON object.")
@place_options
def add_connection(
    name: str,
    *,
    url: str,
    username: str,
    secret: str,
    kind: str,
    user: str | None,
    configured: ConfigOptions,
    as_json: bool,
) -> int:
    """Connect an account for its owner."""
    del kind  # the only one so far
    made = _admin(configured).add(
        name, kind="caldav", url=url, username=username, secret=secret, by=cli_principal(),
        user=user,
    )  # fmt: skip
    print_result(
        _account_json(made), f"{made.name} is connected for {made.owner}\n", as_json=as_json
    )
    return 0


@connection.command("list", epilog="\b\nExamples:\n  cellwall connection list --json\n")
@click.option("--user", metavar="NAME", help=_FOR)
@json_option("Print one JSON object.")
@place_options
def list_connections(*, user: str | None, configured: ConfigOptions, as_json: bool) -> int:
    """List the accounts of one owner."""
    found = _admin(configured).list(by=cli_principal(), user=user)
    if as_json:
        print_json({"connections": [_account_json(each) for each in found]})
        return 0
    lines = [f"{each.name}  {each.url}  {each.username}  secret {each.secret}" for each in found]
    print_text("".join(f"{one_line(line)}\n" for line in lines or ["no accounts"]))
    return 0


@connection.command(
    "remove", epilog=f"\b\nExamples:\n  cellwall connection remove office\n{EXIT_CODES}"
)
@click.argument("name")
@click.option("--user", metavar="NAME", help=_FOR)
@json_option("Print one JSON object.")
@place_options
def remove_connection(
    name: str, *, user: str | None, configured: ConfigOptions, as_json: bool
) -> int:
    """Disconnect an account; its secret stays in the vault."""
    _admin(configured).remove(name, by=cli_principal(), user=user)
    print_result({"removed": name}, f"{one_line(name)} is disconnected\n", as_json=as_json)
    return 0


@click.group(
    epilog="""\b
Examples:
  cellwall calendar list office --from 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z
  cellwall calendar create office 'Review' --from 2026-01-09T10:00:00Z --to 2026-01-09T11:00:00Z
"""
)
def calendar() -> None:
    """List and create events of a connected calendar.

    The requests are judged, limited by the egress rules and recorded, as those of a run.
    """


@calendar.command(
    "list",
    epilog=f"""\b
Examples:
  cellwall calendar list office --from 2026-01-01T00:00:00Z --to 2026-02-01T00:00:00Z
{EXIT_CODES}""",
)
@click.argument("account")
@click.option("--from", "start", required=True, metavar="TIME", help="ISO 8601 with its zone.")
@click.option("--to", "end", required=True, metavar="TIME", help="ISO 8601 with its zone.")
@json_option("Print one JSON object with the whole result.")
@place_options
def list_events(
    account: str, *, start: str, end: str, configured: ConfigOptions, as_json: bool
) -> int:
    """Print the events in a period, between two marker lines: their texts are untrusted."""
    from cellwall.core.connections import UseAccount

    operation = UseAccount(account, "list_events", start=start, end=end)
    return _print_outcome(_perform(configured, operation), as_json=as_json)


@calendar.command(
    "create",
    epilog=f"""\b
Examples:
  cellwall calendar create office Review --from 2026-01-09T10:00:00Z --to 2026-01-09T11:00:00Z
{EXIT_CODES}""",
)
@click.argument("account")
@click.argument("summary")
@click.option("--from", "start", required=True, metavar="TIME", help="ISO 8601 with its zone.")
@click.option("--to", "end", required=True, metavar="TIME", help="ISO 8601 with its zone.")
@click.option("--location", default="", help="Where it takes place.")
@click.option("--description", default="", help="More about it.")
@json_option("Print one JSON object with the whole result.")
@place_options
def create_event(
    account: str,
    summary: str,
    *,
    start: str,
    end: str,
    location: str,
    description: str,
    configured: ConfigOptions,
    as_json: bool,
) -> int:
    """Create an event; an existing event is never replaced."""
    from cellwall.core.connections import CalendarEvent, UseAccount

    event = CalendarEvent(summary, start, end, location, description)
    operation = UseAccount(account, "create_event", event=event)
    return _print_outcome(_perform(configured, operation), as_json=as_json)


def _admin(configured: ConfigOptions) -> ConnectionAdmin:
    from cellwall.admin.connections import ConnectionAdmin
    from cellwall.config.load import load_settings
    from cellwall.runtime.home import state_home

    settings = load_settings(
        file=configured["config"], profile=configured["profile"], environ=os.environ
    )
    return ConnectionAdmin(state_home(os.environ), settings)


def _account_json(account: ConnectedAccount) -> dict[str, Json]:
    names = ("id", "owner", "name", "kind", "url", "username", "secret", "created_s")
    return {name: getattr(account, name) for name in names}


def _perform(configured: ConfigOptions, operation: UseAccount) -> Outcome:
    import anyio

    from cellwall.core.types import Action
    from cellwall.interfaces.cli.approval_prompt import TerminalApprover

    app, who = open_configured(configured), cli_principal()
    action = Action(principal=who, operation=operation, limits=app.limits, audience="model")

    async def perform() -> Outcome:
        return await app.runtime.perform(action, ask=TerminalApprover(who))

    return anyio.run(perform)


def _print_outcome(outcome: Outcome, *, as_json: bool) -> int:
    if as_json:
        print_json(outcome.to_json())
        return 0 if outcome.error is None else 125
    outcome.raise_for_status()
    print_text(f"{outcome.shown}\n")
    return 0

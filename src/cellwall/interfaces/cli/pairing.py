"""`cellwall pair`: pairs accounts of chat and mail channels with users of the service."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from cellwall.interfaces.cli.exit_codes import EXIT_CODES
from cellwall.interfaces.cli.options import ConfigOptions, cli_principal, json_option, place_options
from cellwall.interfaces.cli.output import print_json, print_result, print_text
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.accounts.pairing import Pairings
    from cellwall.core.types import Json

_Result = TypeVar("_Result")


@click.group(
    epilog="""\b
Examples:
  cellwall pair code ann
  cellwall pair list ann
"""
)
def pair() -> None:
    """Pair accounts of chat and mail channels with users of the service.

    The user sends the one-time code on the channel; the sender of that message is then the user.
    """


@pair.command("code", epilog=f"\b\nExamples:\n  cellwall pair code ann\n{EXIT_CODES}")
@click.argument("user")
@json_option("Print one JSON object.")
@place_options
def new_code(user: str, *, configured: ConfigOptions, as_json: bool) -> int:
    """Print a one-time code for a user; an older one is void."""
    who = cli_principal()
    code = _run(configured, lambda pairings: pairings.new_code(user, by=who))
    print_result({"user": user, "code": code}, f"{code}\n", as_json=as_json)
    return 0


@pair.command("list", epilog="\b\nExamples:\n  cellwall pair list ann --json\n")
@click.argument("user")
@json_option("Print one JSON object.")
@place_options
def list_pairings(user: str, *, configured: ConfigOptions, as_json: bool) -> int:
    """List the paired accounts of a user."""
    who = cli_principal()
    found = _run(configured, lambda pairings: pairings.list_of(user, by=who))
    if as_json:
        rows: list[Json] = [
            {"id": each.id, "channel": each.channel, "created_s": each.created_s} for each in found
        ]
        print_json({"pairings": rows})
        return 0
    lines = [f"{each.id}  {each.channel}" for each in found] or ["no paired accounts"]
    print_text("".join(f"{line}\n" for line in lines))
    return 0


@pair.command("remove", epilog=f"\b\nExamples:\n  cellwall pair remove ann pair_...\n{EXIT_CODES}")
@click.argument("user")
@click.argument("pairing")
@json_option("Print one JSON object.")
@place_options
def remove_pairing(user: str, pairing: str, *, configured: ConfigOptions, as_json: bool) -> int:
    """End a pairing; its messages are not handled any more."""
    who = cli_principal()
    _run(configured, lambda pairings: pairings.remove(user, pairing, by=who))
    print_result({"removed": pairing}, f"{one_line(pairing)} is removed\n", as_json=as_json)
    return 0


def _run(configured: ConfigOptions, work: Callable[[Pairings], Awaitable[_Result]]) -> _Result:
    import anyio

    from cellwall.admin.accounts import open_accounts
    from cellwall.config.load import load_settings
    from cellwall.runtime.home import state_home
    from cellwall.runtime.recording import open_record

    settings = load_settings(
        file=configured["config"], profile=configured["profile"], environ=os.environ
    )
    home = state_home(os.environ)

    async def run() -> _Result:
        with open_record(home, settings) as audit:
            async with open_accounts(home, settings, issuer="cli", audit=audit) as (accounts, _):
                return await work(accounts.pairings)

    return anyio.run(run)

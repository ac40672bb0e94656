"""`cellwall passkey`: passkeys of users, on the machine of the service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.interfaces.cli.account_options import account_options, complete_user, time_text
from cellwall.interfaces.cli.exit_codes import CHANGE_EXIT_CODES
from cellwall.interfaces.cli.output import print_result
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.account_admin import AccountAdmin
    from cellwall.core.accounts import Passkey
    from cellwall.core.types import Json

_owner = click.option(
    "--user", "user_name", metavar="NAME", required=True, shell_complete=complete_user,
    help="The user who signs in with it.",
)  # fmt: skip


@click.group(
    epilog="""\b
Examples:
  cellwall passkey list --user ann
  cellwall passkey remove --user ann --all
"""
)
def passkey() -> None:
    """List and remove passkeys of users.

    A user adds a passkey in a browser, while signed in. The public half is kept here.
    """


@passkey.command(
    "list",
    epilog="""\b
Examples:
  cellwall passkey list --user ann
  cellwall passkey list --user ann --json | jq -r '.passkeys[].id'
""",
)
@_owner
@account_options
def list_passkeys(user_name: str, accounts: AccountAdmin, *, as_json: bool) -> int:
    """List the passkeys of a user, the oldest first."""
    found = accounts.list_passkeys(user_name)
    listed: list[Json] = [_passkey_json(each) for each in found]
    lines = [_passkey_line(each) for each in found] or ["no passkeys"]
    print_result({"passkeys": listed}, "".join(f"{line}\n" for line in lines), as_json=as_json)
    return 0


@passkey.command(
    epilog=f"""\b
Examples:
  cellwall passkey remove --user ann pky_1b2c3d4e5f6g7h8j9kmn
  cellwall passkey remove --user ann --all
{CHANGE_EXIT_CODES}"""
)
@click.argument("passkey_id", metavar="ID", required=False)
@_owner
@click.option("--all", "is_all", is_flag=True, help="Every passkey of the user.")
@account_options
def remove(
    passkey_id: str | None,
    user_name: str,
    accounts: AccountAdmin,
    *,
    is_all: bool,
    as_json: bool,
) -> int:
    """Remove a passkey, or all of a user, as after a theft.

    Sign-ins that were made with it go on: end them with `cellwall token revoke --user NAME`.
    """
    if (passkey_id is None) != is_all:
        raise BadInput(
            "name one passkey, or --all", hint="See `cellwall passkey list`.", code="CW-USAGE"
        )
    count = accounts.remove_passkeys(user_name, passkey_id)
    noun = "passkey" if count == 1 else "passkeys"
    text = f"{count} {noun} of {one_line(user_name)} removed\n"
    print_result({"user": user_name, "removed": count}, text, as_json=as_json)
    return 0


def _passkey_json(found: Passkey) -> dict[str, Json]:
    return {
        "id": found.id,
        "name": found.name,
        "created": time_text(found.created_s),
        "used": None if found.used_s is None else time_text(found.used_s),
    }


def _passkey_line(found: Passkey) -> str:
    used = "never used" if found.used_s is None else f"used {time_text(found.used_s)}"
    return f"{found.id:30} {one_line(found.name):24} {used}"

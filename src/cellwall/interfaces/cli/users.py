"""`cellwall user`: the people who use the service, on the machine of the service."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.core.types import ROLE_NAMES
from cellwall.interfaces.cli.account_options import account_options, complete_user, time_text
from cellwall.interfaces.cli.exit_codes import CHANGE_EXIT_CODES
from cellwall.interfaces.cli.output import print_result
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.account_admin import AccountAdmin, User
    from cellwall.core.types import Json

_MAX_PASSWORD_BYTES = 2048
_user_name = click.argument("name", metavar="NAME", shell_complete=complete_user)
_role = click.Choice(list(ROLE_NAMES))


@click.group(
    epilog="""\b
Examples:
  cellwall user add ann --role user
  cellwall user list
  cellwall user role ann administrator
"""
)
def user() -> None:
    """Add, list and remove the people who use the service.

    The commands change the service's database on this machine, whether or not the service runs. A
    running service follows at its next request.
    """


@user.command(
    epilog=f"""\b
Examples:
  cellwall user add ann --role user
  cellwall user add ann --role owner --password-stdin < password.txt
{CHANGE_EXIT_CODES}"""
)
@click.argument("name", metavar="NAME")
@click.option("--role", type=_role, required=True, help="What the user may do at most.")
@click.option(
    "--password-stdin",
    is_flag=True,
    help="Read the password from standard input.  [default: a link with which the user sets it]",
)
@account_options
def add(
    name: str, role: str, accounts: AccountAdmin, *, password_stdin: bool, as_json: bool
) -> int:
    """Add a user, and print the secret of a one-time sign-in link.

    The user opens the link to set a password; it works once and for a few minutes. `user link`
    makes a new one. Without a password or link the user works by service tokens alone.
    """
    password = _read_password() if password_stdin else None
    added, link = accounts.add_user(name, role, password)
    text = f"{added.name} added with the role {added.role}\n"
    if link is not None:
        text += f"one-time code for the first sign-in: {link}\n"
        text += (
            f"to be opened at the address that `cellwall serve` prints: ADDRESS/#sign-in={link}\n"
        )
    print_result({**_user_json(added), "sign_in_code": link}, text, as_json=as_json)
    return 0


@user.command(
    "list",
    epilog="""\b
Examples:
  cellwall user list
  cellwall user list --json | jq -r '.users[].name'
""",
)
@account_options
def list_users(accounts: AccountAdmin, *, as_json: bool) -> int:
    """List the users with their roles."""
    users = accounts.list_users()
    listed: list[Json] = [_user_json(each) for each in users]
    lines = [_user_line(each) for each in users] or ["no users"]
    print_result({"users": listed}, "".join(f"{line}\n" for line in lines), as_json=as_json)
    return 0


@user.command(
    epilog=f"""\b
Examples:
  cellwall user remove ann
{CHANGE_EXIT_CODES}"""
)
@_user_name
@account_options
def remove(name: str, accounts: AccountAdmin, *, as_json: bool) -> int:
    """Remove a user with every token and sign-in. Audit records stay."""
    accounts.remove_user(name)
    print_result({"removed": name}, f"{one_line(name)} removed\n", as_json=as_json)
    return 0


@user.command(
    epilog=f"""\b
Examples:
  cellwall user role ann administrator
{CHANGE_EXIT_CODES}"""
)
@_user_name
@click.argument("role_name", metavar="ROLE", type=_role)
@account_options
def role(name: str, role_name: str, accounts: AccountAdmin, *, as_json: bool) -> int:
    """Give a user another role; it holds for the next request."""
    accounts.set_role(name, role_name)
    text = f"{one_line(name)} has the role {role_name}\n"
    print_result({"name": name, "role": role_name}, text, as_json=as_json)
    return 0


@user.command(
    epilog=f"""\b
Examples:
  cellwall user password ann
  cellwall user password ann < password.txt
{CHANGE_EXIT_CODES}"""
)
@_user_name
@account_options
def password(name: str, accounts: AccountAdmin, *, as_json: bool) -> int:
    """Set a password: from standard input, or typed twice at a hidden prompt.

    Every token and sign-in of the user ends.
    """
    accounts.require_user(name)
    accounts.set_password(name, _read_password())
    text = f"the password of {one_line(name)} is set; all tokens of the user have ended\n"
    print_result({"name": name, "password": "set"}, text, as_json=as_json)
    return 0


@user.command(
    epilog=f"""\b
Examples:
  cellwall user link ann
{CHANGE_EXIT_CODES}"""
)
@_user_name
@account_options
def link(name: str, accounts: AccountAdmin, *, as_json: bool) -> int:
    """Print a new one-time code with which the user sets a password; an older one ends."""
    code = accounts.make_link(name)
    print_result({"name": name, "sign_in_code": code}, f"{code}\n", as_json=as_json)
    return 0


@user.command(
    epilog=f"""\b
Examples:
  cellwall user disable ann
{CHANGE_EXIT_CODES}"""
)
@_user_name
@account_options
def disable(name: str, accounts: AccountAdmin, *, as_json: bool) -> int:
    """Keep a user from signing in, and end every token."""
    return _set_disabled(accounts, name, is_disabled=True, as_json=as_json)


@user.command(
    epilog=f"""\b
Examples:
  cellwall user enable ann
{CHANGE_EXIT_CODES}"""
)
@_user_name
@account_options
def enable(name: str, accounts: AccountAdmin, *, as_json: bool) -> int:
    """Let a disabled user sign in again; old tokens stay ended."""
    return _set_disabled(accounts, name, is_disabled=False, as_json=as_json)


def _read_password() -> str:
    from cellwall.interfaces.cli.terminal_input import read_value

    value = read_value(max_bytes=_MAX_PASSWORD_BYTES, keep_newline=False, what="Password")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise BadInput(
            "the password is not UTF-8 text", hint="Type it.", code="CW-ACCOUNT-PASSWORD"
        ) from None
    finally:
        value[:] = bytes(len(value))


def _set_disabled(accounts: AccountAdmin, name: str, *, is_disabled: bool, as_json: bool) -> int:
    accounts.set_disabled(name, is_disabled=is_disabled)
    text = f"{one_line(name)} is {'disabled' if is_disabled else 'enabled'}\n"
    print_result({"name": name, "disabled": is_disabled}, text, as_json=as_json)
    return 0


def _user_json(found: User) -> dict[str, Json]:
    return {
        "id": found.id,
        "name": found.name,
        "role": found.role,
        "disabled": found.is_disabled,
        "created": time_text(found.created_s),
    }


def _user_line(found: User) -> str:
    return f"{found.name:24} {found.role:14}" + (" disabled" if found.is_disabled else "")

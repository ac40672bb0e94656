"""`cellwall token`: service tokens, on the machine of the service."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.core.types import Permission
from cellwall.interfaces.cli.account_options import (
    account_options,
    complete_token,
    complete_user,
    time_text,
)
from cellwall.interfaces.cli.exit_codes import CHANGE_EXIT_CODES
from cellwall.interfaces.cli.output import print_result
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.account_admin import AccountAdmin, ServiceToken, User
    from cellwall.core.types import Json

_DURATION = re.compile(r"([0-9]{1,9})([smhd]?)")
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


@click.group(
    epilog="""\b
Examples:
  cellwall token create --user ann --ttl 1h
  cellwall token list
  cellwall token revoke tok_1b2c3d4e5f6g7h8j9kmn
"""
)
def token() -> None:
    """Create, list and revoke service tokens.

    A program sends one as `Authorization: Bearer TOKEN`. It can do what its user may do, or less.
    """


@token.command(
    epilog=f"""\b
Examples:
  cellwall token create --user ann
  TOKEN=$(cellwall token create --user ann --ttl 30d --name ci)
  cellwall token create --user ann --scope sandbox:execute --scope files:read
{CHANGE_EXIT_CODES}"""
)
@click.option(
    "--user", "user_name", metavar="NAME", required=True, shell_complete=complete_user,
    help="The user whose rights the token has.",
)  # fmt: skip
@click.option(
    "--ttl", metavar="TIME", default="1h", show_default=True,
    help="How long it works: 90s, 30m, 12h, 30d.",
)  # fmt: skip
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    type=click.Choice([permission.value for permission in Permission]),
    metavar="S",
    help="Permission of the token, such as sandbox:execute; may be repeated.  [default: all "
    "permissions of the user's role]",
)
@click.option("--name", metavar="WORD", default="cli", show_default=True, help="Name in the list.")
@account_options
def create(
    user_name: str,
    ttl: str,
    scopes: tuple[str, ...],
    name: str,
    accounts: AccountAdmin,
    *,
    as_json: bool,
) -> int:
    """Print a new token, once and alone. Only its hash is kept."""
    secret, made = accounts.create_token(
        user_name, name=name, scopes=scopes, lives_s=parse_duration(ttl)
    )
    print_result({"token": secret, **_token_json(user_name, made)}, f"{secret}\n", as_json=as_json)
    return 0


@token.command(
    "list",
    epilog="""\b
Examples:
  cellwall token list
  cellwall token list --user ann --json
""",
)
@click.option(
    "--user", "user_name", metavar="NAME", shell_complete=complete_user,
    help="Only tokens of this user.",
)  # fmt: skip
@account_options
def list_tokens(user_name: str | None, accounts: AccountAdmin, *, as_json: bool) -> int:
    """List service tokens with their scopes and expiry; never a token itself."""
    found = accounts.list_tokens(user_name)
    listed: list[Json] = [_token_json(owner.name, each) for owner, each in found]
    lines = [_token_line(owner, each) for owner, each in found] or ["no tokens"]
    print_result({"tokens": listed}, "".join(f"{line}\n" for line in lines), as_json=as_json)
    return 0


@token.command(
    epilog=f"""\b
Examples:
  cellwall token revoke tok_1b2c3d4e5f6g7h8j9kmn
  cellwall token revoke --user ann
{CHANGE_EXIT_CODES}"""
)
@click.argument("token_id", metavar="ID", required=False, shell_complete=complete_token)
@click.option(
    "--user", "user_name", metavar="NAME", shell_complete=complete_user,
    help="Every token and sign-in of this user instead of one token.",
)  # fmt: skip
@account_options
def revoke(
    token_id: str | None, user_name: str | None, accounts: AccountAdmin, *, as_json: bool
) -> int:
    """End a token, or all of a user; a running service refuses it at the next request."""
    if (token_id is None) == (user_name is None):
        raise BadInput(
            "name one token, or one user", hint="See `cellwall token list`.", code="CW-USAGE"
        )
    if token_id is not None:
        accounts.revoke_token(token_id)
    if user_name is not None:
        accounts.revoke_user(user_name)
    ended = token_id or f"every token of {user_name}"
    result: dict[str, Json] = {"revoked": token_id, "user": user_name}
    print_result(result, f"{one_line(ended)} has ended\n", as_json=as_json)
    return 0


def parse_duration(text: str) -> float:
    """`90s`, `30m`, `12h`, `30d`; a bare number is seconds."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise BadInput(
            f"{text[:40]!r} is not a time", hint="Write 90s, 30m, 12h or 30d.", code="CW-USAGE"
        )
    return float(int(found[1]) * _SECONDS[found[2]])


def _token_json(user_name: str, found: ServiceToken) -> dict[str, Json]:
    return {
        "id": found.id,
        "user": user_name,
        "name": found.name,
        "scopes": list(found.scopes),
        "created": time_text(found.created_s),
        "expires": time_text(found.expires_s),
        "revoked": found.is_revoked,
    }


def _token_line(owner: User, found: ServiceToken) -> str:
    state = "revoked" if found.is_revoked else f"until {time_text(found.expires_s)}"
    return f"{found.id:28} {owner.name:20} {found.name:16} {state}  {' '.join(found.scopes)}"

"""What the commands about accounts share: their options, and completion of names and ids."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from cellwall.core.errors import CellwallError
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    Decorated,
    cli_principal,
    json_option,
    place_options,
)

if TYPE_CHECKING:
    from cellwall.admin.account_admin import AccountAdmin


def account_options(command: Decorated) -> Decorated:
    """`--profile`, `--config` and `--json`; the command receives `accounts`."""

    @functools.wraps(command)
    def with_accounts(*, configured: ConfigOptions, **values: Any) -> int:  # noqa: ANN401  # what click has parsed
        from cellwall.admin.account_admin import AccountAdmin

        accounts = AccountAdmin.configured(cli_principal(), **configured)
        return int(command(accounts=accounts, **values))

    return json_option("Print one JSON object.")(place_options(with_accounts))  # type: ignore[return-value]  # click keeps what it decorates


def _existing(ctx: click.Context) -> AccountAdmin | None:
    """The accounts, if there is a database: a completion creates none."""
    from cellwall.admin.account_admin import AccountAdmin

    options = ConfigOptions(profile=ctx.params.get("profile"), config=ctx.params.get("config"))
    accounts = AccountAdmin.configured(cli_principal(), **options)
    return accounts if accounts.has_database else None


def complete_user(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Names of users for completion; errors are ignored."""
    try:
        accounts = _existing(ctx)
        users = accounts.list_users() if accounts else ()
    except (CellwallError, OSError):
        return []
    return [user.name for user in users if user.name.startswith(begun)]


def complete_token(ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Ids of tokens that are not revoked, for completion; errors are ignored."""
    try:
        accounts = _existing(ctx)
        found = accounts.list_tokens(None) if accounts else ()
    except (CellwallError, OSError):
        return []
    tokens = (token for _, token in found if not token.is_revoked)
    return [token.id for token in tokens if token.id.startswith(begun)]


def time_text(seconds: float) -> str:
    """Of a record, for people and programs."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")

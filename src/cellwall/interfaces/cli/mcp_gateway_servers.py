"""What the commands of `cellwall mcp gateway` share: to open, start and show a server."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cellwall.core.errors import CellwallError
from cellwall.core.showing import block
from cellwall.interfaces.cli.mcp_review_text import review_json, review_text
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    cli_principal,
    open_configured,
    open_unlocked,
)
from cellwall.interfaces.cli.output import print_result, say

if TYPE_CHECKING:
    from cellwall.admin.tool_reviews import ServerReview
    from cellwall.admin.tool_servers import ServerSettings, ToolServerAdmin
    from cellwall.runtime.app import App

DECISION_WAITS = 3
EXIT_CODES = """
\b
Exit codes:
  0    done; for review: nothing waits for you
  3    for add and review: definitions wait for your decision
  125  refused or failed; the reason is on standard error
"""


def server_admin(app: App) -> ToolServerAdmin:
    """The servers of the gateway."""
    from cellwall.admin.tool_servers import ToolServerAdmin

    return ToolServerAdmin(app)


def open_for_settings(
    configured: ConfigOptions, settings: ServerSettings, passphrase_fd: int | None
) -> App:
    """With the vault open, where the settings name secrets."""
    return (
        open_unlocked(configured, passphrase_fd)
        if settings.secrets
        else open_configured(configured)
    )


def open_for_server(
    configured: ConfigOptions, name: str, passphrase_fd: int | None, *, starts: bool
) -> App:
    """With the vault open, where the server to be started needs it."""
    app = open_configured(configured)
    if not starts:
        return app
    try:
        entries = [
            each for each in server_admin(app).entries() if not isinstance(each, CellwallError)
        ]
        if not any(each.name == name and each.settings.secrets for each in entries):
            return app
    except BaseException:
        app.close()
        raise
    app.close()
    return open_unlocked(configured, passphrase_fd)


def start_and_keep(admin: ToolServerAdmin, name: str, *, as_json: bool) -> None:
    """Start the server and keep what it says."""
    import anyio

    from cellwall.interfaces.cli.approval_prompt import TerminalApprover

    who = cli_principal()

    async def look() -> None:
        await admin.look(name, who=who, ask=TerminalApprover(who))

    try:
        anyio.run(look)
    except CellwallError:
        if admin.server_errors and not as_json:
            say("the standard error of the server ends with:")
            click.echo(block(admin.server_errors), err=True, nl=False)
        raise


def show_review(found: ServerReview, *, as_json: bool) -> int:
    """Print a review; returns the exit code."""
    print_result(review_json(found), review_text(found) + "\n", as_json=as_json)
    return DECISION_WAITS if found.waits else 0

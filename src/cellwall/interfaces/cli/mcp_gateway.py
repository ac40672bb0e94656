"""`cellwall mcp gateway`: other MCP servers behind Cellwall, and the review of their tools."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.types import Json
from cellwall.interfaces.cli.mcp_gateway_add import add
from cellwall.interfaces.cli.mcp_gateway_servers import (
    DECISION_WAITS,
    EXIT_CODES,
    open_for_server,
    server_admin,
    show_review,
    start_and_keep,
)
from cellwall.interfaces.cli.mcp_review_text import review_text
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    cli_principal,
    json_option,
    open_configured,
    passphrase_option,
    place_options,
)
from cellwall.interfaces.cli.output import print_result, say

if TYPE_CHECKING:
    from cellwall.admin.tool_reviews import ServerReview
    from cellwall.admin.tool_servers import ServerEntry


@click.group(
    epilog="""\b
Examples:
  cellwall mcp gateway add time --package mcp-server-time -- python3 -m mcp_server_time
  cellwall mcp gateway add search --url https://mcp.example.com/mcp \\
      --secret SEARCH_TOKEN --header 'Authorization: Bearer ${SEARCH_TOKEN}'
  cellwall mcp gateway review time
  cellwall mcp gateway review time --accept
  cellwall mcp install --client claude-code -- --gateway
"""
)
def gateway() -> None:
    """Put Cellwall in front of other MCP servers.

    A local server runs in a sandbox without network, a remote one is reached by the egress rules
    with secrets of the vault. An agent sees a tool only after you have accepted its definition;
    what is new or changed waits in quarantine. `cellwall mcp --gateway` serves the tools of all
    servers.
    """


gateway.add_command(add)


@gateway.command(name="list")
@json_option("Print one JSON list.")
@place_options
def list_servers(*, configured: ConfigOptions, as_json: bool) -> int:
    """List the servers and how many of their tools are offered or wait for you."""
    app = open_configured(configured)
    try:
        rows = [_row(each) for each in server_admin(app).entries()]
    finally:
        app.close()
    lines = [
        f"{row['name']:<20} {row['state']:<10} {row['accepted']} accepted, {row['waiting']} waiting"
        for row in rows
    ]
    text = "\n".join(lines) or "There are no servers; add one with `cellwall mcp gateway add`."
    text += "\n"
    print_result(list(rows), text, as_json=as_json)
    return 0


def _row(entry: ServerEntry | CellwallError) -> dict[str, Json]:
    from cellwall.admin.tool_reviews import waiting_in
    from cellwall.admin.tool_servers import describe

    if isinstance(entry, CellwallError):
        return {"name": "?", "state": "damaged", "accepted": 0, "waiting": 0, "error": str(entry)}
    waiting = waiting_in(entry)
    state = "new" if entry.pins.identity is None else "review" if waiting else "ok"
    return {
        **describe(entry),
        "state": state,
        "accepted": len(entry.pins.tools),
        "tools": sorted(entry.pins.tools),
        "waiting": len(waiting),
        "seen_at": entry.seen_at,
    }


@gateway.command(epilog=EXIT_CODES)
@click.argument("name")
@click.option("--accept", is_flag=True, help="Accept what waits, after you confirm it.")
@click.option("--reject", is_flag=True, help="Reject what is shown, also accepted tools.")
@click.option(
    "--tool", "tools", metavar="TOOL", multiple=True, help="Only this tool; may be repeated."
)
@click.option(
    "--dangerously-despite-findings",
    "despite",
    is_flag=True,
    help="Accept definitions although the guard has found something in them.",
)
@click.option(
    "--as",
    "offered_as",
    metavar="NAME",
    default="",
    help="Offer the one tool that --tool names under another name.",
)
@click.option(
    "--together",
    is_flag=True,
    help="Consent, with --accept, that this server by itself brings untrusted content, private "
    "data and egress; ends when its tools change, and with an --accept without it.",
)
@click.option("--stored", is_flag=True, help="Do not start the server; show what was last seen.")
@passphrase_option
@json_option("Print one JSON object.")
@place_options
def review(
    name: str,
    *,
    configured: ConfigOptions,
    accept: bool,
    reject: bool,
    tools: tuple[str, ...],
    despite: bool,
    offered_as: str,
    together: bool,
    stored: bool,
    passphrase_fd: int | None,
    as_json: bool,
) -> int:
    """Show what a server says about itself and its tools, as a diff, and decide about it.

    The server is started in its sandbox and asked again. To accept, a person confirms at a terminal
    what is shown; no option takes the place of that. With approvals.key this needs the passphrase
    of the approver. With --reject, or --stored, the server is not
    started, and what was last seen counts.
    """
    from cellwall.interfaces.cli.terminal_input import ask_approver

    if accept and reject:
        raise BadInput(
            "accept or reject, not both",
            hint="Use one of --accept and --reject; with --tool for some of the tools.",
            code="CW-USAGE",
        )
    if (not (accept or reject) and (tools or despite)) or (offered_as and not accept):
        raise BadInput(
            "--tool goes with --accept or --reject",
            hint="Leave it out to see all tools.",
            code="CW-USAGE",
        )
    if together and not accept:
        raise BadInput(
            "--together goes with --accept",
            hint="Write --accept --together.",
            code="CW-USAGE",
        )
    starts = not (stored or reject)
    app = open_for_server(configured, name, passphrase_fd, starts=starts)
    try:
        admin = server_admin(app)
        if starts:
            start_and_keep(admin, name, as_json=as_json)
        found = admin.review(name)
        if not (accept or reject):
            return show_review(found, as_json=as_json)
        who = cli_principal()
        if reject:
            done = admin.reject(found, only=tools, who=who)
        else:
            chosen: Any = {"only": tools, "despite_findings": despite, "offered_as": offered_as}
            chosen["together"] = together
            admin.check_acceptable(found, **chosen)
            if not _is_confirmed(found, tools, offered_as, together=together):
                say("nothing is accepted")
                return DECISION_WAITS
            done = admin.accept(found, **chosen, who=who, ask=ask_approver)
    finally:
        app.close()
    verb = "accepted" if accept else "rejected"
    names = ", ".join(sorted(done)) or "no tool"
    answer: dict[str, Json] = {"name": name, verb: sorted(done)}
    print_result(answer, f"{verb.capitalize()}: {names}.\n", as_json=as_json)
    return 0


def _is_confirmed(
    found: ServerReview, tools: tuple[str, ...], offered_as: str, *, together: bool
) -> bool:
    from cellwall.interfaces.cli.terminal_input import confirm

    only = f"\nOnly: {', '.join(tools)}\n" if tools else "\n"
    only += f"Offered as: {offered_as}\n" if offered_as else ""
    only += "You consent to all that it brings by itself, together.\n" if together else ""
    return confirm(review_text(found) + only, what="that agents may use these tools")


@gateway.command()
@click.argument("name")
@json_option("Print one JSON object.")
@place_options
def remove(name: str, *, configured: ConfigOptions, as_json: bool) -> int:
    """Remove a server and everything that was accepted of it."""
    app = open_configured(configured)
    try:
        server_admin(app).remove(name, who=cli_principal())
    finally:
        app.close()
    print_result({"name": name, "removed": True}, f"{name} is removed.\n", as_json=as_json)
    return 0

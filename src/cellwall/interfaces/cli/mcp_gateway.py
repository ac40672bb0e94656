"""`cellwall mcp gateway`: other MCP servers behind Cellwall, and the review of their tools."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.limits import parse_size
from cellwall.core.showing import block
from cellwall.core.types import Json
from cellwall.interfaces.cli.mcp_review_text import review_json, review_text
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    cli_principal,
    json_option,
    open_configured,
    open_unlocked,
    passphrase_option,
    place_options,
)
from cellwall.interfaces.cli.output import Progress, print_result, say
from cellwall.interfaces.sandbox_options import parse_workspace, template_with, variables

if TYPE_CHECKING:
    from cellwall.admin.tool_servers import (
        ServerEntry,
        ServerReview,
        ServerSettings,
        ToolServerAdmin,
    )
    from cellwall.runtime.app import App

_WAITS = 3
_EXIT_CODES = """
\b
Exit codes:
  0    done; for review: nothing waits for you
  3    for add and review: definitions wait for your decision
  125  refused or failed; the reason is on standard error
"""


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


@gateway.command(epilog=_EXIT_CODES)
@click.argument("name")
@click.option("--url", metavar="URL", help="Address of a remote server (streamable HTTP).")
@click.option(
    "--header",
    "headers",
    metavar="'NAME: VALUE'",
    multiple=True,
    help="Header for a remote server; ${SECRET} stands for a secret; may be repeated.",
)
@click.option(
    "--secret",
    "secrets",
    metavar="NAME",
    multiple=True,
    help="Secret of the vault: the server gets a placeholder under this name, and egress inserts "
    "the value where a grant allows it; may be repeated.",
)
@click.option(
    "--allow-domain",
    "domains",
    metavar="D",
    multiple=True,
    help="Domain that a local server may reach; may be repeated.  [default: nothing]",
)
@click.option(
    "--env", metavar="K=V", multiple=True, help="Variable for a local server; may be repeated."
)
@click.option(
    "--workspace",
    metavar="DIR[:ro|rw]",
    type=click.Path(),
    help="Directory that a local server sees at /workspace.  [default: an empty one; DIR is ro]",
)
@click.option(
    "--package",
    "packages",
    metavar="PACKAGE",
    multiple=True,
    help="Python package that a local server needs, judged and installed now; may be repeated.",
)
@click.option("--memory", metavar="SIZE", help="Memory of the server's sandbox.")
@click.option(
    "--timeout",
    metavar="S",
    type=click.FloatRange(min=0.1, max=3600),
    default=60.0,
    help="Seconds for one call.  [default: 60]",
)
@click.option(
    "--elicitation",
    is_flag=True,
    help="Pass questions of the server on to you, marked with its name.  [default: refused]",
)
@click.option("--no-start", is_flag=True, help="Do not start the server now.")
@passphrase_option
@json_option("Print one JSON object.")
@place_options
@click.argument("command", metavar="[-- COMMAND [ARG]...]", nargs=-1)
def add(
    name: str,
    command: tuple[str, ...],
    *,
    configured: ConfigOptions,
    url: str | None,
    headers: tuple[str, ...],
    secrets: tuple[str, ...],
    domains: tuple[str, ...],
    env: tuple[str, ...],
    workspace: str | None,
    packages: tuple[str, ...],
    memory: str | None,
    timeout: float,
    elicitation: bool,
    no_start: bool,
    passphrase_fd: int | None,
    as_json: bool,
) -> int:
    """Add an MCP server, start it in its sandbox and show its tools.

    Nothing of it is offered to an agent before you accept it with `review`. A server that does not
    start stays in the list.
    """
    from cellwall.admin.tool_servers import ServerSettings, check_settings
    from cellwall.core.tool_servers import check_server_name

    check_server_name(name)
    request = parse_workspace(workspace)
    template = "python"
    if packages:
        progress = Progress(quiet=as_json)
        try:
            template = template_with(
                packages,
                template,
                config=configured["config"],
                profile=configured["profile"],
                interface="cli",
                on_progress=progress,
                ask=None,
            )
        finally:
            progress.end()
    settings = ServerSettings(
        name=name,
        argv=command,
        url=url or "",
        headers=headers,
        env=variables(env),
        domains=domains,
        secrets=secrets,
        directory=os.path.realpath(request.directory) if request.directory else "",
        mode=request.mode.value,
        template=template,
        memory_bytes=parse_size(memory) if memory else 0,
        timeout_s=timeout,
        may_elicit=elicitation,
    )
    check_settings(settings)
    app = _open(configured, settings, passphrase_fd)
    try:
        admin = _admin(app)
        admin.add(settings, who=cli_principal())
        if no_start:
            answer: dict[str, Json] = {"name": name, "added": True}
            print_result(answer, f"{name} is added; review it next.\n", as_json=as_json)
            return 0
        _look(admin, name, as_json=as_json)
        return _show(admin.review(name), as_json=as_json)
    finally:
        app.close()


@gateway.command(name="list")
@json_option("Print one JSON list.")
@place_options
def list_servers(*, configured: ConfigOptions, as_json: bool) -> int:
    """List the servers and how many of their tools are offered or wait for you."""
    app = open_configured(configured)
    try:
        rows = [_row(each) for each in _admin(app).entries()]
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
    from cellwall.admin.tool_servers import describe, waiting_in

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


@gateway.command(epilog=_EXIT_CODES)
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
    what is shown; no option takes the place of that. With --reject, or --stored, the server is not
    started, and what was last seen counts.
    """
    if accept and reject:
        raise BadInput("accept or reject, not both", code="CW-USAGE")
    if (not (accept or reject) and (tools or despite)) or (offered_as and not accept):
        raise BadInput("--tool goes with --accept or --reject", code="CW-USAGE")
    if together and not accept:
        raise BadInput("--together goes with --accept", code="CW-USAGE")
    starts = not (stored or reject)
    app = _open_named(configured, name, passphrase_fd, starts=starts)
    try:
        admin = _admin(app)
        if starts:
            _look(admin, name, as_json=as_json)
        found = admin.review(name)
        if not (accept or reject):
            return _show(found, as_json=as_json)
        who = cli_principal()
        if reject:
            done = admin.reject(found, only=tools, who=who)
        else:
            chosen: Any = {"only": tools, "despite_findings": despite, "offered_as": offered_as}
            chosen["together"] = together
            admin.check_acceptable(found, **chosen)
            if not _is_confirmed(found, tools, offered_as, together=together):
                say("nothing is accepted")
                return _WAITS
            done = admin.accept(found, **chosen, who=who)
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
        _admin(app).remove(name, who=cli_principal())
    finally:
        app.close()
    print_result({"name": name, "removed": True}, f"{name} is removed.\n", as_json=as_json)
    return 0


def _admin(app: App) -> ToolServerAdmin:
    from cellwall.admin.tool_servers import ToolServerAdmin

    return ToolServerAdmin(app)


def _open(configured: ConfigOptions, settings: ServerSettings, passphrase_fd: int | None) -> App:
    return (
        open_unlocked(configured, passphrase_fd)
        if settings.secrets
        else open_configured(configured)
    )


def _open_named(
    configured: ConfigOptions, name: str, passphrase_fd: int | None, *, starts: bool
) -> App:
    """With the vault open, where the server to be started needs it."""
    app = open_configured(configured)
    if not starts:
        return app
    try:
        entries = [each for each in _admin(app).entries() if not isinstance(each, CellwallError)]
        if not any(each.name == name and each.settings.secrets for each in entries):
            return app
    except BaseException:
        app.close()
        raise
    app.close()
    return open_unlocked(configured, passphrase_fd)


def _look(admin: ToolServerAdmin, name: str, *, as_json: bool) -> None:
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


def _show(found: ServerReview, *, as_json: bool) -> int:
    print_result(review_json(found), review_text(found) + "\n", as_json=as_json)
    return _WAITS if found.waits else 0

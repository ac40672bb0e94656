"""`cellwall mcp gateway add`: another MCP server behind Cellwall."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import os

import click

from cellwall.core.limits import parse_size
from cellwall.core.types import Json
from cellwall.interfaces.cli.mcp_gateway_servers import (
    EXIT_CODES,
    open_for_settings,
    server_admin,
    show_review,
    start_and_keep,
)
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    cli_principal,
    json_option,
    passphrase_option,
    place_options,
)
from cellwall.interfaces.cli.output import Progress, print_result
from cellwall.interfaces.sandbox_options import parse_workspace, template_with, variables


@click.command(epilog=EXIT_CODES)
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
    app = open_for_settings(configured, settings, passphrase_fd)
    try:
        admin = server_admin(app)
        admin.add(settings, who=cli_principal())
        if no_start:
            answer: dict[str, Json] = {"name": name, "added": True}
            print_result(answer, f"{name} is added; review it next.\n", as_json=as_json)
            return 0
        start_and_keep(admin, name, as_json=as_json)
        return show_review(admin.review(name), as_json=as_json)
    finally:
        app.close()

"""`cellwall mcp`: the MCP server, and its entry in clients' configurations."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from cellwall.core.errors import BadInput
from cellwall.core.packages import parse_request
from cellwall.core.types import Action, RunCommand
from cellwall.interfaces.cli.mcp_gateway import gateway as gateway_commands
from cellwall.interfaces.cli.options import (
    action_of,
    app_for,
    build_packages,
    json_option,
    sandbox_options,
)
from cellwall.interfaces.cli.output import print_change, say
from cellwall.interfaces.sandbox_options import SandboxOptions, chosen_workspace, parse_workspace
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.runtime.app import App

_CLIENTS = ("claude-code", "claude-desktop", "cursor", "vscode")
_GATEWAY = click.Option(
    ["--gateway"],
    is_flag=True,
    help="Serve the tools of your other MCP servers as well: see `cellwall mcp gateway`.",
)
_TOOLS = click.Option(
    ["--tool", "tools"],
    metavar="NAME",
    multiple=True,
    help="Offer only this tool, such as run_code or 'read_*'; may be repeated. For sub-agents with "
    "tools of their own.  [default: all]",
)
_NOT_OURS = frozenset({"stdin", "as_json", "policy"})
_SECOND_USER = click.Option(
    ["--second-user"],
    is_flag=True,
    help="Give each sandbox a second unprivileged user, root, for the argument user of "
    "run_command; the configuration must allow it.",
)
_POLICY = click.Option(
    ["--policy"],
    metavar="FILE",
    type=click.Path(),
    help="Policy file for the agent's calls.  [default: yours and the project's; without any, "
    "everything that stays inside the sandbox is allowed]",
)


def _server_params() -> list[click.Parameter]:
    """The options of a run, without those for standard input and output."""

    @click.command()
    @sandbox_options
    def shared(**_: Any) -> None:  # noqa: ANN401  # never called
        """Collects the options."""

    return [
        _POLICY,
        _GATEWAY,
        _TOOLS,
        _SECOND_USER,
        *(each for each in shared.params if each.name not in _NOT_OURS),
    ]


@click.group(
    invoke_without_command=True,
    params=_server_params(),
    epilog="""\b
Examples:
  cellwall mcp
  cellwall mcp --workspace .:rw --allow-domain docs.example.com
  cellwall mcp --package requests --package 'pandas<3'
  cellwall mcp --gateway
  cellwall mcp --tool read_file --tool list_files --workspace .:ro
  cellwall mcp install --client claude-code -- --gateway
  cellwall mcp install --client cursor -- --here --timeout 120

\b
Exit codes:
  0    the client disconnected
  125  Cellwall refused or failed; the reason is on standard error
  130, 143  ended by Ctrl-C or SIGTERM, with nothing left behind
""",
)
@click.pass_context
def mcp(
    ctx: click.Context,
    /,
    *,
    gateway: bool,
    tools: tuple[str, ...],
    second_user: bool,
    **typed: Any,  # noqa: ANN401  # the shared options
) -> int:
    """Serve the Model Context Protocol on standard input and output.

    An agent's client starts the server and gets the tools run_code, run_command, read_file,
    write_file, list_files, fetch_url, new_session and end_session. These options bound what the
    agent's code can access; no tool argument extends that. The client shows you approval questions;
    a client that cannot do so has such calls denied.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    _check_tools(tools, with_gateway=gateway)
    options = SandboxOptions(**typed, stdin=False, as_json=False)
    options = build_packages(options, "mcp")
    app = app_for(options)
    try:
        pattern = _action_template(options, app, second_user=second_user)
        return _serve(app, pattern, with_gateway=gateway, tools=tools)
    finally:
        app.close()


mcp.add_command(gateway_commands)


def _action_template(options: SandboxOptions, app: App, *, second_user: bool) -> Action:
    """The upper bound of every call."""
    from dataclasses import replace

    from cellwall.interfaces.mcp.default_policy import default_policy
    from cellwall.runtime.home import local_principal

    action = action_of(options, app, RunCommand(("true",)))
    has_domains = bool(action.allow_domains)
    policy = action.policy or default_policy(
        app, os.environ, cwd=os.getcwd(), has_domains=has_domains
    )
    return replace(
        action,
        principal=local_principal("mcp"),
        audience="model",
        policy=policy,
        second_user=second_user,
    )


def _check_tools(names: tuple[str, ...], *, with_gateway: bool) -> None:
    if names:
        from cellwall.interfaces.mcp.tool_names import parse_tool_names
        from cellwall.interfaces.mcp.tools import TOOLS

        parse_tool_names(names, own_tools=TOOLS, with_others=with_gateway)


def _serve(app: App, pattern: Action, *, with_gateway: bool, tools: tuple[str, ...]) -> int:
    import anyio

    from cellwall.runtime.agent_processes import mark_agent
    from cellwall.runtime.wiring import check_walls

    mark_agent(os.getpid())
    # Checked at the start, not at the agent's first call.
    check_walls(app)
    app.check_template(pattern.template)
    if pattern.second_user:
        app.check_second_user()
    anyio.run(app.runtime.check, pattern)
    app.warm_up()  # in parallel with the import of the SDK
    from cellwall.interfaces.mcp.server import serve
    from cellwall.interfaces.mcp.tool_names import ToolNames

    chosen = ToolNames(tools)
    stopped = anyio.run(partial(serve, app, pattern, with_gateway=with_gateway, tools=chosen))
    if stopped is None:
        return 0
    say(f"ended by {stopped.name}")
    return 128 + stopped


@mcp.command(
    epilog="""\b
Examples:
  cellwall mcp install --client claude-code
  cellwall mcp install --client claude-code --scope user
  cellwall mcp install --client vscode -- --here
  cellwall mcp install --client cursor --dry-run
  cellwall mcp install --client cursor --remove
""",
)
@click.option(
    "--client", type=click.Choice(_CLIENTS), required=True, help="The client to configure."
)
@click.option(
    "--scope",
    type=click.Choice(["project", "user"]),
    help="For this project, or for all your projects.  [default: project; claude-desktop "
    "supports only user]",
)
@click.option("--path", metavar="FILE", type=click.Path(), help="Use this file.")
@click.option(
    "--name",
    metavar="NAME",
    default="cellwall",
    help="Name of the server.  [default: cellwall]",
)
@click.option("--remove", is_flag=True, help="Remove the server, and nothing else.")
@click.option("--dry-run", is_flag=True, help="Change nothing; print the resulting file.")
@json_option("Print one JSON object.")
@click.argument("options", metavar="[-- OPTIONS OF cellwall mcp]", nargs=-1)
def install(
    client: str,
    scope: str | None,
    path: str | None,
    name: str,
    options: tuple[str, ...],
    *,
    remove: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Add Cellwall to the MCP servers of an agent's client.

    The rest of the file stays, including comments; the old content is kept beside it as
    FILE.cellwall-backup. The client starts this Python isolated from environment variables, with
    the present home, state folder and configuration. Install it again when they move. An unreadable
    file, or a link, is left alone.
    """
    from cellwall.interfaces.mcp import install as work

    if scope and path:
        raise BadInput(
            "name a scope or a file, not both",
            hint="Use one of --scope and --path.",
            code="CW-USAGE",
        )
    place = work.place_of(client, scope=scope, path=path, environ=os.environ, cwd=os.getcwd())
    if remove:
        if options:
            raise BadInput(
                "--remove takes no options for the server",
                hint="Leave out everything after `--`.",
                code="CW-USAGE",
            )
        change = work.remove(place, name, is_dry=dry_run)
    else:
        words = _check_options(options, is_dry=dry_run, as_json=as_json)
        entry = work.entry_of(words, environ=os.environ)
        change = work.install(place, name, entry, is_dry=dry_run)
    place_word = "taken out of" if remove else "in"
    note = f"{one_line(name)} is {place_word} {one_line(change.file)}."
    return print_change(change, note, is_dry=dry_run, as_json=as_json, name=name)


def _check_options(words: tuple[str, ...], *, is_dry: bool, as_json: bool) -> list[str]:
    """Check the server's options, and make paths absolute.

    Checked now, since a client may not show why a server ended. Packages are installed now as well,
    since a client does not wait for that.
    """
    server = click.Command("mcp", params=mcp.params)
    parsed = server.make_context("cellwall mcp", list(words))
    gateway = parsed.params.pop("gateway")
    tools = parsed.params.pop("tools")
    second_user = parsed.params.pop("second_user")
    _check_tools(tools, with_gateway=gateway)
    options = SandboxOptions(**parsed.params, stdin=False, as_json=as_json)
    parse_request(options.package)
    if not is_dry:
        build_packages(options, "mcp")
    checked_words: list[str] = ["--gateway"] if gateway else []
    checked_words += ["--second-user"] if second_user else []
    for tool in tools:
        checked_words += ["--tool", tool]
    if parsed.params["here"]:
        chosen = chosen_workspace(parsed.params["workspace"], here=True)
        checked_words += ["--workspace", _absolute("workspace", str(chosen))]
    for each in mcp.params:
        name = each.name or ""
        if (
            name in {"here", "gateway", "tools", "second_user"}
            or parsed.get_parameter_source(name) is not ParameterSource.COMMANDLINE
        ):
            continue
        value = parsed.params[name]
        for one in value if isinstance(value, tuple) else (value,):
            checked_words += [each.opts[0], _absolute(name, str(one))]
    return checked_words


def _absolute(name: str, word: str) -> str:
    """A client may start the server in any folder."""
    if name == "workspace":
        request = parse_workspace(word)
        return f"{os.path.abspath(request.directory or '.')}:{request.mode.value}"
    return os.path.abspath(word) if name in {"config", "policy"} else word

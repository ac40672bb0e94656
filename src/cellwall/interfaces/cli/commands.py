"""The commands of `cellwall` for click: finds the command, runs it, and reports errors of usage.

Each command's module is imported when the command is called, so that `--help` and completion are
quick.
"""

# ruff: noqa: PLC0415  # late imports: only the called command loads, error modules only for errors

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import click

from cellwall.interfaces import REFUSED

# heading -> name -> (module, attribute, help text)
_SECTIONS = {
    "Run commands and code": {
        "run": ("run", "run", "Run a command in a new sandbox."),
        "shell": ("run", "shell", "Open a shell in a new sandbox."),
        "code": ("run", "code", "Run code in a new sandbox."),
        "fetch": ("content", "fetch", "Fetch a web page through the egress rules."),
    },
    "Live sandboxes": {
        "create": ("live", "create", "Create a live sandbox and print its id."),
        "exec": ("live", "execute", "Run a command in a live sandbox."),
        "cp": ("live", "cp", "Copy a file into or out of a live sandbox."),
        "snapshot": ("snapshots", "snapshot", "Keep files of live sandboxes for new ones."),
        "ps": ("supervisor", "ps", "List live sandboxes."),
        "logs": ("supervisor", "logs", "Print the last output of a live sandbox."),
        "kill": ("supervisor", "kill", "End a live sandbox."),
        "top": ("top", "top", "Watch sandboxes and decisions, and answer questions."),
    },
    "Changes to your files": {
        "changes": ("changes", "changes", "List changes that wait for apply or discard."),
        "diff": ("changes", "diff", "Show what a copy-on-write run changed."),
        "apply": ("changes", "apply", "Apply the changes of a copy-on-write run."),
        "discard": ("changes", "discard", "Remove the changes of a copy-on-write run."),
        "quarantine": ("quarantine", "quarantine", "List, restore and delete quarantined files."),
    },
    "Agents and their rules": {
        "hook": ("hook", "hook", "Answer the hooks of a coding agent."),
        "mcp": ("mcp", "mcp", "Serve an agent over the Model Context Protocol."),
        "policy": ("policy", "policy", "Check, explain and write rules for agents."),
        "approvals": ("approvals", "approvals", "Answer approval questions of waiting runs."),
        "skills": ("skills", "skills", "Sign, verify and approve skills of agents."),
    },
    "Texts, secrets and packages": {
        "scan": ("content", "scan", "Find attacks on a model in a text."),
        "redact": ("content", "redact", "Print a text with its secrets replaced."),
        "vault": ("vault", "vault", "Store secrets and grant their use."),
        "proxy": ("proxy", "proxy", "Offer the egress rules to programs that run elsewhere."),
        "canary": ("canaries", "canary", "Register texts that must not leak."),
        "packages": ("packages", "packages", "Judge packages and update the feed about them."),
        "template": ("host_setup", "template", "Build environments with Python packages."),
        "connection": ("connections", "connection", "Connect accounts at other services."),
        "calendar": ("connections", "calendar", "List and create events of a calendar."),
    },
    "Records and incidents": {
        "audit": ("audit", "audit", "Read and verify the audit log."),
        "alerts": ("alerts", "alerts", "Show, test and silence alerts from the audit log."),
        "stop": ("stop", "stop", "End every sandbox at once, and refuse new ones."),
        "incident": ("incident", "incident", "Keep the evidence of an incident."),
        "erase": ("session_data", "erase", "Erase all data of a sandbox or a run."),
    },
    "This host": {
        "doctor": ("doctor", "doctor", "Check which layers work on this host."),
        "redteam": ("redteam", "redteam", "Attack this host's own configuration."),
        "config": ("host_setup", "config", "Check and show the configuration."),
        "supervisor": ("supervisor", "supervisor", "Start, stop and inspect the supervisor."),
        "completion": ("host_setup", "completion", "Print the completion script of a shell."),
    },
    "A service for several people": {
        "serve": ("serve", "serve", "Run the service: HTTP API for people and agents."),
        "user": ("users", "user", "Add, list and remove users of the service."),
        "token": ("tokens", "token", "Create, list and revoke service tokens."),
        "budget": ("budgets", "budget", "Show and set what users of the service may use."),
        "passkey": ("passkeys", "passkey", "List and remove passkeys of users."),
        "pair": ("pairing", "pair", "Pair chat and mail accounts with users of the service."),
        "db": ("database", "db", "Migrate, check and back up the service's database."),
        "fleet": ("fleet", "fleet", "Run one service over several hosts."),
    },
}
COMMANDS = {name: row for rows in _SECTIONS.values() for name, row in rows.items()}

# What click says of a value, and the same without the names of Python's types.
_PLAIN_WORDS = {"a valid float": "a number", "a valid integer": "a whole number"}


class LazyCommands(click.Group):
    """Commands by name; a module is imported when its command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(import_module(f"cellwall.interfaces.cli.{module}"), attribute)
        assert isinstance(command, click.Command)  # noqa: S101  # the table is ours
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            # click looks for similar names among loaded commands, and none is loaded.
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=COMMANDS, ctx=ctx
            ) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's signature
        widest = max(map(len, COMMANDS))
        for heading, rows in _SECTIONS.items():
            with formatter.section(heading):
                described = [(name.ljust(widest), text) for name, (_, _, text) in rows.items()]
                formatter.write_dl(described)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001  # click's signature
    if wanted and not ctx.resilient_parsing:
        from cellwall import __version__

        click.echo(f"cellwall {__version__}")
        ctx.exit()


@click.group(
    cls=LazyCommands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  cellwall run -- ls -la
  cellwall code -c 'print(6 * 7)'
  cellwall run --here -- make
  cellwall doctor

\b
Exit codes:
  the program's own    124  wall time over    137  killed by the memory limit
  125  Cellwall refused or failed; the reason is on standard error
""",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and end.",
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run an AI agent's commands and code inside OS-level isolation.

    `cellwall COMMAND --help` describes each command.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def invoke(words: list[str], meta: dict[str, Any]) -> int:
    """Run the command and return its exit code. `meta` gets what its options note for `main`."""
    if "_CELLWALL_COMPLETE" in os.environ:
        cli.main(words, prog_name="cellwall")
    try:
        with cli.make_context("cellwall", list(words)) as ctx:
            try:
                return int(cli.invoke(ctx) or 0)
            finally:
                meta.update(ctx.meta)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        return _report_usage(error, words)


def _report_usage(error: click.ClickException, words: list[str]) -> int:
    """A usage error. The parser may have stopped before it reached `--json`."""
    from cellwall.core.outcomes import ErrorInfo
    from cellwall.interfaces.cli.output import print_error

    ours = words[: words.index("--")] if "--" in words else words
    as_json = "--json" in ours
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else "cellwall"
    help_instead = isinstance(error, click.exceptions.NoArgsIsHelpError)
    if help_instead and not as_json:
        click.echo(error.format_message(), err=True)
        return REFUSED
    message = "a command is missing" if help_instead else error.format_message()
    for said, plain in _PLAIN_WORDS.items():
        message = message.replace(said, plain)
    hint = f"See `{path} --help`."
    print_error(ErrorInfo("CW-USAGE", " ".join(message.split()), hint), as_json=as_json)
    return REFUSED

"""`cellwall run`: a command in a new sandbox."""

from __future__ import annotations

from typing import Any

import click

from cellwall.core.errors import BadInput
from cellwall.interfaces.cli.main import REFUSED
from cellwall.interfaces.cli.options import EXIT_CODES, SandboxOptions, sandbox_options


@click.command(
    # What follows the command's name is the command's own, also without `--`.
    context_settings={"allow_interspersed_args": False},
    epilog=f"""\b
Examples:
  cellwall run -- ls -la
  cellwall run --timeout 5 --memory 256m -- python3 -c 'print(1)'
  cellwall run --here -- make test
  cellwall run --package requests -- python3 -c 'import requests'
  echo data | cellwall run --stdin -- wc -c
  cellwall run --json -- uname -a | jq .stdout

{EXIT_CODES}""",
)
@sandbox_options
@click.option(
    "--own-path",
    is_flag=True,
    help="Show the workspace inside at the path that it has here, too: absolute paths and the "
    "paths in messages are the same inside and outside.",
)
@click.option(
    "--cwd",
    metavar="DIR",
    default="/workspace",
    help="Where inside it begins.  [default: /workspace]",
)
@click.argument("command", metavar="-- CMD [ARG]...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(ctx: click.Context, /, command: tuple[str, ...], cwd: str, **typed: Any) -> int:  # noqa: ANN401  # the shared options
    """Run a command in a new sandbox.

    It sees no network, none of your files and no variable of yours, unless an option gives it; its
    output comes as it is written. No shell is involved: for pipes write -- sh -c 'a | b'. At a
    terminal, a shell or interpreter without arguments (-- bash) is interactive.
    """
    options = SandboxOptions(**typed)
    if not command and not options.as_json:
        click.echo(ctx.get_help(), err=True)
        return REFUSED
    if not command:
        raise BadInput("no command was given", hint="Write it after `--`.", code="CW-USAGE")
    from cellwall.interfaces.cli.shell import is_interactive, open_shell  # noqa: PLC0415  # keeps --help quick

    # Where an option needs the path of a single run, the command gets no terminal.
    needs_run = options.as_json or options.stdin or options.own_path or options.secret
    if is_interactive(command) and not needs_run:
        return open_shell(options, command, cwd)
    from cellwall.interfaces.cli.via_supervisor import (  # noqa: PLC0415  # keeps --help quick
        run_remotely,
        supervisor_link,
        want_supervisor,
    )

    options = options.prepared()
    link = supervisor_link()
    if link is not None:
        operation: dict[str, Any] = {"kind": "command", "argv": list(command), "cwd": cwd}
        operation |= {"background": False, "terminal": None}
        ended = run_remotely(link, options, operation, b"")
        if ended is not None:
            return ended
    from cellwall.core.types import RunCommand  # noqa: PLC0415  # keeps --help quick
    from cellwall.interfaces.cli.execute import execute  # noqa: PLC0415  # heavy

    house = options.open_house()
    action = options.action(house, RunCommand(command, cwd))
    ended = execute(house, action, as_json=options.as_json)
    want_supervisor()
    return ended

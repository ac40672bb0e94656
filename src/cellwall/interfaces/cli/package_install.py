"""`cellwall packages install`: packages by name, into a directory or a live sandbox."""

# ruff: noqa: PLC0415  # late imports: the help of a command needs none of the parts

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.core.ids import check_id
from cellwall.core.packages import REGISTRIES, RegistryName, parse_install
from cellwall.interfaces.cli.options import (
    FINITE,
    ConfigOptions,
    json_option,
    open_configured,
    place_options,
)
from cellwall.interfaces.cli.output import print_text
from cellwall.interfaces.cli.supervisor import complete_id
from cellwall.interfaces.outcome_text import error_line, finding_lines, limit_line
from cellwall.interfaces.sandbox_options import parse_workspace, with_limits

if TYPE_CHECKING:
    from typing import Literal

    from cellwall.core.outcomes import Outcome
    from cellwall.core.packages import InstallPackages
    from cellwall.core.types import OutputSink
    from cellwall.interfaces.cli.execute import Perform
    from cellwall.interfaces.cli.run_output import RunRenderer

_TIMEOUT_S = 600.0


@click.command(
    epilog="""\b
Examples:
  cellwall packages install --workspace . requests 'pandas<3'
  cellwall packages install --workspace . --ecosystem npm lodash
  cellwall packages install --sandbox sbx_... requests

\b
Exit codes:
  0    all are installed
  125  Cellwall refused or failed
  else the exit code of the package manager
"""
)
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option(
    "--ecosystem",
    type=click.Choice(REGISTRIES),
    default="pypi",
    show_default=True,
    help="The registry.",
)
@click.option("--workspace", metavar="DIR", help="Install for sandboxes with this directory.")
@click.option("--sandbox", metavar="ID", shell_complete=complete_id, help="A live sandbox.")
@click.option(
    "--timeout",
    type=FINITE,
    default=_TIMEOUT_S,
    show_default=True,
    metavar="S",
    help="Wall time in seconds.",
)
@place_options
@json_option("Print one JSON object with the whole result, and nothing else.")
def install(
    names: tuple[str, ...],
    ecosystem: RegistryName,
    workspace: str | None,
    sandbox: str | None,
    timeout: float,
    configured: ConfigOptions,
    *,
    as_json: bool,
) -> int:
    """Install packages by name, in a sandbox that reaches the registry alone.

    A version without a wheel is built in a sandbox without network, where policy allows a build.
    The output of the package manager goes to standard error; standard output lists the installed
    files with their hashes. Python packages of a DIR are in DIR/.cellwall-packages, where every
    sandbox with DIR finds them, with the lock in DIR/pylock.toml; those of npm in DIR/node_modules.
    """
    if (workspace is None) == (sandbox is None):
        raise BadInput(
            "name one place for the packages",
            hint="Write --workspace DIR, or --sandbox ID.",
            code="CW-USAGE",
        )
    operation = parse_install(ecosystem, names)
    if sandbox is not None:
        check_id(sandbox, what="sandbox id")
        return _into_sandbox(sandbox, operation, timeout, as_json=as_json)
    return _into_directory(str(workspace), operation, timeout, configured, as_json=as_json)


def _into_directory(
    directory: str,
    operation: InstallPackages,
    timeout_s: float,
    configured: ConfigOptions,
    *,
    as_json: bool,
) -> int:
    from cellwall.core.types import Action
    from cellwall.interfaces.cli.approval_prompt import TerminalApprover
    from cellwall.runtime.home import local_principal

    app, who = open_configured(configured), local_principal("cli")
    with app.session(parse_workspace(f"{directory}:rw"), who) as session_id:
        limits = with_limits(app.limits, timeout=timeout_s)
        action = Action(principal=who, operation=operation, session_id=session_id, limits=limits)

        async def perform(renderer: RunRenderer) -> Outcome:
            approver = TerminalApprover(who, hush=renderer.hush)
            sink = _on_stderr(renderer)
            return await app.runtime.perform(action, sink=sink, ask=approver)

        return _show(perform, as_json=as_json)


def _into_sandbox(
    sandbox: str, operation: InstallPackages, timeout_s: float, *, as_json: bool
) -> int:
    from cellwall.interfaces.sdk.remote_host import RemoteHost

    async def perform(renderer: RunRenderer) -> Outcome:
        host = await RemoteHost.connect(sandbox)
        return await host.perform(operation, timeout=timeout_s, sink=_on_stderr(renderer))

    return _show(perform, as_json=as_json)


def _show(perform: Perform, *, as_json: bool) -> int:
    from cellwall.interfaces.cli.execute import show

    ended: list[Outcome] = []

    def notes(outcome: Outcome) -> list[str]:
        ended.append(outcome)
        return _notes(outcome)

    code = show(perform, notes=notes, as_json=as_json)
    for outcome in ended:
        print_text(_installed_lines(outcome))
    return code


def _on_stderr(renderer: RunRenderer) -> OutputSink | None:
    """All output of the package manager is progress."""
    sink = renderer.sink
    if sink is None:
        return None

    def pass_on(_name: Literal["stdout", "stderr"], chunk: bytes) -> None:
        sink("stderr", chunk)

    return pass_on


def _notes(outcome: Outcome) -> list[str]:
    notes = finding_lines(outcome.findings)
    if outcome.limit is not None:
        notes.append(limit_line(outcome.limit))
    return notes if outcome.error is None else [*notes, error_line(outcome.error)]


def _installed_lines(outcome: Outcome) -> str:
    from cellwall.interfaces.sdk.packages import installed_versions

    found = installed_versions(outcome)
    return "".join(f"{each.name} {each.version} {each.digest} {each.file}\n" for each in found)

"""`cellwall hook install | uninstall | status`: the hooks in agents' settings files."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cellwall.core.errors import BadInput
from cellwall.core.types import Json
from cellwall.interfaces.cli.options import json_option
from cellwall.interfaces.cli.output import print_change, print_json, print_text, say
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.interfaces.hooks.agents.agent import Agent
    from cellwall.interfaces.hooks.install import HookState

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_COMMAND, _INSTALL = "cellwall hook uninstall", "cellwall hook install"
_NAMES = "claude-code, codex, cursor, gemini-cli, copilot"
_TWO_PLACES = ("name one settings file, not two",)
_USAGE = {"hint": "Write one of --user, --local, --project, --settings FILE.", "code": "CW-USAGE"}


def _one_place(ctx: click.Context, param: click.Parameter, wanted: bool) -> bool:  # noqa: FBT001  # click's signature
    """Store the chosen settings file; of two options the last would silently win."""
    if wanted and ctx.params.get("place"):
        raise BadInput(*_TWO_PLACES, **_USAGE)
    ctx.params["place"] = param.name if wanted else ctx.params.get("place")
    return wanted


def _place_option(name: str, text: str) -> Callable[[Decorated], Decorated]:
    return click.option(
        f"--{name}", is_flag=True, expose_value=False, callback=_one_place, help=text
    )


def _place_options(function: Decorated) -> Decorated:
    for option in (
        _place_option("user", "Your own settings, for all projects."),
        _place_option(
            "local", "Your settings for this project (Claude Code's settings.local.json)."
        ),
        _place_option("project", "The project's settings, for all its users.  [default]"),
        click.option(
            "--settings", metavar="FILE", type=click.Path(), help="Use this settings file."
        ),
        click.option("--agent", metavar="NAME", help=f"One of {_NAMES}.  [default: claude-code]"),
    ):
        function = option(function)
    return function


def _file(agent: Agent, place: str | None, settings: str | None) -> str:
    if place and settings:
        raise BadInput(*_TWO_PLACES, **_USAGE)
    if settings:
        return os.path.abspath(settings)
    files = agent.settings_files(os.environ, os.getcwd())
    if (place or "project") not in files:
        raise BadInput(
            f"{agent.title} has no settings of that kind",
            hint=f"Write one of {', '.join(f'--{name}' for name in files)}.",
            code="CW-USAGE",
        )
    return files[place or "project"]


@click.group(
    invoke_without_command=True,
    epilog="""\b
How an agent uses it (installed by `cellwall hook install`):
  PreToolUse   {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {...}, ...}
               is answered with allow, deny or ask, a reason, and perhaps a changed input
  PostToolUse  the tool's result is scanned, redacted and recorded
  other events are answered with {} and nothing is judged

\b
Options of `cellwall hook` itself:
  --agent NAME    whose protocol: claude-code (default), codex, cursor, gemini-cli, copilot
  --config FILE   configuration;  --profile NAME, --policy FILE as in `cellwall run`
  --dangerously-outside
                  run allowed shell commands as the agent would, not in a sandbox
  [hook] in the configuration: dangerously_outside = true, questions = "nobody"

\b
Exit codes:
  0  answered, on standard output
  2  refused: the request is malformed, or there was no answer within 10 seconds.
     Never 1: agents let the tool through then.

\b
Examples:
  cellwall hook install
  cellwall hook install --agent codex
  cellwall hook status
  echo '{"hook_event_name":"PreToolUse","session_id":"s","cwd":"/tmp","tool_name":"Bash",
         "tool_input":{"command":"ls"}}' | cellwall hook
""",
)
def hook() -> None:
    """Answer the hooks of a coding agent.

    Reads one request on standard input, in the agent's hook protocol, and judges and records it
    like every action. Allowed shell commands run in a sandbox with the project. A warm supervisor
    answers in milliseconds; the first request starts one.
    """


@hook.command(
    epilog="""\b
Examples:
  cellwall hook install                 # this project's .claude/settings.json
  cellwall hook install --user          # all your projects
  cellwall hook install --agent codex   # this project's .codex/hooks.json
  cellwall hook install --dry-run       # show what the file would hold
"""
)
@_place_options
@click.option(
    "--dangerously-outside",
    is_flag=True,
    help="Run allowed shell commands as the agent would, with all your permissions, not in a "
    "sandbox.",
)
@click.option("--config", metavar="FILE", type=click.Path(), help="Configuration for the hook.")
@click.option("--policy", metavar="FILE", type=click.Path(), help="Rules for the hook.")
@click.option("--dry-run", is_flag=True, help="Change nothing; print the resulting file.")
@json_option("Print one JSON object.")
def install(
    agent: str | None,
    place: str | None,
    settings: str | None,
    config: str | None,
    policy: str | None,
    *,
    dangerously_outside: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Make an agent call Cellwall before and after every tool.

    Allowed shell commands then run in a sandbox that sees only the project, read-write, at its own
    path.

    The hook starts this Python isolated from environment variables, with the present home, state
    folder and configuration. Install it again when they move.

    The command also blocks the tool if it cannot start, crashes or hangs. The rest of the file
    stays; the old content is kept beside it as FILE.cellwall-backup. A settings file that is a link
    is refused: a repository could contain one that leads to a file of yours.

    With approvals.key, --dangerously-outside, --config and --policy need the passphrase of the
    approver: they can weaken a hook that is there.
    """
    from cellwall.admin.installed_hooks import note_installed
    from cellwall.admin.standing_grants import require_approver
    from cellwall.interfaces.cli.terminal_input import ask_approver
    from cellwall.interfaces.hooks import install as work
    from cellwall.interfaces.hooks.agents.registry import agent_named

    known = agent_named(agent)
    work.check_files(os.environ, config=config, policy=policy)
    if (dangerously_outside or config or policy) and not dry_run:
        require_approver("a hook with these options", ask=ask_approver, command=_INSTALL)
    commands = work.commands_for(
        known,
        os.environ,
        dangerously_outside=dangerously_outside,
        config=config,
        policy=policy,
    )
    change = work.install(_file(known, place, settings), known, commands, is_dry=dry_run)
    if not dry_run:
        note_installed(change.file, known.name, environ=os.environ)
    notes = (f"The hooks are installed: {one_line(change.file)}.", known.note)
    code = print_change(change, *notes, is_dry=dry_run, as_json=as_json)
    if not dry_run and not _allows_anything(config, policy):
        say("no rule allows anything here yet, so each call is denied; see: cellwall policy init")
    return code


def _allows_anything(config: str | None, policy: str | None) -> bool:
    """Whether a rule of this directory allows a call, or asks about one."""
    from cellwall.admin.policy_init import permits
    from cellwall.core.errors import CellwallError

    try:
        return permits((policy,) if policy else (), config=config, environ=os.environ)
    except CellwallError:  # the hook tells it at each call
        return True


@hook.command(
    epilog="""\b
Examples:
  cellwall hook uninstall
  cellwall hook uninstall --agent codex
  cellwall hook uninstall --user --dry-run
"""
)
@_place_options
@click.option("--dry-run", is_flag=True, help="Change nothing; print the resulting file.")
@json_option("Print one JSON object.")
def uninstall(
    agent: str | None, place: str | None, settings: str | None, *, dry_run: bool, as_json: bool
) -> int:
    """Remove our hooks from the settings, and nothing else.

    If nothing else has changed since, the file is restored byte for byte. With approvals.key this
    needs the passphrase of the approver. The file is the agent's: any process of yours can edit it
    without this command, which `cellwall hook status` and `cellwall doctor` then show.
    """
    from cellwall.admin.installed_hooks import forget_installed
    from cellwall.admin.standing_grants import require_approver
    from cellwall.interfaces.cli.terminal_input import ask_approver, confirm
    from cellwall.interfaces.hooks import install as work
    from cellwall.interfaces.hooks.agents.registry import agent_named

    known = agent_named(agent)
    file = _file(known, place, settings)
    if not dry_run and not confirm(
        f"{one_line(file)}\n", what="that this agent's tool calls are no longer checked"
    ):
        say("nothing was removed")
        return 1
    if not dry_run:
        require_approver("the removal of a hook", ask=ask_approver, command=_COMMAND)
    change = work.uninstall(file, known, is_dry=dry_run)
    if not dry_run:
        forget_installed(change.file, environ=os.environ)
    note = f"The hooks are removed: {one_line(change.file)}."
    return print_change(change, note, is_dry=dry_run, as_json=as_json)


@hook.command(
    epilog="""\b
Examples:
  cellwall hook status
  cellwall hook status --agent cursor
  cellwall hook status --json
"""
)
@click.option("--settings", metavar="FILE", type=click.Path(), help="Check only this file.")
@click.option("--agent", metavar="NAME", help=f"Only this agent: {_NAMES}.")
@json_option("Print one JSON object.")
def status(settings: str | None, agent: str | None, *, as_json: bool) -> int:
    """Show where our hooks are installed, and whether they are effective.

    Exit code 0 if they are installed somewhere without problems, else 1.
    """
    from cellwall.interfaces.hooks.agents.registry import AGENTS, agent_named
    from cellwall.interfaces.hooks.install import state_of

    one = agent_named(agent) if agent or settings else None
    known = [one] if one is not None else list(AGENTS.values())
    states_by_agent: dict[str, dict[str, HookState | None]] = {}
    files: dict[str, dict[str, str]] = {}
    for each in known:
        files[each.name] = each.settings_files(os.environ, os.getcwd())
        if settings:
            files[each.name] = {"settings": os.path.abspath(settings)}
        states_by_agent[each.name] = {
            name: state_of(file, each, environ=os.environ)
            for name, file in files[each.name].items()
        }
    states = [state for places in states_by_agent.values() for state in places.values() if state]
    there = [state for state in states if state.is_installed]
    # A setting that disables all hooks counts wherever it is.
    off = [state for state in states if state.is_off]
    is_good = bool(there) and not off and not any(state.problems for state in there)
    if as_json:
        agents: dict[str, Json] = {
            name: {place: _state_json(state) for place, state in places.items() if state}
            for name, places in states_by_agent.items()
        }
        print_json({"ok": is_good, "agents": agents})
        return 0 if is_good else 1
    lines = []
    for name, places in states_by_agent.items():
        for place, state in places.items():
            lines += _lines(name, place, files[name][place], state)
    print_text("\n".join([*lines, ""]))
    return 0 if is_good else 1


def _state_json(state: HookState) -> dict[str, Json]:
    return {
        "file": state.file,
        "installed": state.is_installed,
        "dangerously_outside": state.is_outside,
        "options": list(state.options),
        "problems": list(state.problems) if state.is_installed or state.is_off else [],
    }


def _lines(agent: str, place: str, file: str, state: HookState | None) -> list[str]:
    is_there = state is not None and state.is_installed
    word = "installed" if is_there else "not installed"
    if is_there and state is not None:
        where = "DANGEROUSLY OUTSIDE of any sandbox" if state.is_outside else "inside a sandbox"
        word += f", runs commands {where}"
        word += "".join(f", {one_line(each)}" for each in state.options)
    lines = [f"{agent:12}{place:9}{word}: {one_line(file)}"]
    if state is not None and (is_there or state.is_off):
        lines += [f"{'':21}  problem: {one_line(problem)}" for problem in state.problems]
    return lines

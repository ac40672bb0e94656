"""`cellwall hook`: what agents ask, and the settings that make them ask."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from cellwall.core.errors import BadInput
from cellwall.core.types import Json
from cellwall.interfaces.cli.options import json_option
from cellwall.interfaces.cli.telling import print_json, print_text, say
from cellwall.interfaces.cli.terminal import one_line

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
_PLACES = ("project", "local", "user")


def _place_options(function: Decorated) -> Decorated:
    for option in (
        click.option("--user", "place", flag_value="user", help="~/.claude/settings.json: yours."),
        click.option(
            "--local",
            "place",
            flag_value="local",
            help=".claude/settings.local.json: yours, for this project.",
        ),
        click.option(
            "--project",
            "place",
            flag_value="project",
            help=".claude/settings.json: for everybody who works on it.  [default]",
        ),
        click.option("--settings", metavar="FILE", type=click.Path(), help="This very file."),
    ):
        function = option(function)
    return function


def _file(place: str | None, settings: str | None) -> str:
    if place and settings:
        raise BadInput("name one place, not two", code="CW-USAGE")
    if settings:
        return os.path.abspath(settings)
    return _files()[place or "project"]


def _files() -> dict[str, str]:
    theirs = os.environ.get("CLAUDE_CONFIG_DIR") or os.path.expanduser("~/.claude")
    here = os.path.join(os.getcwd(), ".claude")
    return {
        "project": os.path.join(here, "settings.json"),
        "local": os.path.join(here, "settings.local.json"),
        "user": os.path.join(os.path.abspath(theirs), "settings.json"),
    }


@click.group(
    invoke_without_command=True,
    epilog="""\b
How an agent uses it (installed by `cellwall hook install`):
  PreToolUse   {"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {...}, ...}
               is answered with allow, deny or ask, a reason, and perhaps another input
  PostToolUse  the tool's result is looked at, redacted and recorded
  other events are answered with {} and nothing is judged

\b
Options of `cellwall hook` itself:
  --run-inside    rewrite allowed shell commands so that they run in a sandbox with the project
  --config FILE   configuration;  --profile NAME, --policy FILE as in `cellwall run`
  [hook] in the configuration: commands = "inside", questions = "nobody"

\b
Exit codes:
  0  answered, on standard output
  2  refused: the question could not be understood, or not be answered within 10 seconds.
     Never 1: an agent lets the tool through then.

\b
Examples:
  cellwall hook install --run-inside
  cellwall hook status
  echo '{"hook_event_name":"PreToolUse","session_id":"s","cwd":"/tmp","tool_name":"Bash",
         "tool_input":{"command":"ls"}}' | cellwall hook
""",
)
def hook() -> None:
    """Answer an agent that asks before it uses a tool.

    Reads one question on standard input, in the form of Claude Code's hooks, and has it judged and
    recorded like everything else. A warm supervisor answers in milliseconds; one is started when
    the first question comes.
    """


@hook.command(
    epilog="""\b
Examples:
  cellwall hook install                 this project's .claude/settings.json
  cellwall hook install --user          all your projects
  cellwall hook install --run-inside    and run what is allowed in a sandbox
  cellwall hook install --dry-run       show what the file would hold
"""
)
@_place_options
@click.option("--run-inside", is_flag=True, help="Run allowed shell commands in a sandbox.")
@click.option("--config", metavar="FILE", type=click.Path(), help="Configuration for the hook.")
@click.option("--policy", metavar="FILE", type=click.Path(), help="Rules for the hook.")
@click.option("--dry-run", is_flag=True, help="Change nothing; print what the file would hold.")
@json_option("Print one JSON object.")
def install(
    place: str | None,
    settings: str | None,
    config: str | None,
    policy: str | None,
    *,
    run_inside: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Have Claude Code ask Cellwall before and after every tool.

    The hook starts this very Python, shut off from what the environment says to Python, with the
    home, state folder and configuration that are in force now. Install it again when they move.

    Adds two hooks to its settings, with "onFailure": "block", so that a hook that fails or is late
    stops the tool. All else in the file stays; what was there is kept beside it as
    settings.json.cellwall-backup. A settings file that is a link is refused: a repository could
    bring one that leads to a file of yours.
    """
    from cellwall.interfaces.hooks import install as work  # noqa: PLC0415  # keeps --help quick
    from cellwall.interfaces.hooks.command import hook_command  # noqa: PLC0415

    command = hook_command(environ=os.environ, run_inside=run_inside, config=config, policy=policy)
    change = work.install(_file(place, settings), command, is_dry=dry_run)
    return _told(change, "installed", is_dry=dry_run, as_json=as_json)


@hook.command(
    epilog="""\b
Examples:
  cellwall hook uninstall
  cellwall hook uninstall --user --dry-run
"""
)
@_place_options
@click.option("--dry-run", is_flag=True, help="Change nothing; print what the file would hold.")
@json_option("Print one JSON object.")
def uninstall(place: str | None, settings: str | None, *, dry_run: bool, as_json: bool) -> int:
    """Take our hooks out of the settings again, and nothing else.

    Where nothing but our hooks was changed since, the file is byte for byte what it was.
    """
    from cellwall.interfaces.cli.confirming import confirm  # noqa: PLC0415  # keeps --help quick
    from cellwall.interfaces.hooks import install as work  # noqa: PLC0415  # keeps --help quick

    file = _file(place, settings)
    if not dry_run and not confirm(
        f"{one_line(file)}\n", what="that agents ask no more, and nothing of theirs is judged"
    ):
        say("nothing was removed")
        return 1
    change = work.uninstall(file, is_dry=dry_run)
    return _told(change, "removed", is_dry=dry_run, as_json=as_json)


def _told(change: Any, word: str, *, is_dry: bool, as_json: bool) -> int:  # noqa: ANN401  # a Change, imported late
    if as_json:
        text = None if change.text is None else change.text.decode("utf-8", "replace")
        told = {"file": change.file, "changed": change.is_changed, "backup": change.backup}
        print_json({**told, "dry_run": is_dry, **({"text": text} if is_dry else {})})
        return 0
    if is_dry:
        print_text("" if change.text is None else change.text.decode("utf-8", "replace"))
        return 0
    if not change.is_changed:
        print_text(f"Nothing to do: {one_line(change.file)} is as it should be.\n")
        return 0
    kept = f" What was there is in {one_line(change.backup)}." if change.backup else ""
    print_text(f"The hooks are {word}: {one_line(change.file)}.{kept}\n")
    return 0


@hook.command(
    epilog="""\b
Examples:
  cellwall hook status
  cellwall hook status --json
"""
)
@click.option("--settings", metavar="FILE", type=click.Path(), help="Look at this file alone.")
@json_option("Print one JSON object.")
def status(settings: str | None, *, as_json: bool) -> int:
    """Tell where our hooks are installed, and whether they would stop anything.

    Exit code 0 if they are installed somewhere and nothing is wrong with them, else 1.
    """
    from cellwall.interfaces.hooks.install import state_of  # noqa: PLC0415  # keeps --help quick

    files = {"settings": os.path.abspath(settings)} if settings else _files()
    states = {name: state_of(file, environ=os.environ) for name, file in files.items()}
    there = {name: state for name, state in states.items() if state and state.is_installed}
    # A switch that turns all hooks off counts wherever it stands.
    off = [s for s in states.values() if s and any("disableAllHooks" in p for p in s.problems)]
    is_good = bool(there) and not off and not any(state.problems for state in there.values())
    if as_json:
        told: dict[str, Json] = {
            name: {
                "file": state.file,
                "installed": state.is_installed,
                "run_inside": state.is_inside,
                "options": list(state.options),
                "problems": list(state.problems) if state.is_installed or state in off else [],
            }
            for name, state in states.items()
            if state
        }
        print_json({"ok": is_good, "places": told})
        return 0 if is_good else 1
    lines = []
    for name, file in files.items():
        state = states[name]
        word = "not installed" if name not in there else "installed"
        word += ", runs commands inside" if state and state.is_inside else ""
        word += "".join(f", {one_line(each)}" for each in state.options) if state else ""
        lines.append(f"{name:9}{word}: {one_line(file)}")
        if state and (name in there or state in off):
            lines += [f"{'':9}  problem: {one_line(problem)}" for problem in state.problems]
    print_text("\n".join([*lines, ""]))
    return 0 if is_good else 1

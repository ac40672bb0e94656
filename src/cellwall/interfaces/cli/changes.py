"""`cellwall changes | diff | apply | discard`: the changes of copy-on-write runs."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from cellwall.core.types import Json
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    cli_principal,
    json_option,
    open_configured,
    open_readable,
    passphrase_option,
    place_options,
)
from cellwall.interfaces.cli.output import json_fields, print_json, print_result, print_text, say
from cellwall.interfaces.cli.terminal_input import ask_yes_no
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.apply_changes import ApplyReport, Change

_MAX_DIFF_BYTES = 16 * 1024 * 1024


def _complete_id(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Ids of stored workspaces for completion, without a check of their mode."""
    from cellwall.core.home import state_path

    try:
        names = os.listdir(os.path.join(state_path(os.environ), "workspaces"))
    except OSError:
        return []
    return sorted(name for name in names if name.startswith(begun))


_id_argument = click.argument("workspace_id", metavar="ID", shell_complete=_complete_id)


@click.command(
    epilog="""\b
Examples:
  cellwall changes
  cellwall changes --json | jq -r '.changes[].id'
"""
)
@passphrase_option
@place_options
@json_option("Print one JSON object.")
def changes(configured: ConfigOptions, passphrase_fd: int | None, *, as_json: bool) -> int:
    """List the copy-on-write runs whose changes wait for `apply` or `discard`."""
    from cellwall.admin import apply_changes

    waiting = apply_changes.pending(open_readable(configured, passphrase_fd))
    if as_json:
        rows: list[Json] = [
            {
                "id": each.id,
                "directory": each.directory,
                "made_s": each.made_s,
                "count": each.count,
                "is_busy": each.is_busy,
                "problem": each.problem or None,
            }
            for each in waiting
        ]
        print_json({"changes": rows})
        return 0
    if not waiting:
        print_text("no changes are waiting\n")
        return 0
    lines = [f"{'ID':32} {'AGE':>8} {'CHANGES':>8}  DIRECTORY"]
    for each in waiting:
        count = "?" if each.count is None else str(each.count)
        state = " (its run is active)" if each.is_busy else ""
        state += f" (cannot be read: {one_line(each.problem)})" if each.problem else ""
        age = _age(time.time() - each.made_s)
        lines.append(f"{each.id:32} {age:>8} {count:>8}  {one_line(each.directory)}{state}")
    print_text("\n".join(lines) + "\n")
    return 0


def _age(seconds: float) -> str:
    for unit, scale in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= scale:
            return f"{seconds / scale:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


@click.command(
    epilog="""\b
Examples:
  cellwall run --workspace .:cow -- make
  cellwall diff act_...
  cellwall diff --stat act_...
  cellwall diff act_... | git apply --check

\b
Exit codes:
  0    shown, also where nothing was changed
  125  there is no such workspace, or it cannot be read
"""
)
@_id_argument
@click.option("--stat", is_flag=True, help="Only list the changes.")
@passphrase_option
@place_options
@json_option("Print one JSON object with the list and the diff.")
def diff(
    workspace_id: str,
    configured: ConfigOptions,
    passphrase_fd: int | None,
    *,
    stat: bool,
    as_json: bool,
) -> int:
    """Show what a copy-on-write run changed: a list, then a diff in git's format.

    Agent instructions and files that tools execute are marked and come first. Nothing is modified.
    On a terminal, control characters in files are escaped.
    """
    from cellwall.admin import apply_changes

    app = open_readable(configured, passphrase_fd)
    changed = apply_changes.describe_changes(app, workspace_id)
    text = ""
    if not stat:
        text = apply_changes.unified_diff(app, workspace_id, max_bytes=_MAX_DIFF_BYTES)
    if as_json:
        result: dict[str, Json] = {"id": workspace_id, "changes": [_as_json(c) for c in changed]}
        print_json(result if stat else {**result, "diff": text})
        return 0
    # `git apply` skips text before the first "diff --git" line.
    print_text(_summary(changed) + (f"\n{text}" if text else ""))
    return 0


@click.command(
    epilog="""\b
Examples:
  cellwall apply act_...
  cellwall apply --dry-run act_...
  cellwall apply --yes --force act_...

\b
Exit codes:
  0    everything was applied
  1    something was refused, or you said no
  125  there is no such workspace, it is in use, or the record could not be written
"""
)
@_id_argument
@click.option(
    "--force", is_flag=True, help="Also overwrite files that changed since the run began."
)
@click.option(
    "--instructions",
    is_flag=True,
    help="Also apply agent instructions (CLAUDE.md, AGENTS.md, ...); read them first.",
)
@click.option("--dry-run", is_flag=True, help="Show what would happen; change nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@passphrase_option
@place_options
@json_option("Print one JSON object with the applied and the refused changes.")
def apply(
    workspace_id: str,
    configured: ConfigOptions,
    passphrase_fd: int | None,
    *,
    force: bool,
    instructions: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Apply the changes of a copy-on-write run to the directory it was given.

    Refused and listed: protected names (.env, .git/config, ...), links that lead out, devices,
    set-id bits, blocked extensions, and, without --force, files that changed since the run began.
    Agent instructions are listed first and applied only with --instructions.
    """
    from cellwall.admin import apply_changes

    app = open_readable(configured, passphrase_fd)
    if dry_run:
        report = apply_changes.preview(app, workspace_id, force=force, instructions=instructions)
        return _tell(workspace_id, report, as_json=as_json, verb="would be applied")

    def confirm(changed: Sequence[Change]) -> None:
        where = one_line(apply_changes.target_directory(app, workspace_id))
        click.echo(_summary(changed), err=True, nl=False)
        if changed and not ask_yes_no(f"Apply these changes to {where}?"):
            say("nothing was changed")
            raise click.exceptions.Exit(1)

    report = apply_changes.apply_to_host(
        app,
        workspace_id,
        force=force,
        instructions=instructions,
        principal=cli_principal(),
        confirm=confirm if not yes and sys.stdin.isatty() else None,
    )
    return _tell(workspace_id, report, as_json=as_json, verb="applied")


@click.command(
    epilog="""\b
Examples:
  cellwall discard act_...
  cellwall discard --yes act_...

\b
Exit codes:
  0    the changes are gone
  1    you said no
  125  there is no such workspace, it is in use, or the record could not be written
"""
)
@_id_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@place_options
@json_option("Print one JSON object.")
def discard(workspace_id: str, configured: ConfigOptions, *, yes: bool, as_json: bool) -> int:
    """Remove the changes of a copy-on-write run; its directory is not modified."""
    from cellwall.admin import apply_changes

    app = open_configured(configured)
    if not yes and sys.stdin.isatty():
        where = one_line(apply_changes.target_directory(app, workspace_id))
        if not ask_yes_no(f"Remove the waiting changes to {where}?"):
            say("nothing was removed")
            return 1
    apply_changes.discard(app, workspace_id, principal=cli_principal())
    print_result(
        {"id": workspace_id, "discarded": True}, f"discarded {workspace_id}\n", as_json=as_json
    )
    return 0


def _tell(workspace_id: str, report: ApplyReport, *, as_json: bool, verb: str) -> int:
    if as_json:
        refused: list[Json] = [{"path": path, "reason": why} for path, why in report.refused]
        applied: list[Json] = [_as_json(change) for change in report.applied]
        print_json({"id": workspace_id, "applied": applied, "refused": refused})
    else:
        lines = [f"refused   {_name(path)}: {one_line(why)}" for path, why in report.refused]
        lines.append(f"{len(report.applied)} {verb}, {len(report.refused)} refused")
        print_text(_lines(report.applied) + "".join(f"{line}\n" for line in lines))
        if not report.applied and not report.refused:
            say(
                f"{workspace_id} has no changes; they may have been applied before; "
                f"remove its copy with: cellwall discard {workspace_id}"
            )
    return 1 if report.refused else 0


def _summary(changed: Iterable[Change]) -> str:
    return _lines(changed) or "no changes\n"


def _lines(changed: Iterable[Change]) -> str:
    return "".join(
        f"{change.kind:9} {_name(change.path)}{_sizes(change)}{_mark(change)}\n"
        for change in changed
    )


def _mark(change: Change) -> str:
    return f"  <-- {change.mark}" if change.mark else ""


def _name(path: str) -> str:
    return one_line(path)


def _sizes(change: Change) -> str:
    if change.entry_kind == "dir":
        return "/"
    sizes = [change.size_before, change.size_after]
    shown = " -> ".join(str(size) for size in sizes if size is not None)
    return f" ({shown} bytes{', binary' if change.binary else ''})"


def _as_json(change: Change) -> dict[str, Json]:
    names = ("kind", "path", "entry_kind", "size_before", "size_after", "binary")
    fields = json_fields(change, *names)
    return {**fields, "mark": change.mark} if change.mark else fields

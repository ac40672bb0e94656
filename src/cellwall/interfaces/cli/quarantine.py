"""`cellwall quarantine`: files that checks after `:rw` runs moved out of users' directories."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from cellwall.core.types import Json
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    cli_principal,
    json_option,
    open_configured,
    place_options,
)
from cellwall.interfaces.cli.output import json_fields, print_json, print_result, print_text, say
from cellwall.interfaces.cli.terminal_input import ask_yes_no
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.quarantine import QuarantineEntry

_id_argument = click.argument("entry_id", metavar="ID")


@click.group(
    epilog="""\b
Examples:
  cellwall quarantine list
  cellwall quarantine restore 1f2e3d4c5b6a
  cellwall quarantine delete 1f2e3d4c5b6a
  cellwall quarantine delete --all
"""
)
def quarantine() -> None:
    """List, restore or delete files that checks after runs moved out of your directories.

    After each run in a directory given as `:rw`, files with protected names (.git/hooks,
    CLAUDE.md, .vscode, ...) that appeared while code ran are moved out of it, since tools on the
    host would execute or follow them. No tool reads or executes quarantined files.
    """


@quarantine.command(
    "list",
    epilog="""\b
Examples:
  cellwall quarantine list
  cellwall quarantine list --json | jq -r '.entries[].place'
""",
)
@place_options
@json_option("Print one JSON object.")
def list_entries(configured: ConfigOptions, *, as_json: bool) -> int:
    """List quarantined files: the original path, the reason, and the present path."""
    from cellwall.admin import quarantine

    app = open_configured(configured)
    entries, places = quarantine.waiting(app), quarantine.places(app)
    if as_json:
        rows: list[Json] = [_as_json(entry) for entry in entries]
        print_json({"places": list(places), "entries": rows})
        return 0
    if not entries:
        print_text(f"quarantine is empty ({one_line(places[0])}, {one_line(places[1])})\n")
        return 0
    print_text("\n".join(_line(entry) for entry in entries) + "\n")
    return 0


@quarantine.command(
    epilog="""\b
Examples:
  cellwall quarantine restore 1f2e3d4c5b6a

\b
Exit codes:
  0    restored
  1    you said no
  125  there is no such entry, its path is occupied, or a sandbox uses the directory
"""
)
@_id_argument
@place_options
@json_option("Print one JSON object.")
def restore(entry_id: str, configured: ConfigOptions, *, as_json: bool) -> int:
    """Restore one entry to its original path; a person confirms it at a terminal.

    Inspect it first: a tool on the host may execute or follow it as soon as it is back. An
    existing file is never replaced. With approvals.key this needs the passphrase of the approver.
    """
    from cellwall.admin import quarantine
    from cellwall.admin.standing_grants import require_approver
    from cellwall.interfaces.cli.terminal_input import ask_approver, confirm

    app = open_configured(configured)
    entry = quarantine.find(app, entry_id)
    if not confirm(_line(entry) + "\n", what="that this file is restored"):
        say("nothing was changed")
        return 1
    command = f"cellwall quarantine restore {entry.id}"
    require_approver("the return of a file", ask=ask_approver, command=command, **configured)
    quarantine.restore(app, entry, principal=cli_principal())
    print_result(
        {"restored": _as_json(entry)},
        f"restored {one_line(entry.path)} in {one_line(entry.directory)}\n",
        as_json=as_json,
    )
    return 0


@quarantine.command(
    epilog="""\b
Examples:
  cellwall quarantine delete 1f2e3d4c5b6a
  cellwall quarantine delete --all --yes

\b
Exit codes:
  0    deleted
  1    you said no
  125  there is no such entry, or the audit log could not be written
"""
)
@click.argument("entry_id", metavar="ID", required=False)
@click.option("--all", "everything", is_flag=True, help="Every entry in quarantine.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@place_options
@json_option("Print one JSON object.")
def delete(
    entry_id: str | None,
    configured: ConfigOptions,
    *,
    everything: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Delete one entry, or all, from quarantine permanently."""
    from cellwall.admin import quarantine

    if (entry_id is None) != everything:
        raise click.UsageError("Give one ID, or --all.")
    app = open_configured(configured)
    entries = quarantine.waiting(app) if entry_id is None else (quarantine.find(app, entry_id),)
    if entries and not yes and sys.stdin.isatty():
        click.echo("\n".join(map(_line, entries)), err=True)
        if not ask_yes_no(f"Delete {len(entries)} permanently?"):
            say("nothing was removed")
            return 1
    for entry in entries:
        quarantine.delete(app, entry, principal=cli_principal())
    if as_json:
        rows: list[Json] = [_as_json(entry) for entry in entries]
        print_json({"deleted": rows})
    else:
        print_text(f"deleted {len(entries)}\n")
    return 0


def _line(entry: QuarantineEntry) -> str:
    moved = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.moved_s)) if entry.moved_s else "?"
    where = f"{entry.path} in {entry.directory}" if entry.path else "original path not recorded"
    size = "" if entry.kind == "dir" else f", {entry.size_bytes} bytes"
    return (
        f"{entry.id}  {moved}  {one_line(where)}\n"
        f"{'':14}{entry.kind}{size}; {one_line(entry.reason or 'no reason recorded')}; "
        f"run {one_line(entry.run_id)}\n"
        f"{'':14}stored at {one_line(entry.place)}"
    )


def _as_json(entry: QuarantineEntry) -> dict[str, Json]:
    names = (
        "id",
        "run_id",
        "directory",
        "path",
        "kind",
        "size_bytes",
        "reason",
        "moved_s",
        "place",
    )
    return json_fields(entry, *names)

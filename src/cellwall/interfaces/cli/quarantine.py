"""`cellwall quarantine`: what checks after `:rw` runs moved out of users' directories."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import click

from cellwall.interfaces.cli.confirming import agreed
from cellwall.interfaces.cli.options import json_option, place_options
from cellwall.interfaces.cli.telling import print_json, print_text, say
from cellwall.interfaces.cli.terminal import one_line

if TYPE_CHECKING:
    from cellwall.core.types import Json
    from cellwall.runtime.quarantine_review import QuarantineEntry

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
    """List, put back or remove what checks after runs moved out of your directories.

    After each run in a directory given as `:rw`, files with protected names (.git/hooks,
    CLAUDE.md, .vscode, ...) that appeared while code ran are moved out of it, since tools on the
    host would run or obey them. Nothing in quarantine is read or run by anybody.
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
def list_entries(profile: str | None, config: str | None, *, as_json: bool) -> int:
    """List what lies in quarantine: where each was, why it was moved, where it lies."""
    from cellwall.runtime import quarantine_review  # noqa: PLC0415  # heavy
    from cellwall.runtime.wiring import open_house  # noqa: PLC0415  # heavy

    house = open_house(config=config, profile=profile)
    found, places = quarantine_review.waiting(house), quarantine_review.places(house)
    if as_json:
        rows: list[Json] = [_as_json(entry) for entry in found]
        print_json({"places": list(places), "entries": rows})
        return 0
    if not found:
        print_text(f"nothing lies in quarantine ({one_line(places[0])}, {one_line(places[1])})\n")
        return 0
    print_text("\n".join(_line(entry) for entry in found) + "\n")
    return 0


@quarantine.command(
    epilog="""\b
Examples:
  cellwall quarantine restore 1f2e3d4c5b6a

\b
Exit codes:
  0    it is back where it was
  1    you said no
  125  there is no such entry, something has its name now, or a sandbox works there
"""
)
@_id_argument
@place_options
@json_option("Print one JSON object.")
def restore(entry_id: str, profile: str | None, config: str | None, *, as_json: bool) -> int:
    """Put one thing back where it was; a person confirms it at a terminal.

    Look at it first: a tool on the host may run it or obey it as soon as it is back. Nothing that
    is there now is replaced.
    """
    from cellwall.interfaces.cli.confirming import confirm  # noqa: PLC0415  # heavy
    from cellwall.runtime import quarantine_review  # noqa: PLC0415  # heavy
    from cellwall.runtime.wiring import open_house, principal  # noqa: PLC0415  # heavy

    house = open_house(config=config, profile=profile)
    entry = quarantine_review.find(house, entry_id)
    if not confirm(_line(entry) + "\n", what="that this file goes back to its place"):
        say("nothing was changed")
        return 1
    quarantine_review.restore(house, entry, principal=principal("cli"))
    if as_json:
        print_json({"restored": _as_json(entry)})
    else:
        print_text(f"restored {one_line(entry.path)} in {one_line(entry.directory)}\n")
    return 0


@quarantine.command(
    epilog="""\b
Examples:
  cellwall quarantine delete 1f2e3d4c5b6a
  cellwall quarantine delete --all --yes

\b
Exit codes:
  0    it is gone
  1    you said no
  125  there is no such entry, or the record could not be written
"""
)
@click.argument("entry_id", metavar="ID", required=False)
@click.option("--all", "everything", is_flag=True, help="Everything that lies in quarantine.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask, though there is a terminal.")
@place_options
@json_option("Print one JSON object.")
def delete(
    entry_id: str | None,
    profile: str | None,
    config: str | None,
    *,
    everything: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Remove one thing, or everything, from quarantine for good."""
    from cellwall.runtime import quarantine_review  # noqa: PLC0415  # heavy
    from cellwall.runtime.wiring import open_house, principal  # noqa: PLC0415  # heavy

    if (entry_id is None) != everything:
        raise click.UsageError("Give one ID, or --all.")
    house = open_house(config=config, profile=profile)
    if entry_id is None:
        found = quarantine_review.waiting(house)
    else:
        found = (quarantine_review.find(house, entry_id),)
    if found and not yes and sys.stdin.isatty():
        click.echo("\n".join(map(_line, found)), err=True)
        if not agreed(f"Remove {len(found)} for good?"):
            say("nothing was removed")
            return 1
    for entry in found:
        quarantine_review.delete(house, entry, principal=principal("cli"))
    if as_json:
        rows: list[Json] = [_as_json(entry) for entry in found]
        print_json({"deleted": rows})
    else:
        print_text(f"deleted {len(found)}\n")
    return 0


def _line(entry: QuarantineEntry) -> str:
    moved = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.moved_s)) if entry.moved_s else "?"
    where = f"{entry.path} in {entry.directory}" if entry.path else "where it was is not recorded"
    size = "" if entry.kind == "dir" else f", {entry.size_bytes} bytes"
    return (
        f"{entry.id}  {moved}  {one_line(where)}\n"
        f"{'':14}{entry.kind}{size}; {one_line(entry.reason or 'no reason recorded')}; "
        f"run {one_line(entry.run_id)}\n"
        f"{'':14}lies at {one_line(entry.place)}"
    )


def _as_json(entry: QuarantineEntry) -> dict[str, Json]:
    return {
        "id": entry.id,
        "run_id": entry.run_id,
        "directory": entry.directory,
        "path": entry.path,
        "kind": entry.kind,
        "size_bytes": entry.size_bytes,
        "reason": entry.reason,
        "moved_s": entry.moved_s,
        "place": entry.place,
    }

"""`cellwall snapshot`: files of live sandboxes, kept for new ones (FS-9)."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from cellwall.core.types import Json
from cellwall.interfaces.cli.options import (
    FINITE,
    ConfigOptions,
    cli_principal,
    json_option,
    open_configured,
    place_options,
)
from cellwall.interfaces.cli.output import print_json, print_result, print_text
from cellwall.interfaces.cli.supervisor import complete_id
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.core.snapshots import WorkspaceSnapshot


def complete_snapshot(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """The ids of snapshots; none where the state folder cannot be read."""
    from cellwall.admin.snapshots import known_ids
    from cellwall.core.errors import CellwallError
    from cellwall.runtime.home import state_home

    try:
        known = known_ids(state_home(os.environ))
    except (CellwallError, OSError):
        return []
    return [each for each in known if each.startswith(begun)]


_snapshot_argument = click.argument("snapshot_id", metavar="ID", shell_complete=complete_snapshot)


@click.group(
    epilog="""\b
Examples:
  id=$(cellwall create)
  cellwall snapshot create $id --name prepared
  cellwall snapshot list
  cellwall create --from-snapshot snp_...
  cellwall snapshot delete snp_...
"""
)
def snapshot() -> None:
    """Keep the files of live sandboxes, and begin new ones with them."""


@snapshot.command(
    epilog="""\b
Examples:
  cellwall snapshot create sbx_...
  cellwall snapshot create sbx_... --name 'before the upgrade' --ttl 86400
"""
)
@click.argument("sandbox_id", metavar="SANDBOX", shell_complete=complete_id)
@click.option("--name", default="", metavar="TEXT", help="A name for people.")
@click.option("--ttl", type=FINITE, metavar="S", help="Delete it after this many seconds.")
@click.option("--no-state", is_flag=True, help="Leave out variables of the interpreter.")
@click.option("--end-processes", is_flag=True, help="End its programs first, and copy nothing.")
@json_option("Print one JSON object.")
def create(
    sandbox_id: str,
    name: str,
    ttl: float | None,
    *,
    no_state: bool,
    end_processes: bool,
    as_json: bool,
) -> int:
    """Take a snapshot of a live sandbox, and print its id."""
    from cellwall.interfaces.sdk.blocking import Sandbox

    taken = Sandbox.connect(sandbox_id).snapshot(
        name, ttl=ttl, state=not no_state, end_processes=end_processes
    )
    if as_json:
        print_json(_as_json(taken))
    else:
        print_text(f"{taken.id}\n")
        for each in taken.not_carried:
            click.echo(f"not carried: {one_line(f'{each.name}: {each.reason}')}", err=True)
    return 0


@snapshot.command(
    "list",
    epilog="""\b
Examples:
  cellwall snapshot list
  cellwall snapshot list --json | jq -r '.snapshots[].id'
""",
)
@place_options
@json_option("Print one JSON object.")
def list_all(configured: ConfigOptions, *, as_json: bool) -> int:
    """List snapshots, the newest first; those of users of the service with their owners."""
    from cellwall.admin.snapshots import list_snapshots

    found = list_snapshots(open_configured(configured), owner=None)
    rows: list[Json] = [_as_json(each) for each in found]
    text = "\n".join(map(_line, found)) if found else "there are no snapshots"
    print_result({"snapshots": rows}, f"{text}\n", as_json=as_json)
    return 0


@snapshot.command(
    epilog="""\b
Examples:
  cellwall snapshot show snp_...
"""
)
@_snapshot_argument
@place_options
@json_option("Print one JSON object.")
def show(snapshot_id: str, configured: ConfigOptions, *, as_json: bool) -> int:
    """Show one snapshot: its size, its times, and the variables that it holds."""
    from cellwall.admin.snapshots import find_snapshot

    found = find_snapshot(open_configured(configured), snapshot_id, owner=None)
    names = ", ".join(found.variables) or "none"
    text = (
        f"{_line(found)}\n  of {found.session}, template {found.template}\n  variables: {names}\n"
    )
    print_result(_as_json(found), text, as_json=as_json)
    return 0


@snapshot.command(
    epilog="""\b
Examples:
  cellwall snapshot delete snp_...

\b
Exit codes:
  0    deleted
  125  there is no such snapshot, or a hold on the audit log is in force
"""
)
@_snapshot_argument
@place_options
@json_option("Print one JSON object.")
def delete(snapshot_id: str, configured: ConfigOptions, *, as_json: bool) -> int:
    """Delete a snapshot; sandboxes that were made from it are not affected."""
    from cellwall.admin.snapshots import delete_snapshot

    app = open_configured(configured)
    delete_snapshot(app, snapshot_id, principal=cli_principal(), owner=None)
    print_result({"deleted": snapshot_id}, f"deleted {snapshot_id}\n", as_json=as_json)
    return 0


def _line(found: WorkspaceSnapshot) -> str:
    created, expires = (
        time.strftime("%Y-%m-%d %H:%M", time.localtime(each))
        for each in (found.created_s, found.expires_s)
    )
    owner = f"  of {one_line(found.owner)}" if found.owner else ""
    size = f"{found.size_bytes} bytes in {found.files} files"
    name = one_line(found.name) or "-"
    return f"{found.id}  {created}  until {expires}  {size}  {name}{owner}"


def _as_json(found: WorkspaceSnapshot) -> dict[str, Json]:
    return {**found.to_json(), "owner": found.owner}

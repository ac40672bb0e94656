"""`cellwall fleet status`, `drain` and `remove`: the hosts that are there."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from cellwall.interfaces.cli.exit_codes import CHANGE_EXIT_CODES
from cellwall.interfaces.cli.host_table import host_table
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    Decorated,
    cli_principal,
    json_option,
    place_options,
)
from cellwall.interfaces.cli.output import print_result

if TYPE_CHECKING:
    from cellwall.admin.fleet_hosts import FleetAdmin


def _admin_options(command: Decorated) -> Decorated:
    def with_admin(*, configured: ConfigOptions, **values: Any) -> int:  # noqa: ANN401  # what click has parsed
        from cellwall.admin.fleet_sandboxes import configured_admin

        return int(command(admin=configured_admin(**configured), **values))

    with_admin.__name__, with_admin.__doc__ = command.__name__, command.__doc__
    with_admin.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]  # as click keeps them
    return json_option("Print one JSON object.")(place_options(with_admin))  # type: ignore[return-value]  # click keeps what it decorates


@click.command(
    epilog="""\b
Examples:
  cellwall fleet status
  cellwall fleet status --json
"""
)
@_admin_options
def status(*, admin: FleetAdmin, as_json: bool) -> int:
    """List the hosts: state, load, labels and version. A lost one is listed for a day."""
    hosts = admin.status(cli_principal())
    shown = [{**asdict(each), "templates": sorted(each.templates)} for each in hosts]
    print_result({"hosts": shown}, host_table(hosts), as_json=as_json)
    return 0


@click.command(
    epilog=f"""\b
Examples:
  cellwall fleet drain svc_ID
  cellwall fleet drain svc_ID --wait 600
  cellwall fleet drain svc_ID --undo

{CHANGE_EXIT_CODES}"""
)
@click.argument("host_id", metavar="HOST")
@click.option("--undo", is_flag=True, help="Place sessions there again.")
@click.option(
    "--wait",
    "wait_s",
    metavar="S",
    type=click.FloatRange(0),
    help="Return once the host has no session, at most after S seconds.",
)
@_admin_options
def drain(
    *, admin: FleetAdmin, host_id: str, undo: bool, wait_s: float | None, as_json: bool
) -> int:
    """Place no new session on a host; those that it has go on until they end.

    For an upgrade without a failed call: drain --wait, remove, install, join.
    """
    admin.drain(host_id, cli_principal(), is_draining=not undo)
    if wait_s is not None and not undo:
        admin.wait_until_empty(host_id, timeout_s=wait_s)
    done = "takes sessions again" if undo else "takes no new sessions"
    print_result({"host": host_id, "is_draining": not undo}, f"{host_id} {done}\n", as_json=as_json)
    return 0


@click.command(
    epilog=f"""\b
Examples:
  cellwall fleet remove svc_ID

{CHANGE_EXIT_CODES}"""
)
@click.argument("host_id", metavar="HOST")
@click.option(
    "--revoke", is_flag=True, help="It may be in other hands: its name never joins again."
)
@_admin_options
def remove(*, admin: FleetAdmin, host_id: str, revoke: bool, as_json: bool) -> int:
    """End a host with all of its sessions, or forget a lost one. Drain it first."""
    admin.remove(host_id, cli_principal(), revokes=revoke)
    print_result({"host": host_id}, f"{host_id} was removed\n", as_json=as_json)
    return 0

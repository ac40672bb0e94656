"""`cellwall stop`: the emergency stop (OBS-3)."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import datetime as dt
import resource
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.core.types import Principal
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    cli_principal,
    json_option,
    place_options,
)
from cellwall.interfaces.cli.output import json_fields, print_json, print_result, print_text, say
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.emergency_stop import EmergencyStop

_INCOMPLETE = 1
_MAX_DESCRIPTORS = 65_536


@click.command(
    epilog="""\b
Examples:
  cellwall stop --all --reason "agent reads foreign mail"
  cellwall stop --all --freeze
  cellwall stop --status
  cellwall stop --thaw
  cellwall stop --lift --reason "token replaced"

\b
Exit codes:
  0    done
  1    stopped, but a process, the record or the tokens are left: see standard error
  125  refused
"""
)
@click.option("--all", "is_all", is_flag=True, help="End every sandbox and refuse new runs.")
@click.option("--freeze", is_flag=True, help="With --all: suspend instead of end, for evidence.")
@click.option("--revoke-tokens", is_flag=True, help="With --all: end every token of the service.")
@click.option("--thaw", is_flag=True, help="Continue suspended sandboxes; new runs stay refused.")
@click.option("--lift", is_flag=True, help="Accept new runs again.")
@click.option("--status", is_flag=True, help="Show whether a stop is in effect.")
@click.option("--reason", metavar="TEXT", default="", help="Why; kept in the record.")
@place_options
@json_option("Print one JSON object.")
def stop(
    configured: ConfigOptions,
    *,
    is_all: bool,
    freeze: bool,
    revoke_tokens: bool,
    thaw: bool,
    lift: bool,
    status: bool,
    reason: str,
    as_json: bool,
) -> int:
    """End every sandbox of this state folder at once: of commands, agents and the service.

    New runs are refused until `--lift`. Works without a running service or supervisor.
    """
    if (freeze or revoke_tokens) and not is_all:
        raise BadInput(
            "--freeze and --revoke-tokens belong to --all",
            hint="Write cellwall stop --all with them.",
            code="CW-USAGE",
        )
    if [is_all, thaw, lift, status].count(True) != 1:
        raise BadInput(
            "one of --all, --thaw, --lift and --status is needed",
            hint="cellwall stop --all ends every sandbox.",
            code="CW-USAGE",
        )
    from cellwall.admin.emergency_stop import EmergencyStop
    from cellwall.runtime.home import user_name

    # The search keeps a descriptor of each process; the usual limit is lower than their number.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, _MAX_DESCRIPTORS), hard))
    # Not `cli_principal`, which imports the whole runtime first: the cells would live on meanwhile.
    switch = EmergencyStop.configured(Principal(user_name(), "cli"), **configured)
    if is_all:
        return _stop_all(
            switch, configured, reason, freeze=freeze, revoke_tokens=revoke_tokens, as_json=as_json
        )
    if thaw:
        thawed = switch.thaw()
        print_result(
            {"thawed": list(thawed)}, f"{len(thawed)} sandboxes continue\n", as_json=as_json
        )
    elif lift:
        was_set = switch.lift(reason=reason)
        text = "new runs are accepted again\n" if was_set else "no stop is in effect\n"
        print_result({"lifted": was_set}, text, as_json=as_json)
    else:
        _print_status(switch, as_json=as_json)
    return 0


def _stop_all(
    switch: EmergencyStop,
    configured: ConfigOptions,
    reason: str,
    *,
    freeze: bool,
    revoke_tokens: bool,
    as_json: bool,
) -> int:
    report = switch.stop(reason=reason, freeze=freeze)
    problems = list(report.problems)
    if report.left:
        problems.append(f"a process is left in: {', '.join(report.left[:20])}")
    is_revoked = False
    if revoke_tokens:
        from cellwall.admin.account_admin import AccountAdmin
        from cellwall.core.errors import CellwallError

        try:
            is_revoked = AccountAdmin.configured(cli_principal(), **configured).revoke_everybody()
        except CellwallError as error:  # the sandboxes have ended; this must not hide it
            problems.append(f"the tokens were not revoked: {error.message}")
    if as_json:
        fields = json_fields(report, "cells", "processes", "is_frozen", "left", "took_s")
        print_json({**fields, "revoked_tokens": is_revoked, "problems": problems})
    else:
        done = "suspended" if freeze else "ended"
        print_text(
            f"{len(report.cells)} sandboxes and templates with {report.processes} processes {done} "
            f"in {report.took_s:.2f} s; new runs are refused until `cellwall stop --lift`\n"
        )
        if is_revoked:
            print_text("every token of every user was revoked\n")
        for problem in problems:
            say(problem)
    return _INCOMPLETE if problems else 0


def _print_status(switch: EmergencyStop, *, as_json: bool) -> None:
    status = switch.status()
    if as_json:
        print_json(json_fields(status, "is_stopped", "by", "reason", "since_s", "cells", "frozen"))
        return
    if status.is_stopped:
        since = dt.datetime.fromtimestamp(status.since_s, dt.UTC)
        print_text(f"stopped by {one_line(status.by)} since {since:%Y-%m-%d %H:%M:%S} UTC\n")
        print_text(f"reason: {one_line(status.reason) or 'none given'}\n")
    else:
        print_text("no stop is in effect\n")
    print_text(f"{status.cells} sandboxes and templates are alive, {status.frozen} suspended\n")

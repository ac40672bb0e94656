"""`cellwall doctor`: what works on this host, what does not, and the hint for each."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from cellwall.interfaces.cli.options import ConfigOptions, json_option, place_options
from cellwall.interfaces.cli.output import print_json, print_text
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.host_check import HostCheck, HostReport

_WORDS = {"ok": "ok", "missing": "MISSING", "weak": "weak", "info": "info"}


@click.command(
    epilog="""\b
Examples:
  cellwall doctor
  cellwall doctor --profile paranoid
  cellwall doctor --service
  cellwall doctor --production
  cellwall doctor --json | jq '.checks[] | select(.status != "ok")'

\b
Exit codes:
  0  sandboxes run here with this profile; with --service, the service does as well; with
     --production, nothing required by the production list is missing
  1  they do not: something required is missing, and a hint is printed
"""
)
@place_options
@click.option(
    "--service",
    "is_for_service",
    is_flag=True,
    help="Check as well what `cellwall serve` needs: cgroup delegation, lingering, state folder, "
    "database, TLS files, port.",
)
@click.option(
    "--production",
    "is_for_production",
    is_flag=True,
    help="Check as well, beside --service, the production list: backup, retention, forwarding, "
    "alerts, rate limits, package feeds, clock, disk. Root and missing TLS are errors.",
)
@json_option("Print one JSON object with all checks.")
def doctor(
    configured: ConfigOptions, *, is_for_service: bool, is_for_production: bool, as_json: bool
) -> int:
    """Show which isolation layers work on this host, which do not, why, and how to fix them."""
    from cellwall.admin.host_check import examine_host, examine_production, examine_service

    report, good = examine_host(**configured, interface="cli"), "Sandboxes run here."
    report = replace(report, checks=(*report.checks, *_check_hooks()))
    bad = "Sandboxes do not run here."
    if is_for_service or is_for_production:
        from cellwall.interfaces.supervisor.ownership import ask_supervisor

        status = ask_supervisor({"do": "status"}) or {}
        examine = examine_production if is_for_production else examine_service
        found = examine(**configured, address=status.get("service"))
        report = replace(report, checks=(*report.checks, *found.checks))
        good = "The service and its sandboxes run here."
        bad = "Something required is missing; see above."
    if is_for_production:
        weak = sum(check.status == "weak" for check in report.checks)
        good = f"Nothing required for production is missing; {weak} checks are weak."
    if as_json:
        print_json(report.to_json())
    else:
        print_text(_render(report) + f"\n{good if report.usable else bad}\n")
    return 0 if report.usable else 1


def _check_hooks() -> tuple[HostCheck, ...]:
    """Hooks that were installed and are gone: only detected, since the file is the agent's."""
    import os

    from cellwall.admin.host_check import HostCheck
    from cellwall.core.errors import CellwallError
    from cellwall.interfaces.hooks.install import missing_hooks

    name, why = "hooks", "without its hook an agent's tool calls are not checked"
    hint = "Look at the file, then install the hook again; or: cellwall hook uninstall"
    try:
        missing = missing_hooks(os.environ)
    except CellwallError as error:
        return (HostCheck(name, "weak", error.message, why, error.hint, required=False),)
    return tuple(
        HostCheck(name, "weak", f"{file}: {problem}", why, hint, required=False)
        for file, problem in missing.items()
    )


def _render(report: HostReport) -> str:
    lines = []
    for check in report.checks:
        lines.append(f"{_WORDS[check.status]:8}{one_line(check.name)}: {one_line(check.found)}")
        if check.status in {"missing", "weak"}:
            lines.append(f"{'':8}  why:  {one_line(check.why)}")
            lines.append(f"{'':8}  hint: {one_line(check.hint)}" if check.hint else "")
    return "".join(f"{line}\n" for line in lines if line)

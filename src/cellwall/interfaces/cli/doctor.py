"""`cellwall doctor`: what works on this host."""

from __future__ import annotations

import click

from cellwall.interfaces.cli.options import json_option, place_options
from cellwall.interfaces.cli.output import print_json, print_text
from cellwall.interfaces.terminal import one_line

_WORDS = {"ok": "ok", "missing": "MISSING", "weak": "weak", "info": "info"}


@click.command(
    epilog="""\b
Examples:
  cellwall doctor
  cellwall doctor --profile paranoid
  cellwall doctor --json | jq '.checks[] | select(.status != "ok")'

\b
Exit codes:
  0  sandboxes run here with this profile
  1  they do not: a required layer is missing, and the hint is told
"""
)
@place_options
@json_option("Print one JSON object with all checks.")
def doctor(profile: str | None, config: str | None, *, as_json: bool) -> int:
    """Tell which walls work on this host, which do not, why, and what mends it."""
    from cellwall.runtime.hostcheck import examine_host  # noqa: PLC0415  # heavy

    report = examine_host(config=config, profile=profile, interface="cli")
    if as_json:
        print_json(report.to_json())
        return 0 if report.usable else 1
    lines = []
    for check in report.checks:
        lines.append(f"{_WORDS[check.status]:8}{one_line(check.name)}: {one_line(check.found)}")
        if check.status in {"missing", "weak"}:
            lines.append(f"{'':8}  why:  {one_line(check.why)}")
            lines.append(f"{'':8}  hint: {one_line(check.hint)}" if check.hint else "")
    verdict = "Sandboxes run here." if report.usable else "Sandboxes do not run here."
    print_text("\n".join([line for line in lines if line] + ["", verdict, ""]))
    return 0 if report.usable else 1

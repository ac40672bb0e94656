"""`cellwall audit forward status | run`: continuous forwarding to a syslog receiver."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import click

from cellwall.interfaces.cli.options import (
    ConfigOptions,
    json_option,
    passphrase_option,
    place_options,
)
from cellwall.interfaces.cli.output import print_result, say
from cellwall.interfaces.terminal import one_line


@click.group(
    epilog="""\b
Examples:
  cellwall audit forward status
  cellwall audit forward run
"""
)
def forward() -> None:
    """Forward every record to the receiver in [audit] forward.

    The supervisor and servers do so while they run; `run` does so in the foreground.
    """


@forward.command(
    epilog="""\b
Examples:
  cellwall audit forward status
  cellwall audit forward status --json | jq .waiting

\b
Exit codes:
  0  all is well, or nothing is configured    1  records wait, and the output says why
"""
)
@place_options
@json_option("Print one JSON object.")
def status(configured: ConfigOptions, *, as_json: bool) -> int:
    """Show how far forwarding came, and what it waits for."""
    from cellwall.admin.audit_forwarding import forward_report
    from cellwall.admin.audit_queries import read_settings

    report = forward_report(read_settings(**configured))
    state = report.state
    if report.destination is None:
        text = "forwarding is not configured\n"
    else:
        text = f"{one_line(report.destination)}: {state.state}, {report.waiting} records wait\n"
        text += f"the last record that has arrived is {state.seq}\n"
        if state.gaps:
            text += f"{state.gaps} records were deleted before they could be sent\n"
        if report.problem:
            text += f"{one_line(report.problem)} {state.code}".rstrip() + "\n"
    fields = {
        "destination": report.destination,
        "state": state.state,
        "is_running": state.is_running,
        "seq": state.seq,
        "waiting": report.waiting,
        "gaps": state.gaps,
        "problem": report.problem or None,
        "code": state.code or None,
    }
    print_result(fields, text, as_json=as_json)
    return 1 if report.problem else 0


@forward.command(
    epilog="""\b
Examples:
  cellwall audit forward run
  systemd-run --user cellwall audit forward run
"""
)
@passphrase_option
@place_options
def run(configured: ConfigOptions, passphrase_fd: int | None) -> int:
    """Forward until Ctrl-C. If another process forwards already, wait for its end."""
    from cellwall.admin.audit_forwarding import open_forwarder
    from cellwall.interfaces.cli.terminal_input import Passphrases

    forwarder = open_forwarder(**configured, ask=Passphrases(passphrase_fd))
    say("forwarding; end with Ctrl-C")
    try:
        forwarder.run()
    finally:
        forwarder.stop()
    return 0

"""`cellwall alerts`: alerts from the audit log, silences, and receivers."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import click

from cellwall.interfaces.cli.exit_codes import EXIT_CODES
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    cli_principal,
    json_option,
    passphrase_option,
    place_options,
)
from cellwall.interfaces.cli.output import print_json, print_result, print_text, say
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.alerts import Alert, AlertAdmin, AlertReport, Silence
    from cellwall.config.models import Settings

_FIRING_CODES = """\b
Exit codes:
  0  nothing fires    1  an alert fires, or a receiver cannot be reached
  125  Cellwall refused or failed; the reason is on standard error
"""


@click.group(
    epilog="""\b
Examples:
  cellwall alerts list
  cellwall alerts check                              # from a timer, without a service
  cellwall alerts silence egress-refusals --for 2h --reason "load test"
  cellwall alerts test ops
"""
)
def alerts() -> None:
    """Alerts from the audit log: failures, time-outs, limits, errors, egress, tampering.

    Rules count records in a sliding window. An alert is pending, fires, and is resolved; receivers
    in [alerts.receivers] get a message. `cellwall serve` evaluates the rules while it runs; without
    a service, `check` does so once and `watch` until Ctrl-C. They read only the audit log: no
    session's key and no running sandbox is needed. Rules, receivers: docs/guides/alerts.md.
    """


@alerts.command(
    "list",
    epilog=f"""\b
Examples:
  cellwall alerts list
  cellwall alerts list --json | jq '.alerts[] | select(.state == "firing")'
{_FIRING_CODES}""",
)
@place_options
@json_option("Print one JSON object.")
def list_alerts(*, configured: ConfigOptions, as_json: bool) -> int:
    """Show what is pending, firing and resolved, silences, and delivery. Evaluates nothing."""
    from cellwall.admin.alerts import alert_report

    home, settings = _place(configured)
    return _print_report(alert_report(home, settings), as_json=as_json)


@alerts.command(
    epilog=f"""\b
Examples:
  cellwall alerts check
  systemd-run --user --on-calendar=minutely cellwall alerts check
{_FIRING_CODES}"""
)
@passphrase_option
@place_options
@json_option("Print one JSON object.")
def check(configured: ConfigOptions, passphrase_fd: int | None, *, as_json: bool) -> int:
    """Evaluate the records since the last time, tell the receivers, and end.

    For a timer. A message that could not be delivered is tried again the next time. Where a service
    evaluates already, this only shows the state of the alerts.
    """
    from cellwall.interfaces.cli.terminal_input import Passphrases

    report = _admin(configured).check(by=cli_principal(), ask=Passphrases(passphrase_fd))
    return _print_report(report, as_json=as_json)


@alerts.command(epilog="\b\nExamples:\n  cellwall alerts watch\n")
@passphrase_option
@place_options
def watch(configured: ConfigOptions, passphrase_fd: int | None) -> int:
    """Evaluate until Ctrl-C. If another process does so already, wait for its end."""
    from cellwall.admin.alert_secrets import AlertSecrets
    from cellwall.admin.alerts import AlertAdmin
    from cellwall.interfaces.cli.terminal_input import Passphrases

    home, settings = _place(configured)
    secrets = AlertSecrets(home, settings, cli_principal(), ask=Passphrases(passphrase_fd))
    watcher = AlertAdmin(home, settings).watcher(secrets)
    say("watching the audit log; end with Ctrl-C")
    try:
        watcher.run()
    finally:
        watcher.stop()
        secrets.close()
    return 0


@alerts.command(
    epilog=f"""\b
Examples:
  cellwall alerts silence failures --for 8h --reason "known bad build"
  cellwall alerts silence 'egress-*' --for 1d --reason "scan of the mirror"
  cellwall alerts silence one-error --group CW-BUSY --for 2h --reason "host is full"
{EXIT_CODES}"""
)
@click.argument("rule")
@click.option("--for", "duration", metavar="TIME", required=True, help="Such as 30m, 8h or 7d.")
@click.option("--reason", metavar="TEXT", required=True, help="Why; it is recorded.")
@click.option("--group", metavar="VALUE", default="", help="Only this group of the rule.")
@place_options
@json_option("Print one JSON object.")
def silence(
    rule: str,
    duration: str,
    reason: str,
    group: str,
    *,
    configured: ConfigOptions,
    as_json: bool,
) -> int:
    """Hold messages about RULE back for some time.

    RULE is a name, in which * stands for any letters; a critical rule must be named exactly. The
    alert itself stays visible. Who, why and until when are recorded. At most 30 days.
    """
    from cellwall.interfaces.cli.vault_grants import parse_duration

    made = _admin(configured).silence(
        rule,
        group=group,
        for_s=parse_duration(duration),
        reason=reason,
        by=cli_principal(),
        is_remote=False,
    )
    print_result(made.to_json(), f"{_silence_line(made)}\n", as_json=as_json)
    return 0


@alerts.command(epilog=f"\b\nExamples:\n  cellwall alerts unsilence sil_01ab\n{EXIT_CODES}")
@click.argument("silence_id", metavar="ID")
@place_options
@json_option("Print one JSON object.")
def unsilence(silence_id: str, *, configured: ConfigOptions, as_json: bool) -> int:
    """End a silence before its time."""
    _admin(configured).unsilence(silence_id, by=cli_principal(), is_remote=False)
    print_result({"ended": silence_id}, f"{one_line(silence_id)} has ended\n", as_json=as_json)
    return 0


@alerts.command(
    epilog="""\b
Examples:
  cellwall alerts test
  cellwall alerts test ops mail --json

\b
Exit codes:
  0  every receiver took the message    1  one did not, and the output says why
"""
)
@click.argument("receivers", nargs=-1)
@passphrase_option
@place_options
@json_option("Print one JSON object.")
def test(
    receivers: tuple[str, ...],
    configured: ConfigOptions,
    passphrase_fd: int | None,
    *,
    as_json: bool,
) -> int:
    """Send a test message to RECEIVERS, or to all."""
    from cellwall.interfaces.cli.terminal_input import Passphrases

    found = _admin(configured).test(receivers, by=cli_principal(), ask=Passphrases(passphrase_fd))
    if as_json:
        print_json(
            {
                name: {
                    "delivered": problem is None,
                    "problem": problem[0] if problem else None,
                    "code": problem[1] if problem else None,
                }
                for name, problem in found.items()
            }
        )
    else:
        for name, problem in found.items():
            text = "delivered" if problem is None else f"{one_line(problem[0])} [{problem[1]}]"
            print_text(f"{name}: {text}\n")
    return 1 if any(found.values()) else 0


def _place(configured: ConfigOptions) -> tuple[str, Settings]:
    from cellwall.config.load import load_settings
    from cellwall.runtime.home import state_home

    settings = load_settings(
        file=configured["config"], profile=configured["profile"], environ=os.environ
    )
    return state_home(os.environ), settings


def _admin(configured: ConfigOptions) -> AlertAdmin:
    from cellwall.admin.alerts import AlertAdmin

    return AlertAdmin(*_place(configured))


def _print_report(report: AlertReport, *, as_json: bool) -> int:
    is_bad = bool(report.firing) or any(each.is_failing for each in report.receivers)
    if as_json:
        print_json(report.to_json())
    else:
        print_text("".join(f"{line}\n" for line in _report_lines(report)))
    return 1 if is_bad or report.problem else 0


def _report_lines(report: AlertReport) -> list[str]:
    lines = []
    for alert, hidden in report.active:
        lines += _alert_lines(alert, f"silenced by {hidden.id}" if hidden else "")
    if not report.active:
        lines.append("no alert is pending or firing")
    lines += [line for each in report.recent[:5] for line in _alert_lines(each, "")[:1]]
    lines += [_silence_line(each) for each in report.silences]
    for receiver in report.receivers:
        box = receiver.outbox
        how = f"{box.problem} [{box.code}]" if box.problem else f"{box.delivered} delivered"
        lost = f", {box.dropped} lost" if box.dropped else ""
        lines.append(
            f"receiver {receiver.name} ({receiver.kind}): {one_line(how)}, "
            f"{len(box.waiting)} waiting{lost}"
        )
    return [*lines, *_evaluation_lines(report)]


def _alert_lines(alert: Alert, note: str) -> list[str]:
    about = f" ({one_line(alert.group)})" if alert.group else ""
    head = f"{alert.state.upper():8} {alert.severity}: {alert.rule}{about}: {alert.summary}"
    lines = [one_line(head) + (f" [{note}]" if note else "")]
    lines.append(f"         {one_line(alert.reason)}; since {_time(alert.since_s)}")
    if alert.records:
        lines.append(f"         cellwall audit show {alert.records[-1]}")
    return lines


def _silence_line(made: Silence) -> str:
    group = f" ({made.group})" if made.group else ""
    text = f"silence {made.id}: {made.rule}{group} until {_time(made.until_s)}, by {made.by}"
    return one_line(f"{text}: {made.reason}")


def _evaluation_lines(report: AlertReport) -> list[str]:
    lines = [one_line(report.problem)] if report.problem else []
    if report.evaluated_s is None:
        lines.append("the rules were never evaluated: run `cellwall alerts check`, or the service")
    elif report.unread and not report.is_watched:
        lines.append(f"{report.unread} records wait for evaluation; nothing evaluates now")
    return lines


def _time(time_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(time_s))

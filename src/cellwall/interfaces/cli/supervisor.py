"""`cellwall ps | logs | kill | supervisor`: live sandboxes and their supervisor."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import click

from cellwall import __version__
from cellwall.core.errors import BadInput, CellwallError, SandboxFailed
from cellwall.interfaces.cli.options import json_option
from cellwall.interfaces.cli.output import print_json, print_result, print_text, say
from cellwall.interfaces.supervisor.client import connect, raise_for_error
from cellwall.interfaces.terminal import one_line

_STOP_WITHIN_S = 20.0


def _ask(message: Mapping[str, Any]) -> tuple[dict[str, Any], bytes] | None:
    """The supervisor's answer; None if no supervisor runs."""
    link = connect(os.environ)
    if link is None:
        return None
    try:
        link.send({**message, "version": __version__})
        answer = link.read()
    except OSError:
        answer = None
    finally:
        link.close()
    if answer is not None:
        raise_for_error(answer[0])
    return answer


def living() -> list[str]:
    """The ids of live sandboxes for completion; errors are ignored."""
    try:
        answer = _ask({"do": "status"})
    except (CellwallError, OSError):
        return []
    return [] if answer is None else [each["id"] for each in answer[0]["sandboxes"]]


def complete_id(_ctx: click.Context, _param: click.Parameter, begun: str) -> list[str]:
    """Ids with this prefix."""
    return [each for each in living() if each.startswith(begun)]


def _none_lives(sandbox_id: str) -> BadInput:
    return BadInput(
        f"no live sandbox {sandbox_id[:60]!r}: no supervisor runs",
        hint="Create a live sandbox with `cellwall create`, or with keep_alive.",
        code="CW-NO-SANDBOX",
    )


@click.command(
    epilog="""\b
Examples:
  cellwall ps
  cellwall ps --json
"""
)
@json_option("Print one JSON object.")
def ps(as_json: bool) -> int:  # noqa: FBT001  # click's signature
    """List live sandboxes; where a service runs, those of its users as well."""
    answer = _ask({"do": "status"})
    sandboxes = [] if answer is None else answer[0]["sandboxes"]
    if as_json:
        print_json(
            {"supervisor": None if answer is None else answer[0]["pid"], "sandboxes": sandboxes}
        )
        return 0
    if not sandboxes:
        print_text("no live sandboxes\n")
        return 0
    lines = [f"{'ID':32} {'AGE':>8} {'IDLE':>8} {'ENDS IN':>8} {'CALLS':>6}  STATE  OWNER"]
    for each in sandboxes:
        age = time.time() - each["made_s"]
        state = "busy" if each["is_busy"] else "idle"
        owner = str(each.get("owner", ""))  # of a service's user
        times = [f"{seconds:7.0f}s" for seconds in (age, each["idle_s"], each["ends_in_s"])]
        line = f"{each['id']:32} {' '.join(times)} {each['calls']:6}  {state:5}  {one_line(owner)}"
        lines.append(line.rstrip())
    print_text("\n".join(lines) + "\n")
    return 0


@click.command(
    epilog="""\b
Examples:
  cellwall logs sbx_1b2c3d4e5f6g7h8j9kmn
"""
)
@json_option("Print one JSON object.")
@click.argument("sandbox_id", metavar="ID", shell_complete=complete_id)
def logs(sandbox_id: str, as_json: bool) -> int:  # noqa: FBT001  # click's signature
    """Print the last output of a live sandbox (at most 256 KiB)."""
    answer = _ask({"do": "logs", "id": sandbox_id})
    if answer is None:
        raise _none_lives(sandbox_id)
    text = answer[1].decode("utf-8", "replace")
    print_result({"id": sandbox_id, "log": text}, text, as_json=as_json)
    return 0


@click.command(
    epilog="""\b
Examples:
  cellwall kill sbx_1b2c3d4e5f6g7h8j9kmn
"""
)
@json_option("Print one JSON object.")
@click.argument("sandbox_id", metavar="ID", shell_complete=complete_id)
def kill(sandbox_id: str, as_json: bool) -> int:  # noqa: FBT001  # click's signature
    """End a live sandbox and everything in it."""
    if _ask({"do": "kill", "id": sandbox_id}) is None:
        raise _none_lives(sandbox_id)
    if as_json:
        print_json({"id": sandbox_id, "ended": True})
    else:
        say(f"{sandbox_id} ended")
    return 0


@click.group(
    epilog="""\b
Examples:
  cellwall supervisor start
  cellwall supervisor status
  cellwall supervisor metrics
  cellwall supervisor stop
"""
)
def supervisor() -> None:
    """The process that keeps templates warm and sandboxes alive.

    It starts by itself on repeated runs and ends after 15 idle minutes. CELLWALL_SUPERVISOR=off
    disables it.
    """


@supervisor.command(
    epilog="""\b
Examples:
  cellwall supervisor start
  cellwall supervisor start --foreground
"""
)
@click.option("--foreground", is_flag=True, help="Serve in this process, for a service manager.")
def start(foreground: bool) -> int:  # noqa: FBT001  # click's signature
    """Start the supervisor, if none runs."""
    if foreground:
        from cellwall.interfaces.supervisor.server import main

        return main()
    from cellwall.runtime.home import start_supervisor

    start_supervisor(os.environ)
    answer = _ask({"do": "status"})
    say(f"the supervisor runs as process {answer[0]['pid'] if answer else '?'}")
    return 0


@supervisor.command(
    epilog="""\b
Examples:
  cellwall supervisor stop
"""
)
def stop() -> int:
    """End the supervisor and every live sandbox."""
    if _ask({"do": "stop"}) is None:
        say("no supervisor runs")
        return 0
    deadline = time.monotonic() + _STOP_WITHIN_S
    while time.monotonic() < deadline and (link := connect(os.environ)) is not None:
        link.close()
        time.sleep(0.02)
    if connect(os.environ) is not None:
        raise SandboxFailed(
            "the supervisor did not stop in time",
            hint="See supervisor.log in the state folder, or end its process.",
            code="CW-SUPERVISOR-STOP",
        )
    say("the supervisor ended")
    return 0


@supervisor.command(
    epilog="""\b
Examples:
  cellwall supervisor status --json
"""
)
@json_option("Print one JSON object.")
def status(as_json: bool) -> int:  # noqa: FBT001  # click's signature
    """Show whether the supervisor runs."""
    answer = _ask({"do": "status"})
    if as_json:
        status = None if answer is None else answer[0]
        print_json({"running": status is not None, "pid": status and status["pid"]})
    elif answer is None:
        print_text("no supervisor runs\n")
    else:
        count = len(answer[0]["sandboxes"])
        print_text(f"runs as process {answer[0]['pid']}, {count} sandboxes\n")
    return 0


@supervisor.command(
    epilog="""\b
Examples:
  cellwall supervisor metrics
  cellwall supervisor metrics > /var/lib/prometheus/node-exporter/cellwall.prom
"""
)
def metrics() -> int:
    """Print the supervisor's metrics in the Prometheus text format.

    For the textfile collector of node_exporter, for example from a timer. `observability.metrics`
    in the configuration switches them off.
    """
    answer = _ask({"do": "metrics"})
    if answer is None:
        raise SandboxFailed(
            "no supervisor runs, so there are no metrics",
            hint="Start it with `cellwall supervisor start`.",
            code="CW-NO-SUPERVISOR",
        )
    print_text(answer[1].decode("utf-8", "replace"))
    return 0

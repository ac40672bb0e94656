"""`cellwall top`: what agents do now, in the terminal, and the questions that wait."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput, CellwallError
from cellwall.interfaces.cli.options import ConfigOptions, json_option, place_options
from cellwall.interfaces.cli.output import print_json, print_text

if TYPE_CHECKING:
    from cellwall.interfaces.cli.now_view import NowReader


@click.command(
    epilog="""\b
Examples:
  cellwall top
  cellwall top --once
  cellwall top --once --json | jq '.questions[].id'

\b
Keys:
  j, k  select the next or previous question
  a     allow the selected question, once; you type a word to confirm
  d     deny the selected question
  q     end

\b
Exit codes:
  0    ended by a key
  125  refused or failed; the reason is on standard error
"""
)
@place_options
@click.option("--once", is_flag=True, help="Print the present state once, and end.")
@json_option("With --once: print one JSON object.")
def top(configured: ConfigOptions, *, once: bool, as_json: bool) -> int:
    """Watch live sandboxes, rates, decisions with their reasons, and answer questions by key.

    Reads the audit log, the supervisor and the approval questions of your state folder; no service
    is needed. The live view needs the extra `top`: pip install 'cellwall[top]'.
    """
    from cellwall.interfaces.cli.now_view import NowReader

    if as_json and not once:
        raise BadInput(
            "--json needs --once", hint="Run `cellwall top --once --json`.", code="CW-USAGE"
        )
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput(
            "the live view needs a terminal",
            hint="Run `cellwall top --once`, with --json for programs.",
            code="CW-NO-TERMINAL",
        )
    with NowReader.opened(**configured) as reader:
        if not once:
            return watch(reader)
        view = reader.read()
        if as_json:
            print_json(view.to_json())
        else:
            print_text(view.to_text(columns=100))
    return 0


def watch(reader: NowReader) -> int:
    """Show the live view until a key ends it."""
    try:
        from cellwall.interfaces.cli.now_screen import NowScreen
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in {"textual", "rich"}:
            raise
        raise CellwallError(
            "the live view needs the package textual",
            hint="Run `pip install 'cellwall[top]'`, or `cellwall top --once`.",
            code="CW-TOP-MISSING",
        ) from None
    NowScreen(reader).run()
    return 0

"""`cellwall canary`: texts that must not leak, such as a system prompt."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.interfaces.cli.exit_codes import EXIT_CODES
from cellwall.interfaces.cli.options import ConfigOptions, cli_principal, json_option, place_options
from cellwall.interfaces.cli.output import print_json, print_result, print_text
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.canaries import CanaryAdmin

_MAX_BYTES = 4 << 20


@click.group(
    epilog="""\b
Examples:
  cellwall canary add support-bot < system-prompt.txt
  cellwall canary list
"""
)
def canary() -> None:
    """Register texts that must not leak, such as a system prompt.

    Requests, output and chat replies with a verbatim part of such a text are withheld, also if it
    is re-spaced, in another case, in base64 or in hexadecimal digits. Only digests are stored.
    """


@canary.command("add", epilog=f"\b\nExamples:\n  cellwall canary add x < prompt\n{EXIT_CODES}")
@click.argument("name")
@json_option("Print one JSON object.")
@place_options
def add_canary(name: str, *, configured: ConfigOptions, as_json: bool) -> int:
    """Register the text on standard input, in place of the one of this name."""
    with open(0, "rb", closefd=False) as stream:
        data = stream.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise BadInput(
            "the text is too large",
            hint="Register it in parts, each under its own name.",
            code="CW-BAD-CANARY",
        )
    _admin(configured).add(name, data.decode("utf-8", "replace"), by=cli_principal())
    print_result({"name": name}, f"{one_line(name)} is registered\n", as_json=as_json)
    return 0


@canary.command("list", epilog="\b\nExamples:\n  cellwall canary list --json\n")
@json_option("Print one JSON object.")
@place_options
def list_canaries(*, configured: ConfigOptions, as_json: bool) -> int:
    """List the names of the registered texts."""
    names = _admin(configured).names()
    if as_json:
        print_json({"names": list(names)})
        return 0
    print_text("".join(f"{one_line(name)}\n" for name in names or ["no registered texts"]))
    return 0


@canary.command("remove", epilog=f"\b\nExamples:\n  cellwall canary remove bot\n{EXIT_CODES}")
@click.argument("name")
@json_option("Print one JSON object.")
@place_options
def remove_canary(name: str, *, configured: ConfigOptions, as_json: bool) -> int:
    """Forget a registered text."""
    _admin(configured).remove(name, by=cli_principal())
    print_result({"removed": name}, f"{one_line(name)} is forgotten\n", as_json=as_json)
    return 0


def _admin(configured: ConfigOptions) -> CanaryAdmin:
    from cellwall.admin.canaries import CanaryAdmin
    from cellwall.config.load import load_settings
    from cellwall.runtime.home import state_home

    settings = load_settings(
        file=configured["config"], profile=configured["profile"], environ=os.environ
    )
    return CanaryAdmin(state_home(os.environ), settings)

"""`cellwall erase`: delete all data of a session or a run, now (FS-5)."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import click

from cellwall.interfaces.cli.options import (
    ConfigOptions,
    cli_principal,
    json_option,
    open_configured,
    place_options,
)
from cellwall.interfaces.cli.output import json_fields, print_json, print_text, say
from cellwall.interfaces.cli.terminal_input import ask_yes_no


@click.command(
    epilog="""\b
Examples:
  cellwall erase sbx_...
  cellwall erase --yes act_... --json

\b
Exit codes:
  0    erased
  1    you said no
  125  there is no such data, it is in use or on hold, or the record could not be written
"""
)
@click.argument("subject_id", metavar="ID")
@click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
@place_options
@json_option("Print one JSON object.")
def erase(subject_id: str, configured: ConfigOptions, *, yes: bool, as_json: bool) -> int:
    """Erase all data of a sandbox (sbx_...) or of a run (act_...), for good.

    Its keys are destroyed first, then its files are removed. Its records stay in the audit log,
    which still verifies, but nothing can read their bodies again.
    """
    from cellwall.admin import session_data
    from cellwall.core.ids import check_id

    app = open_configured(configured)
    check_id(subject_id)
    if not yes and not ask_yes_no(f"Erase all data of {subject_id}? This cannot be undone"):
        return 1
    erased = session_data.erase(app, subject_id, principal=cli_principal())
    if as_json:
        names = ("id", "keys", "records", "records_in_clear", "had_workspace")
        print_json(json_fields(erased, *names))
        return 0
    print_text(f"erased: {erased.records} records of {erased.id} can no longer be read\n")
    if erased.records_in_clear:
        say(
            f"{erased.records_in_clear} records are older than their encryption and stay in clear "
            "until [audit] keep_days deletes their file"
        )
    return 0

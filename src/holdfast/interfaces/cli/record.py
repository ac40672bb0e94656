"""`holdfast audit`: read and check the record."""

from __future__ import annotations

import json
from collections import deque
from typing import TYPE_CHECKING, Any

import click

from holdfast.core.errors import BadInput
from holdfast.core.types import check_id
from holdfast.interfaces.cli.options import json_option
from holdfast.interfaces.cli.telling import print_json, print_text
from holdfast.interfaces.cli.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_RECORDS = 10_000
_MOST_TOLD = 120


@click.group(
    epilog="""\b
Examples:
  holdfast audit tail -n 20
  holdfast audit show act_...
  holdfast audit verify
"""
)
def audit() -> None:
    """Read and check the record: one intent before each action, one outcome after it."""


@audit.command(
    epilog="""\b
Examples:
  holdfast audit tail
  holdfast audit tail -n 100 --json | jq '.records[].kind'
"""
)
@click.option(
    "-n",
    "count",
    type=click.IntRange(1, _MOST_RECORDS),
    default=20,
    show_default=True,
    help="How many records.",
)
@json_option("Print one JSON object with the whole records.")
def tail(count: int, *, as_json: bool) -> int:
    """Show the latest records, one line each, the newest last."""
    from holdfast.runtime import reading  # noqa: PLC0415  # heavy

    latest = deque(reading.audit_records(), maxlen=count)
    if as_json:
        print_json({"records": list(latest)})
    else:
        print_text("".join(_line(entry) for entry in latest))
    return 0


@audit.command(
    epilog="""\b
Examples:
  holdfast audit show act_...
  holdfast audit show evt_... --json
"""
)
@click.argument("wanted", metavar="ID")
@json_option("Print one JSON object with the whole records.")
def show(wanted: str, *, as_json: bool) -> int:
    """Show all records of one action.

    ID is the action's, or that of one of its records, such as the `audit_id` of a result.
    """
    from holdfast.runtime import reading  # noqa: PLC0415  # heavy

    check_id(wanted)
    action_id: str | None = wanted
    if wanted.startswith("evt_"):
        entries = reading.audit_records()
        action_id = next((e["action_id"] for e in entries if e["id"] == wanted), None)
    records = list(reading.audit_records(action_id=action_id)) if action_id else []
    if not records:
        raise BadInput(
            f"the record has nothing about {wanted}",
            mend="Look at `holdfast audit tail`.",
            code="HF-NO-RECORD",
        )
    if as_json:
        print_json({"records": records})
    else:
        # ensure_ascii, so that what others wrote cannot steer a terminal or forge a line.
        print_text("".join(f"{json.dumps(entry, indent=2)}\n" for entry in records))
    return 0


@audit.command(
    epilog="""\b
Examples:
  holdfast audit verify
  holdfast audit verify --json | jq .first_bad

\b
Exit codes:
  0  the record is whole    1  it is not, and the first bad record is named
"""
)
@json_option("Print one JSON object.")
def verify(*, as_json: bool) -> int:
    """Check every record's hash, number and link to the one before it."""
    from holdfast.runtime import reading  # noqa: PLC0415  # heavy

    report = reading.check_audit()
    if as_json:
        print_json(
            {
                "ok": report.ok,
                "records": report.records,
                "first_bad": report.first_bad,
                "reason": report.reason,
            }
        )
    elif report.ok:
        print_text(f"ok: {report.records} records\n")
    else:
        print_text(f"NOT OK after {report.records} sound records: {one_line(report.reason)}\n")
    return 0 if report.ok else 1


def _line(entry: Mapping[str, Any]) -> str:
    words = [entry["time"], f"{entry['kind']:8}", entry["action_id"] or "-", entry["principal"]]
    told = _told(entry["body"])
    return one_line(" ".join([*map(str, words), told])) + "\n"


def _told(body: Mapping[str, Any]) -> str:
    """The few words of a body that say most."""
    for key in ("command", "code", "message", "reason", "file", "step", "status"):
        if body.get(key):
            value = body[key]
            text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
            return text if len(text) <= _MOST_TOLD else text[:_MOST_TOLD] + "…"
    return ""

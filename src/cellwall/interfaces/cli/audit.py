"""`cellwall audit tail | search | show | verify | prove`: read and verify the audit log."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from cellwall.admin.record_text import body_summary
from cellwall.core.errors import BadInput
from cellwall.core.ids import check_id
from cellwall.interfaces.cli import audit_admin
from cellwall.interfaces.cli.audit_admin import export, filter_options
from cellwall.interfaces.cli.audit_forward import forward
from cellwall.interfaces.cli.options import json_option, passphrase_option
from cellwall.interfaces.cli.output import json_fields, print_json, print_result, print_text
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cellwall.admin.audit_queries import Query, VerifyReport

_MAX_RECORDS = 10_000
_count_option = click.option(
    "-n",
    "count",
    type=click.IntRange(1, _MAX_RECORDS),
    default=20,
    show_default=True,
    help="How many records.",
)
_key_option = click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="KEY",
    help="A public key, or a file with some; repeatable. [default: the log's own first key]",
)


@click.group(
    epilog="""\b
Examples:
  cellwall audit tail -f
  cellwall audit search --verdict deny --since 2d
  cellwall audit show act_...
  cellwall audit verify
  cellwall audit export --form jsonl --to audit.jsonl
"""
)
def audit() -> None:
    """Read, verify and keep the audit log: an intent before each action, an outcome after it."""


@audit.command(
    epilog="""\b
Examples:
  cellwall audit tail
  cellwall audit tail -f --verdict deny
  cellwall audit tail -n 100 --json | jq '.records[].kind'
"""
)
@_count_option
@click.option("-f", "--follow", is_flag=True, help="Follow new records until Ctrl-C.")
@filter_options
@passphrase_option
@json_option("Print one JSON object with the whole records; with -f one a line.")
def tail(
    count: int, query: Query, passphrase_fd: int | None, *, follow: bool, as_json: bool
) -> int:
    """Show the latest records, one line each, the newest last."""
    from cellwall.admin import audit_queries
    from cellwall.interfaces.cli.terminal_input import Passphrases

    ask = Passphrases(passphrase_fd)
    coming = audit_queries.following(query, ask=ask)
    if follow:
        next(coming)  # start following before the latest are read, so that no record is missed
    latest = audit_queries.latest(query, count, ask=ask)
    if not follow:
        return _print_records(latest, as_json=as_json)
    shown = latest[-1]["seq"] if latest else 0
    for entry in latest:
        _print_followed(entry, as_json=as_json)
    for record in coming:
        if record is not None and record["seq"] > shown:
            _print_followed(record, as_json=as_json)
    return 0


@audit.command(
    epilog="""\b
Examples:
  cellwall audit search --session sbx_...
  cellwall audit search --user alice --verdict deny --since 7d
  cellwall audit search --text /etc/passwd -n 5 --json
"""
)
@_count_option
@filter_options
@passphrase_option
@json_option("Print one JSON object with the whole records.")
def search(count: int, query: Query, passphrase_fd: int | None, *, as_json: bool) -> int:
    """Find records that match every filter, the newest last.

    Exit code 1 if there are none.
    """
    from cellwall.admin import audit_queries
    from cellwall.interfaces.cli.terminal_input import Passphrases

    records = audit_queries.latest(query, count, ask=Passphrases(passphrase_fd))
    _print_records(records, as_json=as_json)
    return 0 if records else 1


@audit.command(
    epilog="""\b
Examples:
  cellwall audit show act_...
  cellwall audit show evt_... --json
"""
)
@click.argument("wanted", metavar="ID")
@passphrase_option
@json_option("Print one JSON object with the whole records.")
def show(wanted: str, passphrase_fd: int | None, *, as_json: bool) -> int:
    """Show all records of one action, or of one sandbox.

    ID is the action's (act_...), the sandbox's (sbx_...), or that of one of its records (evt_...),
    such as the `audit_id` of a result. Bodies are decrypted with the keys of their sessions; the
    records of an erased session show only that they are erased.
    """
    from cellwall.admin import audit_queries
    from cellwall.interfaces.cli.terminal_input import Passphrases

    records = audit_queries.about(check_id(wanted), ask=Passphrases(passphrase_fd))
    if not records:
        raise BadInput(
            f"the audit log has no record of {wanted}",
            hint="See `cellwall audit tail`.",
            code="CW-NO-RECORD",
        )
    print_result(
        {"records": records},
        # ensure_ascii: untrusted text can neither control a terminal nor forge a line.
        "".join(f"{json.dumps(entry, indent=2)}\n" for entry in records),
        as_json=as_json,
    )
    return 0


@audit.command(
    epilog="""\b
Examples:
  cellwall audit verify
  cellwall audit verify --checkpoint /mnt/witness/last.checkpoint
  cellwall audit verify --key alice.pub --directory copied-audit-folder
  cellwall audit verify --json | jq .first_bad

\b
Exit codes:
  0  the log is intact    1  it is not, and the first bad record is named
"""
)
@click.option("--since", type=click.IntRange(1), metavar="N", help="Begin with record N's file.")
@click.option(
    "--checkpoint",
    "checkpoints",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="A signed checkpoint stored elsewhere, which the log must contain; repeatable.",
)
@click.option(
    "--witness",
    type=click.Path(exists=True, file_okay=False),
    help="A directory with checkpoints that the log must contain.",
)
@_key_option
@click.option(
    "--directory", type=click.Path(exists=True, file_okay=False), help="Another audit folder."
)
@json_option("Print one JSON object.")
def verify(
    since: int | None,
    checkpoints: tuple[str, ...],
    witness: str | None,
    keys: tuple[str, ...],
    directory: str | None,
    *,
    as_json: bool,
) -> int:
    """Verify every record, link, signature and key, from the beginning.

    A log that was truncated together with its signatures looks like a shorter one: only a
    checkpoint stored elsewhere reveals that. The last checkpoint of your own log lies beside the
    key; for another log give one (--checkpoint, --witness). A log rewritten with another key is
    revealed by the key that you know (--key).
    """
    from cellwall.admin import audit_queries

    report = audit_queries.check(
        keys, checkpoints, since=since, directory=directory, witness=witness
    )
    if as_json:
        print_json(_report(report))
    elif report.ok:
        print_text(f"ok: {report.records} records{_report_details(report)}\n")
    else:
        print_text(f"NOT OK after {report.records} sound records: {one_line(report.reason)}\n")
    return 0 if report.ok else 1


@audit.command(
    epilog="""\b
Examples:
  cellwall audit verifier > cellwall-verify.py
  python3 cellwall-verify.py copied-audit-folder --key "$(cat alice.pub)"
"""
)
def verifier() -> int:
    """Print the verifier as one file, for hosts without Cellwall.

    It needs Python and the package `cryptography`.
    """
    from cellwall.admin import audit_queries

    print_text(audit_queries.verifier_source())
    return 0


@audit.command(
    epilog="""\b
Examples:
  cellwall audit prove evt_... > proof.txt
  cellwall audit check-proof proof.txt
"""
)
@click.argument("event_id", metavar="ID")
def prove(event_id: str) -> int:
    """Print a proof that one record (evt_...) is in the log.

    The proof contains the record, the hashes up to the tree's root, and the signed root; to check
    it, only the public key is needed.
    """
    from cellwall.admin import audit_queries

    print_text(audit_queries.prove(check_id(event_id)))
    return 0


@audit.command(
    name="check-proof",
    epilog="""\b
Examples:
  cellwall audit check-proof proof.txt
  cellwall audit check-proof proof.txt --key alice.pub --json
""",
)
@click.argument("proof", type=click.Path(exists=True, dir_okay=False))
@_key_option
@json_option("Print one JSON object.")
def check_proof(proof: str, keys: tuple[str, ...], *, as_json: bool) -> int:
    """Check a proof and show its record.

    Exit code 1 if the proof is invalid.
    """
    from cellwall.admin import audit_queries

    try:
        held = audit_queries.check_proof(proof, keys)
    except audit_queries.BadProof as problem:
        print_result(
            {"ok": False, "reason": str(problem)},
            f"NOT OK: {one_line(str(problem))}\n",
            as_json=as_json,
        )
        return 1
    if as_json:
        signed_by = [str(key) for key in held.signed_by]
        size = held.checkpoint.size
        print_json({"ok": True, "record": held.record, "size": size, "signed_by": signed_by})
    else:
        signers = one_line(", ".join(map(str, held.signed_by)))
        what = f"record {held.record['seq']} of a log of {held.checkpoint.size}"
        print_text(f"ok: {what}, signed by {signers}\n{json.dumps(held.record, indent=2)}\n")
    return 0


for command in (*audit_admin.COMMANDS, export, forward):
    audit.add_command(command)


def _report(report: VerifyReport) -> dict[str, Any]:
    names = ("ok", "records", "first_bad", "reason", "signed", "checkpoints", "deleted", "keys")
    return json_fields(report, *names)


def _report_details(report: VerifyReport) -> str:
    parts = []
    if report.signed < report.records:
        parts.append(f"the last {report.records - report.signed} not signed yet")
    if report.deleted:
        parts.append(f"{report.deleted} deleted by rule")
    return f" ({', '.join(parts)})" if parts else ""


def _print_records(records: list[dict[str, Any]], *, as_json: bool) -> int:
    print_result({"records": records}, "".join(_line(entry) for entry in records), as_json=as_json)
    return 0


def _print_followed(entry: Mapping[str, Any], *, as_json: bool) -> None:
    print_text(f"{json.dumps(entry)}\n" if as_json else _line(entry))


def _line(entry: Mapping[str, Any]) -> str:
    about = entry["action_id"] or entry["session_id"] or "-"
    words = [entry["time"], f"{entry['kind']:8}", about, entry["principal"]]
    summary = body_summary(entry["body"])
    if client := entry["body"].get("client"):
        words.append(f"client {client}")
    return one_line(" ".join([*map(str, words), summary])) + "\n"

"""`cellwall incident`: evidence in one signed file, and its check (OBS-3)."""

# ruff: noqa: PLC0415  # late imports: heavy modules load when a command runs, not for --help

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from cellwall.core.errors import BadInput
from cellwall.interfaces.cli.options import (
    ConfigOptions,
    cli_principal,
    json_option,
    open_readable,
    parse_time,
    passphrase_option,
    place_options,
)
from cellwall.interfaces.cli.output import print_json, print_text, say
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from datetime import datetime

    from cellwall.admin.bundle_seals import BundleSeal

_NOT_INTACT = 1


@click.group(
    epilog="""\b
Examples:
  cellwall incident bundle --since 24h --reason "agent reads foreign mail"
  cellwall incident verify incident-20260101T120000Z.tar
"""
)
def incident() -> None:
    """Keep the evidence of an incident, and check it.

    `cellwall stop --all --freeze` stops everything first and keeps processes for the bundle.
    """


@incident.command(
    epilog="""\b
Examples:
  cellwall incident bundle --since 24h
  cellwall incident bundle --recipient recipient.pem -o /mnt/evidence/case-17.tar
  cellwall incident bundle --seal-fd 0 < passphrase
"""
)
@click.option("-o", "--output", "path", metavar="FILE", type=click.Path(), help="A new file.")
@click.option(
    "--since", metavar="TIME", callback=parse_time, help="Start: a time, or 90m, 2h, 3d ago."
)
@click.option(
    "--until", metavar="TIME", callback=parse_time, help="End (exclusive): a time, or 2h ago."
)
@click.option("--reason", metavar="TEXT", default="", help="Why; kept in report and record.")
@click.option("--recipient", metavar="FILE", help="Encrypt for this public X25519 key (PEM).")
@click.option("--seal-fd", metavar="N", type=int, help="Encrypt for a passphrase, read from here.")
@passphrase_option
@place_options
@json_option("Print one JSON object.")
def bundle(
    configured: ConfigOptions,
    passphrase_fd: int | None,
    *,
    path: str | None,
    since: datetime | None,
    until: datetime | None,
    reason: str,
    recipient: str | None,
    seal_fd: int | None,
    as_json: bool,
) -> int:
    """Write a signed archive of the evidence: audit log with proof, report, settings, changes of
    workspaces, processes and sockets of live or suspended sandboxes.

    No value of a secret is in it. Records lie in it encrypted, as in the log; a bundle with
    --recipient or --seal-fd also has them readable.
    """
    seal = _seal(recipient, seal_fd)
    from cellwall.admin.incidents import Incidents, IncidentScope, default_path

    app = open_readable(configured, passphrase_fd)
    scope = IncidentScope(since=since, until=until, reason=reason)
    made = Incidents(app, cli_principal()).bundle(path or default_path(os.getcwd()), scope, seal)
    if as_json:
        print_json(
            {
                "path": made.path,
                "sha256": made.payload.sha256,
                "sessions": made.sessions,
                "records": made.records,
                "cells": made.cells,
                "is_sealed": made.is_sealed,
            }
        )
        return 0
    print_text(f"{one_line(made.path)}\n")
    say(f"{made.records} records of {made.sessions} sessions, {made.cells} sandboxes alive")
    return 0


@incident.command(
    epilog="""\b
Examples:
  cellwall incident verify case-17.tar
  cellwall incident verify --key log.pub --identity key.pem case-17.tar

\b
Exit codes:
  0    intact and signed by a known key
  1    not intact, or not signed by a known key
  125  the file cannot be read
"""
)
@click.argument("path", metavar="FILE", type=click.Path())
@click.option("--key", "keys", metavar="KEY", multiple=True, help="A public key, or its file.")
@click.option("--identity", metavar="FILE", help="The private X25519 key of the recipient (PEM).")
@click.option("--seal-fd", metavar="N", type=int, help="The passphrase of the bundle, read here.")
@click.option("--report", is_flag=True, help="Print the report of an intact bundle.")
@json_option("Print one JSON object.")
def verify(
    *,
    path: str,
    keys: tuple[str, ...],
    identity: str | None,
    seal_fd: int | None,
    report: bool,
    as_json: bool,
) -> int:
    """Check a bundle: signature, digest, and the audit log in it.

    Without --key the keys of this machine's own log count. A sealed bundle is checked from outside;
    with --identity or --seal-fd its content as well.
    """
    from cellwall.admin.bundle_check import check_bundle
    from cellwall.admin.bundle_file import BadBundle

    try:
        found = check_bundle(path, keys, _seal(identity, seal_fd))
    except BadBundle as problem:
        if as_json:
            print_json({"ok": False, "reason": str(problem)})
        else:
            print_text(f"NOT OK: {problem}\n")
        return _NOT_INTACT
    if as_json:
        print_json(
            {
                "ok": True,
                "created": found.created,
                "origin": found.origin,
                "signed_by": list(found.signed_by),
                "is_opened": found.is_opened,
                "records": found.records,
                "signed_records": found.signed_records,
                **({"report": found.report} if report else {}),
            }
        )
        return 0
    print_text(f"ok: made {found.created}, signed by {', '.join(found.signed_by)}\n")
    if found.is_opened:
        print_text(f"audit log: {found.records} records, {found.signed_records} of them signed\n")
    else:
        print_text("sealed: its content was not checked\n")
    if report:
        print_text(found.text)
    return 0


def _seal(key: str | None, descriptor: int | None) -> BundleSeal | None:
    from cellwall.admin.bundle_seals import PassphraseSeal, RecipientSeal
    from cellwall.admin.incidents import read_key

    if key is not None and descriptor is not None:
        raise BadInput("a bundle is sealed in one way", hint="Give one option.", code="CW-USAGE")
    if key is not None:
        return read_key(key, RecipientSeal.from_pem)
    if descriptor is None:
        return None
    from cellwall.interfaces.cli.terminal_input import Passphrases

    passphrase = bytes(Passphrases(descriptor)(False))
    if not passphrase:
        raise BadInput(
            "the passphrase is empty",
            hint="Write it as one line to the descriptor of --seal-fd.",
            code="CW-USAGE",
        )
    return PassphraseSeal(passphrase)

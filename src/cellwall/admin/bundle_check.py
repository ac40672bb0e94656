"""Checks an incident bundle offline: with a public key alone, on any machine (OBS-3)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cellwall.admin import audit_queries
from cellwall.admin.bundle_file import FORMAT, BadBundle, OpenedBundle, open_bundle
from cellwall.admin.bundle_seals import BundleSeal
from cellwall.admin.incident_audit import FOLDER, ExtractedLog
from cellwall.core.notes import BadNote, PublicKey, open_note

_MAX_MEMBERS = 200_000
_MAX_REPORT_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BundleCheck:
    """A bundle that is intact and signed by a known key."""

    created: str
    origin: str
    signed_by: tuple[str, ...]
    is_opened: bool
    """Whether the payload was read as well: a sealed one needs its key."""
    records: int = 0
    signed_records: int = 0
    report: dict[str, Any] = field(default_factory=dict)
    text: str = ""


def check_bundle(path: str, keys: Sequence[str], seal: BundleSeal | None) -> BundleCheck:
    """The checked bundle; raises `BadBundle` with the reason.

    (1) the structure      (3) size and digest of the payload   (5) the audit log verifies, and is
    (2) the signed note    (4) the payload decrypts             the one that the note names
    """
    known = audit_queries.verifier_keys(keys)
    with open_bundle(path) as bundle:  # (1)
        try:
            text, signers = open_note(bundle.note, known)  # (2)
        except BadNote as problem:
            raise BadBundle(f"its note does not hold: {problem}") from None
        facts = _note_facts(text)
        stated = (bundle.payload.name, str(bundle.payload.size), bundle.payload.sha256)
        if facts["payload"] != stated:  # (3)
            raise BadBundle("its payload is not the one that was signed")
        check = BundleCheck(
            created=facts["created"],
            origin=facts["origin"],
            signed_by=tuple(map(str, signers)),
            is_opened=False,
        )
        if bundle.is_sealed and seal is None:
            return check
        return _check_payload(bundle, check, known, seal, since=facts["since"])


def _note_facts(text: str) -> dict[str, Any]:
    match [line.split(" ") for line in text.splitlines()]:
        case [
            [form],
            ["created", created],
            ["origin", origin],
            ["since", since],
            [name, size, sha256],
        ] if form == FORMAT and since.isdecimal():
            stated = (name, size, sha256)
            return {"created": created, "origin": origin, "since": int(since), "payload": stated}
    raise BadBundle("its note is not about a bundle")


def _check_payload(
    bundle: OpenedBundle,
    check: BundleCheck,
    keys: Sequence[PublicKey],
    seal: BundleSeal | None,
    *,
    since: int,
) -> BundleCheck:
    log, kept = ExtractedLog(), dict.fromkeys(("report.json", "report.txt"), b"")
    try:
        with bundle.members(seal) as payload:  # (4)
            for number, member in enumerate(payload):
                if number > _MAX_MEMBERS:
                    raise BadBundle("it has too many files")
                if member.name.startswith(FOLDER):
                    log.take(payload, member)
                elif member.name in kept and member.isreg():
                    source = payload.extractfile(member)
                    kept[member.name] = source.read(_MAX_REPORT_BYTES) if source else b""
        found = log.verify(keys, since=since)  # (5)
    finally:
        log.close()
    if not found.ok:
        raise BadBundle(f"its audit log does not verify: {found.reason}")
    if found.origin not in (None, check.origin):
        raise BadBundle("its audit log is another one")
    try:
        report = json.loads(kept["report.json"])
    except (ValueError, RecursionError):
        raise BadBundle("its report cannot be read") from None
    return BundleCheck(
        created=check.created,
        origin=check.origin,
        signed_by=check.signed_by,
        is_opened=True,
        records=found.records,
        signed_records=found.signed,
        report=report,
        text=kept["report.txt"].decode("utf-8", "replace"),
    )

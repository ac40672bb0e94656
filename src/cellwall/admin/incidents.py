"""Incident bundles: the evidence of a state folder in one signed file (OBS-3).

   (1) permission            (4) files of workspaces, diffs     (7) the report
   (2) write the intent      (5) settings, versions, host       (8) sign, then name the file
   (3) cells and processes   (6) sign and copy the audit log    (9) write the outcome

Names and texts that code chose are redacted like output, and no value of the vault is in any of
them: the vault is unlocked for that, or there is no bundle. Bodies of records lie encrypted in the
log (FS-5): a bundle contains them decrypted only if the bundle itself is encrypted.
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cellwall.admin import apply_changes
from cellwall.admin.bundle_file import FORMAT, PayloadDigest, add_member, new_bundle
from cellwall.admin.bundle_seals import BundleSeal
from cellwall.admin.incident_audit import copy_log
from cellwall.admin.incident_facts import FileListing, cell_facts, host_facts
from cellwall.admin.incident_report import gather_sessions, report_html, report_text
from cellwall.audit.export.delivery import records_after
from cellwall.audit.files import LOCK_TIMEOUT_S
from cellwall.audit.proofs import verifier_source
from cellwall.audit.search import FoundRecord, Query
from cellwall.audit.segments import list_segments
from cellwall.config.models import weakened
from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.notes import signed_note
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Json, Permission, Principal, WorkspaceMode
from cellwall.runtime.app import App
from cellwall.runtime.judging import require
from cellwall.runtime.recording import AdminChange, audit_directory
from cellwall.runtime.secret_leases import RecordRedactor
from cellwall.sandbox.linux.cell_search import find_cells

_MAX_DIFF_BYTES = 1024 * 1024
_MAX_OPENED_RECORDS = 200_000


@dataclass(frozen=True, slots=True)
class BundleSummary:
    """What a bundle contains."""

    path: str
    payload: PayloadDigest
    sessions: int
    records: int
    cells: int
    is_sealed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentScope:
    """Which records a bundle is about, and why it is made."""

    since: datetime | None = None
    until: datetime | None = None
    reason: str = ""


class Incidents:
    """Makes bundles of one state folder."""

    def __init__(self, app: App, principal: Principal) -> None:
        self._app, self._who = app, principal
        self._directory = audit_directory(app.store.home)
        self._without_values = RecordRedactor(app.leaser)

    def bundle(self, path: str, scope: IncidentScope, seal: BundleSeal | None) -> BundleSummary:
        """Write a bundle to a file that does not exist yet."""
        app = self._app
        require(app.settings, self._who, Permission.AUDIT_EXPORT)  # (1)
        vault = app.leaser.vault
        if vault.exists and not vault.is_unlocked:
            vault.unlock(self._who)
        known: dict[str, Json] = {"reason": scope.reason, "is_sealed": seal is not None}
        change = AdminChange(EventKind.INCIDENT, "bundle", os.path.basename(path), known)
        digests: list[PayloadDigest] = []
        facts = _BundleFacts(is_opened=seal is not None)
        with change.recorded(app.audit, self._who) as outcome:  # (2), (9)
            with new_bundle(path, seal, lambda digest: self._sign(digest, facts, digests)) as made:
                self._add_cells(made, facts)  # (3)
                self._add_workspaces(made)  # (4)
                self._add_json(made, "configuration.json", self._settings())  # (5)
                self._add_json(made, "host.json", host_facts())
                self._add_audit(made, scope, facts)  # (6), (7)
            outcome |= {"sha256": digests[0].sha256, "records": facts.records}
        return BundleSummary(
            path, digests[0], facts.sessions, facts.records, facts.cells, seal is not None
        )

    def _sign(
        self, digest: PayloadDigest, facts: _BundleFacts, digests: list[PayloadDigest]
    ) -> bytes:
        """(8) Signed by the key of the log. The first line tells the note from a checkpoint."""
        digests.append(digest)
        lines = [
            FORMAT,
            f"created {facts.created}",
            f"origin {facts.origin or '-'}",
            f"since {facts.since}",
            f"{digest.name} {digest.size} {digest.sha256}",
        ]
        keys = self._app.audit.notary.signers.active_keys()
        return signed_note("".join(f"{line}\n" for line in lines), *keys)

    def _add_cells(self, made: tarfile.TarFile, facts: _BundleFacts) -> None:
        app = self._app
        found = find_cells(app.ledger.directory, app.ledger.tag, is_detailed=True)
        facts.cells = len(found)
        self._add_json(made, "cells.json", [self._redacted(cell_facts(each)) for each in found])
        self._add_json(made, "stop.json", app.ledger.stop_flag.read())

    def _add_workspaces(self, made: tarfile.TarFile) -> None:
        app = self._app
        listing = FileListing(max_entries=app.settings.workspace.max_walk_entries)
        for session in app.store.sessions():
            name = f"workspaces/{session.id}"
            if session.request.mode is not WorkspaceMode.COPY_ON_WRITE:
                if os.path.isdir(session.files_path):
                    files = self._redacted(listing.list(session.files_path))
                    self._add_json(made, f"{name}.files.json", files)
                continue
            try:
                diff = apply_changes.unified_diff(app, session.id, max_bytes=_MAX_DIFF_BYTES)
            except CellwallError as error:  # erased, locked, or its directory is gone
                diff = f"cannot be read: {error.message}\n"
            add_member(made, f"{name}.diff", self._redact(diff).encode("utf-8", "replace"))

    def _settings(self) -> dict[str, Json]:
        settings = self._app.settings
        text = self._redacted(settings.model_dump(mode="json"))
        return {"settings": text, "weakened": list(weakened(settings))}

    def _add_audit(self, made: tarfile.TarFile, scope: IncidentScope, facts: _BundleFacts) -> None:
        app = self._app
        app.audit.notary.sign_now(timeout_s=LOCK_TIMEOUT_S)
        facts.origin = _origin(self._directory)
        query = Query(since=scope.since, until=scope.until)
        found = records_after(self._directory, query, after_seq=0, keys=app.keys)
        sessions = gather_sessions(self._each(found, facts))
        facts.sessions = len(sessions)
        segments = list_segments(self._directory)
        first = facts.first_seq or (segments[-1].first if segments else 1)
        facts.since = copy_log(made, self._directory, first_seq=first).since
        if facts.is_opened:
            add_member(made, "records.jsonl", b"".join(facts.lines))
        report: dict[str, Json] = {
            "format": FORMAT,
            "created": facts.created,
            "reason": self._redact(scope.reason),
            "summary": {
                "since": scope.since.isoformat() if scope.since else "the beginning",
                "until": scope.until.isoformat() if scope.until else "now",
                "records": facts.records,
                "sessions": facts.sessions,
                "cells alive": facts.cells,
            },
            # Records were redacted when they were written, but not by a vault that was locked then.
            "sessions": [self._without_values(each.to_json()) for each in sessions],
        }
        self._add_json(made, "report.json", report)
        add_member(made, "report.txt", report_text(report).encode())
        add_member(made, "report.html", report_html(report).encode())
        add_member(made, "cellwall-verify.py", verifier_source().encode())

    def _each(self, found: Iterable[FoundRecord], facts: _BundleFacts) -> Iterator[dict[str, Any]]:
        for each in found:
            facts.records += 1
            facts.first_seq = facts.first_seq or int(each.record["seq"])
            if facts.is_opened and len(facts.lines) < _MAX_OPENED_RECORDS:
                body = self._without_values(each.record["body"])
                facts.lines.append(json.dumps({**each.record, "body": body}).encode() + b"\n")
            yield each.record

    def _add_json(self, made: tarfile.TarFile, name: str, value: Json) -> None:
        add_member(made, name, json.dumps(value, indent=1, ensure_ascii=True).encode())

    def _redact(self, text: str) -> str:
        return self._app.runtime.guard.redact(str(self._without_values({"text": text})["text"]))

    def _redacted(self, value: Any) -> Any:  # noqa: ANN401  # JSON
        """The value with every text redacted, names of keys included."""
        if isinstance(value, str):
            return self._redact(value) if value else value
        if isinstance(value, dict):
            return {self._redacted(str(key)): self._redacted(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._redacted(each) for each in value]
        return value


@dataclass(slots=True)
class _BundleFacts:
    """Gathered while the bundle is written."""

    is_opened: bool
    created: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    origin: str = ""
    since: int = 1
    first_seq: int = 0
    records: int = 0
    sessions: int = 0
    cells: int = 0
    lines: list[bytes] = field(default_factory=list)


def _origin(directory: str) -> str:
    with open(os.path.join(directory, "origin"), encoding="ascii") as file:
        return file.read(4096).strip()


def default_path(directory: str) -> str:
    """The name of a new bundle in a directory."""
    return os.path.join(directory, datetime.now(UTC).strftime("incident-%Y%m%dT%H%M%SZ.tar"))


def read_key(path: str, parse: Callable[[bytes], BundleSeal]) -> BundleSeal:
    """The key of a recipient from a file."""
    try:
        with open(path, "rb") as file:
            return parse(file.read(16 * 1024))
    except OSError as error:
        raise BadInput(
            f"the key {os.path.basename(path)[:100]!r} cannot be read",
            hint="Check the path.",
            detail=str(error),
        ) from None

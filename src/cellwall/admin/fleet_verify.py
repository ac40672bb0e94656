"""Checks the audit logs of all hosts as one whole, and names the host whose log is not whole.

(1) Each certificate is of the fleet's authority; others are left out and reported.
(2) Each log is stated by its host, and a host has one log.
(3) The checkpoints that a host has offered are signed by the host, and each continues the one
    before it.
(4) The checkpoints that witnesses have countersigned are of these states.
(5) What this host has countersigned is still there.
(6) A log on this disk (our own, or a copy of another host's) is whole, and has the root of
    every checkpoint of its own, offered or countersigned.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import anyio

from cellwall.admin.fleet import open_trust
from cellwall.admin.fleet_witness import (
    LogFault,
    WitnessMemory,
    check_log,
    follow_offers,
    trusted_certificates,
)
from cellwall.audit.consistency import CheckpointOffer
from cellwall.audit.merkle import BadProof, Checkpoint, open_checkpoint, unproven_checkpoint
from cellwall.audit.segments import CHECKPOINTS, BadSegment, list_segments, read_notes
from cellwall.audit.verify import verify
from cellwall.config.load import load_settings
from cellwall.config.models import Settings
from cellwall.core.errors import BadInput
from cellwall.core.host_trust import HostLog, TrustStore, WitnessedCheckpoint
from cellwall.core.notes import BadNote, PublicKey
from cellwall.core.types import Permission, Principal
from cellwall.fleet.certificates import HostCertificate
from cellwall.fleet.identity import CA_FILE, fleet_folder
from cellwall.runtime.home import state_home
from cellwall.runtime.judging import require
from cellwall.runtime.recording import audit_directory
from cellwall.storage.service_id import service_id_of

_MAX_BYTES = 64 * 1024
_UNWITNESSED_OFFERS = 4
"""More than these, a minute's worth, are not left alone by chance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLogReport:
    """What was found about the log of one host."""

    host_id: str
    origin: str = ""
    size: int = 0
    """Records up to the newest checkpoint that the host has offered."""
    witnessed: int = 0
    """Records up to the newest checkpoint that another host has countersigned."""
    is_read: bool = False
    """The records themselves were read, not the checkpoints alone."""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class FleetDatabase:
    """What the database says about the logs."""

    certificates: Mapping[str, HostCertificate]
    logs: Sequence[HostLog]
    rows: Mapping[str, Sequence[WitnessedCheckpoint]]
    hosts: frozenset[str]


class FleetVerification:
    """Of one fleet, on any of its hosts."""

    def __init__(self, home: str, settings: Settings) -> None:
        self._home, self._settings = home, settings

    @classmethod
    def configured(cls, *, config: str | None = None, profile: str | None = None) -> Self:
        """Of the configuration and the environment."""
        settings = load_settings(file=config, profile=profile, environ=os.environ)
        return cls(state_home(os.environ), settings)

    def run(self, principal: Principal, *, folders: Sequence[str] = ()) -> list[HostLogReport]:
        """Of each host; `folders` are copies of logs of other hosts."""
        require(self._settings, principal, Permission.AUDIT_READ)
        directories = [audit_directory(self._home), *folders]
        found = anyio.run(self._read)
        own = service_id_of(self._home)
        return judge(found, WitnessMemory(self._home), directories, own_id=own)

    async def _read(self) -> FleetDatabase:
        path = os.path.join(fleet_folder(self._home), CA_FILE)
        try:
            with open(path, encoding="ascii") as file:  # noqa: ASYNC230  # nothing else runs
                authority = file.read(_MAX_BYTES)
        except (OSError, UnicodeDecodeError):
            raise BadInput(
                "this machine does not know the authority of a fleet",
                hint="Run this on a host of the fleet, with its state folder.",
                code="CW-FLEET-AUTHORITY",
            ) from None
        async with open_trust(self._home, self._settings) as store:
            return await read_database(store, authority)


async def read_database(store: TrustStore, authority: str) -> FleetDatabase:
    """All that it says about logs, with the certificates of this authority."""
    logs = await store.list_host_logs()
    return FleetDatabase(
        await trusted_certificates(store, authority),
        logs,
        {each.origin: await store.list_witnessed(each.origin) for each in logs},
        frozenset(each.id for each in await store.list_hosts()),
    )


def judge(
    found: FleetDatabase, memory: WitnessMemory, directories: Sequence[str], *, own_id: str
) -> list[HostLogReport]:
    """Pure but for the logs on this disk."""
    reports = []
    on_disk = {origin: each for each in directories if (origin := _origin_of(each))}
    for log in found.logs:
        report = HostLogReport(host_id=log.host_id, origin=log.origin)
        certificate = found.certificates.get(log.host_id)
        if certificate is None:  # (1)
            problem = "its host has no valid certificate of this fleet"
            reports.append(replace(report, problem=problem))
            continue
        report = _judge_log(report, log, found, certificate.identity, memory)
        if log.origin in on_disk and not report.problem:  # (6)
            report = _judge_records(report, log, found, certificate.identity, on_disk[log.origin])
        elif log.host_id == own_id and not report.problem:
            report = replace(report, problem="it is not in the state folder of this host any more")
        reports.append(report)
    reports = [*_with_replaced(reports), *_gone(found, memory, own_id)]
    known = {each.host_id for each in reports}
    reports += [
        HostLogReport(host_id=each, problem="it has not shown a log")
        for each in sorted(found.hosts - known)
    ]
    return sorted(reports, key=lambda each: (each.host_id, each.origin))


def _judge_log(
    report: HostLogReport,
    log: HostLog,
    found: FleetDatabase,
    host: PublicKey,
    memory: WitnessMemory,
) -> HostLogReport:
    """(2) to (5), from the database and our own memory."""
    rows = found.rows[log.origin]
    try:
        check_log(log, host)  # (2)
        newest, _ = follow_offers(  # (3)
            [each for each in rows if each.witness_id == log.host_id], host, None
        )
        report = replace(report, size=newest.size)
        roots = {}
        for row in rows:
            if row.witness_id == log.host_id:
                roots[row.size] = open_checkpoint(CheckpointOffer.parse(row.note).note, [host])[
                    0
                ].root
        for row in (each for each in rows if each.witness_id != log.host_id):  # (4)
            witness = found.certificates.get(row.witness_id)
            if witness is None:
                continue  # of a host that has left: its signature proves nothing to us
            seen, signed = open_checkpoint(row.note.encode(), [witness.identity, host])
            if set(signed) != {witness.identity, host}:
                raise LogFault("a countersigned checkpoint lacks a signature")
            _check_seen(seen, roots)
            report = replace(report, witnessed=max(report.witnessed, seen.size))
        offers = len(roots)
        others = found.hosts & found.certificates.keys() - {log.host_id}
        if not report.witnessed and others and offers > _UNWITNESSED_OFFERS:
            raise LogFault("no other host has countersigned it")
        kept = memory.read(log.origin)
        if kept is not None:  # (5)
            _check_seen(open_checkpoint(kept, [host])[0], roots)
    except (LogFault, BadProof, BadNote) as fault:
        return replace(report, problem=str(fault))
    return report


def _check_seen(seen: Checkpoint, roots: Mapping[int, bytes]) -> None:
    """A checkpoint that was countersigned is one that was offered, or older than all that are
    kept."""
    if seen.size in roots:
        if roots[seen.size] != seen.root:
            raise LogFault(f"it was forked: two checkpoints of size {seen.size} differ")
    elif not roots or seen.size > max(roots):
        raise LogFault(f"it was rolled back: the checkpoint of {seen.size} records is gone")
    elif seen.size > min(roots):
        raise LogFault(f"it was rewritten: it has no checkpoint of {seen.size} records any more")


def _judge_records(
    report: HostLogReport, log: HostLog, found: FleetDatabase, host: PublicKey, directory: str
) -> HostLogReport:
    """(6): the records, against all checkpoints that were ever shown of them."""
    notes = [
        CheckpointOffer.parse(row.note).note if row.witness_id == log.host_id else row.note.encode()
        for row in found.rows[log.origin]
    ]
    result = verify(directory, [check_log(log, host)], checkpoints=notes)
    return replace(report, is_read=True, problem="" if result.ok else result.reason)


def _with_replaced(reports: Sequence[HostLogReport]) -> list[HostLogReport]:
    """(2): a host that begins another log leaves the records of the first one behind."""
    counted: dict[str, int] = {}
    for each in reports:
        counted[each.host_id] = counted.get(each.host_id, 0) + 1
    text = "the host has begun another log beside this one"
    return [
        replace(each, problem=each.problem or (text if counted[each.host_id] > 1 else ""))
        for each in reports
    ]


def _gone(found: FleetDatabase, memory: WitnessMemory, own_id: str) -> list[HostLogReport]:
    """(5): logs that we have countersigned, and of which the database knows nothing."""
    known, reports = {each.origin for each in found.logs}, []
    for note in memory.read_all():
        for host_id, certificate in found.certificates.items():
            if host_id == own_id:
                continue  # the witness, not the writer
            try:
                seen, _ = open_checkpoint(note, [certificate.identity])
            except BadNote:
                continue
            if seen.origin not in known:
                problem = f"its log of {seen.size} records is gone from the database"
                reports.append(HostLogReport(host_id=host_id, origin=seen.origin, problem=problem))
    return reports


def _origin_of(directory: str) -> str:
    """Which log a folder has; empty where it has none that is signed."""
    try:
        for segment in list_segments(directory):
            if CHECKPOINTS in segment.parts:
                notes = read_notes(segment.path(CHECKPOINTS))
                if notes:
                    return unproven_checkpoint(notes[0]).origin
    except (OSError, BadSegment, BadNote):
        return ""
    return ""

"""The audit logs of all hosts as one whole: each host shows its checkpoints, others countersign.

Every few seconds each host does two things:
  (1) It offers its newest checkpoint, with the proof that the checkpoint continues the one offered
      before, signed by its identity beside the key of the log.
  (2) For logs of other hosts that fall to it, it checks the proofs from the checkpoint that it has
      countersigned last to the newest one, and countersigns that.
What a host has countersigned it also keeps in a file of its own: all hosts write to the database.
A host whose log was truncated or rewritten finds no proof. It refuses to start (`check_own`), the
witnesses write it into their own logs, and `cellwall fleet verify` names it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Sequence

import anyio.to_thread

from cellwall.audit.consistency import CheckpointOffer, check_consistency
from cellwall.audit.log import AuditLog
from cellwall.audit.log_growth import make_offer, rolled_back
from cellwall.audit.merkle import BadProof, Checkpoint, open_checkpoint
from cellwall.core.errors import CellwallError
from cellwall.core.host_trust import HostLog, HostTrustPort, TrustStore, WitnessedCheckpoint
from cellwall.core.notes import BadNote, PublicKey, cosigned, open_note, signed_note
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.types import Json
from cellwall.fleet.certificates import HostCertificate, read_host_certificate
from cellwall.fleet.identity import (
    CA_FILE,
    HostKeys,
    fleet_folder,
    open_host_keys,
    replace_private_file,
)
from cellwall.runtime.recording import audit_directory
from cellwall.storage.service_id import service_id_of

WITNESSES = 2
"""Of each log, beside the host that writes it."""
_EVERY_S = 15.0
_MAX_OFFERS = 1000
_MAX_BYTES = 64 * 1024
_log = logging.getLogger("cellwall.fleet")


class LogFault(Exception):
    """A log that is not continued; the text says how."""


class LogWitness:
    """The part of one host."""

    def __init__(
        self, home: str, directory: str, keys: HostKeys, authority: str, audit: AuditLog
    ) -> None:
        """`directory` is that of the audit log; `authority` its certificate."""
        self._directory, self._keys, self._authority = directory, keys, authority
        self._audit, self._memory = audit, WitnessMemory(home)
        self._known_faults: set[tuple[str, str]] = set()

    async def run(self, store: TrustStore) -> None:
        """Until cancelled. A round that fails is tried again: nothing is lost by waiting."""
        while True:
            try:
                await self.offer(store)
                await self.countersign(store)
            except (CellwallError, OSError) as error:
                _log.warning("audit logs were not witnessed: %s", type(error).__name__)
            await asyncio.sleep(_EVERY_S)

    async def start(self, store: TrustStore) -> None:
        """Write into the log which host writes it. Raises `AuditFailed` where the log does not
        continue what we have offered."""
        await self.offer(store)
        identity = str(self._keys.signing.public)
        body: dict[str, Json] = {"host": self._keys.host_id, "identity": identity}
        event = Event(EventKind.CONFIG, "", "cellwall", "fleet", {"change": "fleet host", **body})
        await self._audit.record(event)

    async def offer(self, store: TrustStore) -> Checkpoint | None:
        """(1); None where there is nothing new."""
        signers = self._audit.notary.signers
        last = await self._last_offered(store)
        made = await anyio.to_thread.run_sync(
            make_offer, self._directory, signers.known_keys(), last
        )
        if made is None:
            return None
        checkpoint, offer = made
        if last is None:
            first = (signers.trusted() or [signers.current()])[0]
            lines = log_lines(self._keys.host_id, checkpoint.origin, first)
            log = HostLog(
                origin=checkpoint.origin,
                host_id=self._keys.host_id,
                statement=signed_note(lines, self._keys.signing).decode(),
            )
            if not await store.add_host_log(log):
                raise CellwallError(
                    "another host writes to an audit log of this name",
                    hint="The state folder was copied from another host. Start this host with an "
                    "empty one.",
                    code="CW-AUDIT-ROLLED-BACK",
                )
        note = cosigned(offer.note, self._keys.signing)
        shown = CheckpointOffer(offer.old_size, offer.path, note)
        await self._keep(store, checkpoint, shown.text(), note)
        return checkpoint

    async def _last_offered(self, store: TrustStore) -> Checkpoint | None:
        """By our own memory and by the database: the larger one counts."""
        known = [self._memory.read_own()]
        for log in await store.list_host_logs():
            if log.host_id == self._keys.host_id:
                rows = await store.list_witnessed(log.origin, witness_id=log.host_id)
                known += [_own_note(rows[-1].note) if rows else None]
        own = [self._keys.signing.public]
        found = [open_checkpoint(each, own)[0] for each in known if each is not None]
        return max(found, key=lambda each: each.size, default=None)

    async def _keep(
        self, store: TrustStore, checkpoint: Checkpoint, text: str, note: bytes
    ) -> None:
        row = WitnessedCheckpoint(
            origin=checkpoint.origin,
            size=checkpoint.size,
            witness_id=self._keys.host_id,
            note=text,
        )
        if not await store.add_witnessed(row):
            raise rolled_back()  # this host has signed another one of this size
        self._memory.write(checkpoint.origin, note)
        if text != note.decode():
            self._memory.write_own(note)

    async def countersign(self, store: TrustStore) -> Sequence[tuple[HostLog, str]]:
        """(2); the faults that were found, each of which is also in our own log, once."""
        faults = []
        certificates = await trusted_certificates(store, self._authority)
        # A row of the database is no host: names without a certificate would take the places of
        # witnesses, and no host would countersign.
        hosts = await store.list_hosts()
        live = [each.id for each in hosts if not each.is_lost and each.id in certificates]
        for log in await store.list_host_logs():
            if log.host_id == self._keys.host_id or log.host_id not in certificates:
                continue
            if self._keys.host_id not in witnesses_of(log, live):
                continue
            try:
                await self._countersign(store, log, certificates[log.host_id].identity)
            except (LogFault, BadProof, BadNote) as fault:
                faults.append((log, str(fault)))
                self._tell(log, str(fault))
        return faults

    async def _countersign(self, store: TrustStore, log: HostLog, host: PublicKey) -> None:
        check_log(log, host)
        kept = self._memory.read(log.origin)
        seen = None if kept is None else open_checkpoint(kept, [host])[0]
        after = -1 if seen is None else seen.size - 1
        rows = await store.list_witnessed(log.origin, witness_id=log.host_id, after=after)
        if not rows and seen is None:
            return
        newest = follow_offers(rows[:_MAX_OFFERS], host, seen)
        if seen is not None and newest[0].size == seen.size:
            return
        note = cosigned(newest[1], self._keys.signing)
        await self._keep(store, newest[0], note.decode(), note)

    def _tell(self, log: HostLog, fault: str) -> None:
        if (log.origin, fault) not in self._known_faults:
            self._known_faults.add((log.origin, fault))
            _log.error("the audit log of host %s: %s", log.host_id, fault)
            body = {"host": log.host_id, "log": log.origin, "problem": fault}
            self._audit.write(Event(EventKind.WITNESS, "", "cellwall", "fleet", {**body}))


def open_witness(home: str, audit: AuditLog) -> LogWitness | None:
    """Of the host of this state folder; None where it has no certificate of the fleet."""
    path = os.path.join(fleet_folder(home), CA_FILE)
    try:
        with open(path, encoding="ascii") as file:
            authority = file.read(_MAX_BYTES)
    except FileNotFoundError:
        return None
    keys = open_host_keys(home, service_id_of(home))
    return LogWitness(home, audit_directory(home), keys, authority, audit)


def follow_offers(
    rows: Sequence[WitnessedCheckpoint], host: PublicKey, seen: Checkpoint | None
) -> tuple[Checkpoint, bytes]:
    """The newest of these offers, if each continues the one before, from `seen` on. Raises
    `LogFault`, `BadProof` or `BadNote`."""
    current, note = seen, b""
    for row in rows:
        offer = CheckpointOffer.parse(row.note)
        checkpoint, _ = open_checkpoint(offer.note, [host])
        if (checkpoint.origin, checkpoint.size) != (row.origin, row.size):
            raise LogFault("a checkpoint is filed under another name or size")
        if current is not None and checkpoint.size == current.size:
            if checkpoint.root != current.root:
                raise LogFault(f"it was forked: two checkpoints of size {current.size} differ")
        elif current is not None:
            if offer.old_size != current.size:
                raise LogFault(f"no proof leads from {current.size} records to {checkpoint.size}")
            try:
                check_consistency(
                    current.size, current.root, checkpoint.size, checkpoint.root, offer.path
                )
            except BadProof:
                raise LogFault(
                    f"it was rewritten: the state of {checkpoint.size} records does not contain "
                    f"that of {current.size}"
                ) from None
        current, note = checkpoint, offer.note
    if current is None or not note:
        size = 0 if seen is None else seen.size
        raise LogFault(f"it was rolled back: the checkpoint of {size} records is gone")
    return current, note


async def trusted_certificates(store: HostTrustPort, authority: str) -> dict[str, HostCertificate]:
    """The hosts of this authority by name; what the database says beside that is not believed."""
    found = {}
    for stored in await store.list_certificates():
        try:
            read = read_host_certificate(stored.pem, authority)
        except CellwallError:
            continue
        if read.host_id == stored.host_id and not stored.is_revoked:
            found[read.host_id] = read
    return found


def log_lines(host_id: str, origin: str, key: PublicKey) -> str:
    """The statement of a host about its log; `key` is the first that signs the log."""
    return f"cellwall fleet: this host writes the log\n{host_id}\n{origin}\n{key}\n"


def check_log(log: HostLog, host: PublicKey) -> PublicKey:
    """The first key of a log, if its host has stated it; raises `BadNote`."""
    text, _ = open_note(log.statement.encode(), [host])
    key = PublicKey.parse(text.removesuffix("\n").rpartition("\n")[2])
    if text != log_lines(log.host_id, log.origin, key):
        raise BadNote("the statement of the host is about another log")
    return key


def witnesses_of(log: HostLog, live: Sequence[str]) -> frozenset[str]:
    """The hosts that countersign a log: the same on each host, without a word between them."""
    others = [each for each in live if each != log.host_id]
    others.sort(key=lambda each: hashlib.sha256(f"{log.origin}\n{each}".encode()).digest())
    return frozenset(others[:WITNESSES])


class WitnessMemory:
    """What this host has signed, in files of its own: the database belongs to all hosts."""

    def __init__(self, home: str) -> None:
        self._folder = os.path.join(fleet_folder(home), "witnessed")
        os.makedirs(self._folder, mode=0o700, exist_ok=True)

    def read(self, origin: str) -> bytes | None:
        return self._read(_file_of(origin))

    def write(self, origin: str, note: bytes) -> None:
        replace_private_file(os.path.join(self._folder, _file_of(origin)), note)

    def read_all(self) -> list[bytes]:
        """Of all logs but our own."""
        own = self.read_own()
        notes = (self._read(name) for name in sorted(os.listdir(self._folder)))
        return [each for each in notes if each is not None and each != own]

    def read_own(self) -> bytes | None:
        return self._read("own")

    def write_own(self, note: bytes) -> None:
        replace_private_file(os.path.join(self._folder, "own"), note)

    def _read(self, name: str) -> bytes | None:
        try:
            with open(os.path.join(self._folder, name), "rb") as file:
                return file.read(_MAX_BYTES)
        except FileNotFoundError:
            return None


def _file_of(origin: str) -> str:
    return hashlib.sha256(origin.encode()).hexdigest()[:32]


def _own_note(text: str) -> bytes:
    return CheckpointOffer.parse(text).note

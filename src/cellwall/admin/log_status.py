"""How the audit log stands: its size, the last signed checkpoint, forwarding (AUD-2)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from cellwall.admin.audit_forwarding import ForwardReport, forward_report
from cellwall.audit.merkle import unproven_checkpoint
from cellwall.audit.search import Query, search
from cellwall.audit.segments import BadSegment
from cellwall.audit.witness import SignedMemory
from cellwall.config.models import Settings
from cellwall.core.notes import BadNote
from cellwall.runtime.recording import audit_directory


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedHead:
    """The last checkpoint that was signed here."""

    origin: str
    size: int
    root: str
    signed_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatus:
    """What can be said without reading the whole log."""

    records: int
    """The size of the tree: the number of the newest record."""
    head: SignedHead | None
    forward: ForwardReport
    witness: bool
    """Whether checkpoints are also kept elsewhere."""


def log_status(home: str, settings: Settings) -> LogStatus:
    """Reads a few small files and the newest record."""
    directory = audit_directory(home)
    newest = next(search(directory, Query()), None)
    return LogStatus(
        records=0 if newest is None else newest.record["seq"],
        head=_head(SignedMemory(directory)),
        forward=forward_report(settings, home=home),
        witness=bool(settings.audit.witness_directory or settings.audit.witness_command),
    )


def _head(memory: SignedMemory) -> SignedHead | None:
    with suppress(OSError, BadSegment, BadNote):
        note = memory.note()
        if note is not None:
            found = unproven_checkpoint(note)
            # A log that was here before has another origin.
            if memory.is_of_this_log(found.origin):
                return SignedHead(
                    origin=found.origin,
                    size=found.size,
                    root=found.root.hex(),
                    signed_s=memory.signed_s(),
                )
    return None

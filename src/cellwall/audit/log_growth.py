"""The last signed state of a log on disk, and the proof that it continues an earlier one."""

from __future__ import annotations

from collections.abc import Sequence

from cellwall.audit.consistency import CheckpointOffer, consistency_path
from cellwall.audit.files import io_failure, log_altered
from cellwall.audit.merkle import Checkpoint, Frontier, open_checkpoint
from cellwall.audit.proofs import segment_leaves
from cellwall.audit.segments import (
    CHECKPOINTS,
    SEAL,
    BadSegment,
    list_segments,
    read_notes,
    read_seal,
)
from cellwall.core.errors import AuditFailed
from cellwall.core.notes import BadNote, PublicKey


def last_signed(directory: str, keys: Sequence[PublicKey]) -> tuple[Checkpoint, bytes] | None:
    """The newest checkpoint of the log and its note; None before the first signature."""
    try:
        for segment in reversed(list_segments(directory)):
            notes = read_notes(segment.path(CHECKPOINTS)) if CHECKPOINTS in segment.parts else []
            if notes:
                return open_checkpoint(notes[-1], keys)[0], notes[-1]
    except FileNotFoundError:
        return None
    except (BadNote, BadSegment) as problem:
        raise log_altered(f"the audit log was altered: {problem}") from None
    except OSError as error:
        raise io_failure(error) from None
    return None


def make_offer(
    directory: str, keys: Sequence[PublicKey], old: Checkpoint | None
) -> tuple[Checkpoint, CheckpointOffer] | None:
    """The newest checkpoint with the proof that it continues the old one; None where there is
    nothing new. Raises `AuditFailed` where the log does not continue the old checkpoint."""
    found = last_signed(directory, keys)
    if found is None:
        if old is None:
            return None
        raise rolled_back()
    checkpoint, note = found
    if old is not None and old.origin != checkpoint.origin:
        raise rolled_back()
    before = Frontier() if old is None else _frontier_at(directory, old.size)
    if old is not None and (checkpoint.size < old.size or before.root() != old.root):
        raise rolled_back()
    if checkpoint.size == before.size:
        return None
    if before.size == 0:
        return checkpoint, CheckpointOffer(0, (), note)
    leaves = _leaves_between(directory, before.size, checkpoint.size)
    return checkpoint, CheckpointOffer(before.size, tuple(consistency_path(before, leaves)), note)


def _frontier_at(directory: str, size: int) -> Frontier:
    """The tree over the first records; segments that have a seal before are not read."""
    frontier = Frontier()
    for segment in list_segments(directory):
        if SEAL in segment.parts:
            seal = read_seal(segment)
            if seal.last <= size:
                frontier = seal.frontier.copy()
                continue
        if segment.first <= size and segment.has_records:
            for leaf in segment_leaves(segment)[: size - frontier.size]:
                frontier.push(leaf)
    if frontier.size != size:
        raise rolled_back()
    return frontier


def _leaves_between(directory: str, start: int, end: int) -> list[bytes]:
    found: list[bytes] = []
    for segment in list_segments(directory):
        if SEAL in segment.parts and read_seal(segment).last <= start:
            continue
        if segment.has_records and segment.first <= end:
            skipped = max(0, start - (segment.first - 1))
            found += segment_leaves(segment)[skipped : end - (segment.first - 1)]
    if len(found) != end - start:
        raise rolled_back()
    return found


def rolled_back() -> AuditFailed:
    """For a host whose log is not what it was."""
    return AuditFailed(
        "the audit log of this host does not continue what other hosts have witnessed",
        hint="Records were removed or rewritten, or an old copy of the state folder was restored. "
        "Keep the folder as evidence; `cellwall fleet verify` names what is missing.",
        code="CW-AUDIT-ROLLED-BACK",
    )

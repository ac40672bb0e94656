"""Reads the audit log and the settings; writes nothing but the text index."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from cellwall.audit import proofs, search, verify
from cellwall.audit.export.delivery import (
    Exported,
    ExportFailed,
    export_records,
    open_bookmark,
    records_after,
)
from cellwall.audit.export.target import ExportTarget, parse_headers
from cellwall.audit.files import io_failure
from cellwall.audit.following import follow
from cellwall.audit.merkle import BadProof, unproven_checkpoint
from cellwall.audit.proofs import Proof, verifier_source
from cellwall.audit.sealed_bodies import is_locked, opened_line
from cellwall.audit.search import FoundRecord, Query
from cellwall.audit.segments import BadSegment, open_plain
from cellwall.audit.signers import parse_keys
from cellwall.audit.text_indexing import IndexingStopped, update_text_index
from cellwall.audit.verify import VerifyReport
from cellwall.audit.witness import SignedMemory
from cellwall.config.load import load_settings, shown_place
from cellwall.config.models import Settings, schema_text, weakened
from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.notes import MAX_NOTE_BYTES, BadNote, PublicKey
from cellwall.runtime.home import state_home
from cellwall.runtime.recording import audit_directory
from cellwall.runtime.session_data import readable_keys
from cellwall.runtime.vault import AskPassphrase
from cellwall.secrets import failures as vault_failures
from cellwall.secrets.session_keys import SessionKeys

__all__ = [
    "BadProof",
    "ExportFailed",
    "ExportTarget",
    "Exported",
    "Query",
    "VerifyReport",
    "about",
    "check",
    "check_proof",
    "everything",
    "export_records",
    "following",
    "has_text",
    "latest",
    "newest",
    "newest_with_progress",
    "open_bookmark",
    "parse_headers",
    "prove",
    "read_settings",
    "schema_text",
    "verifier_keys",
    "verifier_source",
    "weakened",
]
_LONG_SEARCH_S = 0.5
_MIN_INDEXING_S = 4.0
"""Enough for a chunk of the index; one that is begun and not ended is lost."""
_TRUSTED = "trusted-keys"
_RETIRED = "retired-keys"
_MAX_PROOF_BYTES = 2 * 1024 * 1024


def latest(query: Query, count: int, *, ask: AskPassphrase | None = None) -> list[dict[str, Any]]:
    """The newest matching records, the newest last. After a search for a text that took long, the
    records that were scanned are indexed for about as long: later searches are faster."""
    with _readable(ask) as keys:
        started_s = time.monotonic()
        found = list(islice(newest(query, keys=keys), count))[::-1]
        took_s = time.monotonic() - started_s
        if query.text is not None and took_s > _LONG_SEARCH_S:
            _index_texts(keys, until_s=time.monotonic() + max(_MIN_INDEXING_S, took_s))
        return found


def _index_texts(keys: SessionKeys, *, until_s: float) -> None:
    def rest() -> None:
        if time.monotonic() > until_s:
            raise IndexingStopped

    with suppress(IndexingStopped, CellwallError):
        update_text_index(_directory(), keys, rest=rest)


def newest(
    query: Query,
    *,
    home: str | None = None,
    ask: AskPassphrase | None = None,
    keys: SessionKeys | None = None,
    is_strict: bool = False,
) -> Iterator[dict[str, Any]]:
    """All matching records, the newest first. `keys`: those of the running service. `is_strict`
    raises `VaultError` for a body that a locked vault hides: for callers that decide by bodies."""
    with _readable(ask) if keys is None else nullcontext(keys) as known:
        for found in search.search(_directory(home), query, keys=known):
            if is_strict:
                _refuse_locked(found)
            yield found.record


def newest_with_progress(
    query: Query, *, home: str, keys: SessionKeys
) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """The number of each record that was looked at, the newest first, with the record if it
    matches. A caller that has waited long enough knows how far it got."""
    for seq, found in search.search_steps(_directory(home), query, keys=keys):
        yield seq, None if found is None else found.record


def has_text(record: dict[str, Any], text: str) -> bool:
    """Whether a search for the text finds the record in this form."""
    return Query(text=text).matches_text(opened_line(record))


def following(
    query: Query,
    *,
    after: int | None = None,
    home: str | None = None,
    ask: AskPassphrase | None = None,
    keys: SessionKeys | None = None,
) -> Iterator[dict[str, Any] | None]:
    """Matching records as they are written, or all after a sequence number; None from time to time
    while there are none. `keys`: those of the running service."""
    with _readable(ask) if keys is None else nullcontext(keys) as known:
        for found in follow(_directory(home), query, after_seq=after, keys=known):
            yield None if found is None else found.record


def everything(
    query: Query,
    *,
    after: int = 0,
    ask: AskPassphrase | None = None,
    is_sealed: bool = False,
) -> Iterator[FoundRecord]:
    """All matching records after a sequence number, the oldest first. `is_sealed` leaves each line
    as it is stored, with sealed bodies: only such lines can be verified."""
    if is_sealed:
        yield from records_after(_directory(), query, after_seq=after)
        return
    with _readable(ask) as keys:
        for found in records_after(_directory(), query, after_seq=after, keys=keys):
            _refuse_locked(found)
            yield found


def _refuse_locked(found: FoundRecord) -> None:
    if is_locked(found.record):
        raise vault_failures.session_locked()


def about(
    subject_id: str,
    *,
    home: str | None = None,
    ask: AskPassphrase | None = None,
    keys: SessionKeys | None = None,
    is_strict: bool = False,
) -> list[dict[str, Any]]:
    """All records of an action or a session, or of the action of a record. `home` and `keys`:
    those of the running service."""
    read = partial(newest, home=home, ask=ask, keys=keys)
    query = Query(action_id=subject_id)
    if subject_id.startswith("sbx_"):
        query = Query(session_id=subject_id)
    elif subject_id.startswith("evt_"):
        found = next(read(Query(id=subject_id)), None)
        if found is None:
            return []
        if not found["action_id"]:
            return [found]
        query = Query(action_id=found["action_id"])
    return list(read(query, is_strict=is_strict))[::-1]


@contextmanager
def _readable(ask: AskPassphrase | None) -> Iterator[SessionKeys]:
    """The keys of session data; the vault opens when the first record needs it."""
    keys = readable_keys(
        state_home(os.environ),
        lambda: load_settings(file=None, profile=None, environ=os.environ),
        ask,
    )
    try:
        yield keys
    finally:
        keys.close()


def check(
    keys: Sequence[str] = (),
    checkpoints: Sequence[str] = (),
    *,
    since: int | None = None,
    directory: str | None = None,
    witness: str | None = None,
    home: str | None = None,
    on_verified: verify.OnVerified | None = None,
) -> VerifyReport:
    """Verify the log; writes nothing, not even a repair.

    `keys` and `checkpoints` are files. Without keys, the keys with which this user's log began are
    trusted. `witness` is a directory with checkpoints of the log, `home` the state folder where it
    is not that of the environment. The log of this user must also
    contain the checkpoint that is remembered beside its key.
    """
    place = directory or _directory(home)
    notes = [_read(path, MAX_NOTE_BYTES, "checkpoint") for path in checkpoints]
    memory = SignedMemory(place)
    remembered = _read_memory(memory) if directory is None and not keys else None
    is_asked = remembered is not None and memory.is_of_this_log(remembered.origin)
    if remembered is not None and is_asked:
        notes.append(remembered.note)
    known = _keys(place, keys)
    if since is not None and not keys:  # its retirement may lie before `since`
        known = [key for key in known if key not in _read_keys(place, _RETIRED)]
    try:
        if witness:
            report = verify.verify(place, known)
            if not report.ok:
                return report
            notes += _witness_notes(report.origin, witness)
        report = verify.verify(
            place, known, checkpoints=notes, since=since, on_verified=on_verified
        )
        # A log that was restarted is not the one that is remembered.
        if report.ok and remembered and remembered.origin == report.origin and not is_asked:
            return verify.verify(place, known, checkpoints=[*notes, remembered.note], since=since)
        return report
    except OSError as error:
        raise io_failure(error) from None


def prove(event_id: str) -> str:
    """A proof for a third party that one record is in the log."""
    place = _directory()
    try:
        return proofs.prove(place, event_id, _all_keys(place))
    except BadProof as problem:
        raise CellwallError(
            f"no proof could be created: {problem}",
            hint="Check the log with `cellwall audit verify`.",
            code="CW-NO-PROOF",
        ) from None


def check_proof(path: str, keys: Sequence[str]) -> Proof:
    """The verified proof; raises `BadProof` if it does not hold."""
    text = _read(path, _MAX_PROOF_BYTES, "proof").decode("utf-8", "replace")
    if keys:
        return proofs.check_proof(text, _keys(_directory(), keys))
    # Without a foreign key the proof can only concern the local log.
    report = verify.verify(_directory(), _keys(_directory(), ()))
    return proofs.check_proof(text, _all_keys(_directory()), origin=report.origin)


def verifier_keys(paths: Sequence[str]) -> list[PublicKey]:
    """Keys from files or literal texts; else all keys of the local log, which must verify."""
    return _keys(_directory(), paths) if paths else _all_keys(_directory())


def _directory(home: str | None = None) -> str:
    return audit_directory(home or state_home(os.environ))


def _keys(directory: str, paths: Sequence[str]) -> list[PublicKey]:
    """Keys from files or literal texts; else those with which the log began."""
    if paths:
        found: list[PublicKey] = []
        for path in paths:
            text = path if "+" in path and not os.path.exists(path) else ""
            found += parse_keys(
                text or _read(path, MAX_NOTE_BYTES, "key").decode("ascii", "replace")
            )
        return found
    return _read_keys(directory, _TRUSTED)


def _read_keys(directory: str, name: str) -> list[PublicKey]:
    with suppress(OSError, BadSegment), open_plain(os.path.join(directory, name)) as file:
        return parse_keys(file.read(MAX_NOTE_BYTES).decode("ascii", "replace"))
    return []


def _all_keys(directory: str) -> list[PublicKey]:
    """The trusted keys, and those that the log itself vouches for."""
    known = _keys(directory, ())
    report = verify.verify(directory, known)
    return [*known, *(PublicKey.parse(each) for each in report.keys)]


class _Remembered(NamedTuple):
    """The last checkpoint signed here, and the origin of its log."""

    origin: str
    note: bytes


def _read_memory(memory: SignedMemory) -> _Remembered | None:
    with suppress(OSError, BadSegment, BadNote):
        note = memory.note()
        if note is not None:
            return _Remembered(unproven_checkpoint(note).origin, note)
    return None


def _witness_notes(origin: str | None, witness: str) -> list[bytes]:
    """Checkpoints of this log in a witness directory; verification checks their signatures."""
    found = []
    for name in sorted(os.listdir(witness)):
        if name.endswith(".checkpoint"):
            note = _read(os.path.join(witness, name), MAX_NOTE_BYTES, "checkpoint")
            with suppress(BadNote):  # not a checkpoint, so not of this log
                if unproven_checkpoint(note).origin == origin:
                    found.append(note)
    if not found:
        raise BadInput(
            "the witness has no checkpoint of this log",
            hint="Check the directory; a restarted log has another name.",
            code="CW-NO-WITNESS",
        )
    return found


def _read(path: str, max_bytes: int, what: str) -> bytes:
    try:
        with open_plain(os.path.realpath(path)) as file:
            return file.read(max_bytes)
    except (OSError, BadSegment) as error:
        raise BadInput(
            f"the {what} {os.path.basename(path)!r} cannot be read",
            hint="Check the path.",
            detail=str(error),
        ) from None


def read_settings(*, config: str | None, profile: str | None) -> Settings:
    """The effective settings, without touching the host or the state folder."""
    return load_settings(file=config, profile=profile, environ=os.environ)


def settings_place(config: str | None) -> tuple[str, bool]:
    """The configuration file as messages name it, and whether it exists."""
    return shown_place(config, os.environ)

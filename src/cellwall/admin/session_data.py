"""A person erases all data of a session, now (FS-5).

  (1) the role permits it, and a person asks;
  (2) no hold is in force, and none can be placed until the end; then the session is ended;
  (3) write the intent; a failed write refuses (AUD-1);
  (4) destroy the keys, flushed: from here on nothing can read the data, also after a crash;
  (5) remove the workspace, quarantined files and parts of the text index; (6) write the outcome.

The records of the session stay, sealed for ever: the log verifies, and shows that they were erased.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from cellwall.admin.shared_snapshots import open_shared_snapshots
from cellwall.admin.snapshots import delete_of_session
from cellwall.audit.records import SEALED_VERSION
from cellwall.audit.sealed_bodies import CLEAR_KINDS
from cellwall.audit.search import Query, search
from cellwall.audit.text_indexing import remove_erased
from cellwall.core.errors import BadInput
from cellwall.core.ids import check_id, new_id
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.types import Json, Permission, Principal
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.app import App
from cellwall.runtime.judging import require
from cellwall.runtime.recording import audit_directory
from cellwall.runtime.session_data import no_hold
from cellwall.sandbox.files.descriptors import closing_fd, remove_tree

__all__ = ["ErasedSession", "erase"]


@dataclass(frozen=True, slots=True)
class ErasedSession:
    """What is gone, and what is not."""

    id: str
    keys: int
    records: int
    """Records that can no longer be read."""
    records_in_clear: int
    """Records from before bodies were encrypted: they stay until retention deletes their file."""
    had_workspace: bool


def erase(
    app: App, subject_id: str, *, principal: Principal, end: Callable[[], None] = lambda: None
) -> ErasedSession:
    """Erase a session (sbx_...), or a run that belongs to none (act_...).

    `end` ends a session that is live; it is not called where nothing may be erased.
    """
    require(app.settings, principal, Permission.FILES_WRITE)  # (1)
    refuse_agents("erasing a session")
    check_id(subject_id)
    with no_hold(app.store.home):  # (2)
        end()
        return _erase(app, subject_id, principal)


def _erase(app: App, subject_id: str, principal: Principal) -> ErasedSession:
    with app.ledger.hold_ended(subject_id):
        names, sealed, clear = _keys_in_log(app, subject_id)
        had_workspace = os.path.isdir(os.path.join(app.store.home, "workspaces", subject_id))
        if not sealed and not clear and not had_workspace:
            raise BadInput(
                f"there is no data of {subject_id}",
                hint="Ids of sandboxes and runs are in `cellwall audit tail`.",
                code="CW-NO-RECORD",
            )
        action_id = new_id("act")
        _write(app, principal, action_id, {"step": "intent", "session": subject_id})  # (3)
        shared = open_shared_snapshots(app.settings, app.store)
        if shared is not None:
            shared.erase(subject_id)  # (4): each archive has its key in it
        keys = app.keys.destroy(subject_id, names)
        app.store.remove(subject_id)  # (5)
        delete_of_session(app, subject_id)
        _remove_quarantine(app, subject_id)
        remove_erased(audit_directory(app.store.home), app.keys)
        erased = ErasedSession(subject_id, keys, sealed, clear, had_workspace)
        body: dict[str, Json] = {
            "step": "outcome",
            "session": subject_id,
            "keys": keys,
            "records": sealed,
            "records_in_clear": clear,
        }
        _write(app, principal, action_id, body)  # (6)
    return erased


def _keys_in_log(app: App, subject_id: str) -> tuple[set[str], int, int]:
    """The keys of its records, and how many records are sealed and in clear."""
    directory = audit_directory(app.store.home)
    names: set[str] = set()
    sealed = clear = 0
    field = "action_id" if subject_id.startswith("act_") else "session_id"
    for found in search(directory, Query(**{field: subject_id})):  # type: ignore[arg-type]  # both fields are texts
        record = found.record
        if record["kind"] in CLEAR_KINDS:
            continue
        if record["session_id"] not in ("", subject_id):
            raise BadInput(
                f"{subject_id} is part of the session {record['session_id']}",
                hint="Records of one session share a key: erase the whole session.",
                code="CW-SESSION-PART",
            )
        if record["v"] == SEALED_VERSION:
            names.add(record["body"]["key"])
            sealed += 1
        else:
            clear += 1
    return names, sealed, clear


def _remove_quarantine(app: App, subject_id: str) -> None:
    folder = os.path.join(app.store.home, "quarantine")
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(FileNotFoundError), closing_fd(os.open(folder, flags)) as parent:
        remove_tree(parent, subject_id)


def _write(app: App, who: Principal, action_id: str, body: dict[str, Json]) -> None:
    # The subject is in the body: the record of an erasure is not part of what is erased.
    app.audit.write(Event(EventKind.ERASURE, action_id, who.name, who.interface, body))

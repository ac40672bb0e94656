"""The last snapshot of a session in a folder that all hosts of a fleet share, encrypted.

  copy:     (1) merge the layers of the snapshot into a plain tree; (2) write the tree, the record
            of the snapshot and the options of the session as one archive under a new key, which the
            key of the accounts seals; (3) rename the archive over the one before.
  restore:  (1) open the archive; (2) its tree becomes a layer, and its record a snapshot, of this
            host.

A reader of the folder learns ids and sizes. A writer of the folder can remove archives and give
older ones of the same session; another content does not decrypt.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from cellwall.admin.accounts import KeyFileSealer
from cellwall.admin.fleet import host_lost
from cellwall.config.models import Settings
from cellwall.core.errors import CellwallError, WorkspaceError
from cellwall.core.ids import check_id
from cellwall.core.types import Json
from cellwall.sandbox.files.descriptors import closing_fd, remove_tree
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.snapshots.layer_files import MAX_LAYER_ENTRIES, measure
from cellwall.sandbox.snapshots.store import SnapshotRecord
from cellwall.sandbox.workspace.layered import copy_layers
from cellwall.sandbox.workspace.sealed_files import extract, read_key_name, write_archive
from cellwall.sandbox.workspace.store import WorkspaceStore

_FILES, _ABOUT = "files", "about"
_RECORD, _SESSION = "snapshot.json", "session.json"
_SUFFIX = ".snapshot"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredSession:
    """What a host needs to start a session again."""

    snapshot_id: str
    taken_s: float
    options: Mapping[str, Any]


class SharedSnapshots:
    """The archives of one shared folder, for the host of one state folder."""

    def __init__(
        self, folder: str, sealer: KeyFileSealer, store: WorkspaceStore, *, keep_days: int
    ) -> None:
        self._folder, self._sealer, self._store = folder, sealer, store
        self._keep_s = keep_days * _DAY_S

    def copy(
        self,
        session_id: str,
        snapshot_id: str,
        options: Mapping[str, Json],
        is_held: Callable[[], bool],
    ) -> None:
        """Replace the archive of the session, while this host has the session (`is_held`)."""
        snapshots = self._store.snapshots
        draft = f"{self._path(session_id)}.{secrets.token_hex(8)}"
        try:
            with snapshots.building(), self._scratch() as scratch:
                record = snapshots.find(snapshot_id, owner=None)
                os.mkdir(f"{scratch}/{_FILES}", 0o755)
                if record.layers:
                    copy_layers(snapshots, record.layers, f"{scratch}/{_FILES}")  # (1)
                shutil.copytree(snapshots.folder_of(snapshot_id), f"{scratch}/{_ABOUT}")
                with open(f"{scratch}/{_ABOUT}/{_SESSION}", "x", encoding="utf-8") as file:
                    json.dump({"snapshot": snapshot_id, "options": dict(options)}, file)
                self._write(session_id, scratch, draft)  # (2)
            if not is_held():
                raise host_lost()
            os.replace(draft, self._path(session_id))  # (3)
        except OSError as error:
            raise WorkspaceError(
                "the snapshot was taken, but not copied to the folder that the hosts share",
                hint="Check space and permissions of snapshots in [fleet].",
                code="CW-FLEET-SNAPSHOTS",
                detail=str(error),
            ) from error
        finally:
            with suppress(OSError):
                os.unlink(draft)

    def _write(self, session_id: str, scratch: str, draft: str) -> None:
        key = secrets.token_bytes(32)
        name = self._sealer.seal(key, name=_key_name(session_id)).hex()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with (
            closing_fd(os.open(draft, flags, 0o600)) as file,
            Root.open(f"{scratch}/{_FILES}") as files,
            Root.open(f"{scratch}/{_ABOUT}") as about,
        ):
            roots = {_ABOUT: about, _FILES: files}
            write_archive(roots, file, session=session_id, key_name=name, key=key)
            os.fsync(file)

    def has(self, session_id: str) -> bool:
        return os.path.isfile(self._path(session_id))

    def restore(self, session_id: str) -> RestoredSession:
        """Make the snapshot one of this host; raises where the archive is missing or damaged."""
        snapshots = self._store.snapshots
        try:
            with snapshots.building(), self._scratch() as scratch:
                self._extract(session_id, scratch)  # (1)
                with open(f"{scratch}/{_ABOUT}/{_SESSION}", encoding="utf-8") as file:
                    about = json.load(file)
                record = self._record(scratch, session_id, about["snapshot"])
                if not snapshots.has(record.id):
                    self._adopt(scratch, record)  # (2)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WorkspaceError(
                "the last snapshot of the session cannot be read",
                hint="Create a new session. The folder of snapshots in [fleet] may be damaged.",
                code="CW-FLEET-SNAPSHOTS",
                detail=str(error),
            ) from error
        return RestoredSession(
            snapshot_id=record.id, taken_s=record.created_ns / 1e9, options=about["options"]
        )

    def _extract(self, session_id: str, scratch: str) -> None:
        with (
            open(self._path(session_id), "rb") as file,
            closing_fd(os.open(scratch, _DIRECTORY)) as own,
        ):
            name = read_key_name(file)
            try:
                key = self._sealer.unseal(bytes.fromhex(name), name=_key_name(session_id))
            except CellwallError:
                raise ValueError("the key of the archive is not sealed for this session") from None
            extract(file, own, session=session_id, key_name=name, key=key)

    def _record(self, scratch: str, session_id: str, snapshot_id: object) -> SnapshotRecord:
        with open(f"{scratch}/{_ABOUT}/{_RECORD}", encoding="utf-8") as file:
            fields = json.load(file)
        fields["layers"], fields["variables"] = (), tuple(map(str, fields["variables"]))
        record = SnapshotRecord(id=check_id(snapshot_id), **fields)
        if record.session != session_id:
            raise ValueError("it is of another session")
        return record

    def _adopt(self, scratch: str, record: SnapshotRecord) -> None:
        snapshots = self._store.snapshots
        size = measure(f"{scratch}/{_FILES}")
        layer = snapshots.adopt_layer(f"{scratch}/{_FILES}", size)
        found = replace(record, layers=(layer,), size_bytes=size.size_bytes, files=size.files)

        def complete(folder: str) -> None:
            for name in os.listdir(f"{scratch}/{_ABOUT}"):
                if name not in (_RECORD, _SESSION):
                    shutil.copy(f"{scratch}/{_ABOUT}/{name}", f"{folder}/{name}")

        snapshots.save(found, state=b"", complete=complete)

    def forget(self, session_id: str) -> None:
        """The session has ended."""
        with suppress(OSError):
            os.unlink(self._path(session_id))

    def erase(self, session_id: str) -> None:
        """Remove what is here of a session, and its keys with it; raises where that fails."""
        archive = os.path.basename(self._path(session_id))
        try:
            for name in os.listdir(self._folder):
                if name == archive or name.startswith(f"{archive}."):  # drafts of killed processes
                    with suppress(FileNotFoundError):
                        os.unlink(os.path.join(self._folder, name))
            with closing_fd(os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)) as folder:
                os.fsync(folder)
        except OSError as error:
            raise WorkspaceError(
                "the last snapshot of the session in the shared folder was not removed",
                hint="Check permissions of snapshots in [fleet], and erase the session again.",
                code="CW-FLEET-SNAPSHOTS",
                detail=str(error),
            ) from error

    def remove_old(self) -> None:
        """Of sessions whose hosts were lost, and which their owners have not used since."""
        try:
            names = os.listdir(self._folder)
        except OSError as error:
            raise WorkspaceError(
                "the folder of snapshots that the hosts share cannot be read",
                hint="Check permissions of snapshots in [fleet].",
                code="CW-FLEET-SNAPSHOTS",
                detail=str(error),
            ) from error
        for name in names:
            path = os.path.join(self._folder, name)
            with suppress(OSError):
                if _SUFFIX in name and os.stat(path).st_mtime < time.time() - self._keep_s:
                    os.unlink(path)

    @contextmanager
    def _scratch(self) -> Iterator[str]:
        """On the disk of the snapshots, so that a tree becomes a layer by a rename."""
        parent = os.path.join(self._store.home, "snapshots")
        os.makedirs(parent, mode=0o700, exist_ok=True)
        folder = tempfile.mkdtemp(prefix="draft.", dir=parent)
        try:
            yield folder
        finally:
            with closing_fd(os.open(parent, _DIRECTORY)) as own, suppress(OSError):
                remove_tree(own, os.path.basename(folder), max_entries=MAX_LAYER_ENTRIES)

    def _path(self, session_id: str) -> str:
        return os.path.join(self._folder, check_id(session_id) + _SUFFIX)


def open_shared_snapshots(settings: Settings, store: WorkspaceStore) -> SharedSnapshots | None:
    """None where the configuration names no folder that hosts share."""
    folder, key_file = settings.fleet.snapshots, settings.accounts.key_file
    if folder is None or key_file is None:
        return None
    keep_days = settings.snapshots.keep_days
    return SharedSnapshots(folder, KeyFileSealer(key_file), store, keep_days=keep_days)


def _key_name(session_id: str) -> str:
    return f"snapshot of {session_id}"

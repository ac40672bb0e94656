"""Workspaces in the state folder.

$CELLWALL_HOME/workspaces/ID, mode 0700:
  files/        a private workspace          layers/upper, layers/work   copy-on-write layers
  quarantine/   files moved out of it        session.json                mode and directory
  sealed        the layers between runs, or the files of a private workspace that its owner keeps,
                encrypted under the key of the session (FS-5)
  opened.NAME/  the layers decrypted for one reader, which has it locked
A private workspace on layers of a snapshot has `layers/upper` and `layers/work` instead of `files`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace

from cellwall.core.errors import CellwallError, WorkspaceError
from cellwall.core.ids import check_id
from cellwall.core.ports import SessionKeysPort
from cellwall.core.types import WorkspaceMode, WorkspaceRequest
from cellwall.sandbox.files.descriptors import closing_fd, identity_of, make_open_dir, remove_tree
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.protection.host_directory import open_host_directory
from cellwall.sandbox.protection.placeholders import Placeholders
from cellwall.sandbox.snapshots.layer_files import NOTHING, TreeSize
from cellwall.sandbox.snapshots.store import SnapshotStore
from cellwall.sandbox.workspace.layered import (
    copy_layers,
    make_overlay_folders,
    merge_into_files,
    remove_overlay_folders,
)
from cellwall.sandbox.workspace.pending_checks import PendingChecks
from cellwall.sandbox.workspace.placement import spread_directories
from cellwall.sandbox.workspace.sealed_layers import SealedLayers, is_sealed

_MAX_ENTRIES_TO_REMOVE = 10_000_000
_DAY_S = 86_400
_TIDY_AFTER_NS = 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class StoredWorkspace:
    """One workspace on disk."""

    id: str
    folder: str
    request: WorkspaceRequest
    made_ns: int
    """By the times of files: a file that has a later time was changed since."""
    identity: tuple[int, int] | None = None
    """Device and inode of the user's directory, so that another one is not taken for it."""
    keeper: str = ""
    """The owner who keeps this private workspace after its session; empty if it is not kept."""
    kept_ns: int = 0
    layers: tuple[str, ...] = ()
    """Of a private workspace: the layers of the snapshot it was made from, from the top."""
    base: TreeSize = NOTHING
    """The size of these layers."""

    @property
    def top_path(self) -> str:
        """Where the writes of code go, in a private workspace."""
        return self.upper_path if self.layers else self.files_path

    @property
    def files_path(self) -> str:
        return f"{self.folder}/files"

    @property
    def layers_path(self) -> str:
        return f"{self.folder}/layers"

    @property
    def upper_path(self) -> str:
        return f"{self.folder}/layers/upper"

    @property
    def quarantine_path(self) -> str:
        return f"{self.folder}/quarantine"


class WorkspaceStore:
    """Creates, finds and removes the folders of workspaces."""

    def __init__(self, home: str, keys: SessionKeysPort | None = None) -> None:
        self.home = home
        self.snapshots = SnapshotStore(home)
        self._sealing = SealedLayers(keys)
        self._folder = os.path.join(home, "workspaces")
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        spread_directories(self._folder)
        self.placeholders = Placeholders(os.path.join(home, "placeholders"))
        self.pending_checks = PendingChecks(home)

    def make(
        self,
        session_id: str,
        request: WorkspaceRequest,
        *,
        identity: tuple[int, int] | None = None,
        resumed: StoredWorkspace | None = None,
        layers: tuple[str, ...] = (),
        copies_layers: bool = False,
    ) -> StoredWorkspace:
        """A new folder; with the files of `resumed`, a kept private workspace, which stays; or on
        the `layers` of a snapshot, within `SnapshotStore.building`, or with a copy of them."""
        folder = os.path.join(self._folder, check_id(session_id))
        try:
            os.mkdir(folder, 0o700)
            # A time of the file system, because no clock can be compared with these: since Linux
            # 6.13 a file that is looked at between two changes has a finer time than any clock of
            # file times, and every later change has at least that time.
            made_ns = os.stat(folder).st_mtime_ns
        except OSError as error:
            raise _cannot_make(error) from error
        try:
            if resumed is not None:
                self._sealing.restore(resumed.id, resumed.folder, folder)
            elif request.mode is WorkspaceMode.PRIVATE and (copies_layers or not layers):
                make_open_dir(f"{folder}/files")
            made = StoredWorkspace(session_id, folder, request, made_ns, identity)
            if layers and copies_layers:
                copy_layers(self.snapshots, layers, f"{folder}/files")
            elif layers:
                made = replace(made, layers=layers, base=self.snapshots.size_of(layers))
            if request.mode is WorkspaceMode.COPY_ON_WRITE or made.layers:
                make_overlay_folders(folder)
            with open(f"{folder}/session.json", "x", encoding="utf-8") as file:
                json.dump(_description(made), file)
        except (OSError, CellwallError) as error:
            with suppress(OSError, WorkspaceError):
                self.remove(session_id)
            if isinstance(error, CellwallError):  # an archive that cannot be decrypted
                raise
            raise _cannot_make(error) from error
        return made

    def keep(self, session_id: str, *, keeper: str) -> None:
        """From now on, the end of this session seals its private workspace instead of removing it,
        also if the process is killed."""
        self.describe(replace(self.session(session_id), keeper=keeper, kept_ns=time.time_ns()))

    def describe(self, stored: StoredWorkspace, *, is_durable: bool = True) -> None:
        """Replace the description of a workspace."""
        draft = f"{stored.folder}/session.json.draft"
        try:
            with open(draft, "w", encoding="utf-8") as file:
                json.dump(_description(stored), file)
                if is_durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.rename(draft, f"{stored.folder}/session.json")
        except OSError as error:
            raise _cannot_make(error) from error

    def session(self, session_id: str) -> StoredWorkspace:
        folder = os.path.join(self._folder, check_id(session_id))
        try:
            with open(f"{folder}/session.json", encoding="utf-8") as file:
                record = json.load(file)
            request = WorkspaceRequest(WorkspaceMode(record["mode"]), record["directory"])
            identity = tuple(map(int, record["identity"])) if record.get("identity") else None
            made_ns = int(record["made_ns"])
            keeper, kept_ns = str(record.get("keeper", "")), int(record.get("kept_ns", 0))
            layers = tuple(check_id(each) for each in record.get("layers", ()))
            base = TreeSize(*map(int, record["base"])) if layers else NOTHING
            return StoredWorkspace(
                session_id,
                folder,
                request,
                made_ns,
                identity,  # type: ignore[arg-type]  # another length equals no identity
                keeper,
                kept_ns,
                layers,
                base,
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WorkspaceError(
                f"there is no workspace {session_id}",
                hint="It was removed, or belongs to another user or CELLWALL_HOME.",
                code="CW-NO-WORKSPACE",
            ) from error

    def sessions(self) -> Iterator[StoredWorkspace]:
        """Every workspace whose folder can be read, oldest first."""
        stored: list[StoredWorkspace] = []
        for name in os.listdir(self._folder):
            with suppress(CellwallError):
                stored.append(self.session(name))
        yield from sorted(stored, key=lambda session: session.made_ns)

    def open_directory(self, session: StoredWorkspace) -> tuple[int, str]:
        """Open the user's directory again, if it is still the same one.

        A parent that was replaced by a symlink would lead `apply` into another directory under the
        expected path.
        """
        descriptor, place = open_host_directory(
            session.request.directory or "", state_home=self.home
        )
        if identity_of(descriptor) != session.identity or place != session.request.directory:
            os.close(descriptor)
            raise WorkspaceError(
                "the directory of this workspace was moved or replaced",
                hint="Its path leads to another directory now, perhaps by a symlink; give it anew.",
                code="CW-WORKSPACE-MOVED",
            )
        return descriptor, place

    def remove(self, session_id: str) -> None:
        """Destroy the key of an archive, then remove the folder, read-only directories of code
        included; no symlink is followed."""
        layers: tuple[str, ...] = ()
        with suppress(WorkspaceError):
            layers = self.session(session_id).layers
        self._sealing.destroy_key(os.path.join(self._folder, check_id(session_id)))
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        with closing_fd(os.open(self._folder, flags)) as parent, suppress(FileNotFoundError):
            remove_tree(parent, check_id(session_id), max_entries=_MAX_ENTRIES_TO_REMOVE)
        if layers:
            self.collect_layers()

    def collect_layers(self) -> None:
        """Remove layers that neither a snapshot nor a workspace uses."""
        self.snapshots.collect(lambda: {name for each in self.sessions() for name in each.layers})

    def _flatten(self, session: StoredWorkspace) -> StoredWorkspace:
        """The same workspace without layers, once its session has ended; see layered.py."""
        if not session.layers:
            return session
        if not os.path.isdir(session.files_path):
            merge_into_files(self.snapshots, session.layers, session.folder)
        flat = replace(session, layers=(), base=NOTHING)
        self.describe(flat)
        remove_overlay_folders(session.folder)
        self.collect_layers()
        return flat

    def retire(self, session: StoredWorkspace) -> None:
        """At the end of a session: remove its folder, unless it holds files of the user: a
        quarantine, or changes that were not applied yet.
        """
        match session.request.mode:
            case WorkspaceMode.PRIVATE:
                holds_files = self._is_kept(session.id)
            case WorkspaceMode.COPY_ON_WRITE:
                holds_files = is_sealed(session.folder) or _holds_something(session.upper_path)
            case _:
                holds_files = _holds_something(session.quarantine_path)
        if not holds_files:
            self.remove(session.id)
            return
        with suppress(WorkspaceError):
            session = self.session(session.id)  # its layers may have changed since
        if session.request.mode in {WorkspaceMode.COPY_ON_WRITE, WorkspaceMode.PRIVATE}:
            self._flatten(session)
            self._sealing.seal(session.id, session.folder)

    def usage(self, session: StoredWorkspace) -> tuple[int, int]:
        """Bytes and number of the files of a private workspace in clear."""
        with Root.open(session.top_path) as files:
            used_bytes, count = files.usage(max_entries=_MAX_ENTRIES_TO_REMOVE)
        return used_bytes + session.base.size_bytes, count + session.base.files

    def kept(self) -> list[tuple[StoredWorkspace, int]]:
        """The kept private workspaces, with the sizes of their archives in bytes."""
        return [found for each in self.sessions() if (found := self.find_kept(each.id)) is not None]

    def find_kept(self, session_id: str) -> tuple[StoredWorkspace, int] | None:
        """One of them; None if nothing of this session is kept."""
        with suppress(OSError, WorkspaceError):
            stored = self.session(session_id)
            if stored.keeper:
                return stored, os.stat(f"{stored.folder}/sealed").st_size
        return None

    def _is_kept(self, session_id: str) -> bool:
        """As the disk says: `keep` may have come after the session was made."""
        with suppress(WorkspaceError):
            return bool(self.session(session_id).keeper)
        return False

    @contextmanager
    def open_upper(self, session: StoredWorkspace) -> Iterator[str]:
        """The path of the upper layer, decrypted if its session has ended."""
        with self._sealing.opened(session.id, session.folder) as folder:
            yield f"{folder}/layers/upper"

    def erased(self) -> list[str]:
        """The ids of the workspaces that can no longer be read: their key was destroyed."""
        return [each.id for each in self.sessions() if self._sealing.is_erased(each.folder)]

    def oldest_beyond(self, max_bytes: int, live: Collection[str]) -> list[str]:
        """The ids of the oldest workspaces without which all ended ones have at most this size."""
        sizes = [
            (each.id, _size_of(each.folder)) for each in self.sessions() if each.id not in live
        ]
        total, beyond = sum(size_bytes for _, size_bytes in sizes), []
        for session_id, size_bytes in sizes:
            if total <= max_bytes:
                break
            beyond.append(session_id)
            total -= size_bytes
        return beyond

    def sweep(
        self,
        *,
        dead: Collection[str],
        live: Collection[str],
        keep_days: int,
        keep_private_days: int,
        hold_ended: Callable[[str], AbstractContextManager[None]],
        is_held: Callable[[], bool],
        now_s: float | None = None,
    ) -> None:
        """Remove the folders of killed runs, and changes that were not applied in time.

        A live sandbox may be older than that: its layers are mounted, and stay. `hold_ended` raises
        for a session that lives, or whose changes are being applied. While a legal hold is in force
        (`is_held`, asked only if something is to be removed), no changes are removed. `now_s`: the
        time of a probe that looks ahead.
        """
        now_ns = time.time_ns() if now_s is None else int(now_s * 1e9)
        for session in self.sessions():
            if session.id in live:
                continue
            is_private = session.request.mode is WorkspaceMode.PRIVATE
            days = keep_private_days if is_private else keep_days
            since_ns = session.kept_ns if is_private else session.made_ns
            with suppress(OSError, CellwallError):
                if (
                    (now_ns - since_ns) / 1e9 > days * _DAY_S
                    and (session.keeper or not is_private)
                    and not is_held()
                ):
                    with hold_ended(session.id):
                        self.remove(session.id)
                elif session.id in dead:
                    self.retire(session)
                elif now_ns - session.made_ns > _TIDY_AFTER_NS and (
                    session.keeper or not is_private
                ):
                    # A kill, a full disk or a locked folder may have left files in clear. A run
                    # that is being started has a folder before it is in the ledger.
                    with hold_ended(session.id):
                        self._flatten(session)
                        self._sealing.tidy(session.id, session.folder)


def _description(stored: StoredWorkspace) -> dict[str, object]:
    """The content of session.json."""
    text: dict[str, object] = {
        "mode": stored.request.mode.value,
        "directory": stored.request.directory,
        "made_ns": stored.made_ns,
        "identity": stored.identity,
    }
    if stored.keeper:
        text |= {"keeper": stored.keeper, "kept_ns": stored.kept_ns}
    if stored.layers:
        text |= {"layers": stored.layers, "base": (stored.base.size_bytes, stored.base.files)}
    return text


def _size_of(folder: str) -> int:
    try:
        with Root.open(folder) as root:
            return root.usage(max_entries=_MAX_ENTRIES_TO_REMOVE)[0]
    except (OSError, CellwallError):
        return 0


def _holds_something(folder: str) -> bool:
    try:
        return bool(os.listdir(folder))
    except FileNotFoundError:
        return False
    except PermissionError:  # code removed its permissions: a person must check it
        return True


def _cannot_make(error: OSError) -> WorkspaceError:
    return WorkspaceError(
        "the workspace's folder cannot be created",
        hint="Check space and permissions of the Cellwall state folder.",
        code="CW-STATE",
        detail=str(error),
    )

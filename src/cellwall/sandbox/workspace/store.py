"""The folders of workspaces: `$CELLWALL_HOME/workspaces/ID`, mode 0700.

files/        a private workspace          layers/upper, layers/work   copy-on-write layers
quarantine/   files moved out of it        session.json                mode and directory
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

from cellwall.core.errors import CellwallError, WorkspaceError
from cellwall.core.types import WorkspaceMode, WorkspaceRequest, check_id
from cellwall.sandbox.files.descriptors import remove_tree
from cellwall.sandbox.protection.host_directory import open_host_directory
from cellwall.sandbox.protection.pending_checks import PendingChecks
from cellwall.sandbox.protection.placeholders import Placeholders

_MAX_ENTRIES_TO_REMOVE = 10_000_000
_DAY_S = 86_400
COARSE_CLOCK = 5  # CLOCK_REALTIME_COARSE, the clock of file times; `time` has no name for it


@dataclass(frozen=True, slots=True)
class StoredWorkspace:
    """One workspace on disk."""

    id: str
    folder: str
    request: WorkspaceRequest
    made_ns: int
    identity: tuple[int, int] | None = None
    """Device and inode of the user's directory, so that another one is not taken for it."""

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

    def __init__(self, home: str) -> None:
        self.home = home
        self._folder = os.path.join(home, "workspaces")
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        self.placeholders = Placeholders(os.path.join(home, "placeholders"))
        self.pending_checks = PendingChecks(home)

    def make(
        self,
        session_id: str,
        request: WorkspaceRequest,
        *,
        identity: tuple[int, int] | None = None,
    ) -> StoredWorkspace:
        folder = os.path.join(self._folder, check_id(session_id))
        made_ns = time.clock_gettime_ns(COARSE_CLOCK)
        try:
            os.mkdir(folder, 0o700)
        except OSError as error:
            raise _cannot_make(error) from error
        try:
            if request.mode is WorkspaceMode.PRIVATE:
                os.mkdir(f"{folder}/files", 0o755)
            if request.mode is WorkspaceMode.COPY_ON_WRITE:
                for name in ("layers", "layers/upper", "layers/work"):
                    os.mkdir(f"{folder}/{name}", 0o755)
            text: dict[str, object] = {
                "mode": request.mode.value,
                "directory": request.directory,
                "made_ns": made_ns,
                "identity": identity,
            }
            with open(f"{folder}/session.json", "x", encoding="utf-8") as file:
                json.dump(text, file)
        except OSError as error:
            with suppress(OSError, WorkspaceError):
                self.remove(session_id)
            raise _cannot_make(error) from error
        return StoredWorkspace(session_id, folder, request, made_ns, identity)

    def session(self, session_id: str) -> StoredWorkspace:
        folder = os.path.join(self._folder, check_id(session_id))
        try:
            with open(f"{folder}/session.json", encoding="utf-8") as file:
                noted = json.load(file)
            request = WorkspaceRequest(WorkspaceMode(noted["mode"]), noted["directory"])
            identity = tuple(map(int, noted["identity"])) if noted.get("identity") else None
            made_ns = int(noted["made_ns"])
            return StoredWorkspace(session_id, folder, request, made_ns, identity)  # type: ignore[arg-type]  # another length equals no identity
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WorkspaceError(
                f"there is no workspace {session_id}",
                hint="It was removed, or belongs to another user or CELLWALL_HOME.",
                code="CW-NO-WORKSPACE",
            ) from error

    def sessions(self) -> Iterator[StoredWorkspace]:
        """Every workspace whose folder can be read, oldest first."""
        found: list[StoredWorkspace] = []
        for name in os.listdir(self._folder):
            with suppress(CellwallError):
                found.append(self.session(name))
        yield from sorted(found, key=lambda session: session.made_ns)

    def open_directory(self, session: StoredWorkspace) -> tuple[int, str]:
        """Open the user's directory again, if it is still the same one.

        A parent that was replaced by a symlink would lead `apply` into another directory under the
        expected path.
        """
        descriptor, place = open_host_directory(
            session.request.directory or "", state_home=self.home
        )
        info = os.fstat(descriptor)
        if (info.st_dev, info.st_ino) != session.identity or place != session.request.directory:
            os.close(descriptor)
            raise WorkspaceError(
                "the directory of this workspace was moved or replaced",
                hint="Its path leads to another directory now, perhaps by a symlink; give it anew.",
                code="CW-WORKSPACE-MOVED",
            )
        return descriptor, place

    def remove(self, session_id: str) -> None:
        """Remove a folder, read-only directories of code included; no symlink is followed."""
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        parent = os.open(self._folder, flags)
        try:
            remove_tree(parent, check_id(session_id), max_entries=_MAX_ENTRIES_TO_REMOVE)
        except FileNotFoundError:
            pass
        finally:
            os.close(parent)

    def retire(self, session: StoredWorkspace) -> None:
        """At the end of a session: remove its folder, unless it holds files of the user: a
        quarantine, or changes that were not applied yet.
        """
        match session.request.mode:
            case WorkspaceMode.PRIVATE:
                kept = False
            case WorkspaceMode.COPY_ON_WRITE:
                kept = _holds_something(session.upper_path)
            case _:
                kept = _holds_something(session.quarantine_path)
        if not kept:
            self.remove(session.id)

    def sweep(self, *, dead: Collection[str], live: Collection[str], keep_days: int) -> None:
        """Remove the folders of killed runs, and changes that were not applied in time.

        A live sandbox may be older than that: its layers are mounted, and stay.
        """
        for session in self.sessions():
            if session.id in live:
                continue
            with suppress(OSError, CellwallError):
                if (time.time_ns() - session.made_ns) / 1e9 > keep_days * _DAY_S and (
                    session.request.mode is not WorkspaceMode.PRIVATE
                ):
                    self.remove(session.id)
                elif session.id in dead:
                    self.retire(session)


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

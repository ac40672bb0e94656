"""The workspace of a container: what the engine mounts, and what init must find there.

An engine takes paths, and resolves them itself. So init compares each mount with the file that was
checked, before any code runs: a name that was replaced in between ends the cell.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

from cellwall.core.errors import WorkspaceError
from cellwall.core.types import WorkspaceMode, WorkspaceMount
from cellwall.sandbox.containers.container_request import ContainerBind
from cellwall.sandbox.containers.container_walls import ContainerUser
from cellwall.sandbox.files.descriptors import identity_of
from cellwall.sandbox.files.file_tree import FileTree

INSIDE = "/workspace"
_READ_AND_ENTER = 0o5


@dataclass(frozen=True, slots=True)
class EmptySources:
    """An empty directory and file of the state folder, which hide protected names."""

    directory: str
    file: str

    @classmethod
    def make(cls, folder: str) -> EmptySources:
        found = cls(os.path.join(folder, "empty"), os.path.join(folder, "nothing"))
        os.makedirs(found.directory, mode=0o555, exist_ok=True)
        os.close(os.open(found.file, os.O_CREAT | os.O_CLOEXEC, 0o444))
        return found


@dataclass(frozen=True, slots=True)
class WorkspaceBinds:
    """In the order in which they are mounted; `expected` is path inside -> device and inode."""

    binds: tuple[ContainerBind, ...] = ()
    expected: tuple[tuple[str, int, int], ...] = ()


def workspace_binds(
    mount: WorkspaceMount, user: ContainerUser, empty: EmptySources, *, can_compare: bool
) -> WorkspaceBinds:
    """The mounts of a workspace on disk; a refusal for one that a container cannot have.

    `can_compare`: init sees the devices and inodes of the host.
    """
    if mount.dir_fd is None or mount.path is None:
        return WorkspaceBinds()
    if mount.mode is WorkspaceMode.PRIVATE:
        _own_private(mount.dir_fd, user)
    else:
        _check_given(mount, os.fstat(mount.dir_fd), user, can_compare=can_compare)
    is_read_only = mount.mode is WorkspaceMode.READ_ONLY
    binds = [ContainerBind(mount.path, INSIDE, is_read_only=is_read_only)]
    # gVisor numbers devices itself; the directory is one of the state folder's own.
    expected = [(INSIDE, *identity_of(mount.dir_fd))] if can_compare else []
    with FileTree(os.dup(mount.dir_fd)) as tree:
        for treatment, path in mount.covers:
            inside = f"{INSIDE}/{path}"
            with tree.node(path) as node:
                source, identity = os.path.join(mount.path, path), identity_of(node)
                if treatment == "hide":
                    is_directory = stat.S_ISDIR(os.fstat(node).st_mode)
                    source = empty.directory if is_directory else empty.file
                    found = os.stat(source)
                    identity = found.st_dev, found.st_ino
            writable = treatment == "pin" and not is_read_only
            binds.append(ContainerBind(source, inside, is_read_only=not writable))
            expected.append((inside, *identity))
    return WorkspaceBinds(tuple(binds), tuple(expected))


def _own_private(descriptor: int, user: ContainerUser) -> None:
    if user.outside is None or (os.geteuid() != 0 and user.outside[0] != os.geteuid()):
        raise _refuse(
            "the engine runs code as a uid that cannot write a directory of this user",
            "Run Cellwall as root, or use one-shot runs whose disk limit fits into "
            'memory, or sandbox.backend = "native".',
        )
    if os.geteuid() == 0:
        os.chown(f"/proc/self/fd/{descriptor}", *user.outside)  # opened by O_PATH


def _check_given(
    mount: WorkspaceMount, info: os.stat_result, user: ContainerUser, *, can_compare: bool
) -> None:
    if mount.mode is WorkspaceMode.COPY_ON_WRITE:
        raise _refuse(
            "a container of an engine has no copy-on-write layers",
            'Give the directory as :ro, or use sandbox.backend = "native".',
        )
    if not can_compare or mount.own_path is not None:
        raise _refuse(
            "this backend shows no directory of a user at its own path, and gVisor none at all",
            'Use sandbox.backend = "container" with /workspace, or "native".',
        )
    is_owner = user.outside is not None and user.outside[0] == info.st_uid
    if mount.mode is WorkspaceMode.READ_WRITE and not is_owner:
        raise _refuse(
            "the engine runs code as a uid that does not own this directory",
            'Give the directory as :ro, or use sandbox.backend = "native", which maps owners.',
        )
    if not is_owner and info.st_mode & _READ_AND_ENTER != _READ_AND_ENTER:
        raise _refuse(
            "the engine runs code as a uid that cannot read this directory",
            'Run chmod o+rx on it, or use sandbox.backend = "native", which maps owners.',
        )


def _refuse(why: str, hint: str) -> WorkspaceError:
    return WorkspaceError(why, hint=hint, code="CW-BACKEND-WORKSPACE")

"""The second user of a cell: its uids on the host, and where no cell can have one (ISO-1, ISO-10).

A refusal always, and never one user in the name of two: who asks for two relies on file modes.
"""

from __future__ import annotations

import functools
import os

from cellwall.core.errors import BadInput, LayerMissing
from cellwall.core.files import SECOND_HOME
from cellwall.core.types import Action, WorkspaceMode, WorkspaceMount
from cellwall.sandbox.linux.outer_wall import SecondUser

_OFFSET = 20_000
"""Above every first uid: slots and leases end below `uid_base` + 15,000, see layers.py."""
_STORED_OFFSET = _OFFSET - 1


def check_allowed(*, is_allowed: bool, backend: str) -> None:
    """Raise where no sandbox of this configuration and host can have a second user."""
    if not is_allowed:
        raise BadInput(
            "the configuration gives no sandbox a second user",
            hint='Write second_user = "allow" in [sandbox], or leave the second user out.',
            code="CW-SECOND-USER-OFF",
        )
    if backend != "native":
        raise BadInput(
            "a sandbox in a container of an engine or in a virtual machine has one user",
            hint='Write backend = "native" in [sandbox], or leave the second user out.',
            code="CW-SECOND-USER-HOST",
        )
    if os.geteuid() != 0:
        raise LayerMissing(
            "an ordinary user can map one uid into a sandbox, and a second user needs another one",
            hint="Start Cellwall as root (code still runs as unprivileged uids), or leave the "
            "second user out.",
            code="CW-SECOND-USER-HOST",
        )


def check_mount(action: Action, mount: WorkspaceMount) -> None:
    """Raise for files that two users cannot share.

    A file that `root` made in a directory of the host would belong there to a uid with which the
    owner of the directory has nothing to do.
    """
    if not action.second_user:
        return
    if mount.mode is WorkspaceMode.READ_WRITE:
        raise BadInput(
            "a sandbox with a second user writes to no directory of the host",
            hint="Give the directory as :cow or :ro.",
            code="CW-SECOND-USER-WORKSPACE",
        )
    if mount.own_path is not None and f"{mount.own_path}/".startswith(f"{SECOND_HOME}/"):
        raise BadInput(
            f"a directory in {SECOND_HOME}, the home of the second user, cannot be shown at its "
            "own path",
            hint="Leave --own-path out.",
            code="CW-SECOND-USER-WORKSPACE",
        )


def second_user_of(first_uid: int, *, uid_base: int, has_cgroup: bool) -> SecondUser:
    """Its uid belongs to the cell alone, as the first one does, from which it follows."""
    if not has_cgroup:
        raise LayerMissing(
            "without a cgroup the kernel limits processes for each user, not for both together",
            hint="Give Cellwall a cgroup, see `cellwall doctor`; or leave the second user out.",
            code="CW-SECOND-USER-HOST",
        )
    second = SecondUser(first_uid + _OFFSET, uid_base + _STORED_OFFSET)
    for uid in (second.uid, second.stored_uid):
        if not is_mapped(uid) or is_assigned(uid):
            raise LayerMissing(
                f"the uid {uid}, of the second user of a sandbox, does not exist in this user "
                "namespace, or belongs to a user of this host",
                hint="Set sandbox.uid_base to the first of a range of uids that are mapped here "
                "and belong to no user (see /proc/self/uid_map, /etc/passwd and /etc/subuid).",
                code="CW-LAYER-UID",
            )
    return second


@functools.cache
def is_mapped(uid: int) -> bool:
    """Whether a uid exists in this user namespace: in a container root may be the only one."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return any(first <= uid < first + count for first, _outside, count in ranges)


def is_assigned(uid: int) -> bool:
    """Whether the files of this host give a uid to a user, or to the containers of one."""
    return any(first <= uid < first + count for first, count in _assigned_uids())


@functools.cache
def _assigned_uids() -> tuple[tuple[int, int], ...]:
    return assigned_in(_lines("/etc/passwd"), _lines("/etc/subuid"))


def assigned_in(passwd: list[str], subuid: list[str]) -> tuple[tuple[int, int], ...]:
    """The first uid and the count of each range; lines of another form assign none."""
    rows = [[*line.split(":")[2:3], "1"] for line in passwd]
    rows += [line.split(":")[1:3] for line in subuid]
    return tuple(
        (int(row[0]), int(row[1]))
        for row in rows
        if len(row) == 2 and all(word.isascii() and word.isdigit() for word in row)
    )


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return [line.strip() for line in file]
    except FileNotFoundError:
        return []

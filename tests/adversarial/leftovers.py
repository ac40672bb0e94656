"""What a run, a cell or a template could leave behind on the host, and how it is found."""

from __future__ import annotations

import contextlib
import glob
import os
import threading
from collections import Counter
from pathlib import Path

from adversarial.conftest import end_what_waits
from cellwall.sandbox.linux import cgroups
from cellwall.sandbox.linux.channels import ready_to_read

# A range of uids that no other Cellwall on this machine uses, so that what is found is ours.
# All ranges together end below 1,900,000,000, where the ranges of ordinary runs begin, and start above
# those of the supervisors in tests/interfaces/conftest.py.
UIDS = 40_000  # with those of second users
UID_BASE = 1_200_000_000 + os.getpid() % 17_000 * UIDS


def alive() -> list[str]:
    """Processes with one of our uids; only root can tell, others have one uid for all."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            ours = UID_BASE <= uid_of(name) < UID_BASE + UIDS
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
            if ours and state != "Z":  # the dead have a test of their own
                found.append(Path(f"/proc/{name}/cmdline").read_bytes().decode("utf-8", "replace"))
    return found


def uid_of(pid: str) -> int:
    """Not the owner of its directory: what cannot be dumped, as init and zygote, is root's there."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nUid:\t")[2].split()[0])


def groups(names: set[str]) -> list[str]:
    """Groups of these runs and templates; those of a template's cells lie in its own."""
    return [
        path
        for base in set(cgroups.choose(cgroups.gather()).bases.values())
        for name in names
        for path in glob.glob(f"{base}/cellwall/{name}.*")
    ]


def recorded(home: str) -> set[str]:
    return {*os.listdir(f"{home}/runs")} if os.path.isdir(f"{home}/runs") else set()


def left(home: str, project: Path | None = None) -> dict[str, object]:
    """After everything that waits for a next run was ended."""
    waiting = recorded(home)
    end_what_waits()
    with open("/proc/self/mounts", encoding="utf-8") as file:
        mounts = [line for line in file if home in line or (project and str(project) in line)]
    found: dict[str, object] = {
        "processes": alive(),
        "mounts": mounts,
        "groups": groups(waiting),
        "runs": sorted(recorded(home)),
        "workspaces": os.listdir(f"{home}/workspaces"),
        "placeholders": [n for n in os.listdir(f"{home}/placeholders") if n != ".lock"],
    }
    if project is not None:
        found["project"] = sorted(os.listdir(project))
    return found


def nothing(project: Path | None = None) -> dict[str, object]:
    kinds = ("processes", "mounts", "groups", "runs", "workspaces", "placeholders")
    empty: dict[str, object] = {kind: [] for kind in kinds}
    return empty if project is None else {**empty, "project": ["README"]}


def children(pid: int) -> list[int]:
    """Descriptors of the supervisor's own children: the shims, which leave last."""
    found = []
    for task in os.listdir(f"/proc/{pid}/task"):
        for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                found.append(os.pidfd_open(int(child)))
    return found


def holders_of(project: Path) -> list[int]:
    """Descriptors of the processes that will remove the placeholders of this directory."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if b"cellwall-cell\0hold\0" not in Path(f"/proc/{name}/cmdline").read_bytes():
                continue
            pidfd = os.pidfd_open(int(name))
            open_files = (os.readlink(each) for each in Path(f"/proc/{name}/fd").iterdir())
            if str(project) in open_files:
                found.append(pidfd)
            else:
                os.close(pidfd)
    return found


def until_ended(pidfds: list[int]) -> None:
    for pidfd in pidfds:
        ended = ready_to_read(pidfd, timeout_s=20)
        os.close(pidfd)
        assert ended, "a shim outlived its supervisor by 20 s"


def children_of(pid: int | str) -> list[str]:
    """Of a process or thread that has ended: none."""
    found = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    return found


def find_in_cells(zygote: int, name: str) -> tuple[int, int]:
    """The init and the process of the one cell in which a process has this name. Others end
    meanwhile."""
    for init in children_of(zygote):
        for child in children_of(init):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{child}/comm").read_text() == f"{name}\n":
                    return int(init), int(child)
    raise AssertionError(f"no cell has a process named {name}")


def own_children() -> Counter[str]:
    """Number and command of each, also of the dead that nobody has waited for."""
    found = []
    for pid in children_of(os.getpid()):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")
            found.append(f"{pid} {command}")
    return Counter(found)


def own_state() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), threading.active_count()


def own_things() -> Counter[str]:
    """What `own_state` counts, to be told where it has grown."""
    links = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{number}"))
    return Counter(links + [thread.name for thread in threading.enumerate()])


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * (
        os.sysconf("SC_PAGE_SIZE") // 1024
    )

"""What of the host a process sees, with which rights, and which Python it is.

Equal for a client and its supervisor, or the client's cells would have other files, another network
or another interpreter than in its own process.

Light, as `client`.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` itself takes as long to import as Python takes to start
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cellwall.core.types import Json

_NAMESPACES = ("mnt", "net", "pid", "user")
_RIGHTS = (b"Uid", b"Gid", b"CapEff", b"CapBnd", b"NoNewPrivs", b"Seccomp", b"Cpus_allowed")
_FILTERS = b"Seccomp_filters"
"""Since Linux 5.9. In a container every process has a filter; those with one more differ here."""
_LIMITS_APART = frozenset((b"Max core file size", b"Max realtime timeout"))
"""An open vault lowers the first, and the second only marks agents (`agent_processes`)."""
_OPEN_FILES = b"Max open files"
_NAME_BYTES = 26
"""The width of a name in /proc/PID/limits."""
_VARIABLES = ("HOME", "XDG_CONFIG_HOME")
"""Those that name a user's files beside `shaping`: git's settings, the policies of projects."""


def surroundings(environ: Mapping[str, str]) -> list[Json]:
    """Empty where the kernel does not tell: equal to that of no supervisor."""
    try:
        # Of the thread: a thread can have namespaces and rights of its own.
        spaces = [os.stat(f"/proc/thread-self/ns/{name}").st_ino for name in _NAMESPACES]
        root = os.stat("/")
        with open("/proc/thread-self/status", "rb") as file:
            lines = dict(line.partition(b":")[::2] for line in file)
        rights = [b" ".join(lines[name].split()).decode("ascii") for name in _RIGHTS]
        limits = _limits()
        # Cells inherit it, and with it whether their addresses are random.
        with open("/proc/thread-self/personality", "rb") as file:
            personality = file.read().strip().decode("ascii")
    except (OSError, KeyError):
        return []
    groups = sorted({os.getegid(), *os.getgroups()})
    return [
        *spaces,
        root.st_dev,
        root.st_ino,
        *rights,
        lines.get(_FILTERS, b"").strip().decode("ascii"),
        *limits,
        personality,
        os.getpriority(os.PRIO_PROCESS, 0),
        _label(),
        groups,
        # Cells run this interpreter, and a workspace must not hold these folders.
        sys.hexversion,
        *map(os.path.realpath, (sys.base_prefix, sys.prefix, __file__)),
        *(environ.get(name) for name in _VARIABLES),
    ]


def _limits() -> list[Json]:
    """The limits of resources, which cells inherit: soft and hard, and of open files the hard one,
    to which a supervisor raises the soft one."""
    found: list[Json] = []
    with open("/proc/thread-self/limits", "rb") as file:
        for line in file.readlines()[1:]:
            name, values = line[:_NAME_BYTES].strip(), line[_NAME_BYTES:].split()[:2]
            if name not in _LIMITS_APART:
                found += [each.decode("ascii") for each in values[name == _OPEN_FILES :]]
    return found


def may_inspect(pid: int) -> bool:
    """Whether the kernel lets this process read another one's state (ptrace(2), read access).

    It does so only for a process with at least the other's rights, those of Landlock included,
    which no file in /proc shows. A caller in a domain of its own may not.
    """
    try:
        os.stat(f"/proc/{pid}/ns/mnt")
    except OSError:
        return False
    return True


def named_places(
    here: str, choices: Mapping[str, Any], shaping: Mapping[Any, Any]
) -> list[list[int] | None]:
    """Which files and directories the names of a request mean for this process; relative ones
    start at `here`, empty for the working directory itself.

    Attack: a name below /proc/self or /dev/fd is another file in each process, and a mount can
    hide the directory of one from the other.
    """
    workspace = str(choices.get("workspace") or "")
    named = (choices.get("config"), choices.get("policy"), shaping.get("CELLWALL_CONFIG"))
    names = (*named, workspace, workspace.rpartition(":")[0])
    return [_identity(os.path.join(here, str(name or "."))) for name in (".", *names)]


def _identity(path: str) -> list[int] | None:
    """Device and inode; None for a file that is not there."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return [found.st_dev, found.st_ino]


def _label() -> str:
    """The label of AppArmor or SELinux, if the host has one of them."""
    try:
        with open("/proc/thread-self/attr/current", "rb") as file:
            return file.read(4096).strip(b"\0\n").decode("ascii", "replace")
    except OSError:
        return ""

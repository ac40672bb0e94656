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

    from cellwall.core.types import Json

_NAMESPACES = ("mnt", "net", "pid", "user")
_RIGHTS = (b"CapEff", b"CapBnd", b"NoNewPrivs", b"Seccomp")
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
        rights = [lines[name].strip().decode("ascii") for name in _RIGHTS]
    except (OSError, KeyError):
        return []
    groups = sorted({os.getegid(), *os.getgroups()})
    return [
        *spaces,
        root.st_dev,
        root.st_ino,
        *rights,
        _label(),
        groups,
        # Cells run this interpreter, and a workspace must not hold these folders.
        sys.hexversion,
        *map(os.path.realpath, (sys.base_prefix, sys.prefix, __file__)),
        *(environ.get(name) for name in _VARIABLES),
    ]


def _label() -> str:
    """The label of AppArmor or SELinux, if the host has one of them."""
    try:
        with open("/proc/thread-self/attr/current", "rb") as file:
            return file.read(4096).strip(b"\0\n").decode("ascii", "replace")
    except OSError:
        return ""

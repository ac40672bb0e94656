"""Facts about live or frozen cells, their files and the host, for an incident bundle (OBS-3).

No fact is taken from inside a cell but names, sizes and bytes, each with a bound. Nothing of a
workspace is followed, opened or waited for but regular files; their content is hashed, not copied.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import metadata

from cellwall import __version__
from cellwall.core.errors import WorkspaceError
from cellwall.core.types import Json
from cellwall.sandbox.files.descriptors import closing_fd
from cellwall.sandbox.files.root import Root
from cellwall.sandbox.files.walking import WalkStep
from cellwall.sandbox.linux import cgroups
from cellwall.sandbox.linux.cell_ending import is_frozen
from cellwall.sandbox.linux.cell_search import FoundCell
from cellwall.sandbox.linux.process_table import CellProcess
from cellwall.sandbox.linux.run_cgroup import read_text

_MAX_PROCESSES = 1000
_MAX_FILES = 256
_MAX_SOCKETS = 1000
_MAX_TEXT_BYTES = 4096
_MAX_HASHED_BYTES = 16 * 1024 * 1024
_MAX_HASHED_IN_ALL = 1024 * 1024 * 1024
_READ_WITHIN_S = 1.0
_TCP_STATES = {"01": "established", "02": "syn-sent", "0A": "listening"}
_STATUS = ("Uid", "Gid", "Threads", "VmRSS", "NSpid", "Seccomp", "NoNewPrivs", "CapEff")
_LIBRARIES = ("cryptography", "anyio", "fastapi", "uvicorn", "sqlalchemy", "argon2-cffi")


def cell_facts(cell: FoundCell) -> dict[str, Json]:
    """The processes of a cell, and the sockets of its network namespace."""
    processes = cell.processes[:_MAX_PROCESSES]
    return {
        "id": cell.id,
        "cells": list(cell.inner),
        "is_frozen": is_frozen(cell),
        "shim": None if cell.shim is None else cell.shim.pid,
        "processes": [_process_facts(each) for each in processes],
        "processes_left_out": len(cell.processes) - len(processes),
        "sockets": _sockets(processes),
    }


def _process_facts(process: CellProcess) -> dict[str, Json]:
    place = f"/proc/{process.pid}"
    status = dict(
        line.split(":\t", 1) for line in read_text(f"{place}/status").splitlines() if ":\t" in line
    )
    words = _read_memory(f"{place}/cmdline")
    return {
        "pid": process.pid,
        "parent": process.parent,
        "name": process.name,
        "state": process.state,
        "started_ticks": process.started,
        "command": [each.decode("utf-8", "replace") for each in words.split(b"\0") if each],
        "status": {name: status[name] for name in _STATUS if name in status},
        "open_files": list(_open_files(place)),
    }


def _read_memory(path: str) -> bytes:
    """The start of a file that the kernel reads from the memory of a process. The process may have
    mapped something there that never answers: then the reader is given up."""
    found: list[bytes] = []

    def read() -> None:
        with suppress(OSError), closing_fd(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as file:
            found.append(os.read(file, _MAX_TEXT_BYTES))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(_READ_WITHIN_S)
    return found[0] if found else b""


def _open_files(place: str) -> Iterable[str]:
    """Targets of the descriptors, as the kernel names them, where it lets us read them."""
    try:
        names = sorted(os.listdir(f"{place}/fd"), key=int)[:_MAX_FILES]
    except OSError:
        return
    for name in names:
        with suppress(OSError):
            yield f"{name} {os.readlink(f'{place}/fd/{name}')}"


def _sockets(processes: Iterable[CellProcess]) -> list[Json]:
    """TCP and UDP sockets of each network namespace in the cell, once."""
    found: list[Json] = []
    seen: set[int] = set()
    for process in processes:
        with suppress(OSError):
            space = os.stat(f"/proc/{process.pid}/ns/net").st_ino
            if space in seen or space == os.stat("/proc/self/ns/net").st_ino:
                continue
            seen.add(space)
            for kind in ("tcp", "tcp6", "udp", "udp6"):
                lines = read_text(f"/proc/{process.pid}/net/{kind}").splitlines()[1:]
                found += [_socket(kind, line.split()) for line in lines if len(line.split()) > 9]
    return found[:_MAX_SOCKETS]


def _socket(kind: str, fields: list[str]) -> dict[str, Json]:
    """Addresses stay as the kernel writes them: hexadecimal, in the byte order of the host."""
    state = _TCP_STATES.get(fields[3], fields[3]) if kind.startswith("tcp") else ""
    return {"kind": kind, "local": fields[1], "remote": fields[2], "state": state}


class FileListing:
    """Lists the files of workspaces with digests, within one budget for all of them."""

    def __init__(self, *, max_entries: int) -> None:
        self._max_entries, self._left_bytes = max_entries, _MAX_HASHED_IN_ALL

    def list(self, directory: str) -> list[Json]:
        """Every entry below a directory: name, kind, size, and the digest of a regular file."""
        found: list[Json] = []

        def leave_out(path: str) -> None:
            found.append({"path": _printable(path), "problem": "unreadable, or too many entries"})

        try:
            with Root.open(directory) as root:
                steps = root.walk(
                    max_entries=self._max_entries, on_locked=leave_out, on_overflow=leave_out
                )
                found += [self._entry(step) for step in steps]
        except WorkspaceError as error:
            found.append({"problem": error.message})
        return found

    def _entry(self, step: WalkStep) -> dict[str, Json]:
        status = step.status
        entry: dict[str, Json] = {
            "path": _printable(step.path),
            "kind": _kind(status.st_mode),
            "size": status.st_size,
            "changed_s": int(status.st_mtime),
        }
        if stat.S_ISREG(status.st_mode):
            entry["mode"] = oct(stat.S_IMODE(status.st_mode))
            entry["sha256"] = self._sha256(step)
        elif stat.S_ISLNK(status.st_mode):
            with suppress(OSError):
                entry["target"] = _printable(os.readlink(step.name, dir_fd=step.dir_fd))
        return entry

    def _sha256(self, step: WalkStep) -> str | None:
        """None for a file that is large, sparse ones included, or was exchanged meanwhile."""
        if step.status.st_size > min(_MAX_HASHED_BYTES, self._left_bytes):
            return None
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            with closing_fd(os.open(step.name, flags, dir_fd=step.dir_fd)) as file:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    return None
                digest, left = hashlib.sha256(), _MAX_HASHED_BYTES
                while left > 0 and (part := os.read(file, 1024 * 1024)):
                    digest.update(part)
                    left -= len(part)
                    self._left_bytes -= len(part)
        except OSError:
            return None
        return digest.hexdigest()


_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISREG, "file"),
    (stat.S_ISDIR, "directory"),
    (stat.S_ISLNK, "link"),
    (stat.S_ISFIFO, "fifo"),
    (stat.S_ISSOCK, "socket"),
)


def _printable(name: str) -> str:
    """Code chose the name; surrogates stand for bytes that are not UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode()


def _kind(mode: int) -> str:
    return next((name for is_one, name in _KINDS if is_one(mode)), "device")


def host_facts() -> dict[str, Json]:
    """Versions, kernel and hardware; no name, address, user or variable of the host."""
    choice = cgroups.choose(cgroups.gather())
    system = dict.fromkeys(("PRETTY_NAME", "VERSION_ID"), "")
    with suppress(OSError):
        system = {name: platform.freedesktop_os_release().get(name, "") for name in system}
    versions: dict[str, Json] = {"cellwall": __version__, "python": platform.python_version()}
    for name in _LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return {
        "versions": versions,
        "system": dict(system),
        "kernel": f"{platform.release()} {platform.machine()}",
        "byte_order": sys.byteorder,
        "cgroup": choice.way,
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "uptime_s": round(time.clock_gettime(time.CLOCK_BOOTTIME)),
        "clock_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "is_root": os.geteuid() == 0,
    }

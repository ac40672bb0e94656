"""A PostgreSQL of its own for this bench, as a service would use it: with fsync, on a socket."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

_NOBODY = 65534
_STARTS_WITHIN_S = 120
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """A running server and its first process."""

    url: str
    pid: int

    def processor_s(self) -> float:
        """Of the server and all its processes so far."""
        pids = [self.pid, *_children(self.pid)]
        return sum(processor_s(pid) for pid in pids)


@contextmanager
def postgres_server() -> Iterator[PostgresServer | None]:
    """None where PostgreSQL is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        yield None
        return
    programs, folder = found[-1].parent, Path(tempfile.mkdtemp(prefix="cellwall-bench-pg-"))
    data = str(folder / "data")
    try:
        if os.geteuid() == 0:  # which the server refuses
            os.chown(folder, _NOBODY, _NOBODY)
        _call(
            programs / "initdb",
            "-D",
            data,
            "-U",
            "cellwall",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-locale",
        )
        options = f"-c listen_addresses='' -k {folder}"
        log = str(folder / "log")
        _call(programs / "pg_ctl", "-D", data, "-w", "-l", log, "-o", options, "start")
        try:
            pid = int((folder / "data" / "postmaster.pid").read_text("ascii").split("\n")[0])
            place = quote(str(folder), safe="")
            yield PostgresServer(f"postgresql://cellwall@/postgres?host={place}", pid)
        finally:
            _call(programs / "pg_ctl", "-D", data, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _call(program: Path, *words: str) -> None:
    who = {}
    if os.geteuid() == 0:
        who = {"user": _NOBODY, "group": _NOBODY, "extra_groups": []}
    subprocess.run(
        [program, *words],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=_STARTS_WITHIN_S,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        **who,  # type: ignore[arg-type]  # of several types
    )


def _children(pid: int) -> list[int]:
    words = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    return [int(word) for word in words]


def processor_s(pid: int) -> float:
    """Of a process, and of its children that have ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii")
    except OSError:
        return 0.0
    times = text.rpartition(")")[2].split()[11:15]
    return sum(map(int, times)) / _TICKS_PER_S

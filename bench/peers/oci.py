"""The bundle that OCI runtimes start: the host's /usr read-only in an empty root."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from typing import Any

from peers.job import Job

_DIRECTORIES = ("usr", "proc", "dev", "sys", "etc", "tmp", "workspace")
_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
_ACCOUNTS = "root:x:0:0:root:/:/bin/sh\ndaemon:x:1:1:daemon:/:/bin/sh\n"
_RLIMITS = {
    "cpu_s": "RLIMIT_CPU",
    "memory_bytes": "RLIMIT_AS",
    "processes": "RLIMIT_NPROC",
    "file_size_bytes": "RLIMIT_FSIZE",
    "open_files": "RLIMIT_NOFILE",
}
RLIMITED = frozenset({*_RLIMITS, "tmp_bytes"})
WORKSPACE = "/workspace"


def make_root(path: str) -> None:
    """Directories, links and the accounts of an empty root; /usr is mounted on it later."""
    for name in _DIRECTORIES:
        os.makedirs(os.path.join(path, name), exist_ok=True)
    for name in ("tmp", "workspace"):  # an engine gives a tmpfs the mode of the directory below it
        os.chmod(os.path.join(path, name), 0o1777)
    for name, target in _LINKS.items():
        if not os.path.lexists(os.path.join(path, name)):
            os.symlink(target, os.path.join(path, name))
    with open(os.path.join(path, "etc", "passwd"), "w", encoding="ascii") as file:
        file.write(_ACCOUNTS)


def make_bundle(folder: str, base: Mapping[str, Any], job: Job) -> None:
    """A bundle for one container, from the runtime's own default specification."""
    root = os.path.join(folder, "rootfs")
    make_root(root)
    size = int(job.limits.get("tmp_bytes", 64 << 20))
    mounts = [
        *(mount for mount in base["mounts"] if mount["destination"] != "/tmp"),
        _bind("/usr", "/usr", "ro"),
        _bind(job.workspace, WORKSPACE, "rw"),
        {
            "destination": "/tmp",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": ["nosuid", "nodev", "mode=1777", f"size={size}"],
        },
    ]
    process = {
        **base["process"],
        "terminal": False,
        "args": job.command(WORKSPACE),
        "cwd": WORKSPACE,
        "env": ["PATH=/usr/bin:/bin"],
        "rlimits": [
            {"type": kind, "hard": int(job.limits[name]), "soft": int(job.limits[name])}
            for name, kind in _RLIMITS.items()
            if name in job.limits
        ],
    }
    spec = {**base, "mounts": mounts, "process": process}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(spec, file)


def remove_bundle(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _bind(source: str, target: str, mode: str) -> dict[str, Any]:
    options = ["rbind", "nosuid", "nodev", mode]
    return {"destination": target, "type": "bind", "source": source, "options": options}

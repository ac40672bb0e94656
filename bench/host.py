"""The host of a run, in words and numbers."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent


def describe_host() -> dict[str, Any]:
    """What a reader has to know before comparing absolute times."""
    return {
        "system": platform.freedesktop_os_release()["PRETTY_NAME"],
        "machine": platform.machine(),
        "kernel": platform.release().partition("-")[0],
        "processors": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "load_before": round(os.getloadavg()[0], 1),
        "date": time.strftime("%Y-%m-%d"),
        "is_ordinary_user": os.geteuid() != 0,
    }


def describe_run() -> dict[str, Any]:
    """The host, the interpreter and the commit."""
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {
        **describe_host(),
        "python": platform.python_version(),
        "commit": _git("rev-parse", "--short=12", "HEAD") + (" with changes" if changes else ""),
    }


def is_same_host(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether absolute times of two runs may be compared: the same kind of machine and system."""
    facts = ("system", "machine", "kernel", "processors", "memory_gib", "is_ordinary_user")
    return all(one[fact] == other[fact] for fact in facts)


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=_HERE, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or ("" if done.returncode == 0 else "unknown")

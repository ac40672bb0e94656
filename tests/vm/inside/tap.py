"""Runs checks inside a machine and speaks TAP to the console, each line with a mark before it."""

from __future__ import annotations

import pathlib
import sys
import time
import traceback
from collections.abc import Callable, Sequence

Check = Callable[[], None]
PATIENCE = int(
    pathlib.Path("/proc/cmdline").read_text(encoding="ascii").rpartition("cellwall.patience=")[2]
)
"""By how much every time limit is multiplied, for a host that does other work as well."""


def equal(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{found!r} is not {wanted!r}")


def within(seconds: float, condition: Callable[[], object], what: str | Callable[[], str]) -> None:
    """Poll until it holds; the machine has no other way to be told."""
    seconds *= PATIENCE
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            told = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {seconds} s: {told}")
        time.sleep(0.05)


def run_checks(checks: Sequence[tuple[str, Check]]) -> None:
    """Run all checks, whatever becomes of each."""
    wanted = pathlib.Path("/job/python-version").read_text(encoding="ascii")
    if wanted != f"{sys.version_info.major}.{sys.version_info.minor}":
        say(f"Bail out! .venv has Python {wanted}, the machine {sys.version.split()[0]}")
        return
    say(f"1..{len(checks)}")
    for number, (name, function) in enumerate(checks, 1):
        started = time.monotonic()
        try:
            function()
        except BaseException:  # whatever it was, the next check is to be run as well
            say(f"not ok {number} - {name}")
            for line in traceback.format_exc().splitlines():
                say(f"# {line}")
        else:
            say(f"ok {number} - {name} # {time.monotonic() - started:.1f} s")


def say(line: str) -> None:
    print(f"VM| {line}", flush=True)

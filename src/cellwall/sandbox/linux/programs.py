"""Runs programs of the host: for their versions, and detached. Never for a run.

Also finds `cellwall-cell`, the program of the shim, the reaper and init.
"""

from __future__ import annotations

import functools
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from importlib import resources

from cellwall.core.errors import LayerMissing

_ANSWER_WITHIN_S = 5.0


def version_of(path: str) -> str:
    """The first line of `PROGRAM --version`, or why the program failed."""
    done = _run_briefly([path, "--version"])
    return done if isinstance(done, str) else _first_line(done.stdout)[:100]


def refusal_of(argv: Sequence[str]) -> str:
    """The first line a program prints to stderr; empty if it succeeds."""
    done = _run_briefly(argv)
    if isinstance(done, str) or done.returncode == 0:
        return done if isinstance(done, str) else ""
    return _first_line(done.stderr)[:200] or f"exit code {done.returncode}"


def _run_briefly(argv: Sequence[str]) -> subprocess.CompletedProcess[bytes] | str:
    """The ended program, or why it did not start or end."""
    try:
        return subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_WITHIN_S,
            check=False,
            env={},
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not start ({type(error).__name__})"


def _first_line(text: bytes) -> str:
    return text.decode("utf-8", "replace").partition("\n")[0].strip()


def start_detached(words: Sequence[str], *, env: Mapping[str, str], cwd: str) -> int:
    """Start a process that outlives this one, without its terminal, descriptors and variables."""
    process = subprocess.Popen(
        list(words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=dict(env),
        cwd=cwd,
        start_new_session=True,
        close_fds=True,
    )
    # It usually outlives this process; if not, this thread reaps it.
    threading.Thread(target=process.wait, name="cellwall-detached", daemon=True).start()
    return process.pid


@functools.cache
def cell_program() -> str:
    """The path of `cellwall-cell`, which is built when Cellwall is installed."""
    path = os.fspath(resources.files("cellwall.sandbox.linux").joinpath("cellwall-cell"))  # type: ignore[call-overload]  # a real file here: the wheel is never run from a zip
    if not os.access(path, os.X_OK):
        raise LayerMissing(
            "the program cellwall-cell is missing from this installation",
            hint="Install Cellwall again with `pip install --force-reinstall .` or `./dev setup`.",
            code="CW-LAYER-CELL",
        )
    return str(path)

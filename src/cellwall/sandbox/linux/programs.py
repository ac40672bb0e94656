"""Runs programs of the host: for their versions, and to build an environment. Never for a run.

Also finds `cellwall-cell`, the program of the shim, the reaper and init.
"""

from __future__ import annotations

import functools
import os
import resource
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import resources
from types import MappingProxyType

from cellwall.core.cancelling import check_cancelled
from cellwall.core.errors import LayerMissing

_ANSWER_WITHIN_S = 5.0
_LOOK_EVERY_S = 0.2
_MAX_LINE_BYTES = 8192
_CHUNK_BYTES = 65_536
_NO_LIMITS: Mapping[int, int] = MappingProxyType({})


def version_of(path: str) -> str:
    """The first line of `PROGRAM --version`, or why the program failed."""
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_WITHIN_S,
            check=False,
            env={},
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not start ({type(error).__name__})"
    return done.stdout.decode("utf-8", "replace").partition("\n")[0].strip()[:100]


def refusal_of(argv: Sequence[str]) -> str:
    """The first line a program prints to stderr; empty if it succeeds."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_WITHIN_S,
            check=False,
            env={},
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not start ({type(error).__name__})"
    if done.returncode == 0:
        return ""
    said = done.stderr.decode("utf-8", "replace").partition("\n")[0].strip()[:200]
    return said or f"exit code {done.returncode}"


def stream_lines(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    on_line: Callable[[str], None],
    within_s: float,
    held_fds: Sequence[int] = (),
    limits: Mapping[int, int] = _NO_LIMITS,
) -> int:
    """Run a program to its end and pass each line it prints, on either stream, to `on_line`.

    Returns the exit code; TimeoutError if it takes longer than `within_s`, OSError if it does not
    start. The end of this call, by cancellation as well, ends the program and its children.
    `held_fds` stay open in the program: a lock among them lasts until the program has ended, even
    if this process is killed. `limits` are rlimits, by the numbers of `resource`.
    """
    process = subprocess.Popen(
        list(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=dict(env),
        cwd="/",
        pass_fds=tuple(held_fds),
        start_new_session=True,  # a process group of its own, to be killed as a whole
    )
    assert process.stdout is not None  # noqa: S101  # asked for above
    try:
        _limit(process.pid, limits)
        _read_lines(process.stdout.fileno(), on_line, ends_at=time.monotonic() + within_s)
        return process.wait(timeout=_ANSWER_WITHIN_S)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError from error
    finally:
        with suppress(ProcessLookupError):
            # Before the wait: until the process is reaped its pid cannot be reused.
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def _limit(pid: int, limits: Mapping[int, int]) -> None:
    """After exec: between fork and exec no Python may run in a process with threads."""
    for kind, wanted in limits.items():
        with suppress(ProcessLookupError):  # the program has ended already
            _, most = resource.prlimit(pid, kind)
            least = wanted if most == resource.RLIM_INFINITY else min(wanted, most)
            resource.prlimit(pid, kind, (least, least))


def _read_lines(descriptor: int, on_line: Callable[[str], None], *, ends_at: float) -> None:
    waiting = b""
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            left_s = ends_at - time.monotonic()
            is_ready = selector.select(max(0.0, min(left_s, _LOOK_EVERY_S)))
            check_cancelled()
            if not is_ready and left_s > 0:
                continue
            if not is_ready:
                raise TimeoutError
            part = os.read(descriptor, _CHUNK_BYTES)
            *lines, waiting = (waiting + part).split(b"\n")
            if not part or len(waiting) > _MAX_LINE_BYTES:
                lines, waiting = [*lines, waiting], b""
            for line in lines:
                text = line[:_MAX_LINE_BYTES].decode("utf-8", "replace").rstrip()
                if text:
                    on_line(text)
            if not part:
                return


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

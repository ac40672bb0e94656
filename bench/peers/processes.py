"""Starts a process, bounded in time and output, and ends everything it leaves in its group."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from peers.job import Ended

_MAX_OUTPUT_BYTES = 4 << 20
_CHUNK_BYTES = 1 << 16


def run_bounded(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    timeout_s: float,
) -> Ended:
    """Run to the end of the first process; its group is killed then, or when the time is over.

    Children that still hold the pipes do not keep the caller waiting, as they would with
    `subprocess.run`: an attack leaves such children on purpose.
    """
    try:
        process = subprocess.Popen(
            argv,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return Ended(127, b"", str(error).encode())
    assert process.stdout is not None
    assert process.stderr is not None
    texts = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    for number in texts:
        os.set_blocking(number, False)
    exited = os.pidfd_open(process.pid)
    try:
        is_over = _follow(exited, texts, timeout_s)
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
        os.close(exited)
        out, err = (bytes(text) for text in texts.values())
        process.stdout.close()
        process.stderr.close()
    return Ended(code if is_over else None, out, err)


def _follow(exited: int, texts: dict[int, bytearray], timeout_s: float) -> bool:
    """Collect output until the process has exited; False if the time is over before."""
    deadline = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for number in (exited, *texts):
            selector.register(number, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            ready = {key.fd for key, _ in selector.select(left)}
            for number in ready - {exited}:
                if not _read(number, texts[number]):
                    selector.unregister(number)
            if exited in ready:
                for number, text in texts.items():
                    while _read(number, text):
                        pass
                return True
    return False


def _read(number: int, text: bytearray) -> bool:
    """Append what is there; False at the end, or when nothing is there."""
    try:
        chunk = os.read(number, _CHUNK_BYTES)
    except BlockingIOError:
        return False
    if len(text) < _MAX_OUTPUT_BYTES:
        text += chunk
    return bool(chunk)

"""The process of a peer that is a library: answers jobs on a Unix socket until its input ends.

Standard library alone, since it runs in the environment into which the peer was installed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Request = dict[str, Any]
Reply = dict[str, Any]


def reply(code: int | None, stdout: bytes, stderr: bytes, limit: str = "") -> Reply:
    """What the client reads as `Ended`."""
    return {
        "code": code,
        "stdout": stdout.decode("latin-1"),
        "stderr": stderr.decode("latin-1"),
        "limit": limit,
    }


def serve(path: str, run: Callable[[Request], Reply]) -> None:
    """Answer each connection in a thread; every line is a job, and so is every reply."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        os.chmod(path, 0o666)
        server.listen(64)
        threading.Thread(target=_accept, args=(server, run), daemon=True).start()
        print("ready", flush=True)
        sys.stdin.buffer.read()


def _accept(server: socket.socket, run: Callable[[Request], Reply]) -> None:
    with suppress(OSError):
        while True:
            line, _ = server.accept()
            threading.Thread(target=_answer, args=(line, run), daemon=True).start()


def _answer(line: socket.socket, run: Callable[[Request], Reply]) -> None:
    with line, line.makefile("rwb") as file:
        for text in file:
            try:
                answer = run(json.loads(text))
            except Exception as error:  # noqa: BLE001  # told to the client, which judges it
                answer = reply(126, b"", f"{type(error).__name__}: {error}".encode())
            file.write(json.dumps(answer).encode() + b"\n")
            file.flush()

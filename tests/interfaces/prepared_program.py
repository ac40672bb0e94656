"""The program `cellwall`, started by a fork of an interpreter that has imported it already.

A start of Python with all imports takes longer than most commands, and tests start hundreds of
them. What runs is a process of its own with its own descriptors, environment and exit code; tests
about the start itself start the real program (`PROGRAM`).
"""

from __future__ import annotations

import atexit
import fcntl
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

PROGRAM = os.path.join(os.path.dirname(sys.executable), "cellwall")
_MOST_BYTES = 1 << 20
_MOST_DESCRIPTORS = 1024
_IMPORTED = (
    "cellwall.interfaces.entry",
    "cellwall.interfaces.requests",
    "cellwall.guard.redact",
    "cellwall.guard.service",
    "cellwall.egress.service",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "anyio._backends._asyncio",
    "anyio._core._signals",
)
_IMPORTED_WHOLE = (
    "cellwall.interfaces.cli",
    "cellwall.runtime",
    "cellwall.egress.pages",
    "cellwall.egress.proxy",
)


# --- the side of the tests


def run(
    words: Sequence[str | bytes], *, stdin: bytes, env: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[bytes]:
    """As `subprocess.run` with captured output."""
    pipes = [os.pipe() for _ in range(3)]
    inside = [pipes[0][0], pipes[1][1], pipes[2][1]]
    ours = [pipes[0][1], pipes[1][0], pipes[2][0]]
    shown = [b"", b"", b""]
    with start(words, inside, env=env) as process:
        for descriptor in inside:
            os.close(descriptor)
        jobs = [threading.Thread(target=_feed, args=(ours[0], stdin))]
        jobs += [threading.Thread(target=_take, args=(ours[at], shown, at)) for at in (1, 2)]
        for job in jobs:
            job.start()
        try:
            code = process.wait(timeout_s)
        finally:
            for job in jobs:
                job.join()
    return subprocess.CompletedProcess([PROGRAM, *words], code, shown[1], shown[2])


class Process:
    """One that was started; as far as it is used here it is like `Popen`."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self.pid = int(line.recv(64))

    def wait(self, timeout_s: float) -> int:
        """Its exit code; one that is late is killed."""
        self._line.settimeout(timeout_s)
        try:
            return int(self._line.recv(64))
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(PROGRAM, timeout_s) from None


@contextmanager
def start(
    words: Sequence[str | bytes],
    descriptors: Sequence[int],
    *,
    env: Mapping[str, str],
    on_terminal: bool = False,
) -> Iterator[Process]:
    """With these standard streams; the first is its controlling terminal where that is wanted."""
    asked = json.dumps(
        {
            "words": [os.fsdecode(word) for word in words],
            "env": dict(env),
            "cwd": os.getcwd(),
            "on_terminal": on_terminal,
        }
    ).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.connect(_server())
        socket.send_fds(line, [asked], descriptors)
        yield Process(line)


def _feed(pipe: int, data: bytes) -> None:
    with open(pipe, "wb") as file, suppress(BrokenPipeError):
        file.write(data)
        file.flush()


def _take(pipe: int, shown: list[bytes], at: int) -> None:
    with open(pipe, "rb") as file:
        shown[at] = file.read()


@cache
def _server() -> str:
    """The address of the one that serves this process."""
    folder = tempfile.mkdtemp(prefix="cw-fork-")
    address = os.path.join(folder, "line")
    # With its own group: an interrupt at the keyboard is for the tests.
    server = subprocess.Popen(
        [sys.executable, __file__, address], stdout=subprocess.PIPE, start_new_session=True
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    atexit.register(_end, server, folder)
    return address


def _end(server: subprocess.Popen[bytes], folder: str) -> None:
    server.kill()
    server.wait()
    os.unlink(os.path.join(folder, "line"))
    os.rmdir(folder)


# --- the side of the program


def prepare() -> None:
    """Imports all commands, and reads the tables that come out the same in every process."""
    for package in _IMPORTED_WHOLE:
        for found in pkgutil.iter_modules(importlib.import_module(package).__path__):
            importlib.import_module(f"{package}.{found.name}")
    for name in _IMPORTED:
        importlib.import_module(name)
    from cellwall.core import protected_names  # noqa: PLC0415  only the server imports these
    from cellwall.core.limits import Limits  # noqa: PLC0415
    from cellwall.guard.scanning import Scanner  # noqa: PLC0415
    from cellwall.parsing.credentials.texts import spans_of  # noqa: PLC0415
    from cellwall.policy.files import builtin_rules  # noqa: PLC0415
    from cellwall.runtime.guarding import screened_code  # noqa: PLC0415
    from cellwall.sandbox.native import seccomp  # noqa: PLC0415

    for table in (protected_names.load, protected_names.build_files, protected_names.instructions):
        table()
    builtin_rules()
    spans_of("password=correct-horse-battery-staple")
    Scanner().scan("a text")
    screened_code("1", "python")
    screened_code("true", "shell")
    seccomp.build(seccomp.host_arch(), open_files=Limits().open_files)
    assert threading.active_count() == 1  # a fork takes no other thread along


def serve(address: str) -> dict[str, Any]:
    """Returns what was asked for, in a process that was made for it alone."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.bind(address)
    line.listen(64)
    print("ready", flush=True)
    parent = os.getppid()
    children: dict[int, tuple[socket.socket, int]] = {}
    ready = selectors.DefaultSelector()
    ready.register(line, selectors.EVENT_READ)
    while os.getppid() == parent:
        for key, _ in ready.select(1.0):
            if key.data is not None:
                connection, pid = children.pop(key.fd)
                ready.unregister(key.fd)
                os.close(key.fd)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with connection, suppress(OSError):
                    connection.send(str(status).encode())
                continue
            connection, _ = line.accept()
            asked, descriptors, _, _ = socket.recv_fds(connection, _MOST_BYTES, 3)
            pid = os.fork()
            if pid == 0:
                # Closed by their objects: a number that is used anew must not be closed by one later.
                ready.close()
                for each in (line, connection, *(found for found, _ in children.values())):
                    each.close()
                _become(descriptors)
                return json.loads(asked.decode())
            for descriptor in descriptors:
                os.close(descriptor)
            connection.send(str(pid).encode())
            watched = os.pidfd_open(pid)
            children[watched] = connection, pid
            ready.register(watched, selectors.EVENT_READ, data=pid)
    os._exit(0)


def _become(descriptors: Sequence[int]) -> None:
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
    os.closerange(3, _MOST_DESCRIPTORS)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        errors = "backslashreplace" if name == "stderr" else "strict"
        stream = open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115 - for as long as the process lasts
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


if __name__ == "__main__":
    prepare()
    asked = serve(sys.argv[1])
    if asked["on_terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    sys.argv = [PROGRAM, *asked["words"]]
    sys.exit(sys.modules["cellwall.interfaces.entry"].main())

"""A peer that is a Python library: a process of its own holds it, and gets jobs by a socket."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Mapping
from typing import BinaryIO, ClassVar

from peers.job import Ended, Job
from peers.peer import Peer, PeerMissing

_END_WITHIN_S = 20.0
_CONNECT_WITHIN_S = 10.0
_GRACE_S = 10.0
BENCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class ResidentPeer(Peer):
    """Started by `open`; each thread of the bench has a connection of its own."""

    module: ClassVar[str]
    """The module below `peers` that serves, run by the interpreter of `python`."""

    is_in_directory: ClassVar[bool] = False
    """Whether code gets the directory of the host also where a private one would do."""
    choice: ClassVar[str] = "default"
    """The settings, as the module knows them."""

    def python(self) -> str:
        """The interpreter of the environment that the peer was installed into."""
        path = self.place.installed(self.product, "bin", "python")
        if not os.path.exists(path):
            raise PeerMissing(f"{self.product} is not installed")
        return path

    def version(self) -> str:
        distribution = self.product
        code = f"import importlib.metadata as m; print(m.version({distribution!r}))"
        done = subprocess.run(
            [self.python(), "-c", code], capture_output=True, text=True, check=False, timeout=30
        )
        if done.returncode != 0:
            raise PeerMissing(f"{distribution} is not installed")
        return f"{distribution} {done.stdout.strip()}"

    def open(self, env: Mapping[str, str]) -> None:
        super().open(env)
        self.connect_to(self.place.state(f"{self.name}.sock"))
        self._process = start_server(
            [
                *(self.python(), "-m", f"peers.{self.module}", self._path, self.choice),
                self.place.state("docker.sock"),
            ],
            {**self.env, "PYTHONPATH": BENCH},
            self.name,
        )

    def connect_to(self, path: str) -> None:
        """Where `run` finds the process."""
        self._lines = threading.local()
        self._path = path

    def close(self) -> None:
        end_server(self._process)

    def run(self, job: Job, timeout_s: float) -> Ended:
        request = {
            "argv": list(job.argv) or job.command(self.inside(job)),
            "python": job.python,
            "workspace": job.workspace,
            "needs_workspace": job.needs_workspace or self.is_in_directory,
            "limits": dict(job.limits),
            "timeout_s": timeout_s,
        }
        try:
            return self._ask(request, timeout_s + _GRACE_S)
        except TimeoutError:
            self._lines = threading.local()  # the reply may still come on the old connection
            return Ended(None)
        except (OSError, ValueError) as error:
            self._lines = threading.local()
            return Ended(126, b"", f"{self.name}: {error}".encode())

    def _ask(self, request: dict[str, object], timeout_s: float) -> Ended:
        file: BinaryIO | None = getattr(self._lines, "file", None)
        if file is None:
            line = socket.socket(socket.AF_UNIX)
            line.settimeout(_CONNECT_WITHIN_S)
            line.connect(self._path)
            self._lines.line = line
            file = self._lines.file = line.makefile("rwb")
        self._lines.line.settimeout(timeout_s)
        file.write(json.dumps(request).encode() + b"\n")
        file.flush()
        answer = json.loads(file.readline())
        out, err = (answer[name].encode("latin-1") for name in ("stdout", "stderr"))
        return Ended(answer["code"], out, err, answer["limit"])


def start_server(words: list[str], env: Mapping[str, str], name: str) -> subprocess.Popen[bytes]:
    """Start a process that serves; returns when it says that it is ready."""
    process = subprocess.Popen(
        words,
        env=dict(env),
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    if process.stdout.readline() != b"ready\n":
        end_server(process)
        text = process.stderr.read().decode("utf-8", "replace").strip()
        raise PeerMissing(f"{name}: {text.rpartition(chr(10))[2][:300]}")
    # Nobody reads the stream from here on, and a full pipe would stop the peer.
    threading.Thread(target=process.stderr.read, daemon=True).start()
    return process


def end_server(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

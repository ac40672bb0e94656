"""`cellwall serve` as a real process, of somebody without any right where the tests are root's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx

from conftest import ORDINARY_UID, ordinary_user
from interfaces import prepared_program
from plain_http import NO_AUTHORITIES

DEADLINE_S = 90.0
# Nobody delegates a cgroup to this uid; limits are not what is tested here.
_STREAMS: dict[str, Any] = {
    "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE
}  # fmt: skip
Process = subprocess.Popen[bytes]
_WEAKER = "[sandbox]\ndangerously_without_cgroup = true\n"


@dataclass
class Place:
    """A folder with the state and the configuration of one service."""

    folder: Path
    user: dict[str, Any]
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / "state"

    def configure(self, text: str) -> None:
        path = self.folder / "cellwall.toml"
        path.write_text(f"{_WEAKER}{text}")
        self.own(path)

    def own(self, path: Path, mode: int = 0o600) -> None:
        path.chmod(mode)
        if self.user:
            os.chown(path, ORDINARY_UID, ORDINARY_UID)

    def cellwall(
        self, *words: str, stdin: bytes = b"", **changes: str
    ) -> subprocess.CompletedProcess[bytes]:
        """A command of the account that runs the service."""
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with prepared_program.Popen(
            words, env={**self.environment, **changes}, cwd="/", user=self.user.get("user"), **pipes
        ) as process:
            try:
                shown = process.communicate(stdin, DEADLINE_S)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess(words, process.returncode, *shown)

    def done(self, *words: str, **more: Any) -> bytes:
        done = self.cellwall(*words, **more)
        assert done.returncode == 0, done
        return done.stdout

    def token(self, name: str = "ann", role: str = "owner") -> str:
        """A token of a new user."""
        self.done("user", "add", name, "--role", role)
        return self.done("token", "create", "--user", name).decode().strip()

    def start(
        self, *words: str, env: Mapping[str, str] = {}, code: str | None = None, **streams: Any
    ) -> Process:
        """A fork of a prepared program: imports take longer than everything else together."""
        return prepared_program.Popen(
            ["serve", *words],
            code=code,
            env={**self.environment, **env},
            cwd="/",
            user=self.user.get("user"),
            start_new_session=True,  # a signal for its whole group is for it alone
            **{**_STREAMS, **streams},
        )

    @contextmanager
    def serving(self, *words: str, **options: Any) -> Iterator[Served]:
        """A service that listens; it is ended however the test ends."""
        process = self.start("--json", *(words or ("--port", "0")), **options)
        try:
            yield Served(self, process, self.read_start(process))
        finally:
            process.kill()
            process.communicate(timeout=DEADLINE_S)

    @staticmethod
    def read_start(process: subprocess.Popen[bytes]) -> dict[str, Any]:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate(timeout=DEADLINE_S)
        return json.loads(line)


@dataclass
class Served:
    """A running service."""

    place: Place
    process: subprocess.Popen[bytes]
    told: dict[str, Any]

    @property
    def url(self) -> str:
        return self.told["address"]

    def client(self, token: str = "", **options: Any) -> httpx.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        options = {"verify": NO_AUTHORITIES, **options}
        return httpx.Client(base_url=self.url, headers=headers, timeout=DEADLINE_S, **options)

    def ended(self) -> int:
        """The exit code."""
        return self.process.wait(DEADLINE_S)


@contextmanager
def new_place(configuration: str = "") -> Iterator[Place]:
    # Not below pytest's folder, which another user cannot enter.
    folder = Path(tempfile.mkdtemp(prefix="cw-serve-", dir="/var/tmp"))
    try:
        folder.chmod(0o755)
        place = Place(folder, ordinary_user())
        place.home.mkdir()
        place.own(place.home, 0o700)
        place.configure(configuration)
        place.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "CELLWALL_HOME": str(place.home),
            "CELLWALL_CONFIG": str(folder / "cellwall.toml"),
            "CELLWALL_PATH": "cold",
        }
        yield place
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def processes_with(mark: str) -> list[int]:
    """The processes whose command line contains this."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if mark.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return found


def until(condition: Any) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.02)

"""A real fleet on this machine: PostgreSQL, Ray and hosts as processes, on loopback addresses or in
network namespaces. Shared by tests and `./dev bench fleet`.

The first machine is a front without sandboxes, so that each host can be killed, stopped or cut off
without the front. In namespaces each host has one link, to a bridge; PostgreSQL and Ray's first
node are behind it, and to cut the link cuts the host off from both.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
from sqlalchemy import select

from cellwall.storage.engine import StorageSettings, blocking_engine
from cellwall.storage.models import SessionRow
from fleet_links import HostLinks

PROGRAM = os.path.join(os.path.dirname(sys.executable), "cellwall")
DEADLINE_S = 180.0
"""Of what takes seconds; a busy machine is no failure."""
_ENDS_WITHIN_S = 60.0


def free_port(address: str = "127.0.0.1") -> int:
    with socket.create_server((address, 0)) as free:
        return int(free.getsockname()[1])


def until(condition: Callable[[], Any], what: str = "it did not come to that") -> Any:
    """The first true value of the condition."""
    deadline = time.monotonic() + DEADLINE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


@dataclass
class Machine:
    """One machine of a fleet: a state folder, a configuration and the process of `cellwall fleet`."""

    name: str
    folder: Path
    address: str
    environment: dict[str, str]
    enter: tuple[str, ...] = ()
    """The words before a command that run it in the namespace of this machine."""
    process: subprocess.Popen[bytes] | None = None
    told: dict[str, Any] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / "state"

    @property
    def join_token(self) -> Path:
        return self.folder / "join-token"

    @property
    def id(self) -> str:
        return str(self.told["host"])

    def launch(self, *words: str) -> None:
        """Start `cellwall fleet …`; `wait_until_up` reads what it tells."""
        as_root = ["--dangerously-as-root"] if os.geteuid() == 0 else []
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [*self.enter, PROGRAM, "fleet", *words, "--json", *as_root],
                env=self.environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_up(self) -> Machine:
        assert self.process is not None
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.folder / "log").read_text()[-4000:]
        self.told = json.loads(line)
        assert "host" in self.told, (self.told, (self.folder / "log").read_text()[-4000:])
        return self

    def cellwall(self, *words: str, code: int = 0) -> str:
        """The output of a command of this machine, which ends with this exit code."""
        done = subprocess.run(
            [*self.enter, PROGRAM, *words],
            env=self.environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert done.returncode == code, done
        return done.stdout

    def pids(self) -> list[int]:
        """All processes of this machine: ours, Ray's and the cells. Their environment names it."""
        mark = f"CELLWALL_FLEET_MACHINE={self.folder}".encode()
        found = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            with suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    found.append(pid)
        return found

    def pid_of(self, program: str) -> int:
        """The process of one of Ray's programs."""
        for pid in self.pids():
            with suppress(OSError):
                if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == program:
                    return pid
        raise AssertionError(f"{self.name} runs no {program}")

    def signal(self, number: int) -> None:
        """To all processes of this machine, as a machine that fails as a whole."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """As when the power fails; processes that were started meanwhile end as well."""
        while self.pids():
            self.signal(signal.SIGKILL)
            time.sleep(0.01)
            if self.process is not None:
                self.process.poll()

    def stop(self) -> int:
        """End the machine by SIGTERM, as its operator does."""
        assert self.process is not None
        self.process.terminate()
        try:
            return self.process.wait(_ENDS_WITHIN_S)
        finally:
            self.kill()
            self.close()

    def close(self) -> None:
        if self.process is not None:
            self.process.wait(_ENDS_WITHIN_S)
            if self.process.stdout is not None:
                self.process.stdout.close()


class RunningFleet:
    """A front and its hosts."""

    def __init__(
        self,
        folder: Path,
        database: str,
        links: HostLinks,
        *,
        config: str = "",
        more: str = "",
        keeper: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.database, self.links = folder, database, links
        self._config, self._more, self._keeper = config, more, keeper
        self._environment = dict(environment or {})
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._ray_port = free_port(links.front_address)
        self._join_port = free_port(links.front_address)
        self.scratches: list[str] = []
        self.front = self._machine("front")
        self.hosts: list[Machine] = []
        self._tokens: dict[str, str] = {}

    def _machine(self, name: str) -> Machine:
        folder = self.folder / name
        (folder / "state").mkdir(parents=True, mode=0o700)
        folder.chmod(0o700)
        address, enter = self.links.add(name)
        (folder / "cellwall.toml").write_text(self._configuration(name, address))
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "CELLWALL_HOME": str(folder / "state"),
            "CELLWALL_CONFIG": str(folder / "cellwall.toml"),
            "CELLWALL_PATH": "cold",
            "CELLWALL_FLEET_MACHINE": str(folder),
            # Short, for the names of sockets; a machine that is killed leaves its files there.
            "TMPDIR": self._scratch(),
            **self._environment,
        }
        return Machine(name, folder, address, environment, enter)

    def _scratch(self) -> str:
        self.scratches.append(tempfile.mkdtemp(prefix="f", dir="/tmp"))
        return self.scratches[-1]

    def _configuration(self, name: str, address: str) -> str:
        vault = "keeper" if name == self._keeper else "fleet" if self._keeper else "own"
        weaker = "" if os.geteuid() == 0 else "dangerously_without_cgroup = true\n"
        return (
            f'[storage]\nurl = "{self.database}"\n'
            f"dangerously_without_tls = {str(self.links.is_separate).lower()}\ntimeout_s = 5.0\n"
            f'[accounts]\nkey_file = "{self.folder}/accounts.key"\n'
            "argon2_memory_kib = 64\nargon2_passes = 1\n"
            f"[sandbox]\n{weaker}"
            f'[fleet]\nnode_address = "{address}"\nport = {self._ray_port}\n'
            f'join_port = {self._join_port}\nvault = "{vault}"\n'
            f'{self._config}\n[server]\npublic_url = "{self.url}"\n'
            f"max_sessions_per_user = 5000\n{self._more}"
        )

    def start(self, hosts: int) -> None:
        """The front, and then all hosts at once."""
        self.start_front()
        for machine in [self.launch_host() for _ in range(hosts)]:
            machine.wait_until_up()

    def start_front(self) -> None:
        self.front.launch("up", "--no-sandboxes", "--port", str(self.port))
        self.front.wait_until_up()

    def new_host(self) -> Machine:
        """One that does not run yet, with a token to join."""
        machine = self._machine(f"host{len(self.hosts) + 1}")
        machine.join_token.write_text(self.front.cellwall("fleet", "token"))
        self.hosts.append(machine)
        return machine

    def launch_host(self, *words: str) -> Machine:
        machine = self.new_host()
        self.launch_again(machine, *words)
        return machine

    def launch_again(self, machine: Machine, *words: str) -> None:
        address = f"{self.links.front_address}:{self._ray_port}"
        if not (machine.home / "fleet" / "tls.pem").exists():  # it has not joined yet
            words = ("--join-token", str(machine.join_token), *words)
        machine.launch("join", address, *words)

    def token(self, name: str = "ann", role: str = "owner") -> str:
        """Of a user, who is made with the first call."""
        if name not in self._tokens:
            self.front.cellwall("user", "add", name, "--role", role)
            made = self.front.cellwall("token", "create", "--user", name, "--ttl", "12h")
            self._tokens[name] = made.strip()
        return self._tokens[name]

    def client(self, name: str = "ann", role: str = "owner", **headers: str) -> httpx.Client:
        shown = {"Authorization": f"Bearer {self.token(name, role)}", **headers}
        return httpx.Client(base_url=self.url, headers=shown, timeout=DEADLINE_S, trust_env=False)

    def status(self) -> dict[str, dict[str, Any]]:
        """The hosts by id, as `cellwall fleet status` lists them."""
        listed = json.loads(self.front.cellwall("fleet", "status", "--json"))
        return {each["id"]: each for each in listed["hosts"]}

    def places(self) -> dict[str, str]:
        """The host of each session that lives, as the database knows it."""
        engine = blocking_engine(StorageSettings(home=str(self.front.home), url=self.database))
        try:
            with engine.connect() as connection:
                query = select(SessionRow.id, SessionRow.service_id)
                rows = connection.execute(query.where(SessionRow.ended_s.is_(None))).all()
        finally:
            engine.dispose()
        return {str(session): str(host) for session, host in rows}

    def close(self) -> None:
        for machine in [*self.hosts, self.front]:
            machine.signal(signal.SIGCONT)
            machine.kill()
            machine.close()
        self.links.close()
        for scratch in self.scratches:
            shutil.rmtree(scratch, ignore_errors=True)


@contextmanager
def running_fleet(
    folder: Path,
    database: str,
    links: HostLinks,
    *,
    hosts: int = 2,
    config: str = "",
    **more: Any,
) -> Iterator[RunningFleet]:
    """A started fleet; every process of it has ended behind the block. `config`: lines of [fleet];
    `more`: other sections; `keeper`: the name of the machine that keeps the vault."""
    fleet = RunningFleet(folder, database, links, config=config, **more)
    try:
        fleet.start(hosts)
        yield fleet
    finally:
        fleet.close()

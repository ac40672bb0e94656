"""The world of the egress tests: what cells may reach, what they must not, and the traps.

Sandboxes may dial `NEARBY` and nothing else of this host. So loopback's usual address, this host's
other ones and everything private stay what they are for everybody: out of reach.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import cellwall
from adversarial.conftest import ATTACKS, enter_home
from adversarial.endpoints import Endpoints
from cellwall.runtime import wiring
from conftest import need
from outside import Outside, Site, internet

NEARBY = "127.77.0.0/16"
# Of this process alone: ports 80 and 443 may be wanted by several at once.
_HERE = f"127.77.{os.getpid() >> 7 & 255}.{(os.getpid() & 127) + 1}"
_THERE = f"127.77.{os.getpid() >> 7 & 255}.{(os.getpid() & 127) + 128}"

KNOCKS = (ATTACKS / "knocks.py").read_text()


def own_address() -> str:
    """By which this host is known to others; no packet is sent for it. Loopback if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        with suppress(OSError):
            line.connect(("192.0.2.1", 9))
        return str(line.getsockname()[0]).replace("0.0.0.0", "127.0.0.1")


@dataclass
class World:
    outside: Outside
    endpoints: Endpoints
    homes: dict[str, Path]
    stack: ExitStack
    port: int = 0
    """Of `good.example`, and of the traps on the addresses that nobody may reach."""
    ports: dict[str, int] = field(default_factory=dict)
    sites: dict[str, Site] = field(default_factory=dict)
    config: str = ""
    cells: dict[str, cellwall.Sandbox] = field(default_factory=dict)

    @property
    def rules(self) -> list[str]:
        """Everything that stands here is allowed by its name."""
        named = [f"{name}:{self.port}" for name in (*ASTRAY, "good.example", "turn.example")]
        literal = [f"{address}:{self.port}" for address in literals()]
        return [
            *named,
            *literal,
            f"*.wild.example:{self.port}",
            *(f"{name}.example:{self.ports[name]}" for name in ("keep", "pour", "loose")),
            f"GET,POST raw.example:{self.ports['raw']}/public",
            "plain.example:80",
            "secure.example:443",
            "GET opened.example:443/public",
        ]

    def cell(self, path: str) -> cellwall.Sandbox:
        """A live sandbox for all tests of a module that leave it as it was."""
        if path not in self.cells:
            self.cells[path] = self.stack.enter_context(self.new_cell(path))
        return self.cells[path]

    def new_cell(self, path: str, **more: object) -> cellwall.Sandbox:
        with pytest.MonkeyPatch.context() as environment:
            self.enter(environment, path)
            made = cellwall.Sandbox.create(
                **{"config": self.config, "allow_domains": self.rules, "timeout": 90, **more}  # type: ignore[arg-type]  # options of `create`
            )
            ran = made.run_code(KNOCKS)
            assert (ran.status.value, ran.stderr) == ("ok", "")
            return made

    def inside(self, path: str, code: str) -> Any:
        """What the code gives, which knows all the ways to knock."""
        ran = self.cell(path).run_code(code)
        assert ran.status.value == "ok", (ran.error, ran.stderr)
        return ran.value

    def enter(self, environment: pytest.MonkeyPatch, path: str) -> None:
        environment.setenv("SSL_CERT_FILE", self.outside.ca_file)
        enter_home(self.homes[path], path, environment)


# Names that are allowed, and lead where nothing may go: what each resolves to.
ASTRAY = {
    "loopback.example": ["127.0.0.1"],
    "loopback6.example": ["::1"],
    "zero.example": ["0.0.0.0"],
    "zero6.example": ["::"],
    "metadata.example": ["169.254.169.254"],
    "metadata6.example": ["fd00:ec2::254"],
    "own.example": [own_address()],
    "private.example": ["10.0.0.1"],
    "cgnat.example": ["100.64.0.1"],
    "multicast.example": ["224.0.0.1"],
    "broadcast.example": ["255.255.255.255"],
    "mapped.example": [f"::ffff:{_HERE}"],
    "compatible.example": [f"::{_HERE}"],
    "nat64.example": ["64:ff9b::7f00:1"],
    "6to4.example": ["2002:7f00:1::1"],
    "inside.example": ["198.18.0.1"],
    "both.example": [_HERE, "127.0.0.1"],
    "both6.example": [_HERE, "::1"],
    "nothing.example": [],
}


def literals() -> list[str]:
    """Addresses that are allowed by a rule that spells them out, and refused for what they are."""
    return list(dict.fromkeys(["127.0.0.1", "[::1]", "169.254.169.254", own_address()]))


@pytest.fixture(scope="module", name="world")
def the_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    homes = {path: tmp_path_factory.mktemp(f"cellwall-{path}") for path in ("cold", "warm")}
    with ExitStack() as stack:
        outside = stack.enter_context(internet(tmp_path_factory.mktemp("outside")))
        found = World(outside, _listening(), homes, stack)
        stack.callback(found.endpoints.close)
        for home in homes.values():
            stack.callback(wiring.close_shared, str(home))
        _name_everything(found)
        found.endpoints.begin()
        found.config = outside.config(addresses=NEARBY)
        yield found


def _listening() -> Endpoints:
    """The same port on every address, so that only the address tells a trap from the good one."""
    for _ in range(20):
        found = Endpoints()
        port = found.listen("good", _HERE, "greets")
        try:
            found.listen("trap", "127.0.0.1", "greets", port)
            if own_address() != "127.0.0.1":
                found.listen("trap", own_address(), "greets", port)
        except OSError:
            found.close()
            continue
        with suppress(OSError):  # a host without IPv6
            found.listen("trap", "::1", "greets", port)
        found.port = port
        return found
    raise AssertionError("no port is free on all addresses")


def _name_everything(world: World) -> None:
    outside, endpoints = world.outside, world.endpoints
    world.port = endpoints.port
    outside.names.update(ASTRAY)
    for name in ("good", "trap", "evilgood", "good.example.trap", "sub.good", "a.wild", "wild"):
        outside.names[f"{name}.example"] = [_HERE]
    for name, manner in (("keep", "keeps"), ("pour", "pours"), ("loose", "keeps")):
        outside.names[f"{name}.example"] = [_HERE]
        world.ports[name] = endpoints.listen(name, _HERE, manner)  # type: ignore[arg-type]  # as written
    outside.names["raw.example"] = [_HERE]
    world.ports["raw"] = endpoints.listen("raw", _HERE, "answers")
    try:
        world.sites = {
            "plain": outside.web("plain.example", port=80, address=_HERE),
            "secure": outside.web("secure.example", port=443, address=_HERE, tls=True),
            "opened": outside.web("opened.example", port=443, address=_THERE, tls=True),
        }
    except PermissionError:
        need(False, "leave to listen on ports 80 and 443 of loopback")

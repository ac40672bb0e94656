"""How the machines of a fleet in tests reach each other: by loopback addresses, or each in a
network namespace with one link to a bridge, which can be cut and slowed down."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol

from conftest import need
from slow_link import READY

BRIDGE_ADDRESS = "10.213.77.1"
SUBNET = "10.213.77.0/24"


class HostLinks(Protocol):
    """The network of a fleet."""

    front_address: str
    is_separate: bool
    """PostgreSQL is on another machine from where the hosts stand."""

    def add(self, name: str) -> tuple[str, tuple[str, ...]]:
        """The address of a new machine, and the words before its commands."""

    def cut(self, name: str) -> None: ...

    def restore(self, name: str) -> None: ...

    def close(self) -> None: ...


class LoopbackLinks:
    """All machines in one namespace, each with an address of 127.0.0.0/8."""

    front_address = "127.0.0.2"
    is_separate = False

    def __init__(self) -> None:
        self._count = 1

    def add(self, name: str) -> tuple[str, tuple[str, ...]]:
        del name
        self._count += 1
        return f"127.0.0.{self._count}", ()

    def cut(self, name: str) -> None:
        raise NotImplementedError(f"the loopback of {name} cannot be cut")

    restore = cut

    def close(self) -> None:
        pass


class NamespaceLinks:
    """A bridge in this namespace; each host behind a veth pair in a namespace of its own."""

    front_address = BRIDGE_ADDRESS
    is_separate = True

    def __init__(self) -> None:
        need(os.geteuid() == 0, "root, to make network namespaces")
        self._mark = f"cw{os.getpid() % 100_000:x}"
        self._bridge, self._names = f"{self._mark}b", dict[str, str]()
        self._spaces = dict[str, tuple[str, str]]()
        self._cables = dict[str, subprocess.Popen[str]]()
        made = _ip("link", "add", self._bridge, "type", "bridge", is_checked=False)
        need(made, "network bridges")
        _ip("addr", "add", f"{BRIDGE_ADDRESS}/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")

    def add(self, name: str) -> tuple[str, tuple[str, ...]]:
        if name == "front":
            return BRIDGE_ADDRESS, ()
        number = len(self._names) + 1
        space, address = f"{self._mark}n{number}", f"10.213.77.{10 + number}"
        self._names[name] = outer = f"{self._mark}v{number}"
        _ip("netns", "add", space)
        _ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", outer, "master", self._bridge, "up")
        self._spaces[name] = space, address
        _ip("-n", space, "link", "set", "lo", "up")
        _connect(space, address)
        # Not `ip netns exec`, which mounts another /sys, without the cgroups.
        return address, ("nsenter", f"--net=/run/netns/{space}")

    def cut(self, name: str) -> None:
        _ip("link", "set", self._names[name], "down")

    def restore(self, name: str) -> None:
        _ip("link", "set", self._names[name], "up")

    def slow(self, name: str, *, delay_ms: int, kilobits_per_s: int) -> None:
        """Each way takes this longer and has this rate, from now on. The cable is exchanged:
        addresses stay the same, so that open connections go on."""
        need(os.access("/dev/net/tun", os.W_OK), "TAP devices (CONFIG_TUN)")
        space, address = self._spaces[name]
        outer = self._names[name]
        hardware = _output("-n", space, "-json", "link", "show", "eth0")[0]["address"]
        if (old := self._cables.pop(name, None)) is not None:
            _end(old)
        else:
            _ip("link", "del", outer)
        words = [outer, f"{outer}i", space, str(delay_ms), str(kilobits_per_s)]
        program = [sys.executable, str(Path(__file__).with_name("slow_link.py")), *words]
        # In front of busy processes: a real link does not wait for a processor.
        cable = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, preexec_fn=_hurry)
        self._cables[name] = cable
        assert cable.stdout is not None
        assert cable.stdout.readline().strip() == READY
        _ip("link", "set", outer, "master", self._bridge, "up")
        _ip("-n", space, "link", "set", "eth0", "address", hardware)
        _connect(space, address)

    def close(self) -> None:
        while self._cables:
            _end(self._cables.popitem()[1])
        for number in range(1, len(self._names) + 1):
            _ip("netns", "del", f"{self._mark}n{number}", is_checked=False)
        for outer in self._names.values():
            _ip("link", "del", outer, is_checked=False)
        _ip("link", "del", self._bridge, is_checked=False)


def _connect(space: str, address: str) -> None:
    """eth0 of a namespace."""
    _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
    _ip("-n", space, "link", "set", "eth0", "up")


def _end(cable: subprocess.Popen[str]) -> None:
    cable.kill()
    cable.communicate()


def _hurry() -> None:
    os.nice(-20)


def _output(*words: str) -> Any:
    return json.loads(subprocess.check_output(["ip", *words]))


def _ip(*words: str, is_checked: bool = True) -> bool:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not is_checked, done
    return done.returncode == 0

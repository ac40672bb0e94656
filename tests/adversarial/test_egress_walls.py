"""Egress takes no wall down: the attacks on isolation again, from a cell that has it (ISO-5)."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from adversarial.conftest import Verdicts, attack_names, given, outside, source, throwaway
from adversarial.egress import World, own_address, the_world  # noqa: F401  # a fixture
from adversarial.test_network import servers  # noqa: F401  # a fixture
from conftest import need

Remember = Callable[[object, Callable[[], Verdicts]], Verdicts]

# The sockets of this namespace, and who of those that can be seen has one of them.
LISTENERS = """
import glob, os
def listeners():
    found = {}
    for table, state in (("tcp", "0A"), ("udp", "07")):
        with open(f"/proc/net/{table}") as file:
            for line in list(file)[1:]:
                words = line.split()
                if words[3] == state:
                    found[str(int(words[1].split(":")[1], 16))] = words[9]
    return found
def holders(inode):
    found = set()
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if os.readlink(path) == f"socket:[{inode}]":
                found.add(int(path.split("/")[2]))
        except OSError:
            pass
    return sorted(found)
"""


def attacked(world: World, path: str, name: str, **facts: object) -> Verdicts:
    """The program in a cell with egress."""
    cell = world.cell(path)
    cell.files.write("attack.py", source(name))
    command = ["python3", "-I", "/workspace/attack.py"]
    ran = cell.commands.run(command, envs=given(cell=True, **facts), timeout=90)
    assert (ran.status.value, ran.stderr) == ("ok", ""), ran
    return {name: (kind, word) for name, (kind, word) in json.loads(ran.stdout).items()}


def judge_all(control: Verdicts, verdicts: Verdicts) -> None:
    """What gets through outside is refused inside; and nothing gets through inside."""
    tried = {name for name, (kind, _) in control.items() if kind == "through"}
    assert tried, control
    wrong = {
        name: {"outside": control[name], "inside": word}
        for name, word in verdicts.items()
        if word[0] == "through" or (name in tried and word[0] != "refused")
    }
    assert wrong == {}


@pytest.mark.requirement("NET-1", "NET-2", "ISO-5")
def test_network_of_the_host_stays_out_of_reach(
    world: World,
    path: str,
    servers: dict[str, object],  # noqa: F811  # the fixture
    remember: Remember,
) -> None:
    control = remember("network", lambda: outside("network", control=True, **servers))
    judge_all(control, attacked(world, path, "network", **servers))


@pytest.mark.requirement("ISO-5", "ISO-6")
def test_calls_that_take_walls_down_stay_refused(
    world: World, path: str, remember: Remember
) -> None:
    control = remember(
        "kernel_calls", lambda: outside("kernel_calls", prefix=throwaway(), disposable=True)
    )
    judge_all(control, attacked(world, path, "kernel_calls"))


@pytest.mark.requirement("ISO-5", "NET-2")
@pytest.mark.parametrize("name", attack_names("own_network"))
@pytest.mark.table("name")
def test_cell_cannot_change_the_network_it_was_given(
    name: str, world: World, path: str, remember: Remember
) -> None:
    prefix = ("unshare", "--net", *throwaway()[1:])
    hosts = os.readlink("/proc/self/ns/net")
    control = remember(
        "own_network", lambda: outside("own_network", prefix=prefix, disposable=True, hosts=hosts)
    )
    verdicts = remember(
        ("own_network", path), lambda: attacked(world, path, "own_network", hosts=hosts)
    )
    if os.geteuid() != 0:
        need(control[name][0] == "through", f"root, for the control of {name}")
    assert {"outside": control[name][0], "inside": verdicts[name][0]} == {
        "outside": "lacks" if control[name][0] == "lacks" else "through",
        "inside": "refused",
    }, (control[name], verdicts[name])


@pytest.mark.requirement("ISO-1", "ISO-5")
def test_cell_with_egress_has_no_capability(world: World, path: str) -> None:
    found = world.inside(
        path, "[line.split() for line in open('/proc/self/status') if line.startswith('Cap')]"
    )
    assert {name: int(value, 16) for name, value in found} == dict.fromkeys(
        ("CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"), 0
    )
    mine = Path("/proc/self/status").read_text()
    assert int(mine.partition("CapBnd:\t")[2].split()[0], 16) != 0, "outside, some could be had"


@pytest.mark.requirement("ISO-9", "NET-2")
def test_egress_sockets_are_held_outside_and_by_no_other_process(world: World, path: str) -> None:
    """Whoever had one could answer in the proxy's place, or take the connections of others."""
    need(os.geteuid() == 0, "root, to look into every process")
    found = world.inside(
        path,
        LISTENERS + "import socket\nmine = socket.create_server(('127.0.0.1', 0))\n"
        "found = listeners(); own = found.pop(str(mine.getsockname()[1])); mine_held = holders(own)\n"
        "[found, {port: holders(inode) for port, inode in found.items()},"
        " mine_held == [os.getpid()]]",
    )
    inodes, held_inside, can_tell = found
    assert can_tell, "the control: a socket of its own is found by the same search"
    assert {"3128", "53", "80", "443", str(world.port)} <= inodes.keys()
    assert held_inside == {port: [] for port in inodes}
    scene: dict[str, Callable[[str], list[int]]] = {}
    exec(LISTENERS, scene)
    held = {port: scene["holders"](inode) for port, inode in inodes.items()}
    assert held == {port: [os.getpid()] for port in inodes}


@pytest.mark.requirement("ISO-5", "NET-2")
def test_neighbours_reach_neither_each_other_nor_what_the_other_looked_up(
    world: World, path: str
) -> None:
    listen = (
        "import threading\n"
        "server = socket.create_server(('0.0.0.0', 0))\n"
        "def greet():\n"
        "    while True: server.accept()[0].sendall(b'HTTP/1.1 200 OK\\r\\n\\r\\nneighbour')\n"
        "threading.Thread(target=greet, daemon=True).start()\n"
        "def reach(address, port):\n"
        "    try:\n"
        "        with socket.create_connection((address, port), 20) as line: return line.recv(64)[-9:].decode()\n"
        "    except OSError as error: return type(error).__name__\n"
    )
    port = world.inside(path, f"{listen}server.getsockname()[1]")
    address = world.inside(path, "look_up(b'good.example')[0]")
    places = [("127.0.0.1", port), (address, port), (own_address(), port)]
    tried = f"[reach(*place) for place in {places!r}]"
    greetings = world.inside(path, f"{tried}, direct({address!r}, {world.port}, b'good.example')")
    assert greetings == [["neighbour", "neighbour", greetings[0][2]], ["through", "good"]]
    with world.new_cell(path) as other:
        other.run_code(listen)
        # No name was looked up there: the same address stands for nothing yet.
        ran = other.run_code(f"{tried}, direct({address!r}, {world.port}, b'good.example')")
        by_proxy = other.run_code(
            f"connect(b'127.0.0.1', {port}), connect({own_address().encode()!r}, {port})"
        )
        apart = [
            cell.run_code("import os; os.readlink('/proc/self/ns/net')").value
            for cell in (world.cell(path), other)
        ]
    assert ran.value[0][:2] == ["ConnectionRefusedError"] * 2
    assert ran.value[0][2] in ("OSError", "ConnectionRefusedError")
    assert ran.value[1] == ["refused", "cut"]
    assert [kind for kind, _ in by_proxy.value] == ["refused", "refused"]
    assert len({*apart, os.readlink("/proc/self/ns/net")}) == 3


@pytest.mark.requirement("NET-2", "NET-7")
def test_datagrams_get_nowhere(world: World, path: str) -> None:
    """A name's address is for connections: neither QUIC nor DNS to somebody else goes by it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("0.0.0.0", 0))
        server.settimeout(20)
        port = server.getsockname()[1]
        found = world.inside(
            path,
            "def send(address, port):\n"
            "    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:\n"
            "        line.settimeout(20)\n"
            "        try:\n"
            "            line.connect((address, port)); line.send(b'from inside'); return line.recv(9).decode()\n"
            "        except OSError as error: return type(error).__name__\n"
            "address = look_up(b'secure.example')[0]\n"
            f"[send(*place) for place in ((address, 443), (address, {port}), ('127.0.0.1', {port}),"
            f" ({own_address()!r}, {port}), ('198.18.0.53', 53))]",
        )
        assert set(found) <= {"ConnectionRefusedError", "OSError"}, found
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            control.sendto(b"from outside", (own_address(), port))
        assert server.recv(64) == b"from outside", "the first that came"

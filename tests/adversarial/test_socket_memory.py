"""Memory of sockets that the kernel does not charge to a cgroup is bounded as well (LIM-6).

Each attack has a control: a smaller amount of the same ends by itself, or it works outside.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

import cellwall
from cellwall.sandbox.linux import cgroups
from conftest import need

MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def host_can_run() -> None:
    need(shutil.which("bwrap"), "bubblewrap")
    need(cgroups.choose(cgroups.gather()).way != "none", "cgroups with memory, pids and cpu")


_CORKED = """
kept = []
for _ in range(AMOUNT):
    one = socket.socket(FAMILY, socket.SOCK_DGRAM); kept.append(one)
    one.connect((ADDRESS, 9)); HOW
    AFTER
"""
_UNSPECIFIED = (
    "ctypes.CDLL(None).connect(one.fileno(), bytes(16), 16)  # in no list of sockets any more"
)
_UNACCEPTED = """
kept, count = [], 0
while count < AMOUNT:
    listener = socket.socket(); listener.bind(('127.0.0.1', 0)); listener.listen(256); kept.append(listener)
    for _ in range(min(200, AMOUNT - count)):
        one = socket.create_connection(listener.getsockname()); one.send(bytes(60000)); one.close()
        count += 1
"""


_GROUPS = """
kept = []
for number in range(AMOUNT * 3 // 2):
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); kept.append(one); one.bind(('127.0.0.1', 0))
    for last in range(20):
        group = bytes([230, number >> 8, number & 255, last])
        one.setsockopt(0, 35, struct.pack('4s4si', group, bytes(4), 1))
"""


def _corked(how: str, *, after: str = "pass", family: str = "AF_INET") -> str:
    address = "'127.0.0.1'" if family == "AF_INET" else "'::1'"
    code = _CORKED.replace("FAMILY", f"socket.{family}").replace("ADDRESS", address)
    return code.replace("HOW", how).replace("AFTER", after)


_MORE = "one.send(bytes(60000), socket.MSG_MORE)"
_HELD = {
    "datagrams with MSG_MORE": _corked(_MORE),
    "datagrams with MSG_MORE, IPv6": _corked(_MORE, family="AF_INET6"),
    "datagrams with UDP_CORK": _corked("one.setsockopt(17, 1, 1); one.send(bytes(60000))"),
    "datagrams of sockets that are disconnected": _corked(_MORE, after=_UNSPECIFIED),
    "connections that nobody accepts": _UNACCEPTED,
    "groups of multicast": _GROUPS,
}


def _hold(what: str, amount: int, *, pause_s: float) -> str:
    code = "import ctypes, socket, struct, time\n" + _HELD[what].replace("AMOUNT", str(amount))
    return f"{code}\nprint('made', flush=True); time.sleep({pause_s})"


@pytest.mark.requirement("LIM-6", "LIM-2")
@pytest.mark.only_on(
    "warm", reason="counted from outside, in both alike; a live one is tried on both"
)
@pytest.mark.parametrize("what", _HELD)
def test_socket_memory_that_no_cgroup_counts_ends_with_the_memory_limit(what: str) -> None:
    below = cellwall.run_code(_hold(what, 40, pause_s=0.1), memory="64m")
    assert (below.status, below.stdout) == ("ok", "made\n"), below.stderr
    over = cellwall.run_code(_hold(what, 600, pause_s=30), memory="64m", timeout=30)
    assert (over.status, over.limit) == ("limit", "memory"), over.stderr


@pytest.mark.requirement("LIM-6")
def test_socket_memory_of_a_live_sandbox_is_bounded() -> None:
    with cellwall.Sandbox.create(memory="64m", timeout=30) as sandbox:
        sandbox.files.write("a.py", _hold("datagrams with MSG_MORE", 600, pause_s=60))
        task = sandbox.commands.run("python3 a.py", background=True)
        assert task.wait(timeout=25).exit_code == 128 + 9


_STAMPS = """
import json, socket, struct
kept = []
def use(one, take):
    kept.append(one); one.setblocking(False)
    for _ in range(40):
        try: one.sendmsg([bytes(30000)], [(socket.SOL_SOCKET, 37, struct.pack('I', 2 | 256))])
        except OSError: break
        take()
receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); receiver.bind(('127.0.0.1', 0))
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); sender.connect(receiver.getsockname())
use(sender, lambda: receiver.recv(1 << 16))
listener = socket.create_server(('127.0.0.1', 0))
sender = socket.create_connection(listener.getsockname()); accepted, _ = listener.accept()
use(sender, lambda: accepted.recv(1 << 16))
# SO_MEMINFO: the first number is what waits to be received, error queue included.
print(json.dumps([struct.unpack_from('I', one.getsockopt(socket.SOL_SOCKET, 55, 36))[0] for one in kept]))
"""


def _outside(code: str) -> str:
    words = [os.path.realpath(sys.executable), "-I", "-c", code]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.requirement("LIM-6")
def test_sent_data_does_not_stay_in_an_error_queue() -> None:
    inside = "print(__import__('os').path.exists('/proc/sys/net/core/tstamp_allow_data'))"
    need(cellwall.run_code(inside).stdout == "True\n", "tstamp_allow_data of a namespace, 6.18")
    assert all(count > 0 for count in json.loads(_outside(_STAMPS)))
    assert json.loads(cellwall.run_code(_STAMPS).stdout) == [0, 0]


_OPTIONS = {
    # level, option, value -> what a cell is told
    "SO_TIMESTAMPING": (1, 37, "struct.pack('i', 2)", "refused"),
    "SO_ZEROCOPY": (1, 60, "struct.pack('i', 1)", "refused"),
    "IPV6_FLOWLABEL_MGR": (
        41, 32,
        "struct.pack('16sIBBHHHI', socket.inet_pton(10, '::1'), 0, 0, 1, 1, 6, 100, 0)",
        "refused",
    ),
    "IP_RECVERR": (0, 11, "struct.pack('i', 1)", 0),
    "IPV6_RECVERR": (41, 25, "struct.pack('i', 1)", 0),
    "IP_TOS": (0, 1, "struct.pack('i', 8)", 8),
}  # fmt: skip


@pytest.mark.requirement("LIM-6")
def test_options_that_fill_error_queues_or_take_from_the_whole_host_do_nothing() -> None:
    code = "import json, socket, struct\ntold = {}\n"
    for name, (level, option, value, _) in _OPTIONS.items():
        family = "AF_INET6" if level == 41 else "AF_INET"
        code += (
            f"one = socket.socket(socket.{family}, socket.SOCK_DGRAM)\n"
            f"try: one.setsockopt({level}, {option}, {value}); "
            f"told[{name!r}] = {'1' if option == 32 else f'one.getsockopt({level}, {option})'}\n"
            f"except PermissionError: told[{name!r}] = 'refused'\n"
        )
    code += "print(json.dumps(told))"
    outside = json.loads(_outside(code))
    assert all(outside.values()), outside
    assert "refused" not in outside.values()
    expected = {name: told for name, (*_, told) in _OPTIONS.items()}
    assert json.loads(cellwall.run_code(code).stdout) == expected


_KEPT = """
import socket, struct
def told(size):
    one = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    try: one.setsockopt(41, 6, struct.pack('QII', size, 99, 1) + bytes(size - 16))  # IPV6_2292PKTOPTIONS
    except OSError: pass
    return struct.unpack('9I', one.getsockopt(socket.SOL_SOCKET, 55, 36))[6] > size
print(told(1000), told(15000))
"""


@pytest.mark.requirement("LIM-6")
def test_options_of_a_socket_cannot_keep_much_memory() -> None:
    inside = "print(__import__('os').path.exists('/proc/sys/net/core/optmem_max'))"
    need(cellwall.run_code(inside).stdout == "True\n", "optmem_max of a namespace, 6.8")
    assert _outside(_KEPT) == "True True\n"
    assert cellwall.run_code(_KEPT).stdout == "True False\n"


@pytest.mark.requirement("LIM-6")
def test_the_most_descriptors_can_still_be_sent_at_once() -> None:
    code = "import os, socket\na, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0] * 253)\nlen(socket.recv_fds(b, 1, 253)[1])"
    assert cellwall.run_code(code).value == 253


@pytest.mark.requirement("LANG-1")
def test_node_can_reset_a_connection() -> None:
    need(shutil.which("node"), "node")
    code = (
        "const net = require('net');"
        "const server = net.createServer((peer) => { peer.on('error', () => {}); peer.on('close',"
        " () => { console.log('closed'); server.close(); }); peer.resume(); });"
        "server.listen(0, '127.0.0.1', () => { const one = net.connect(server.address().port,"
        " '127.0.0.1', () => one.resetAndDestroy()); });"
    )
    done = cellwall.run_command(["node", "-e", code], memory="1g")
    assert (done.exit_code, done.stdout) == (0, "closed\n"), done.stderr

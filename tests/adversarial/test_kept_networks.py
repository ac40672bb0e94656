"""Attacks on network namespaces that single-use cells have one after the other (ISO-1, ISO-5, ISO-7).

A namespace is handed on only if no socket was made in it (cell/networks.c). Which one a cell has had is
told by its cookie, a number that the kernel never gives twice, and that only a socket can ask for.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import cellwall
from adversarial.conftest import end_what_waits, system_calls
from adversarial.leftovers import children_of, find_in_cells
from cellwall.runtime import wiring
from cellwall.sandbox.linux import cgroups
from cellwall.sandbox.linux.layers import PYTHON, SHELL, TemplateSpec
from conftest import need

pytestmark = pytest.mark.only_on("warm", reason="a cold cell is handed no namespace of another one")
COOKIE = """
import socket
with socket.socket() as asked:
    cookie = int.from_bytes(asked.getsockopt(socket.SOL_SOCKET, 71, 8), "little")
"""
_STOCK_WITHIN_S = 20.0


@pytest.fixture(scope="module", autouse=True)
def host_can_run() -> Iterator[None]:
    need(shutil.which("bwrap"), "bubblewrap")
    need(cgroups.choose(cgroups.gather()).way != "none", "cgroups with memory, pids and cpu")
    need(os.geteuid() == 0, "root, to look at a template from outside")
    yield
    end_what_waits()


def _zygote(spec: TemplateSpec = PYTHON) -> int:
    template = wiring.shared_app(None).pool.template(spec, wait=True)
    assert template is not None
    pid = template.pid
    for _ in range(3 if spec.is_interpreter else 2):
        pid = int(children_of(pid)[0])
    return pid


def _in_network(path: str, code: str) -> str:
    """What code of ours, as root, prints in this namespace."""
    enter = "import ctypes, os, sys\nfd = os.open(sys.argv[1], os.O_RDONLY)\n"
    enter += "assert ctypes.CDLL(None, use_errno=True).setns(fd, 0x40000000) == 0\n"
    words = [sys.executable, "-I", "-c", enter + code, path]
    return subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout


def _cookie_of(path: str) -> int:
    return int(_in_network(path, COOKIE + "print(cookie)"))


def _held(zygote: int) -> dict[int, str]:
    """Cookie -> path, of the namespaces that a zygote may hand on, or that a cell is in now."""
    found = {}
    for number in os.listdir(f"/proc/{zygote}/fd"):
        path = f"/proc/{zygote}/fd/{number}"
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith("net:"):
                found[_cookie_of(path)] = path
    home = _cookie_of(f"/proc/{zygote}/ns/net")
    return {cookie: path for cookie, path in found.items() if cookie != home}


def _with_processes() -> set[int]:
    """Cookies of all namespaces that a process is in."""
    paths = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        path = f"/proc/{pid}/ns/net"
        with contextlib.suppress(OSError):
            paths[os.readlink(path)] = path
    found = set()
    for path in paths.values():
        with contextlib.suppress(OSError, subprocess.CalledProcessError):  # it has ended
            found.add(_cookie_of(path))
    return found


def _runs_without_socket(count: int = 4) -> None:
    for _ in range(count):
        assert cellwall.run_code("1").value == 1


def _until_dropped(zygote: int, cookie: int) -> None:
    until = time.monotonic() + _STOCK_WITHIN_S
    while cookie in _held(zygote):
        assert time.monotonic() < until, "a namespace with a socket was kept"


# --- what is handed on, and when not


@pytest.mark.requirement("ISO-7")
@pytest.mark.parametrize("spec", [PYTHON, SHELL], ids=lambda spec: spec.name)
def test_a_namespace_without_a_socket_is_handed_on(spec: TemplateSpec) -> None:
    """The control of the others: there is something to attack."""

    def number() -> str:
        if spec is PYTHON:
            return str(cellwall.run_code("import os; os.readlink('/proc/self/ns/net')").value)
        return cellwall.run_command(["readlink", "/proc/self/ns/net"]).stdout.strip()

    number()
    zygote = _zygote(spec)
    held: set[int] = set()
    runs = 0
    seen = set()
    # A cell that was made ahead may be in another one, and on a busy host several are: a namespace is
    # handed on when its cell was waited for.
    for _ in range(3):
        seen |= {number() for _ in range(6)}
        runs += 6
        now = set(_held(zygote))
        assert not held or held & now, "no namespace outlived the cells that were in it"
        held = now
    assert len(seen) < runs


_STAY = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
print("ready", flush=True)
signal.sigtimedwait([signal.SIGTERM], 30)
"""


def _looked_at(code: str, look: Callable[[int], object], **options: Any) -> cellwall.Execution:
    """Runs the code in a single-use cell. When it is done, and before its cell ends, `look` gets the pid
    of the cell's init, outside."""
    name, failed = f"kept{time.monotonic_ns() % 10**10}", []

    def ready(_text: str) -> None:
        try:
            init, program = find_in_cells(_zygote(), name)
            look(init)
            with contextlib.suppress(ProcessLookupError):
                os.kill(program, signal.SIGTERM)
        except BaseException as error:  # raised below: here it would be a failure of the run
            failed.append(error)

    mark = f"import ctypes; ctypes.CDLL(None).prctl(15, b{name!r}, 0, 0, 0)\n"
    with ThreadPoolExecutor(1) as threads:
        ran = threads.submit(
            cellwall.run_code, mark + code + _STAY, on_stdout=ready, **options
        ).result(60)
    if failed:
        raise failed[0]
    assert ran.stdout == "ready\n", (ran.status, ran.stderr, ran.error)
    return ran


def _cookie_after(code: str, **options: Any) -> int:
    """Of a cell that runs this code in a namespace that has served other cells."""
    _runs_without_socket()
    zygote, cookies = _zygote(), []

    def look(init: int) -> None:
        before = set(_held(zygote))
        cookies.append(_cookie_of(f"/proc/{init}/ns/net"))
        assert cookies[0] in before

    _looked_at(code, look, **options)
    return int(cookies[0])


_SOCKETS = {
    "tcp": "socket.socket(socket.AF_INET, socket.SOCK_STREAM)",
    "udp": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "ipv6": "socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)",
    "unix": "socket.socket(socket.AF_UNIX)",
    "route netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)",
    "pair": "socket.socketpair()",
}
_WAYS = {
    "closed again": "SOCKET.close()",
    "in a thread": "import threading; t = threading.Thread(target=lambda: SOCKET); t.start(); t.join()",
    "in a child that is dead": "if os.fork() == 0: SOCKET; os._exit(0)\nos.wait()",
    "in an orphan of a new session": (
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0: SOCKET\n    os._exit(0)\nos.wait()\n"
        "import time\ntime.sleep(0.2)"
    ),
    "by a program": (
        "import subprocess, sys\n"
        "subprocess.run([sys.executable, '-I', '-c', 'import socket; SOCKET'], check=True)"
    ),
    "under a filter of its own": """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
allow = ctypes.create_string_buffer(struct.pack('HBBI', 0x06, 0, 0, ACTION))
program = struct.pack('HxxxxxxP', 1, ctypes.addressof(allow))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
made = SOCKET
""",
}
# SECCOMP_RET_ALLOW, SECCOMP_RET_LOG: what a later filter says cannot undo the notification.
_WAYS |= {
    f"under a filter of its own that {name}": _WAYS["under a filter of its own"].replace(
        "ACTION", action
    )
    for name, action in {"allows": "0x7FFF0000", "logs": "0x7FFC0000"}.items()
}
del _WAYS["under a filter of its own"]
_ATTACKS = {name: f"made = {socket}" for name, socket in _SOCKETS.items()}
_ATTACKS |= {name: way.replace("SOCKET", _SOCKETS["udp"]) for name, way in _WAYS.items()}


@pytest.mark.requirement("ISO-7")
@pytest.mark.parametrize("attack", _ATTACKS)
def test_a_namespace_in_which_a_socket_was_made_is_not_handed_on(attack: str) -> None:
    cookie = _cookie_after("import os, socket\n" + _ATTACKS[attack])
    _until_dropped(_zygote(), cookie)


@pytest.mark.requirement("ISO-7")
def test_a_namespace_without_a_socket_stays_in_the_stock() -> None:
    """The control of the test above, by the same steps: it does not find all namespaces dropped."""
    cookie = _cookie_after("import os, socket\nos.listdir('/proc/self/net')")
    _runs_without_socket()
    assert cookie in _held(_zygote())


@pytest.mark.requirement("ISO-7")
@pytest.mark.parametrize("victim", ["init", "code"])
def test_after_a_kill_from_outside_only_the_word_of_init_counts(victim: str) -> None:
    """Init that was killed has said nothing; code that was killed has made no socket."""
    _runs_without_socket()
    zygote, cookies = _zygote(), []

    def look(init: int) -> None:
        cookies.append(_cookie_of(f"/proc/{init}/ns/net"))
        os.kill(init if victim == "init" else int(children_of(init)[0]), signal.SIGKILL)

    with contextlib.suppress(AssertionError):  # such a run has no result
        _looked_at("", look)
    if victim == "init":
        _until_dropped(zygote, cookies[0])
    else:
        _runs_without_socket()
        assert cookies[0] in _held(zygote)


@pytest.mark.requirement("ISO-7")
def test_a_namespace_with_other_counters_is_dropped_whatever_init_has_said() -> None:
    """The second wall, tried alone: packets of ours go through the namespaces of the stock."""
    _runs_without_socket()
    zygote = _zygote()
    send = "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', 9))"
    changed = _held(zygote)
    assert changed
    for path in changed.values():
        _in_network(path, send)
    _runs_without_socket(8)  # cells that were made ahead are in them still
    left = (
        set(changed) & set(_held(zygote)) - _with_processes()
    )  # a cell of another recipe may wait
    assert not left
    assert set(changed) - set(_held(zygote)), "the control: most have no process"
    _runs_without_socket()
    kept = set(_held(zygote))
    _runs_without_socket()
    assert kept & set(_held(zygote)), "the control: without a packet some are kept"


# --- what the next cell sees

# Files that show nothing of the host or of time; "sockstat" counts pages of the whole host below its first line.
_VIEW = """
import os
def view():
    seen = {}
    for name in sorted(os.listdir('/proc/self/net')):
        if name in GLOBAL or os.path.isdir('/proc/self/net/' + name): continue
        try: text = open('/proc/self/net/' + name).read()
        except OSError as error: text = str(error.errno)
        if name == 'netlink':  # the kernel's own sockets have an address and a number each
            text = repr([line.split()[1:-1] for line in text.splitlines()])
        seen[name] = text.splitlines()[0] if name.startswith('sockstat') else text
    for folder, _, names in os.walk('/proc/sys/net'):
        for name in names:
            try: seen[folder + '/' + name] = open(folder + '/' + name).read()
            except OSError as error: seen[folder + '/' + name] = str(error.errno)
    return seen
"""
_GLOBAL = (
    "protocols",
    "softnet_stat",
    "ptype",
    "psched",
    "stat",
    "rt_cache",
    "xfrm_stat",
    "packet",
    "mcfilter6",
)
_STATES = {
    "a connection in TIME_WAIT": """
server = socket.create_server(('127.0.0.1', 0)); c = socket.create_connection(server.getsockname())
a, _ = server.accept(); c.send(b'x'); a.close(); c.close(); server.close()""",
    "a port that answers unreachable": """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect(('127.0.0.1', 9)); s.send(b'x')""",
    "the same by IPv6": """
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.connect(('::1', 9)); s.send(b'x')""",
    "no route": """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try: s.sendto(b'x', ('192.0.2.1', 9))
except OSError: pass
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
try: s.sendto(b'x', ('2001:db8::1', 9))
except OSError: pass""",
    "an abstract name": "s = socket.socket(socket.AF_UNIX); s.bind('\\0kept'); s.listen()",
    "a multicast group": """
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton('224.1.2.3') + socket.inet_aton('127.0.0.1'))""",
    "a listener of a child in a session of its own": """
if os.fork() == 0:
    os.setsid(); s = socket.create_server(('127.0.0.1', 7777)); signal.pause()
while ':1E61 ' not in open('/proc/self/net/tcp').read(): pass""",
    "a descriptor in flight to itself": """
a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [a.fileno(), b.fileno()]); a.close(); b.close()
s = socket.create_server(('127.0.0.1', 7778)); a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [s.fileno(), a.fileno(), b.fileno()])""",
}


def _view(before: str = "") -> dict[str, str]:
    code = (
        _VIEW.replace("GLOBAL", repr(_GLOBAL))
        + "import signal, socket\n"
        + before
        + "\nimport json\nprint(json.dumps(view()))"
    )
    ran = cellwall.run_code(code)
    assert ran.status.value == "ok", ran.stderr
    return dict(json.loads(ran.stdout))


@pytest.mark.requirement("ISO-5", "ISO-7")
@pytest.mark.parametrize("state", _STATES)
def test_a_cell_sees_its_network_as_new_whatever_the_one_before_did(state: str) -> None:
    end_what_waits()
    new = _view()  # of the first cell of a new template
    assert {
        "dev",
        "snmp",
        "netstat",
        "sockstat",
        "unix",
        "tcp",
        "/proc/sys/net/core/optmem_max",
    } <= set(new)
    assert _view(_STATES[state]) != new, "the control: the cell itself sees what it has done"
    for _ in range(4):
        assert _view() == new


@pytest.mark.requirement("ISO-5", "ISO-7")
def test_code_without_a_socket_changes_nothing_of_its_network() -> None:
    """All other calls with which a network namespace can be reached, or its settings."""
    end_what_waits()
    new = _view()
    refused = _view(
        """
done = []
def attempt(work):
    try: work()
    except (OSError, ValueError): return
    done.append(work)
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    if libc.syscall(number, *arguments) < 0: raise OSError(ctypes.get_errno(), '')
for folder, _, names in os.walk('/proc/sys/net'):
    for name in names:
        attempt(lambda: open(folder + '/' + name, 'w').write('1'))
mine = os.open('/proc/self/ns/net', os.O_RDONLY)
attempt(lambda: call(SETNS, mine, 0))
attempt(lambda: call(UNSHARE, 0x40000000))
attempt(lambda: call(URING, 8, 0))
attempt(lambda: call(BPF, 0, 0, 0))
assert done == []
""".replace("SETNS", str(_number("setns")))
        .replace("UNSHARE", str(_number("unshare")))
        .replace("URING", str(_number("io_uring_setup")))
        .replace("BPF", str(_number("bpf")))
    )
    assert refused == new
    for _ in range(4):
        assert _view() == new


def _number(name: str) -> int:
    return system_calls()[name]


# --- whose they are


@pytest.mark.requirement("ISO-1")
def test_a_namespace_that_is_handed_on_belongs_to_the_zygote_and_to_no_cell() -> None:
    _runs_without_socket()
    zygote, owners = _zygote(), []

    def owner_of(network: str) -> int:
        with open(network) as opened:
            owner = fcntl.ioctl(opened.fileno(), 0xB701)  # NS_GET_USERNS
        try:
            return os.fstat(owner).st_ino
        finally:
            os.close(owner)

    def look(init: int) -> None:
        owners.append((owner_of(f"/proc/{init}/ns/net"), os.stat(f"/proc/{init}/ns/user").st_ino))

    _looked_at("", look)
    of_zygote = os.stat(f"/proc/{zygote}/ns/user").st_ino
    assert [owner for owner, _cell in owners] == [of_zygote]
    assert owners[0][1] != of_zygote
    # The template's own namespaces, with its mounts, belong to another one, over which it has no right.
    template = Path(f"/proc/{zygote}/status").read_text().partition("PPid:\t")[2].split()[0]
    assert os.stat(f"/proc/{template}/ns/user").st_ino != of_zygote
    assert owner_of(f"/proc/{zygote}/ns/mnt") != of_zygote
    held = Path(f"/proc/{zygote}/status").read_text().partition("CapEff:\t")[2].split()[0]
    assert int(held, 16) == 1 << 21 | 1 << 12  # CAP_SYS_ADMIN, CAP_NET_ADMIN


@pytest.mark.requirement("ISO-5", "ISO-7")
def test_a_live_sandbox_and_cells_at_the_same_time_have_networks_of_their_own() -> None:
    _runs_without_socket()
    zygote, seen = _zygote(), []

    def look(init: int) -> None:
        seen.append(_cookie_of(f"/proc/{init}/ns/net"))
        if len(seen) < 4:
            _looked_at("", look)  # a cell beside this one
        else:
            held.update(_held(zygote))

    held: dict[int, str] = {}
    with cellwall.Sandbox.create() as sandbox:
        live = sandbox.run_code(COOKIE + "cookie").value
        _looked_at("", look)
        assert sandbox.run_code(COOKIE + "cookie").value == live
    assert len({live, *seen}) == 5
    assert set(seen) <= set(held)
    assert live not in held


@pytest.mark.requirement("ISO-5")
def test_a_cell_has_no_descriptor_of_a_network() -> None:
    _runs_without_socket()
    zygote = _zygote()
    found: list[str] = []

    def look(init: int) -> None:
        for pid in (init, *children_of(init)):
            folder = f"/proc/{pid}/fd"
            found.extend(os.readlink(f"{folder}/{number}") for number in os.listdir(folder))

    _looked_at("", look)
    assert found
    assert not [link for link in found if link.startswith("net:")]
    folder = f"/proc/{zygote}/fd"
    links = [os.readlink(f"{folder}/{number}") for number in os.listdir(folder)]
    assert [link for link in links if link.startswith("net:")], "the control: the zygote has some"

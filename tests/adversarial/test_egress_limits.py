"""What code inside can use up or hold on to, and what is left when its cell is gone (LIM-1, ISO-8)."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import cellwall
from adversarial.conftest import end_what_waits
from adversarial.egress import KNOCKS, NEARBY, World, the_world  # noqa: F401  # a fixture
from adversarial.endpoints import WAIT_S
from cellwall.runtime import wiring
from interfaces import prepared_program

MIB = 1 << 20

# Connections that stay open: `open_to` gives the socket once the proxy has said yes, else None.
HOLD = """
def open_to(host, port):
    try:
        line = to_proxy()
    except ConnectionResetError:
        return None
    try:
        line.sendall(b"CONNECT %s:%d HTTP/1.1\\r\\nHost: %s:%d\\r\\n\\r\\n" % (host, port, host, port))
        if head_of(line).startswith(b"HTTP/1.1 200"):
            return line
    except ConnectionResetError:
        pass
    line.close()
def open_at_last(host, port):
    # A place is free as soon as the proxy has seen its end, which code cannot wait for.
    while (line := open_to(host, port)) is None: pass
    return line
"""


@pytest.mark.requirement("LIM-1", "NET-2")
def test_connections_at_once_are_bounded(world: World, path: str) -> None:
    config = world.outside.config("max_connections = 3\n", addresses=NEARBY, name="few.toml")
    with world.new_cell(path, config=config) as cell:
        ran = cell.run_code(
            HOLD + f"keep = b'keep.example', {world.ports['keep']}\n"
            "held = [open_to(*keep) for _ in range(3)]\n"
            "over = [go(*keep) for go in (connect, absolute, socks, transparent)]\n"
            "None in held, over"
        )
        again = cell.run_code("held.pop().close()\nopen_at_last(*keep) is not None", timeout=WAIT_S)
    assert ran.status.value == "ok", ran.stderr
    assert ran.value == [
        False,
        [["refused", "CW-NET-LIMIT"], ["refused", "CW-NET-LIMIT"], ["refused", "SOCKS 5"], ["refused", "cut"]],
    ]  # fmt: skip
    assert again.value is True


@pytest.mark.requirement("LIM-1", "NET-2")
def test_thousand_connections_at_once_are_all_answered(world: World, path: str) -> None:
    """Let in as far as there is room, told no or cut beyond; none waits, and it works afterwards."""
    world.endpoints.forget()
    with world.new_cell(path, limits={"open_files": 4096}) as cell:
        ran = cell.run_code(
            "import selectors, time\n"
            f"keep = b'keep.example', {world.ports['keep']}\n"
            "ask = b'CONNECT %s:%d HTTP/1.1\\r\\nHost: %s:%d\\r\\n\\r\\n' % (*keep, *keep)\n"
            "selector, lines, words = selectors.DefaultSelector(), [], {}\n"
            "for number in range(1000):\n"
            "    line = socket.socket()\n"
            "    line.setblocking(False)\n"
            "    line.connect_ex(PROXY)\n"
            "    lines.append(line)\n"
            "    selector.register(line, selectors.EVENT_WRITE, number)\n"
            "until = time.monotonic() + 60\n"
            "while len(words) < 1000 and time.monotonic() < until:\n"
            "    for key, events in selector.select(1):\n"
            "        line = key.fileobj\n"
            "        try:\n"
            "            if events & selectors.EVENT_WRITE:\n"
            "                line.send(ask)\n"
            "                selector.modify(line, selectors.EVENT_READ, key.data)\n"
            "                continue\n"
            "            data = line.recv(4096)\n"
            "            word = data.split(b' ', 2)[1].decode() if data else 'cut'\n"
            "        except OSError as error:\n"
            "            word = 'cut'\n"
            "        words[key.data] = word\n"
            "        selector.unregister(line)\n"
            "list(words.values())\n"
        )
        assert ran.status.value == "ok", ran.stderr
        after = cell.run_code(
            HOLD + "for line in lines: line.close()\nopen_at_last(*keep).close()\nTrue",
            timeout=WAIT_S,
        )
    counted = Counter(ran.value)
    assert sum(counted.values()) == 1000
    assert counted["200"] == 256
    assert set(counted) <= {"200", "429", "cut"}
    assert after.value is True
    assert world.endpoints.until(lambda: world.endpoints.ended["keep"] == len(world.endpoints.met))


# A process of its own, with few descriptors: two greedy cells, and one that wants to do its work.
_FEW_DESCRIPTORS = """
import json, resource, sys
import cellwall
job = json.load(sys.stdin)
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))
found = []
with cellwall.Sandbox.create(**job["options"]) as neighbour:
    neighbour.run_code("mine = 6")
    with cellwall.Sandbox.create(**job["options"]) as one, cellwall.Sandbox.create(**job["options"]) as two:
        for greedy in (one, two):
            ran = greedy.run_code(job["greedy"])
            found.append([ran.status.value, ran.value])
        ran = neighbour.run_code("mine * 7")
        found.append([ran.status.value, ran.value])
        new = cellwall.run_code("6 * 7", config=job["options"]["config"])
        found.append([new.status.value, new.value])
print(json.dumps(found))
"""


@pytest.mark.requirement("LIM-4", "NET-2")
def test_greedy_cells_leave_their_neighbours_descriptors(
    world: World, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection costs the host's process two; all cells together must not take them all."""
    world.enter(monkeypatch, path)
    keep = f"b'keep.example', {world.ports['keep']}"
    job = {
        "options": {"config": world.config, "allow_domains": world.rules, "timeout": WAIT_S},
        "greedy": f"{KNOCKS}{HOLD}held = [open_to({keep}) for _ in range(250)]\n"
        "held[0] is not None",
    }
    done = prepared_program.run(
        [],
        code=_FEW_DESCRIPTORS,
        stdin=json.dumps(job).encode(),
        env=os.environ,
        timeout_s=100,
    )
    assert done.returncode == 0, done.stderr.decode()
    first, second, *others = json.loads(done.stdout)
    assert (first, second[0]) == (["ok", True], "ok"), "what is too much is refused, and no more"
    assert others == [["ok", 42], ["ok", 42]]


@pytest.mark.requirement("LIM-1", "NET-2")
@pytest.mark.parametrize("by", ["tunnel", "request"])
def test_upload_is_bounded(by: str, world: World, path: str) -> None:
    config = world.outside.config("max_upload_bytes = '1m'\n", addresses=NEARBY, name="up.toml")
    world.endpoints.forget()
    keep = f"keep.example:{world.ports['keep']}"
    head = f"POST http://{keep}/ HTTP/1.1\r\nHost: {keep}\r\nContent-Length: {8 * MIB}\r\n\r\n"
    begin = {
        "tunnel": f"line = open_to(b'keep.example', {world.ports['keep']})\n",
        "request": f"line = to_proxy()\nline.sendall({head.encode()!r})\n",
    }
    with world.new_cell(path, config=config) as cell:
        # The control: on the same connection, half of it arrives, but for some bytes at the end
        # that the check for secrets holds until it knows what follows.
        half = cell.run_code(f"{HOLD}{begin[by]}line.sendall(bytes({MIB // 2}))\nTrue")
        assert half.value is True
        assert world.endpoints.until(lambda: world.endpoints.taken["keep"] >= MIB // 4)
        ran = cell.run_code(
            "sent = 0\n"
            "try:\n"
            "    while sent < 4 << 20: sent += line.send(bytes(65_536))\n"
            "    drain(line)\n"
            "    ended = line.recv(1) == b''\n"
            "except OSError: ended = True\n"
            f"ended, connect(b'good.example', {world.port})"
        )
    assert ran.value == [True, ["refused", "CW-NET-LIMIT"]], ran.stderr
    assert world.endpoints.until(lambda: world.endpoints.ended["keep"] == 1)
    assert world.endpoints.taken["keep"] <= MIB


# A beginning, and what comes after it byte by byte; none of these is ever whole.
DRIPS = {
    "nothing": (None, b""),
    "half a request": (None, b"GET http://good.example/ HTTP/1.1\r\nX: "),
    "half a CONNECT": (None, b"CONNECT good.exa"),
    "half a greeting of SOCKS": (None, b"\x05\xff"),
    "half a request of SOCKS": (None, b"\x05\x01\x00\x05\x01\x00\x03\xff"),
    "a head to an address": ("plain.example", b"GET / HTTP/1.1\r\nX: "),
    "half a hello": ("secure.example", b"\x16\x03\x01\x02\x00\x01"),
    "half a hello, opened": ("opened.example", b"\x16\x03\x01\x02\x00\x01"),
    "half a hello by CONNECT": (
        None,
        b"CONNECT secure.example:443 HTTP/1.1\r\nHost: secure.example:443\r\n\r\n\x16\x03\x01\x02\x00\x01",
    ),
}


@pytest.mark.requirement("LIM-1", "NET-2")
def test_beginning_that_never_ends_is_ended(world: World, path: str) -> None:
    """Slow-loris: however often a byte comes, a first message has to be whole in its time."""
    config = world.outside.config("head_timeout_s = 1.5\n", addresses=NEARBY, name="slow.toml")
    with world.new_cell(path, config=config) as cell:
        ran = cell.run_code(
            "import select, time\n"
            "lines, ended = {}, {}\n"
            f"for name, (host, first) in {DRIPS!r}.items():\n"
            "    place = PROXY if host is None else (look_up(host.encode())[0],"
            " 80 if host == 'plain.example' else 443)\n"
            "    line = socket.create_connection(place, PATIENCE_S)\n"
            "    line.sendall(first)\n"
            "    lines[line] = name\n"
            "until = time.monotonic() + 60\n"
            "while lines and time.monotonic() < until:\n"
            "    for line in select.select(list(lines), [], [], 0.1)[0]:\n"
            "        try: data = line.recv(4096)\n"
            "        except OSError: data = b''\n"
            "        if not data: ended[lines.pop(line)] = True\n"
            "    for line, name in list(lines.items()):\n"
            "        try: name == 'nothing' or line.send(b'a')\n"
            "        except OSError: ended[lines.pop(line)] = True\n"
            f"ended, connect(b'good.example', {world.port})"
        )
    assert ran.status.value == "ok", ran.stderr
    assert ran.value == [dict.fromkeys(DRIPS, True), ["through", "good"]]


@pytest.mark.requirement("LIM-1", "NET-2")
def test_connection_on_which_nothing_moves_is_ended(world: World, path: str) -> None:
    """Neither a program that never reads nor one that never speaks keeps a place for ever."""
    config = world.outside.config("idle_timeout_s = 1.5\n", addresses=NEARBY, name="idle.toml")
    world.endpoints.forget()
    with world.new_cell(path, config=config) as cell:
        places = [(f"{name}.example", world.ports[name]) for name in ("pour", "keep")]
        ran = cell.run_code(
            HOLD + f"held = [open_to(host.encode(), port) for host, port in {places!r}]\n"
            "None in held"
        )
        assert ran.value is False
        for name, _ in places:
            assert world.endpoints.until(lambda name=name[:4]: world.endpoints.ended[name] == 1)
        after = cell.run_code(f"connect(b'good.example', {world.port})")
    assert after.value == ["through", "good"]


ENDLESS = (
    "import sys\nline = open_to(b'pour.example', PORT)\n"
    "try:\n    while line.recv(65_536): pass\n    how = 'end'\n"
    "except OSError as error: how = type(error).__name__\n"
)


@pytest.mark.requirement("ISO-8", "NET-2")
@pytest.mark.parametrize("what", ["cell", "program"])
def test_end_in_the_middle_ends_the_connection_outside(what: str, world: World, path: str) -> None:
    """Nobody goes on sending to a cell that is gone, nor to a program in it that is."""
    world.endpoints.forget()
    with world.new_cell(path) as cell:
        cell.files.write(
            "endless.py", KNOCKS + HOLD + ENDLESS.replace("PORT", str(world.ports["pour"]))
        )
        process = cell.commands.run(["python3", "endless.py"], background=True)
        assert world.endpoints.until(lambda: world.endpoints.met == ["pour"])
        assert world.endpoints.ended["pour"] == 0
        cell.kill() if what == "cell" else process.kill()
        assert world.endpoints.until(lambda: world.endpoints.ended["pour"] == 1)


@pytest.mark.requirement("ERR-1", "NET-2")
@pytest.mark.parametrize("kind", ["live", "one-shot"])
def test_egress_that_closes_in_the_middle_is_an_error_inside(
    kind: str, world: World, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy goes away: what reads gets an error and what comes next is refused; nothing hangs."""
    world.endpoints.forget()
    world.enter(monkeypatch, path)
    config = world.outside.config(addresses=NEARBY, name=f"{kind}-{path}.toml")
    house = wiring.shared_app(config)
    code = (
        KNOCKS + HOLD + ENDLESS.replace("PORT", str(world.ports["pour"]))
        + f"how, direct('127.0.0.1', 3128), direct('127.0.0.1', {world.port})"
    )  # fmt: skip
    options = {"config": config, "allow_domains": world.rules, "timeout": WAIT_S}

    def run() -> cellwall.Execution:
        if kind == "one-shot":
            return cellwall.run_code(code, **options)
        with cellwall.Sandbox.create(**options) as cell:
            return cell.run_code(code)

    with ThreadPoolExecutor(1) as pool:
        ran = pool.submit(run)
        assert world.endpoints.until(lambda: world.endpoints.met == ["pour"])
        house.egress.close()
        done = ran.result(WAIT_S * 2)
    refused = ["refused", "ConnectionRefusedError"]
    assert (done.status.value, done.value) == ("ok", ["ConnectionResetError", refused, refused])
    assert world.endpoints.until(lambda: world.endpoints.ended["pour"] == 1)


@pytest.mark.requirement("ISO-8", "NET-2")
def test_nothing_is_left_of_an_egress_session(
    world: World, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither descriptor nor thread, whether connections were open, refused or done with."""
    world.enter(monkeypatch, path)
    monkeypatch.setenv("CELLWALL_HOME", str(tmp_path))
    tmp_path.chmod(0o700)
    options = {"config": world.config, "allow_domains": world.rules}
    calls = (
        f"[knock(host, {world.port}) for host in ('good.example', 'trap.example')]\n"
        f"tls_by_connect(b'opened.example', 443, 'opened.example')\n"
        f"held = [open_to(b'keep.example', {world.ports['keep']}) for _ in range(5)], to_proxy()\n"
        "True"
    )

    def once() -> None:
        with cellwall.Sandbox.create(**options) as cell:
            assert cell.run_code(KNOCKS + HOLD + calls).value is True
        assert cellwall.run_code(KNOCKS + HOLD + calls, **options).value is True

    def state() -> Counter[str]:
        """Descriptors by kind, and egress threads; not the audit logs of the other tests' homes,
        whose notaries write checkpoints in their own time."""
        gc.collect()
        others = tuple(map(str, world.homes.values()))
        found = Counter(each.name for each in threading.enumerate() if "egress" in each.name)
        for name in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # the one by which it was listed
                target = os.readlink(f"/proc/self/fd/{name}")
                if not target.startswith(others):
                    found[target.partition(":")[0]] += 1
        return found

    def end_session() -> None:
        once()
        wiring.close_shared(str(tmp_path))
        end_what_waits()
        # The servers of the test run in this process, and close their sockets a moment later.
        assert world.endpoints.until(lambda: world.endpoints.open_count == 0)
        assert world.outside.is_idle(WAIT_S)

    end_session()  # what the process itself keeps from its first call on
    before = state()
    end_session()
    deadline = time.monotonic() + WAIT_S
    # More than before, not other than before: a descriptor that was still being closed when
    # `before` was taken is missing now, and nothing has leaked.
    while state() - before and time.monotonic() < deadline:
        os.sched_yield()
    assert state() - before == Counter()

"""What a cell can send to its host: bytes. No descriptor, no signal, and nothing that blocks (ISO-13).

The attack: a TCP socket with SO_LINGER and unsent data is sent by SCM_RIGHTS. Whoever receives it,
or closes the unix socket in whose queue it lies, closes it last and waits for as long as the sender
likes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

import cellwall
from cellwall.sandbox.linux.channels import InterpreterPipes, write_pipe
from cellwall.sandbox.linux.seccomp_rules import load_rules

pytestmark = pytest.mark.requirement("ISO-13")

# Tries to send a descriptor over everything that is open, and says what each is.
_PROBE = """
import array, errno, json, os, socket, stat
def send(number):
    rights = array.array("i", [0])
    copy = os.dup(number)
    try:
        with socket.socket(fileno=copy) as held:
            copy = -1
            held.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)], socket.MSG_DONTWAIT)
    finally:
        if copy >= 0: os.close(copy)
def look(number):
    kind = stat.S_IFMT(os.fstat(number).st_mode)
    try:
        send(number)
        told = "sent"
    except OSError as error:
        told = errno.errorcode[error.errno]
    return [{stat.S_IFIFO: "pipe", stat.S_IFCHR: "device", stat.S_IFSOCK: "socket"}.get(kind), told]
found = {}
for number in range(4096):
    try: found[number] = look(number)
    except OSError: continue
own, _other = socket.socketpair()
found["own"] = look(own.fileno())
print("found", json.dumps(found))
"""


def _found(text: str) -> dict[str, list[str]]:
    _, _, rest = text.partition("found ")
    found: dict[str, list[str]] = json.loads(rest.splitlines()[0])
    # The control: within the cell, over a pair of its own, the same code does send one.
    assert found.pop("own") == ["socket", "sent"]
    return found


PIPES = {"0": ["pipe", "ENOTSOCK"], "1": ["pipe", "ENOTSOCK"], "2": ["pipe", "ENOTSOCK"]}
CHANNEL = {"3": ["pipe", "ENOTSOCK"], "4": ["pipe", "ENOTSOCK"]}
DEVICES = {name: ["device", "ENOTSOCK"] for name in PIPES}


def test_the_probe_finds_a_socket_that_was_inherited() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, "-c", _PROBE]
        done = subprocess.run(
            command, pass_fds=[theirs.fileno()], capture_output=True, check=True, text=True
        )
        assert _found(done.stdout)[str(theirs.fileno())] == ["socket", "sent"]
        _text, sent, _flags, _address = socket.recv_fds(ours, 1, 1)
    assert len(sent) == 1
    os.close(sent[0])


@pytest.mark.requirement("ISO-9")
@pytest.mark.parametrize("network", [(), ("a.example",)], ids=["no network", "egress"])
def test_one_shot_code_holds_only_pipes(network: tuple[str, ...]) -> None:
    ran = cellwall.run_code(_PROBE, allow_domains=network)
    assert _found(ran.stdout) == {**PIPES, **CHANNEL}, ran.stderr


@pytest.mark.requirement("ISO-9")
def test_one_shot_command_holds_only_pipes() -> None:
    ran = cellwall.run_command(["python3", "-c", _PROBE])
    assert _found(ran.stdout) == PIPES


@pytest.mark.requirement("ISO-9")
@pytest.mark.parametrize("network", [(), ("a.example",)], ids=["no network", "egress"])
def test_live_sandbox_holds_only_pipes_and_terminals(network: tuple[str, ...]) -> None:
    with cellwall.Sandbox.create(allow_domains=network) as sandbox:
        sandbox.files.write("probe.py", _PROBE)
        assert _found(sandbox.run_code(_PROBE).stdout) == {**PIPES, **CHANNEL}
        command = ["python3", "probe.py"]
        assert _found(sandbox.commands.run(command).stdout) == PIPES
        background = sandbox.commands.run(command, background=True)
        assert _found(background.wait().stdout) == PIPES
        terminal = sandbox.commands.terminal(command)
        assert _found(terminal.wait().stdout) == DEVICES
        # Programs that the code starts, and forks of it.
        child = "import subprocess\nsubprocess.run(['python3', '/workspace/probe.py'])"
        assert _found(sandbox.run_code(child).stdout) == PIPES


# Blocking the receiver.

_LINGERING = """
import array, socket, struct, sys, time
listening = socket.create_server(("127.0.0.1", 0))
lingering = socket.create_connection(listening.getsockname())
peer, _address = listening.accept()
lingering.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 30))  # not inside
lingering.setblocking(False)
try:
    while True: lingering.send(bytes(65536))
except BlockingIOError: pass
def attack(channel):
    rights = array.array("i", [lingering.fileno()])
    channel.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    lingering.close()
def let_go():
    while peer.recv(1 << 20): pass
    peer.close()
"""
_CONTROL = f"""{_LINGERING}
attack(socket.socket(fileno=int(sys.argv[1])))
print("sent", flush=True)
sys.stdin.readline()
print(time.monotonic(), flush=True)
let_go()
"""


@pytest.mark.only_on("cold", reason="the control has no cell")
@pytest.mark.parametrize("way", ["received", "not received"])
def test_a_socketpair_receiver_is_blocked_until_the_attacker_lets_go(way: str) -> None:
    ours, theirs = socket.socketpair()
    attacker = subprocess.Popen(
        [sys.executable, "-c", _CONTROL, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    theirs.close()
    assert attacker.stdin is not None
    assert attacker.stdout is not None
    ended: list[float] = []

    def receive() -> None:
        if way == "received":
            ours.recv(10)  # without room for descriptors: the kernel closes them, here
        else:
            ours.close()
        ended.append(time.monotonic())

    with attacker:
        assert attacker.stdout.readline() == "sent\n"
        receiver = threading.Thread(target=receive)
        receiver.start()
        receiver.join(0.3)  # long enough for whoever is not blocked
        attacker.stdin.write("let go\n")
        attacker.stdin.flush()
        let_go_at = float(attacker.stdout.readline())
        receiver.join()
    ours.close()
    assert ended[0] > let_go_at


_IN_CELL = """
import os
tried = []
for number in range(5):
    try:
        channel = socket.socket(fileno=os.dup(number))
        attack(channel)
        tried.append(number)
    except OSError: pass
with open("/workspace/tried", "w") as file: file.write(str(tried))
while not os.path.exists("/workspace/stop"): time.sleep(0.01)
tried
"""


def test_another_sandbox_of_the_process_goes_on_meanwhile() -> None:
    """On one event loop: the attacker is still running when the other has done five runs."""

    async def main() -> tuple[object, list[object]]:
        async with (
            await cellwall.AsyncSandbox.create(timeout=60) as attacker,
            await cellwall.AsyncSandbox.create(timeout=60) as other,
        ):
            attack = asyncio.create_task(attacker.run_code(_LINGERING + _IN_CELL))
            while not await attacker.files.exists("tried"):
                await asyncio.sleep(0.01)
                assert not attack.done(), attack.result().stderr
            values = [(await other.run_code(f"{number} + 1")).value for number in range(5)]
            assert not attack.done()
            await attacker.files.write("stop", "")
            return (await attack).value, values

    assert asyncio.run(main()) == ([], [1, 2, 3, 4, 5])


def test_no_socket_inside_can_linger() -> None:
    """The second wall: the kernel's own collector of sent descriptors would wait, too."""
    code = (
        "import socket, struct\n"
        "held = socket.socket()\n"
        "held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        "held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 30))\n"
        "told = struct.unpack('ii', held.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8))\n"
        "held.close()\n"
        "list(told)"
    )
    scene: dict[str, object] = {}
    exec(code, scene)
    assert scene["told"] == (1, 30), "outside, a socket can"
    # Answered and not done: Node's resetAndDestroy throws where it is refused.
    assert cellwall.run_code(code).value == [0, 0]


@pytest.mark.only_on("cold", reason="the rules are the same for both")
def test_calls_that_delay_or_tell_what_the_host_does_are_in_no_filter() -> None:
    """Leases make the host's open() wait; vmsplice gives pages that change while they are read."""
    rules = load_rules()
    allowed = {name for group in rules.allow for name in group.names}
    assert allowed & {"vmsplice", "io_uring_setup", "userfaultfd", "fanotify_init"} == set()
    fcntl = next(entry for entry in rules.conditional if entry.name == "fcntl")
    assert (3, 1024) in fcntl.fails


# Cells that do not read, that close, that flip flags: nobody waits for them.

_SIZE = 4 * 1024 * 1024


@pytest.mark.requirement("LIM-2")
@pytest.mark.parametrize(
    "deed",
    [
        "",
        "os.close(0)",
        "os.close(4)",
        "fcntl.fcntl(0, fcntl.F_SETPIPE_SZ, 4096)",
        "fcntl.fcntl(0, fcntl.F_SETFL, os.O_ASYNC)",
        "[os.set_blocking(number, flag) for number in range(3) for flag in (True, False)]",
        "fcntl.fcntl(0, fcntl.F_SETOWN, 1); fcntl.fcntl(0, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)",
    ],
)
def test_program_that_never_reads_its_input_holds_up_nobody(deed: str) -> None:
    code = (
        f"import fcntl, os, time\ntry:\n    {deed or 'pass'}\nexcept OSError: pass\ntime.sleep(60)"
    )

    async def main() -> tuple[str, list[object]]:
        async with await cellwall.AsyncSandbox.create(timeout=60) as other:
            held = asyncio.create_task(
                asyncio.to_thread(
                    cellwall.run_command,
                    ["python3", "-c", code],
                    stdin=b"x" * _SIZE,
                    timeout=1.5,
                )
            )
            values = [(await other.run_code(str(number))).value for number in range(3)]
            return (await held).limit, values

    assert asyncio.run(main()) == ("wall", [0, 1, 2])


def test_answers_to_code_that_reads_none_do_not_pile_up() -> None:
    """4,000 calls ask for 256 KiB each; without a bound the host would hold a gigabyte."""
    answered: list[int] = []

    def tool(number: int) -> str:
        answered.append(number)
        return "x" * 262_144

    code = (
        "import json, os, time\n"
        "for number in range(4000):\n"
        "    text = json.dumps({'call': str(number), 'name': 'tool', 'args': [number],"
        " 'kwargs': {}}).encode()\n"
        "    os.write(3, len(text).to_bytes(4, 'big') + bytes(4) + text)\n"
        "time.sleep(60)\n"
    )
    ran = cellwall.run_code(code, tools={"tool": tool}, timeout=3)
    assert ran.limit in ("wall", "output")
    assert 0 < len(answered) < 64


# SIGPIPE

_DIES_BY_DEFAULT = """
import os, signal, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
import cellwall
ran = cellwall.run_code("import os; os.close(4); os.close(0)\\n1", stdin="x" * 4000000)
also = cellwall.run_command(["python3", "-c", "import os, time; os.close(0); time.sleep(0.3)"],
                            stdin="x" * 4000000)
print("alive", ran.status.value, also.status.value, flush=True)
reading, writing = os.pipe()
os.close(reading)
os.write(writing, b"x")
print("not reached")
"""


def test_closed_pipe_of_a_cell_does_not_end_a_host_with_the_default_of_sigpipe() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _DIES_BY_DEFAULT], capture_output=True, text=True, check=False
    )
    # The control is the last write: this process does die of the signal.
    assert (done.stdout.splitlines()[:1], done.returncode) == (["alive ok ok"], -signal.SIGPIPE)
    assert "not reached" not in done.stdout


@pytest.mark.only_on("cold", reason="no cell takes part")
def test_write_that_breaks_leaves_no_signal_behind() -> None:
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        reading, writing = os.pipe()
        os.close(reading)
        with pytest.raises(BrokenPipeError):
            write_pipe(writing, b"x")
        os.close(writing)
        assert signal.SIGPIPE not in signal.sigpending()
        assert signal.SIGPIPE not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        signal.signal(signal.SIGPIPE, before)


@pytest.mark.only_on("cold", reason="no cell takes part")
def test_channel_does_not_wait_for_its_other_end() -> None:
    reports, reports_inside = os.pipe()
    requests_inside, requests = os.pipe()
    for ours in (reports, requests):
        os.set_blocking(ours, False)
    channel = InterpreterPipes(reports, requests)
    with suppress(BlockingIOError):
        while channel.write(bytes(65_536)):
            continue
    with pytest.raises(BlockingIOError):
        channel.write(b"x")
    with pytest.raises(BlockingIOError):
        channel.read(1)
    os.write(reports_inside, struct.pack(">II", 0, 0))
    assert channel.read(100) == bytes(8)
    for descriptor in (reports_inside, requests_inside):
        os.close(descriptor)
    assert channel.read(1) == b""
    channel.close()

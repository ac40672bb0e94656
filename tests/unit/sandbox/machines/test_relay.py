"""The relay between the supervisor and a virtual machine believes no byte of the machine."""

from __future__ import annotations

import os
import select
import socket

import pytest

from cellwall.sandbox.linux.outside_processes import memory_file
from unit.sandbox.machines.relay_host import Relay, relay, usage_of, wait_for

pytestmark = pytest.mark.requirement("ISO-11", "ISO-13")

EXIT = "exit 0 code 0 - 1000 2000"

HONEST = f"""
frames, numbers = start()
first, second, stdin, stdout, stderr = numbers
blobs = {{}}
for kind, stream, payload in frames:
    if kind == DATA: blobs[stream] = blobs.get(stream, b"") + payload
put(USAGE, 0, struct.pack("<5Q", 1, 2, 3, 4, 5))
data = b""
while True:
    kind, stream, payload = get()
    if kind == DATA and stream == stdin:
        data += payload
        put(TAKEN, stdin, struct.pack("<I", len(payload)))
    if kind == CLOSE and stream == stdin: break
put(DATA, stdout, blobs[first] + blobs[second] + data)
put(DATA, stderr, b"err")
put(DATA, 0, b"started 0 7")
put(DATA, 0, b"{EXIT}")
for stream in (stdin, stdout, stderr, 0): put(CLOSE, stream)
put(END)
stay()
"""


def test_bytes_and_messages_pass_between_the_supervisor_and_an_honest_guest() -> None:
    """The control of every refusal below."""
    with relay(HONEST) as found:
        found.go()
        os.write(found.stdin, b"in" * 1000)
        os.close(found.stdin)
        found.stdin = -1
        assert found.read_all(found.stdout) == b"machine\0init\0" + b"in" * 1000
        assert found.read_all(found.stderr) == b"err"
        assert found.until_end() == ["up 4", "started 0 7", EXIT]
        assert found.process.returncode == 0
        assert usage_of(found) == (1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    ("hostile", "said"),
    [
        ("put(99)", "kind"),
        ('put(OPEN, 9, b"\\3")', "kind"),  # only the host opens streams
        ("put(START)", "kind"),
        ('put(UP, 0, struct.pack("<I", 4))', "up"),
        ('put(DATA, 77, b"x")', "stream"),
        ('put(DATA, 65535, b"x")', "stream"),
        ('put(DATA, stdout, b"")', "empty"),
        ('put(DATA, stdin, b"x")', "direction"),
        ('put(CLOSE, stdout); put(DATA, stdout, b"x")', "stream"),
        ('put(CLOSE, stdout, b"x")', "length"),
        ('put(TAKEN, stdin, struct.pack("<I", 1))', "taken"),
        ('put(TAKEN, stdout, struct.pack("<I", 0))', "taken"),
        ('put(TAKEN, stdin, b"x")', "length"),
        ('put(USAGE, 0, b"short")', "usage"),
        ('os.write(3, struct.pack("<BBHI", DATA, 0, stdout, 1 << 31))', "length"),
        ('os.write(3, struct.pack("<BBHI", DATA, 0, stdout, 32769))', "length"),
        # Beyond the window, while nobody reads.
        ("[put(DATA, stdout, bytes(32768)) for _ in range(12)]", "window"),
        # Messages that init does not send, on its socket.
        ('put(DATA, 0, b"go")', "report"),
        ('put(DATA, 0, b"view")', "report"),
        ('put(DATA, 0, b"exit 0 code 0 - 1")', "report"),
        ('put(DATA, 0, b"exit 0 code 999 - 1 2")', "report"),
        ('put(DATA, 0, b"exit 0 code 0 wall 1 2")', "report"),  # no limit of init
        ('put(DATA, 0, b"exit 0 code -1 - 1 2")', "report"),
        ('put(DATA, 0, b"started 0 99999999999")', "report"),
        ('put(DATA, 0, b"fail ../../etc 1")', "report"),
        ('put(DATA, 0, b"rest memory\\nx")', "report"),
        ('put(DATA, 0, b"ready\\0ready")', "report"),
        ('put(DATA, 0, b"r" * 300)', "packet"),
        ('put(DATA, first, b"x")', "packet"),
        ('[put(DATA, 0, b"started 0 7") for _ in range(50)]', "flood"),
        ('put(FAIL, 0, b"x" * 400)', "report"),
        ('put(FAIL, 0, b"exit 0 code 0 - 1 2")', "report"),
    ],
)  # fmt: skip
def test_a_guest_that_breaks_the_protocol_ends_the_machine(hostile: str, said: str) -> None:
    script = f"_, (first, second, stdin, stdout, stderr) = start()\n{hostile}\nstay()\n"
    with relay(script) as found:
        found.go()
        assert found.until_end()[-1] == f"fail machine-protocol-{said} 0"
        assert found.process.returncode == 125


def test_garbage_in_the_place_of_the_boot_ends_the_machine() -> None:
    with relay("os.write(3, b'\\xff' * 4096)\nstay()\n") as found:
        assert found.until_end() == ["fail machine-protocol-length 0"]


def test_a_guest_that_ends_early_is_an_end_without_an_exit_code() -> None:
    with relay("start()\n") as found:
        found.go()
        assert found.until_end() == ["up 4"]
        assert (found.read_all(found.stdout), found.process.returncode) == (b"", 1)


def test_a_guest_cannot_end_the_cell_before_it_was_started() -> None:
    with relay('put(UP, 0, struct.pack("<I", 4))\nput(END)\nstay()\n') as found:
        assert found.until_end() == ["up 4", "fail machine-protocol-end 0"]


def test_a_silent_guest_holds_nothing_back_when_the_supervisor_goes() -> None:
    with relay("stay()\n") as found:
        found.status.close()
        assert found.process.wait(60) == 0


def test_output_waits_in_the_guest_while_the_supervisor_does_not_read() -> None:
    """The relay holds one window, takes up what is read, and asks for no more."""
    script = """
_, (first, second, stdin, stdout, stderr) = start()
sent = taken = 0
while sent < 1 << 20:
    while sent - taken <= (1 << 17) - 16384 and sent < 1 << 20:
        put(DATA, stdout, bytes(16384)); sent += 16384
    kind, stream, payload = get()
    if kind == TAKEN and stream == stdout: taken += struct.unpack("<I", payload)[0]
put(DATA, 0, b"exit 0 code 0 - 1000 2000")
for stream in (stdin, stdout, stderr, 0): put(CLOSE, stream)
put(END)
stay()
"""
    with relay(script) as found:
        found.go()
        assert len(found.read_all(found.stdout)) == 1 << 20
        assert found.until_end()[-1] == EXIT


def _ask(found: Relay, text: bytes) -> tuple[socket.socket, int]:
    """A task with a plan, a status socket and its output; our ends of the last two."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reading, writing = os.pipe()
    plan = memory_file("plan", b"arg\0true\0")
    with theirs:
        socket.send_fds(found.status, [text], [plan, theirs.fileno(), writing])
    for descriptor in (plan, writing):
        os.close(descriptor)
    ours.settimeout(60)
    return ours, reading


TASKS = """
start()
while True:
    kind, stream, payload = get()
    if kind != DATA or stream != 0: continue
    numbers, text = attached(payload)
    if text == b"go": continue
    plan, status, output = numbers
    assert text == b"run 5", text
    put(CLOSE, plan)
    put(DATA, output, b"out")
    put(DATA, status, b"started 5 9")
    put(DATA, status, b"exit 5 signal 9 memory 1 2")
    put(CLOSE, output); put(CLOSE, status)
"""


def test_a_task_of_a_live_cell_has_streams_of_its_own_and_others_are_answered_by_an_end() -> None:
    with relay(TASKS) as found:
        found.go()
        for refused in (b"root 0", b"dial 80 4", b"fork 3"):
            line, output = _ask(found, refused)
            with line:
                assert line.recv(256) == b""  # no descriptor, and no wait
            os.close(output)
        for _ in range(3):  # numbers of streams are used again
            line, output = _ask(found, b"run 5")
            with line:
                assert line.recv(256) == b"started 5 9"
                assert line.recv(256) == b"exit 5 signal 9 memory 1 2"
                assert line.recv(256) == b""
            assert found.read_all(output) == b"out"
            os.close(output)


def test_the_emulator_gets_no_descriptor_but_the_link() -> None:
    script = """
names = sorted(int(name) for name in os.listdir("/proc/self/fd"))
frames, (first, second, stdin, stdout, stderr) = start()
put(DATA, stdout, " ".join(map(str, names)).encode())
put(DATA, stderr, repr(dict(os.environ)).encode())
put(CLOSE, stdout); put(CLOSE, stderr)
stay()
"""
    with relay(script) as found:
        found.go()
        numbers = list(map(int, found.read_all(found.stdout).split()))
        assert numbers[:4] == [0, 1, 2, 3]
        assert len(numbers) <= 5  # the fifth is that of the listing itself
        # Python adds LC_CTYPE itself.
        assert found.read_all(found.stderr) in (b"{}", b"{'LC_CTYPE': 'C.UTF-8'}")


def test_a_program_that_closes_its_input_closes_the_supervisors_pipe() -> None:
    script = "_, (first, second, stdin, stdout, stderr) = start()\nput(CLOSE, stdin)\nstay()\n"

    def is_broken() -> bool:
        try:
            os.write(found.stdin, b"x")
        except BrokenPipeError:
            return True
        return False

    with relay(script) as found:
        found.go()
        wait_for(is_broken)


def test_output_that_nobody_reads_any_more_closes_its_stream_alone() -> None:
    """Also where its reader goes while bytes wait, or on their way."""
    script = """
_, (first, second, stdin, stdout, stderr) = start()
put(DATA, stdout, bytes(32768)); put(DATA, stdout, bytes(32768)); put(DATA, stdout, bytes(32768))
put(DATA, stderr, b"sent")
until(CLOSE)
put(DATA, stderr, b", and goes on")
put(DATA, 0, b"exit 0 code 0 - 1000 2000")
for stream in (stdin, stdout, stderr, 0): put(CLOSE, stream)
put(END)
stay()
"""
    with relay(script) as found:
        found.go()
        wait_for(lambda: select.select([found.stderr], [], [], 0)[0])  # the pipe is full by now
        os.close(found.stdout)
        found.stdout = -1
        assert found.read_all(found.stderr) == b"sent, and goes on"
        assert found.until_end()[-1] == EXIT


@pytest.mark.long
@pytest.mark.requirement("LIM-6")
def test_a_guest_that_sends_and_never_reads_fills_no_memory_of_the_host() -> None:
    """Each byte that is taken up is answered, and the answers wait for the guest."""
    script = """
_, (first, second, stdin, stdout, stderr) = start()
many = struct.pack("<BBHI", DATA, 0, stdout, 1) + b"x"
many *= 7000
while True: os.write(3, many)
"""
    with relay(script) as found:
        found.go()
        size = len(found.read_all(found.stdout))
        assert size > 1_000_000  # the control: it was served until then
        assert found.until_end()[-1] == "fail machine-protocol-unread 0"

"""The relay with a guest made of a Python script: it speaks for the machine, as hostile as a test wants.

The script runs in the place of the emulator, with the link as descriptor 3.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cellwall.sandbox.linux.outside_processes import memory_file
from cellwall.sandbox.linux.programs import cell_program

WITHIN_S = 60.0

GUEST = """
import os, struct, sys
UP, OPEN, DATA, TAKEN, CLOSE, START, USAGE, END, FAIL = range(1, 10)
def put(kind, stream=0, payload=b""):
    whole = struct.pack("<BBHI", kind, 0, stream, len(payload)) + payload
    while whole:
        whole = whole[os.write(3, whole):]
def need(count):
    data = b""
    while len(data) < count:
        part = os.read(3, count - len(data))
        if not part: sys.exit(0)
        data += part
    return data
def get():
    kind, _, stream, length = struct.unpack("<BBHI", need(8))
    return kind, stream, need(length)
def until(wanted):
    seen = []
    while not seen or seen[-1][0] != wanted:
        seen.append(get())
    return seen
def attached(payload):
    count = payload[0]
    return struct.unpack(f"<{count}H", payload[1:1 + 2 * count]), payload[1 + 2 * count:]
def start():
    # The streams after both plans: standard input, output and error.
    put(UP, 0, struct.pack("<I", 4))
    frames = until(START)
    numbers, _ = attached(frames[-1][2])
    return frames, numbers
def stay():
    while True: get()
"""


@dataclass
class Relay:
    """Our ends of a running relay."""

    process: subprocess.Popen[bytes]
    status: socket.socket
    stdin: int
    stdout: int
    stderr: int
    usage: int
    said: list[str] = field(default_factory=list)

    def receive(self) -> str:
        """The next message; empty at the end."""
        self.status.settimeout(WITHIN_S)
        try:
            text = self.status.recv(256).decode()
        except ConnectionResetError:
            text = ""
        self.said.append(text)
        return text

    def go(self) -> None:
        assert self.receive() == "up 4"
        self.status.send(b"go")

    def until_end(self) -> list[str]:
        """Every message up to the end of the relay."""
        while self.receive():
            continue
        self.process.wait(WITHIN_S)
        return [text for text in self.said if text]

    def read_all(self, descriptor: int) -> bytes:
        parts = []
        while True:
            ready, _, _ = select.select([descriptor], [], [], WITHIN_S)
            assert ready
            part = os.read(descriptor, 65536)
            if not part:
                return b"".join(parts)
            parts.append(part)


@contextmanager
def relay(script: str) -> Iterator[Relay]:
    """A relay whose guest is `script`, with the plan `machine` and the plan `init`."""
    status, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    usage = memory_file("usage", bytes(40))
    plans = [memory_file("plan", text) for text in (b"machine\0", b"init\0")]
    stdin_inside, stdin = os.pipe()
    stdout, stdout_inside = os.pipe()
    stderr, stderr_inside = os.pipe()
    given = [stdin_inside, stdout_inside, stderr_inside]
    sent = [inside.fileno(), usage, *plans, *given]
    process = subprocess.Popen(
        [
            cell_program(),
            "relay",
            *map(str, sent),
            "--",
            sys.executable,
            "-I",
            "-c",
            GUEST + script,
        ],
        pass_fds=sent,
        start_new_session=True,
    )
    inside.close()
    for descriptor in (*plans, *given):
        os.close(descriptor)
    found = Relay(process, status, stdin, stdout, stderr, usage)
    try:
        yield found
    finally:
        # The relay is no PID 1 here: its guest is in its process group.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(WITHIN_S)
        status.close()
        for descriptor in (found.stdin, found.stdout, found.stderr, usage):
            if descriptor >= 0:
                os.close(descriptor)


def usage_of(found: Relay) -> tuple[int, ...]:
    return struct.unpack("=5Q", os.pread(found.usage, 40, 0))


def wait_for(condition: object) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)

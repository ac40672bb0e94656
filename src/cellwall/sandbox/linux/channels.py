"""The descriptors between a cell and its supervisor.

Code inside writes only to pipes and terminals, never to a socket (ISO-13): over a unix socket it
could send descriptors, and the kernel closes those on the receiver's side, received or not. Closing
a TCP socket with SO_LINGER blocks for as long as its sender likes. Unix sockets lead only to init,
the zygote and the shim, which hold them where no code can reach them.
"""

from __future__ import annotations

import array
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Protocol

from cellwall.core.fast_signals import BROKEN_PIPE, IGNORED, get_handler
from cellwall.core.forks import OwnerProcess
from cellwall.core.network import CellNetwork
from cellwall.sandbox.linux.plan import EgressPlan

REPORTS_FD_INSIDE = 3
"""An interpreter writes frames here; in a zygote this number is the control socket."""
REQUESTS_FD_INSIDE = 4
"""An interpreter reads frames here."""
CHANNEL_FDS_INSIDE = (REPORTS_FD_INSIDE, REQUESTS_FD_INSIDE)
INTERPRETER_FDS_INSIDE = (0, 1, 2, *CHANNEL_FDS_INSIDE)
_MAX_MESSAGE_BYTES = 256
_HAND_OVER_WITHIN_S = 20.0
_MAX_NAME_BYTES = 64


def receive_words(line: socket.socket) -> list[str] | None:
    """The next message of a non-blocking socket; None if there is none, empty at end of file.

    End of file or a reset counts only if it is reported twice: the kernel first looks for a packet
    and then for end of file, and reports a reset (the peer left a packet of ours unread) before it
    delivers packets that the peer has sent.
    """
    try:
        try:
            packet = line.recv(_MAX_MESSAGE_BYTES)
        except ConnectionResetError:
            packet = b""
        packet = packet or line.recv(_MAX_MESSAGE_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return []
    return packet.decode("ascii", "replace").split()


def receive_descriptors(
    line: socket.socket, max_bytes: int, max_count: int
) -> tuple[bytes, list[int], int]:
    """One packet, its descriptors, and the flags of recvmsg(2).

    No program started by the embedding process may inherit the descriptors (ISO-9). Not by
    `socket.recv_fds`, which ignores its `flags` and would leave them inheritable.
    """
    numbers = array.array("i")
    room = socket.CMSG_LEN(max_count * numbers.itemsize)
    packet, controls, flags, _address = line.recvmsg(max_bytes, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in controls:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    return packet, list(numbers), flags


class InitSocket:
    """A socket to init, which alone holds the other end: its messages are trusted."""

    def __init__(self, ours: socket.socket | None = None) -> None:
        """A new pair, or our end of a pair that the shim has made."""
        self.inside = -1
        """The peer's end, to be sent and then closed with `close_inside`."""
        if ours is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self.inside = theirs.detach()
        self.socket = ours
        self.socket.setblocking(False)
        self._owner = OwnerProcess()

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, *words: str | int, descriptors: Sequence[int] = ()) -> None:
        """Send a message; if the cell has ended, its monitor notices that."""
        message = " ".join(map(str, words)).encode()
        with suppress(OSError):
            if descriptors:
                socket.send_fds(self.socket, [message], descriptors)
            else:
                self.socket.send(message)

    def receive(self) -> list[str] | None:
        """Init's next message; None if there is none, empty at end of file."""
        return receive_words(self.socket)

    def receive_with_descriptor(self) -> tuple[list[str] | None, int | None]:
        """The same, for messages that carry a descriptor."""
        try:
            packet, descriptors = b"", list[int]()
            with suppress(ConnectionResetError):
                packet, descriptors, _ = receive_descriptors(self.socket, _MAX_MESSAGE_BYTES, 1)
            if not packet:  # see `receive_words`
                packet, descriptors, _ = receive_descriptors(self.socket, _MAX_MESSAGE_BYTES, 1)
        except BlockingIOError:
            return None, None
        except OSError:
            return [], None
        return packet.decode("ascii", "replace").split(), descriptors[0] if descriptors else None

    def shutdown_write(self) -> None:
        """Send no more, but still receive: init then ends the cell."""
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close_inside(self) -> None:
        if self.inside >= 0:
            os.close(self.inside)
            self.inside = -1

    def close(self) -> None:
        self.close_inside()
        if self._owner.is_current:
            # A forked child may hold a copy of the socket: the peer must still see the end.
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


class InterpreterPipes:
    """Our ends of an interpreter's two pipes. The code can write to them: nothing is trusted."""

    def __init__(self, reports: int, requests: int) -> None:
        self.reports, self.requests = reports, requests

    def fileno(self) -> int:
        """Readable when a frame was written."""
        return self.reports

    def read(self, max_bytes: int) -> bytes:
        """Empty when all writers have closed; BlockingIOError when there are no bytes yet."""
        return os.read(self.reports, max_bytes)

    def write(self, data: bytes | bytearray | memoryview) -> int:
        return write_pipe(self.requests, data)

    def close(self) -> None:
        for descriptor in (self.reports, self.requests):
            os.close(descriptor)


def write_pipe(descriptor: int, data: bytes | bytearray | memoryview) -> int:
    """`os.write` that raises BrokenPipeError and never sends SIGPIPE.

    A program that embeds Cellwall may have restored the signal's default (`signal(SIGPIPE,
    SIG_DFL)`, usual in command-line tools); a cell that closes its end would then end the program.
    """
    if get_handler(BROKEN_PIPE) == IGNORED:
        return os.write(descriptor, data)
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        return os.write(descriptor, data)
    except BrokenPipeError:
        signal.sigtimedwait({signal.SIGPIPE}, 0)  # pending for this thread: consume it
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@dataclass(slots=True)
class SupervisorEnds:
    """The supervisor's ends of a cell's pipes."""

    status: InitSocket
    stdout: int
    stderr: int | None
    """None for a terminal, which has only one stream."""
    channel: InterpreterPipes | None
    stdin: int | None

    def close_stdin(self) -> None:
        if self.stdin is not None:
            with suppress(OSError):
                os.close(self.stdin)
            self.stdin = None


class CellPipes:
    """Both ends of the pipes between one cell and the supervisor.

    `for_zygote`: instead of an interpreter's pipes a control socket, over which the zygote receives
    descriptors; a cell closes its copy before any code runs (cell/zygote.c).
    """

    def __init__(
        self,
        stack: ExitStack,
        *,
        wants_stdin: bool,
        owner: int | None,
        has_channel: bool = True,
        for_zygote: bool = False,
    ) -> None:
        self._stack = stack
        self._owner = owner
        self.status = InitSocket()
        stack.callback(self.status.close)
        self.inside: dict[int, int] = {}
        self._open_inside: set[int] = set()
        stack.callback(self.close_inside)
        out_r, out_w = self._pipe()
        err_r, err_w = self._pipe()
        self.inside = {1: out_w, 2: err_w}
        self.control: socket.socket | None = None
        channel: InterpreterPipes | None = None
        if for_zygote:
            self.control, self.inside[REPORTS_FD_INSIDE] = self._pair()
        elif has_channel:
            channel = self._channel(stack)
        stdin_w: int | None = None
        if wants_stdin:
            self.inside[0], stdin_w = os.pipe2(os.O_CLOEXEC)
            self._open_inside.add(self.inside[0])
            self._give(self.inside[0])
            os.set_blocking(stdin_w, False)
        else:
            # Not the host's /dev/null: code could set its times, which other cells can see.
            self.inside[0], unused = os.pipe2(os.O_CLOEXEC)
            self._open_inside.add(self.inside[0])
            os.close(unused)
            self._give(self.inside[0])
        self.outside = SupervisorEnds(self.status, out_r, err_r, channel, stdin_w)
        stack.callback(self.outside.close_stdin)

    @classmethod
    def from_shim(cls, stack: ExitStack, descriptors: Sequence[int]) -> CellPipes:
        """From pipes that a template's shim made (cell/prefork.c): our ends, then either those of a
        waiting interpreter's pipes or the ends for a program that is started later."""
        channels = cls.__new__(cls)
        status, out_r, err_r, stdin_w, *rest = descriptors
        channels.control = None
        channels.status = InitSocket(socket.socket(fileno=status))
        channel = InterpreterPipes(*rest) if len(rest) == len(CHANNEL_FDS_INSIDE) else None
        inside = rest if channel is None else []
        channels.inside = dict(enumerate(inside))
        channels._open_inside = set(inside)  # noqa: SLF001  # a second constructor
        channels.outside = SupervisorEnds(channels.status, out_r, err_r, channel, stdin_w)
        stack.callback(channels.status.close)
        if channel is not None:
            stack.callback(channel.close)
        for descriptor in (out_r, err_r):
            stack.callback(os.close, descriptor)
        stack.callback(channels.close_inside)
        stack.callback(channels.outside.close_stdin)
        return channels

    def _pair(self) -> tuple[socket.socket, int]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        self._stack.callback(ours.close)
        self._open_inside.add(theirs.fileno())
        return ours, theirs.detach()

    def add_channel(self, stack: ExitStack) -> None:
        """The pipes of an interpreter that is started later; `stack` closes our ends."""
        self.outside.channel = self._channel(stack)

    def _channel(self, stack: ExitStack) -> InterpreterPipes:
        reports, self.inside[REPORTS_FD_INSIDE] = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, reports)
        self._open_inside.add(self.inside[REPORTS_FD_INSIDE])
        self.inside[REQUESTS_FD_INSIDE], requests = os.pipe2(os.O_CLOEXEC)
        stack.callback(os.close, requests)
        self._open_inside.add(self.inside[REQUESTS_FD_INSIDE])
        for ours in (reports, requests):
            os.set_blocking(ours, False)
        return InterpreterPipes(reports, requests)

    def _pipe(self) -> tuple[int, int]:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reading, False)
        self._stack.callback(os.close, reading)
        self._open_inside.add(writing)
        self._give(writing)
        return reading, writing

    def _give(self, pipe: int) -> None:
        """A pipe made by root belongs to root, and `echo > /dev/stderr` reopens it."""
        if self._owner is not None:
            os.fchown(pipe, self._owner, self._owner)

    def close_inside(self) -> None:
        """Only the cell holds these ends from now on: end of file means that its programs ended."""
        while self._open_inside:
            os.close(self._open_inside.pop())


class HasDescriptor(Protocol):
    """A socket, an init socket, a shim."""

    def fileno(self) -> int: ...


def ready_to_read(*waits: HasDescriptor | int, timeout_s: float) -> set[int]:
    """The readable descriptors; empty after the timeout. Not `select`, which ends at 1,024."""
    poll = select.poll()
    for wait in waits:
        poll.register(wait, select.POLLIN)
    return {descriptor for descriptor, _event in poll.poll(timeout_s * 1000)}


class EgressSockets:
    """Receives the sockets of one cell; closed once they were handed over, or the cell failed."""

    def __init__(self, network: CellNetwork, *, is_proxy_only: bool = False) -> None:
        self._network = network
        self._ports = () if is_proxy_only else network.ports
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self.inside = theirs.detach()
        """The cell's end, to be sent with the plan."""

    @classmethod
    def open(
        cls, network: CellNetwork | None, stack: ExitStack, *, is_proxy_only: bool = False
    ) -> EgressSockets | None:
        """None for a cell without egress; `stack` closes the rest."""
        if network is None:
            return None
        sockets = cls(network, is_proxy_only=is_proxy_only)
        stack.callback(sockets.close)
        return sockets

    def plan(self, number: int) -> EgressPlan:
        """For the plan of a cell in which `inside` has this number."""
        network = self._network
        return EgressPlan(number, self._ports, network.files, network.offered)

    def hand_over(self) -> None:
        """Wait for init, then pass the sockets to the network. Blocks while the cell is built.

        If the cell ends before it has made them, its monitor reports that.
        """
        sockets: dict[str, socket.socket] = {}
        deadline = time.monotonic() + _HAND_OVER_WITHIN_S
        try:
            while (left_s := deadline - time.monotonic()) > 0:
                if not ready_to_read(self._ours, timeout_s=left_s):
                    return
                name, descriptors, _flags = receive_descriptors(self._ours, _MAX_NAME_BYTES, 1)
                if not name:
                    break
                sockets[name.decode("ascii", "replace")] = socket.socket(fileno=descriptors[0])
            if sockets.keys() == self._names():
                adopted, sockets = sockets, {}
                self._network.adopt(adopted)
        finally:
            for each in sockets.values():
                each.close()
            self.close()

    def _names(self) -> set[str]:
        ports = self._ports
        return {"proxy", *(("dns", *(f"tcp:{port}" for port in ports)) if ports else ())}

    def close_inside(self) -> None:
        """After it was sent: only init holds that end, so its end of file is init's."""
        if self.inside >= 0:
            os.close(self.inside)
            self.inside = -1

    def close(self) -> None:
        self.close_inside()
        self._ours.close()

"""The I/O of one run: output comes in, bounded; standard input and frames go out.

One epoll set serves all descriptors, so that the event loop has one descriptor to wait for. Nothing
that comes from the program's own descriptors is trusted.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping
from typing import Literal, Self

from cellwall.core.frames import BadFrame, FrameReader, FrameTooLong, ValueBudget, encode
from cellwall.core.sandbox_ports import PacedSink
from cellwall.core.types import Json, OutputSink
from cellwall.sandbox.linux.channels import SupervisorEnds, write_pipe

_CHUNK_BYTES = 65_536
_MAX_CALLS_WAITING = 64
_MAX_SMALL_FRAMES = 20_000  # each costs the supervisor more than it costs the code
_MAX_UNREAD_BYTES = 1024 * 1024
_MAX_FRAMES = 4  # of the longest kind; more than a result and its calls need


class RunIO:
    """The descriptors of one run while it lasts."""

    def __init__(
        self,
        channels: SupervisorEnds,
        *,
        stdin: bytes | None,
        sink: OutputSink | None,
        max_output_bytes: int,
        reader: FrameReader,
        keeps_output: bool = True,
    ) -> None:
        """Without `keeps_output` all output goes to the sink alone."""
        self._channels = channels
        self._stdin = memoryview(stdin or b"")
        self._sink = sink
        # A look at a protocol walks its attributes: not for most runs, which have no sink.
        self._paced = sink if sink is not None and isinstance(sink, PacedSink) else None
        self._output_room = max_output_bytes
        self._keeps_output = keeps_output
        self._paused: list[int] = []
        """Output that is not read while the sink has more than it can work off."""
        self._is_draining = False
        self._reader = reader
        reader.budget = ValueBudget()
        self._channel_room = _MAX_FRAMES * reader.max_frame_bytes
        self._frames_left = _MAX_SMALL_FRAMES
        self._outgoing = bytearray()
        self._poll = select.epoll()
        self._handlers: dict[int, Callable[[], bool]] = {}
        self.streams = {"stdout": bytearray(), "stderr": bytearray()}
        self.report: Mapping[str, Json] | None = None
        """The interpreter's report; the code can forge it, and deceives only its own caller."""
        self.calls: list[Mapping[str, Json]] = []
        """Calls of host tools that were not answered yet."""
        self.is_over_limit = False
        self.is_malformed = False
        """The code wrote bytes that are no frames to its channel."""
        self.is_channel_closed = False
        self.sink_error: Exception | None = None
        """Raised by the caller's sink; the run then has no reason to continue."""
        self.register(channels.stdout, lambda: self._read_output("stdout", channels.stdout))
        if channels.stderr is not None:
            stderr = channels.stderr
            self.register(stderr, lambda: self._read_output("stderr", stderr))
        if channels.channel is not None:
            self.register(channels.channel.reports, self._read_frames)
        if channels.stdin is not None:
            stdin_fd = channels.stdin
            self.register(stdin_fd, lambda: self._write_stdin(stdin_fd), to_write=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._poll.close()

    def fileno(self) -> int:
        """Ready to read when any of the descriptors is ready."""
        return self._poll.fileno()

    @property
    def has_sink(self) -> bool:
        """The caller wants output as it arrives."""
        return self._sink is not None

    @property
    def has_news(self) -> bool:
        """The monitor must act: on a limit, a failed sink or a call of a host tool."""
        return self.is_over_limit or self.sink_error is not None or bool(self.calls)

    @property
    def accepts_answers(self) -> bool:
        """False: the code does not read its answers, and more must not accumulate."""
        return len(self._outgoing) <= _MAX_UNREAD_BYTES

    @property
    def is_over(self) -> bool:
        """All writers have closed; unread input does not matter."""
        channel = self._channels.channel
        to_write = {self._channels.stdin, None if channel is None else channel.requests}
        return not self._handlers.keys() - to_write

    def register(
        self, descriptor: int, handler: Callable[[], bool], *, to_write: bool = False
    ) -> None:
        """Call `handler` when `descriptor` is ready; it returns whether more may come."""
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, select.EPOLLOUT if to_write else select.EPOLLIN)

    def serve(self) -> int:
        """Handle every ready descriptor; returns their number."""
        if self._paused and not self._is_sink_full:
            for descriptor in self._paused:
                self._poll.register(descriptor, select.EPOLLIN)
            self._paused.clear()
        ready = self._poll.poll(0)
        for descriptor, _event in ready:
            handler = self._handlers[descriptor]
            if not handler():
                self._unregister(descriptor)
        return len(ready)

    def _unregister(self, descriptor: int) -> None:
        del self._handlers[descriptor]
        self._poll.unregister(descriptor)
        if descriptor == self._channels.stdin:
            self._channels.close_stdin()

    def drain(self) -> None:
        """Read output written before the end; other processes may still hold a pipe open."""
        self._is_draining = True  # what a pipe holds is little
        while not self.is_over_limit and self.sink_error is None and self.serve():
            continue

    def send_frame(self, message: Mapping[str, Json], blob: bytes = b"") -> None:
        """Send to the interpreter; bytes that do not fit into the pipe now are sent later."""
        self._outgoing += encode(message, blob)
        self._flush()

    @property
    def _is_sink_full(self) -> bool:
        paced = self._paced
        return paced is not None and paced.is_full and not self._is_draining

    def _read_output(self, name: Literal["stdout", "stderr"], descriptor: int) -> bool:
        if self._is_sink_full:
            # The pipe fills, and the program waits: the supervisor's memory stays bounded.
            self._poll.unregister(descriptor)
            self._paused.append(descriptor)
            return True
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:  # EIO: the last process has closed the terminal
            return False
        if not chunk:
            return False
        if len(chunk) > self._output_room:
            self.is_over_limit = True
        accepted = chunk[: self._output_room]
        self._output_room -= len(accepted)
        if self._keeps_output:
            self.streams[name] += accepted
        if accepted and self._sink is not None:
            try:
                self._sink(name, accepted)
            except Exception as error:  # noqa: BLE001  # the caller's own code may raise any exception
                self._sink, self._paced, self.sink_error = None, None, error
        return True

    def _read_frames(self) -> bool:
        channel = self._channels.channel
        if channel is None:
            return False
        try:
            chunk = channel.read(_CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            chunk = b""
        if not chunk:
            self.is_channel_closed = True
            return False
        self._channel_room -= len(chunk)
        try:
            for frame in self._reader.feed(chunk):
                self._frames_left -= 1
                if self._frames_left < 0:
                    self.is_over_limit = True
                    break
                self._handle_frame(frame.message)
        except FrameTooLong:
            self.is_over_limit = True
        except BadFrame:
            self.is_malformed = True
        self.is_over_limit = self.is_over_limit or self._channel_room < 0
        return not (self.is_over_limit or self.is_malformed)

    def _handle_frame(self, message: Mapping[str, Json]) -> None:
        if "done" in message:
            self.report = message
        elif "call" in message and len(self.calls) < _MAX_CALLS_WAITING:
            self.calls.append(message)

    def _flush(self) -> bool:
        """Returns whether bytes remain: the pipe is full, and is registered until it is not."""
        channel = self._channels.channel
        if channel is None:
            return False
        try:
            while self._outgoing:
                del self._outgoing[: channel.write(self._outgoing[:_CHUNK_BYTES])]
        except BlockingIOError:
            if channel.requests not in self._handlers:
                self.register(channel.requests, self._flush, to_write=True)
            return True
        except OSError:  # the reader is gone
            self._outgoing.clear()
        return False

    def _write_stdin(self, descriptor: int) -> bool:
        try:
            self._stdin = self._stdin[write_pipe(descriptor, self._stdin[:_CHUNK_BYTES]) :]
        except BlockingIOError:
            return True
        except OSError:  # the program closed its input or ended
            return False
        return len(self._stdin) > 0

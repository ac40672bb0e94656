"""What a run says and is told: output comes in, bounded; input and frames go out.

One epoll set serves all descriptors, so that waiting costs one registration whatever there is to
wait for. Nothing that comes over the program's own descriptors is believed.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Literal, Self

from cellwall.core.frames import BadFrame, FrameReader, FrameTooLong, ValueBudget, encode
from cellwall.core.types import Json, OutputSink
from cellwall.sandbox.linux.channels import Outside, write_pipe

_CHUNK_BYTES = 65_536
_MAX_CALLS_WAITING = 64
_MAX_SMALL_FRAMES = 20_000  # each costs the supervisor more than the code
_MAX_UNREAD_BYTES = 1024 * 1024
_MAX_FRAMES = 4  # of the longest kind; more than a result and its calls need


class Traffic:
    """The descriptors of one run while it lasts."""

    def __init__(
        self,
        channels: Outside,
        *,
        stdin: bytes | None,
        sink: OutputSink | None,
        max_output_bytes: int,
        reader: FrameReader,
    ) -> None:
        self._channels = channels
        self._stdin = memoryview(stdin or b"")
        self._sink = sink
        self._output_room = max_output_bytes
        self._reader = reader
        reader.budget = ValueBudget()
        self._channel_room = _MAX_FRAMES * reader.max_frame_bytes
        self._frames_left = _MAX_SMALL_FRAMES
        self._outgoing = bytearray()
        self._poll = select.epoll()
        self._servants: dict[int, Callable[[], bool]] = {}
        self.streams = {"stdout": bytearray(), "stderr": bytearray()}
        self.report: Mapping[str, Json] | None = None
        """What the interpreter says of its run; the code can forge it, to its own harm only."""
        self.calls: list[Mapping[str, Json]] = []
        """Tools of the host that the code asked for and nobody has answered yet."""
        self.is_too_much = False
        self.is_garbled = False
        """The code wrote something else than frames to its channel."""
        self.is_channel_closed = False
        self.sink_error: Exception | None = None
        """What the caller's own listener raised; the run has no reason to go on then."""
        self.serve_when_ready(channels.stdout, lambda: self._hear("stdout", channels.stdout))
        if channels.stderr is not None:
            stderr = channels.stderr
            self.serve_when_ready(stderr, lambda: self._hear("stderr", stderr))
        if channels.channel is not None:
            self.serve_when_ready(channels.channel.reports, self._converse)
        if channels.stdin is not None:
            stdin_fd = channels.stdin
            self.serve_when_ready(stdin_fd, lambda: self._feed(stdin_fd), to_write=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._poll.close()

    def fileno(self) -> int:
        """Ready to read when any of the descriptors is ready."""
        return self._poll.fileno()

    @property
    def is_listened_to(self) -> bool:
        """Somebody wants the output as it comes."""
        return self._sink is not None

    @property
    def is_read(self) -> bool:
        """False: the code does not take its answers, and more must not pile up."""
        return len(self._outgoing) <= _MAX_UNREAD_BYTES

    @property
    def is_over(self) -> bool:
        """Everybody who could write is gone; input that nobody took is of no interest."""
        channel = self._channels.channel
        taken = {self._channels.stdin, None if channel is None else channel.requests}
        return not self._servants.keys() - taken

    def serve_when_ready(
        self, descriptor: int, servant: Callable[[], bool], *, to_write: bool = False
    ) -> None:
        """`servant` works off what there is and says whether more may come."""
        self._servants[descriptor] = servant
        self._poll.register(descriptor, select.EPOLLOUT if to_write else select.EPOLLIN)

    def serve(self) -> int:
        """Work off what is ready; returns how many descriptors were."""
        ready = self._poll.poll(0)
        for descriptor, _event in ready:
            servant = self._servants[descriptor]
            if not servant():
                self._leave(descriptor)
        return len(ready)

    def _leave(self, descriptor: int) -> None:
        del self._servants[descriptor]
        self._poll.unregister(descriptor)
        if descriptor == self._channels.stdin:
            self._channels.close_stdin()

    def drain(self) -> None:
        """What was written before the end was told; a pipe that others still hold stays open."""
        while self._room_left() and self.serve():
            continue

    def _room_left(self) -> bool:
        return not self.is_too_much and self.sink_error is None

    def tell(self, message: Mapping[str, Json], blob: bytes = b"") -> None:
        """A frame to the interpreter; whatever does not fit now goes out as it is taken."""
        self._outgoing += encode(message, blob)
        self._flush()

    def _hear(self, name: Literal["stdout", "stderr"], descriptor: int) -> bool:
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        except OSError:  # a terminal whose last holder is gone
            return False
        if not chunk:
            return False
        if len(chunk) > self._output_room:
            self.is_too_much = True
        kept = chunk[: self._output_room]
        self._output_room -= len(kept)
        self.streams[name] += kept
        if kept and self._sink is not None:
            try:
                self._sink(name, kept)
            except Exception as error:  # noqa: BLE001  # whatever the caller's own code raises
                self._sink, self.sink_error = None, error
        return True

    def _converse(self) -> bool:
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
                    self.is_too_much = True
                    break
                self._understand(frame.message)
        except FrameTooLong:
            self.is_too_much = True
        except BadFrame:
            self.is_garbled = True
        self.is_too_much = self.is_too_much or self._channel_room < 0
        return not (self.is_too_much or self.is_garbled)

    def _understand(self, message: Mapping[str, Json]) -> None:
        if "done" in message:
            self.report = message
        elif "call" in message and len(self.calls) < _MAX_CALLS_WAITING:
            self.calls.append(message)

    def _flush(self) -> bool:
        """Whether more is to be sent: the pipe is full, and waited for while that is so."""
        channel = self._channels.channel
        if channel is None:
            return False
        try:
            while self._outgoing:
                del self._outgoing[: channel.write(self._outgoing[:_CHUNK_BYTES])]
        except BlockingIOError:
            if channel.requests not in self._servants:
                self.serve_when_ready(channel.requests, self._flush, to_write=True)
            return True
        except OSError:  # nobody is there to take it
            self._outgoing.clear()
        return False

    def _feed(self, descriptor: int) -> bool:
        try:
            self._stdin = self._stdin[write_pipe(descriptor, self._stdin[:_CHUNK_BYTES]) :]
        except BlockingIOError:
            return True
        except OSError:  # the program closed its input or ended: its right
            return False
        return len(self._stdin) > 0

"""The program's own descriptors while it runs: output comes in, bounded; input goes out.

One epoll set serves them all, so that waiting costs one registration whatever there is to wait for.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

from holdfast.core.types import OutputSink
from holdfast.sandbox.native.channels import Outside

_CHUNK_BYTES = 65_536


class Traffic:
    """What the code says and is told. Nothing in it is believed."""

    def __init__(
        self,
        channels: Outside,
        *,
        stdin: bytes | None,
        sink: OutputSink | None,
        max_output_bytes: int,
        max_result_bytes: int,
    ) -> None:
        self._channels = channels
        self._stdin = memoryview(stdin or b"")
        self._sink = sink
        self._output_room = max_output_bytes
        self._result_room = max_result_bytes
        self._poll = select.epoll()
        self._servants: dict[int, Callable[[], bool]] = {}
        self.streams = {"stdout": bytearray(), "stderr": bytearray()}
        self.result = bytearray()
        self.is_too_much = False
        self.sink_error: Exception | None = None
        """What the caller's own listener raised; the run has no reason to go on then."""
        self.serve_when_ready(channels.stdout, lambda: self._hear("stdout", channels.stdout))
        self.serve_when_ready(channels.stderr, lambda: self._hear("stderr", channels.stderr))
        self.serve_when_ready(channels.result, lambda: self._hear_result(channels.result))
        if channels.stdin is not None:
            stdin_fd = channels.stdin
            self.serve_when_ready(stdin_fd, lambda: self._tell(stdin_fd), to_write=True)

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
    def is_over(self) -> bool:
        """Everybody who could write is gone; input that nobody took is of no interest."""
        waiting = self._servants.keys() - {self._channels.stdin}
        return not waiting

    def serve_when_ready(
        self, descriptor: int, servant: Callable[[], bool], *, to_write: bool = False
    ) -> None:
        """`servant` works off what there is and says whether more may come."""
        self._servants[descriptor] = servant
        self._poll.register(descriptor, select.EPOLLOUT if to_write else select.EPOLLIN)

    def serve(self) -> None:
        for descriptor, _event in self._poll.poll(0):
            servant = self._servants[descriptor]
            if not servant():
                del self._servants[descriptor]
                self._poll.unregister(descriptor)
                if descriptor == self._channels.stdin:
                    self._channels.close_stdin()

    def _hear(self, name: Literal["stdout", "stderr"], descriptor: int) -> bool:
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return True
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

    def _hear_result(self, descriptor: int) -> bool:
        try:
            chunk = os.read(descriptor, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        if len(self.result) + len(chunk) > self._result_room:
            self.is_too_much = True
        else:
            self.result += chunk
        return bool(chunk)

    def _tell(self, descriptor: int) -> bool:
        try:
            self._stdin = self._stdin[os.write(descriptor, self._stdin[:_CHUNK_BYTES]) :]
        except BlockingIOError:
            return True
        except OSError:  # the program closed its input or ended: its right
            return False
        return len(self._stdin) > 0

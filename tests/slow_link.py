"""A link that is long and narrow: two TAP devices, and between them a process that keeps each frame
for as long as such a link would.

For kernels without the queueing discipline netem. The process makes both devices and moves one into
the network namespace of a host; the link ends with the process.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import struct
import subprocess
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

_TUNSETIFF, _IFF_TAP, _IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
_MAX_FRAME_BYTES = 65536
_MAX_QUEUED_BYTES = 256 * 1024
"""What does not fit is dropped, as by a router."""
READY = "ready"


@dataclass
class Direction:
    """Frames on their way to one end."""

    device: int
    delay_s: float
    bytes_per_s: float
    queued_bytes: int = 0
    _free_at_s: float = 0.0
    _frames: deque[tuple[float, bytes]] = field(default_factory=deque)

    def take(self, frame: bytes, now_s: float) -> None:
        if self.queued_bytes + len(frame) > _MAX_QUEUED_BYTES:
            return
        self._free_at_s = max(now_s, self._free_at_s) + len(frame) / self.bytes_per_s
        self._frames.append((self._free_at_s + self.delay_s, frame))
        self.queued_bytes += len(frame)

    def deliver(self, now_s: float) -> None:
        while self._frames and self._frames[0][0] <= now_s:
            _, frame = self._frames.popleft()
            self.queued_bytes -= len(frame)
            with suppress(OSError):  # the device is down, or its queue is full: the frame is lost
                os.write(self.device, frame)

    def next_s(self) -> float | None:
        return self._frames[0][0] if self._frames else None


def carry(devices: tuple[int, int], *, delay_s: float, bytes_per_s: float) -> None:
    """Carry frames between both devices, for ever."""
    left, right = (Direction(device, delay_s, bytes_per_s) for device in devices)
    towards = {left.device: right, right.device: left}
    with selectors.DefaultSelector() as waiting:
        for device in devices:
            os.set_blocking(device, False)
            waiting.register(device, selectors.EVENT_READ)
        while True:
            times = [each for each in (left.next_s(), right.next_s()) if each is not None]
            ready = waiting.select(max(0.0, min(times) - time.monotonic()) if times else None)
            now_s = time.monotonic()
            for key, _ in ready:
                with suppress(OSError):
                    towards[key.fd].take(os.read(key.fd, _MAX_FRAME_BYTES), now_s)
            left.deliver(now_s)
            right.deliver(now_s)


def open_tap(name: str) -> int:
    """A TAP device of this name; it is there until the descriptor is closed."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    request = struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI)
    fcntl.ioctl(device, _TUNSETIFF, request)
    return device


def main(outer: str, inner: str, space: str, delay_ms: str, kilobits_per_s: str) -> None:
    """`inner` becomes eth0 of the namespace; addresses and the bridge are for the caller."""
    devices = open_tap(outer), open_tap(inner)
    subprocess.run(["ip", "link", "set", inner, "netns", space, "name", "eth0"], check=True)
    print(READY, flush=True)
    carry(devices, delay_s=int(delay_ms) / 1000, bytes_per_s=int(kilobits_per_s) * 125)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Waits for descriptors without an event loop. `select` itself cannot: it knows only 1,024."""

from __future__ import annotations

import select
from typing import Protocol


class HasDescriptor(Protocol):
    """A socket, a line, a keeper."""

    def fileno(self) -> int: ...


def ready_to_read(*waits: HasDescriptor | int, timeout_s: float) -> set[int]:
    """The descriptors that are ready; empty when the time is over."""
    poll = select.poll()
    for wait in waits:
        poll.register(wait, select.POLLIN)
    return {descriptor for descriptor, _event in poll.poll(timeout_s * 1000)}

"""Servers that only tell where they were reached, or what they were sent, and for how long."""

from __future__ import annotations

import selectors
import socket
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

WAIT_S = 30.0
"""Long enough for a machine under load; nothing waits for it that works."""

Manner = Literal["greets", "keeps", "pours", "answers"]
"""Says its name and ends; takes everything and says nothing; sends without an end; or gives a
short answer to each piece that it gets."""

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
_PIECE = bytes(65_536)


@dataclass(frozen=True)
class _Place:
    name: str
    manner: Manner
    generation: int | None = None
    """Of a connection: how often `forget` was called before it; None for a listener."""


class Endpoints:
    """Any number of listening sockets, and one thread for all of their connections."""

    def __init__(self) -> None:
        self.met: list[str] = []
        """Where somebody has connected to, in order."""
        self.taken: Counter[str] = Counter()
        """Bytes that came, by place."""
        self.heard: dict[str, bytes] = {}
        """The bytes themselves, where the manner is to answer."""
        self.ended: Counter[str] = Counter()
        """Connections that are over, by place."""
        self.open_count = 0
        """Connections that are open, whenever they began."""
        self._generation = 0
        self._changed = threading.Condition()
        self._selector = selectors.DefaultSelector()
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._woken, selectors.EVENT_READ, None)
        self.port = 0
        self._thread = threading.Thread(target=self._run, daemon=True)

    def listen(self, name: str, address: str, manner: Manner, port: int = 0) -> int:
        """The port; before `begin` only."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        line = socket.socket(family)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            line.bind((address, port))
        except OSError:
            line.close()
            raise
        line.listen(1024)
        line.setblocking(False)
        self._selector.register(line, selectors.EVENT_READ, _Place(name, manner))
        return int(line.getsockname()[1])

    def begin(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._wake.send(b".")
            self._thread.join(WAIT_S)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # all of them are sockets
        self._selector.close()
        self._wake.close()

    def until(self, is_so: Callable[[], bool]) -> bool:
        """Wait for something that connections bring about; False: it did not come."""
        with self._changed:
            return self._changed.wait_for(is_so, WAIT_S)

    def forget(self) -> None:
        """Also connections that are still open: their end is not counted."""
        with self._changed:
            self._generation += 1
            self.met.clear()
            self.taken.clear()
            self.heard.clear()
            self.ended.clear()

    def _run(self) -> None:
        while True:
            for key, _events in self._selector.select():
                if key.data is None:
                    return
                place, line = key.data, key.fileobj
                assert isinstance(line, socket.socket)
                with self._changed:
                    if place.generation is None:
                        self._welcome(line, place)
                    else:
                        self._go_on(line, place)
                    self._changed.notify_all()

    def _welcome(self, listener: socket.socket, place: _Place) -> None:
        try:
            line, _ = listener.accept()
        except OSError:
            return
        line.setblocking(False)
        self.met.append(place.name)
        self.open_count += 1
        events = selectors.EVENT_READ
        if place.manner == "greets":
            text = place.name.encode()
            head = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text)
            with suppress(OSError):
                line.send(head + text)
                line.shutdown(socket.SHUT_WR)
        elif place.manner == "pours":
            events |= selectors.EVENT_WRITE
        mine = replace(place, generation=self._generation)
        self._selector.register(line, events, mine)

    def _go_on(self, line: socket.socket, place: _Place) -> None:
        try:
            data = line.recv(262_144)
            self.taken[place.name] += len(data)
            if data and place.manner == "answers":
                self.heard[place.name] = self.heard.get(place.name, b"") + data
                line.send(_ANSWER)
            if not data:
                self._end(line, place)
        except BlockingIOError:
            self._pour(line, place)
        except OSError:
            self._end(line, place)

    def _pour(self, line: socket.socket, place: _Place) -> None:
        try:
            if place.manner == "pours":
                line.send(_PIECE)
        except BlockingIOError:
            pass
        except OSError:
            self._end(line, place)

    def _end(self, line: socket.socket, place: _Place) -> None:
        self._selector.unregister(line)
        line.close()
        self.open_count -= 1
        if place.generation == self._generation:
            self.ended[place.name] += 1

"""Listening sockets that bound their open connections from the moment they are accepted.

A connection in its TLS handshake is no connection of the HTTP server yet: bounded there alone, one
client without an account could open handshakes until the process has no descriptor left for its
database and its audit log.
"""

from __future__ import annotations

import ipaddress
import socket
from collections import Counter
from typing import Any, Self

from cellwall.admin.accounts import address_subject

_MAX_SHARE = 0.5
"""Of all connections, for one address; addresses of loopback may be a proxy for everybody."""


class ConnectionPlaces:
    """The open connections of all listeners of a service. For one event loop."""

    def __init__(self, max_connections: int) -> None:
        self._max = max_connections
        self._max_same = max(1, int(max_connections * _MAX_SHARE))
        self._by_subject: Counter[str] = Counter()
        self._count = 0

    def take(self, subject: str) -> bool:
        """Whether there is a place; an empty `subject` is bounded with all others only."""
        if self._count >= self._max or (subject and self._by_subject[subject] >= self._max_same):
            return False
        self._count += 1
        self._by_subject[subject] += 1
        return True

    def give_back(self, subject: str) -> None:
        self._count -= 1
        self._by_subject[subject] -= 1
        if not self._by_subject[subject]:
            del self._by_subject[subject]


class _CountedSocket(socket.socket):
    """Gives its place back when it is closed."""

    places: ConnectionPlaces | None = None
    subject = ""

    def close(self) -> None:
        super().close()
        places, self.places = self.places, None
        if places is not None:
            places.give_back(self.subject)


class BoundedListener(socket.socket):
    """A listening socket; refuses connections beyond the bound."""

    places: ConnectionPlaces

    @classmethod
    def around(cls, listener: socket.socket, places: ConnectionPlaces) -> Self:
        """Takes the socket over."""
        made = cls(listener.family, listener.type, listener.proto, fileno=listener.detach())
        made.places = places
        return made

    def accept(self) -> tuple[socket.socket, Any]:
        """One refusal for each turn of the event loop: a flood must not keep it here."""
        accepted, address = super().accept()
        subject = _subject_of(address)
        if not self.places.take(subject):
            accepted.close()
            raise ConnectionAbortedError("too many connections")
        counted = _CountedSocket(self.family, self.type, self.proto, fileno=accepted.detach())
        counted.places, counted.subject = self.places, subject
        return counted, address


def _subject_of(address: Any) -> str:  # noqa: ANN401  # a tuple, or a text for AF_UNIX
    """Empty for this machine."""
    if not isinstance(address, tuple):
        return ""
    host = str(address[0]).partition("%")[0]
    return "" if ipaddress.ip_address(host).is_loopback else address_subject(host)

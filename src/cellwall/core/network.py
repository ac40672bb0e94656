"""The way out of a cell, in the words that egress, secrets, sandbox and runtime share."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Literal, Protocol

from cellwall.core.outcomes import Finding

PROXY_PORT = 3128
"""On 127.0.0.1 of the cell's own network namespace, in which nothing else listens at first."""
NETWORK_INSIDE = "/.cellwall/net"
"""Where a cell finds the files that its way out needs, such as a certificate authority."""

TRANSPARENT_NET = IPv4Network("198.18.0.0/15")
"""Of a cell's own: for programs that know no proxy, its DNS gives each name an address in it. The
range is for measurements between machines (RFC 2544) and is routed nowhere."""

Place = Literal["header", "query", "basic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Where the value of a secret may be put in, and nowhere else (SEC-3, SEC-5)."""

    host: str
    """A name, or `*.sub.example.com`, in the form of `--allow-domain` without port and path."""
    ports: tuple[int, ...] = (443,)
    methods: tuple[str, ...] = ()
    """None named: any."""
    path: str = "/"
    """A prefix that ends at a slash or at the path's end."""
    place: Place = "header"
    name: str = "authorization"
    """Of the header or the query's field; for `basic`: `username` or `password`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretUse:
    """A secret that was leased: code sees the placeholder, the proxy puts the value in."""

    name: str
    placeholder: str
    bindings: tuple[Binding, ...]
    reveal: Callable[[], bytes] = field(repr=False)
    """The value; raises `VaultError` once the lease has ended."""


class KnownValues(Protocol):
    """Values that must not leave: what the vault holds while it is unlocked (NET-5)."""

    def values(self) -> Mapping[str, bytes]:
        """Name and value of each; empty while locked."""


class CellNetwork(Protocol):
    """What the sandbox builds into one cell so that it has a way out.

    The cell's init makes the sockets inside its own namespace, before any code runs, and hands
    them out; whoever holds such a socket knows whose connections come in by it.
    """

    @property
    def env(self) -> Mapping[str, str]: ...

    @property
    def files(self) -> Mapping[str, bytes]:
        """Name below NETWORK_INSIDE -> content."""

    @property
    def ports(self) -> tuple[int, ...]:
        """For programs that know no proxy: ports on which any name of the cell's DNS answers."""

    def noticed(self) -> Sequence[Finding]:
        """What was refused since this was asked last; for whoever reads the outcome."""

    def adopt(self, listeners: Mapping[str, socket.socket]) -> None:
        """Own the sockets (`proxy`, `dns`, `tcp:443` …) and serve what comes in by them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressContext:
    """Whose way out it is; stands in the record with each connection."""

    action_id: str
    principal: str
    interface: str
    session_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a fetch brought back. Untrusted, whatever its form."""

    url: str
    """Where it came from in the end, after redirects."""
    status: int
    content_type: str
    text: str
    body: bytes = field(repr=False)
    is_truncated: bool = False
    redirects: tuple[str, ...] = ()

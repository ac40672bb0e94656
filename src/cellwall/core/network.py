"""Types of a cell's egress, shared by egress, secrets, sandbox and runtime."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import IO, Literal, Protocol

from cellwall.core.errors import CellwallError
from cellwall.core.outcomes import Finding

PROXY_PORT = 3128
"""On 127.0.0.1 of the cell's own network namespace, where nothing else listens at first."""
NETWORK_INSIDE = "/.cellwall/net"
"""The directory in a cell with egress files, such as a certificate authority."""

TRANSPARENT_NET = IPv4Network("198.18.0.0/15")
"""For programs without proxy support, the cell's DNS maps each name to an address in this range. It
is reserved for benchmarks (RFC 2544) and not routed."""

Place = Literal["header", "query", "basic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The only place where the proxy may insert the value of a secret (SEC-3, SEC-5)."""

    host: str
    """A name, or `*.sub.example.com`, in the form of `--allow-domain` without port and path."""
    ports: tuple[int, ...] = (443,)
    methods: tuple[str, ...] = ()
    """Empty: any method."""
    path: str = "/"
    """A prefix that ends at a slash or at the end of the path."""
    place: Place = "header"
    name: str = "authorization"
    """The header or query field; for `basic`: `username` or `password`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretUse:
    """A leased secret: code sees the placeholder, the proxy inserts the value."""

    name: str
    placeholder: str
    bindings: tuple[Binding, ...]
    reveal: Callable[[], bytes] = field(repr=False)
    """The value; raises `VaultError` once the lease has ended."""


class KnownValues(Protocol):
    """Values that must not leave: those of the unlocked vault (NET-5)."""

    def values(self) -> Mapping[str, bytes]:
        """Name and value of each; empty while locked."""


class ContentStream(Protocol):
    """A search in one body, URL or header that comes in pieces."""

    def feed(self, data: bytes) -> str | None:
        """The name of what these bytes complete, or of what was found before."""


class ContentCheck(Protocol):
    """Content other than secrets that must not leave: personal data, registered texts."""

    @property
    def kind(self) -> Literal["personal", "canary"]: ...

    @property
    def is_active(self) -> bool:
        """Whether there is anything to look for now; then TLS is intercepted."""

    def stream(self) -> ContentStream: ...


Scheme = Literal["https", "http"]
ReportRefusal = Callable[[CellwallError], None]
"""Records a refusal in the audit log and in the findings of the action."""


@dataclass(frozen=True, slots=True)
class HostRequest:
    """A request to a `HostService`, as the proxy has parsed and authorized it. No body."""

    method: str
    host: str
    path: str
    """With the query, as sent."""
    headers: Sequence[tuple[bytes, bytes]] = ()
    """Names in lower case."""
    scheme: Scheme = "https"


@dataclass(frozen=True, slots=True)
class HostReply:
    """The answer; `stream` is a file, open for reading, and the caller closes it."""

    status: int
    content_type: str
    body: bytes = b""
    stream: IO[bytes] | None = None
    start: int = 0
    """Where in the stream the body begins."""
    size: int = 0
    """Of the body, from whichever source."""
    headers: tuple[tuple[str, str], ...] = ()

    def close(self) -> None:
        """Close the file."""
        if self.stream is not None:
            self.stream.close()


AnswerRequest = Callable[[HostRequest], Awaitable[HostReply]]


class HostService(Protocol):
    """Answers for some hosts in this process, in place of the servers of these names.

    Within a session that has the service, nothing else is reached under these names.
    """

    @property
    def hosts(self) -> frozenset[str]: ...

    @property
    def offered(self) -> Mapping[str, bytes]:
        """Path below the home of a new cell -> content, for programs that use the service."""

    def accept(self, context: EgressContext, report: ReportRefusal) -> AnswerRequest | None:
        """What answers the requests of one action, on the loop of the proxy; None: the session
        has ended, and nothing is served."""

    async def close(self) -> None:
        """Release connections of its own; on the loop on which requests were answered."""


class CellNetwork(Protocol):
    """The network of one cell.

    The cell's init creates the sockets in its own namespace before any code runs, and passes them
    out: the holder of a socket knows which cell its connections come from.
    """

    @property
    def env(self) -> Mapping[str, str]: ...

    @property
    def files(self) -> Mapping[str, bytes]:
        """Name below NETWORK_INSIDE -> content."""

    @property
    def offered(self) -> Mapping[str, bytes]:
        """Path below the home -> content: files that programs can do without."""

    @property
    def ports(self) -> tuple[int, ...]:
        """For programs without proxy support: ports on which every DNS name answers."""

    def take_findings(self) -> Sequence[Finding]:
        """Connections refused since the last call, for the outcome."""

    @property
    def usage(self) -> EgressUsage:
        """Connections to servers and their bytes so far."""

    def take_sent_bytes(self) -> int:
        """Bytes sent to servers since the last call, by whatever process of the sandbox."""

    def adopt(self, listeners: Mapping[str, socket.socket]) -> None:
        """Take over the sockets (`proxy`, `dns`, `tcp:443` …) and serve their connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressContext:
    """The origin of a connection, for its audit record."""

    action_id: str
    principal: str
    interface: str
    session_id: str = ""
    client: str = ""
    """The name of a client that runs outside of any sandbox (NET-8)."""


class DestinationConsent(Protocol):
    """People who are asked about destinations that no rule names (NET-9)."""

    async def ask(
        self,
        context: EgressContext,
        *,
        host: str,
        port: int,
        method: str,
        withdraw: Callable[[str], Future[None]],
    ) -> None:
        """Return once a person has allowed the destination for the action of `context`, on the
        loop of egress; raises `EgressRefused` otherwise. When the action ends, `withdraw` is called
        with its id, on another thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressUsage:
    """The connections to servers of one session, and the bytes sent and received."""

    connections: int
    bytes_up: int
    bytes_down: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceRequest:
    """One request of the runtime itself, to a connected account. Placeholders stand for secrets."""

    method: str
    url: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceResponse:
    """The response to a `ServiceRequest`, without the secrets that the request has sent."""

    status: int
    body: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The result of a fetch. Untrusted, whatever its form."""

    url: str
    """The final URL after redirects."""
    status: int
    content_type: str
    text: str
    body: bytes = field(repr=False)
    is_truncated: bool = False
    redirects: tuple[str, ...] = ()

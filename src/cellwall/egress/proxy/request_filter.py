"""The filter for every request and response, for all versions of HTTP.

The steps of each request: (1) parse strictly, (2) authorize host, method, path and headers,
(3) scan for secrets, (4) inject leased secrets, (5) record, (6) send to the server, (7) return the
response without the injected secrets. Steps 1, 6 and 7 depend on the version of HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from cellwall.core.errors import EgressRefused
from cellwall.core.types import Json
from cellwall.egress.destinations.allowlist import normal_path
from cellwall.egress.destinations.header_rules import HeaderRule
from cellwall.egress.inspection.body_filters import BodyScan, ResponseCleaner, clean_headers
from cellwall.egress.inspection.injection import OutgoingHead, inject_secrets
from cellwall.egress.protocols.http1_framing import Fields, Headers, bad_request, fold_name
from cellwall.egress.protocols.http_heads import HttpRequest, TargetForm
from cellwall.egress.proxy.audit_events import LeakReporter
from cellwall.egress.proxy.client_connection import ClientConnection
from cellwall.egress.proxy.session import Destination, EgressSession

_TLS_PORT = 443
_NO_BODY = frozenset({204, 304})
_ENCODING_HEADERS = frozenset({b"accept-encoding", b"sec-websocket-extensions"})


@dataclass(frozen=True, slots=True)
class FilteredResponse:
    """The head of a response as the cell gets it."""

    headers: Fields
    cleaner: ResponseCleaner | None
    """For the body, and to be closed; None: the body passes unchanged."""
    has_body: bool
    """Whether the response can have a body."""


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Steps 2 to 5 and 7 for the requests of one client connection."""

    _session: EgressSession
    _connection: ClientConnection
    _fixed: Destination | None
    """The only destination; None: each request names its own (a forward proxy)."""
    _is_tls: bool

    async def authorize(self, request: HttpRequest) -> Destination:
        """The destination of a request, if the rules allow it."""
        # (2)
        destination = await self._destination(request)
        path = normal_path(request.path.partition("?")[0])
        for method in request.methods:
            if not any(rule.allows(method, path) for rule in destination.rules):
                raise EgressRefused(
                    f"no rule allows {method[:32]} for this path of "
                    f"{destination.host}:{destination.port}",
                    hint="To allow it, use `--allow-domain 'METHOD host/path'`.",
                    code="CW-NOT-ALLOWED",
                )
        for bound in _concerned(destination, request):
            bound.check(request.headers)
        # (3) As the cell has sent it: secrets that are injected later may leave.
        await self._session.shared.known.check_head(
            request.method,
            request.path,
            request.headers,
            leak_reporter=self.leak_reporter(request),
            share=self._session.share,
        )
        return destination

    def leak_reporter(self, request: HttpRequest) -> LeakReporter:
        """The leak reporter for a request."""
        return self._session.leak_reporter(request.host, request.port, via=self._connection.via)

    async def _destination(self, request: HttpRequest) -> Destination:
        fixed = self._fixed
        if fixed is None and request.form is not TargetForm.ABSOLUTE:
            raise bad_request("a proxy request needs an absolute URL")
        if fixed is not None and (request.host, request.port) != (fixed.authority, fixed.port):
            raise EgressRefused(
                "the request names another host than its connection",
                hint="Open a connection for each host.",
                code="CW-HOST-MISMATCH",
            )
        if not self._is_tls and request.port == _TLS_PORT:
            raise EgressRefused(
                "port 443 accepts TLS only", hint="Use an https URL.", code="CW-NOT-TLS"
            )
        return await self._session.find(
            request.host, request.port, via=self._connection.via, method=request.method
        )

    async def prepare(
        self, request: HttpRequest, destination: Destination, headers: Fields
    ) -> OutgoingHead:
        """The head to send; `headers` without hop-by-hop headers."""
        # A leak on another stream may have closed egress since the authorization.
        self._session.leak_limit.check_open()
        bounds = _concerned(destination, request)
        for bound in bounds:
            # `Connection` may have removed a header that the rule requires.
            bound.check_leaving(headers)
        for bound in bounds:
            headers = bound.put(headers)
        if not self._session.secrets:
            return OutgoingHead(request.path, headers)
        # (4)
        outgoing = self._inject(request, headers, destination)
        if destination.secrets:
            # Before the request is sent: the lease may end before the response.
            self._session.note_sent_values(destination, outgoing.sent_values)
            outgoing = replace(outgoing, headers=_for_searchable_response(outgoing.headers))
        # (5)
        await self._record(request, destination, outgoing)
        return outgoing

    async def _record(
        self, request: HttpRequest, destination: Destination, outgoing: OutgoingHead
    ) -> None:
        facts: dict[str, Json] = {
            "host": destination.host,
            "port": destination.port,
            "method": request.method,
            "via": self._connection.via,
        }
        for name in outgoing.used:
            await self._session.audit.write({"event": "secret-used", "secret": name, **facts})
        for name in outgoing.stayed:
            self._session.audit.record_once(
                {"event": "placeholder-stayed", "secret": name, **facts}
            )

    def _inject(
        self, request: HttpRequest, headers: Fields, destination: Destination
    ) -> OutgoingHead:
        first, *others = (
            inject_secrets(
                headers,
                self._session.secrets,
                host=destination.host,
                port=destination.port,
                method=method,
                path=request.path,
                is_tls=self._is_tls,
            )
            for method in request.methods
        )
        if any(other != first for other in others):
            raise EgressRefused(
                "a header overrides the method, and the secret is not bound to that method",
                hint="Send the request with the intended method.",
                code="CW-SECRET-METHOD",
            )
        return first

    def filter_response(
        self, request: HttpRequest, destination: Destination, status: int, headers: Headers
    ) -> FilteredResponse:
        """(7) for the head of a response; `headers` with their original case."""
        self._session.leak_limit.check_open()
        small = [(name.lower(), value) for name, value in headers]
        has_body = request.method != "HEAD" and status not in _NO_BODY
        echoes = self._session.echo_index_for(destination)
        if echoes is None:
            return FilteredResponse(small, None, has_body)
        # Also for a response without a body: the server could send one all the same.
        cleaner = ResponseCleaner(small if has_body else (), echoes, self._session.share)
        return FilteredResponse(
            clean_headers(headers, echoes, has_body=has_body), cleaner, has_body
        )

    def filter_trailers(self, destination: Destination, trailers: Fields) -> Fields:
        """(7) for trailers."""
        echoes = self._session.echo_index_for(destination)
        return trailers if echoes is None else clean_headers(trailers, echoes, has_body=False)

    def filter_text(self, destination: Destination, text: bytes) -> bytes:
        """(7) for a single text, such as the reason phrase."""
        echoes = self._session.echo_index_for(destination)
        return text if echoes is None else echoes.clean(text)

    def record_echoes(self, cleaner: ResponseCleaner, destination: Destination) -> None:
        """Record the secrets that were removed from a response."""
        for name in cleaner.removed_names:
            self._session.audit.record_once(
                {"event": "echo-removed", "secret": name, "host": destination.host}
            )


def _concerned(destination: Destination, request: HttpRequest) -> list[HeaderRule]:
    if not destination.header_rules:
        return []
    path = normal_path(request.path.partition("?")[0])
    return [bound for bound in destination.header_rules if bound.concerns(request.methods, path)]


def _for_searchable_response(headers: Fields) -> Fields:
    """Request headers for a response that can be searched.

    Complete: a value that is fetched in ranges is not found (`Range`, `X-Ms-Range`,
    `Request_Range`).
    """
    others = [
        (name, value)
        for name, value in headers
        if name not in _ENCODING_HEADERS
        and (not fold_name(name).endswith(b"range") or name == b"content-range")
    ]
    return [*others, (b"accept-encoding", b"identity")]


_GATHER_BYTES = 64 * 1024
_CHUNKS_PER_TURN = 64


class BodySource(Protocol):
    """The source of a request body, for all versions of HTTP."""

    def body_now(self) -> bytes | None:
        """The next parsed piece, empty at the end; None if none has arrived."""

    async def catch_up(self) -> bool:
        """Parse bytes that have arrived; False if all are parsed."""

    async def body(self) -> bytes:
        """The next piece of the body; empty at the end."""

    def acknowledge(self) -> None:
        """Release flow control for the pieces that were sent on."""


class BodySink(Protocol):
    """The target of a request body."""

    async def put(self, data: bytes, *, is_end: bool) -> None: ...

    def abort_upload(self) -> None:
        """Abort, so that the server does not take a partial request for a complete one."""


class RequestUpload:
    """A request body that is scanned before it is sent (NET-5). To be closed in any case.

    Bytes that have arrived are sent with the head; the rest follows, its tail held back.
    """

    def __init__(
        self,
        client: BodySource,
        session: EgressSession,
        request: HttpRequest,
        leak_reporter: LeakReporter,
    ) -> None:
        self.is_complete = False
        """Whether the body has arrived completely."""
        self.is_sent = False
        """Whether the rest after the head has been sent."""
        self._client = client
        self._session = session
        self._request = request
        self._leak_reporter = leak_reporter
        self._scan: BodyScan | None = None
        self._held_back = b""

    async def gather(self) -> None:
        """Collect the bytes that have arrived: mostly the whole body."""
        data, is_end = await self._gather_available(b"")
        if data:
            await self._scan_piece(data)
        if is_end:
            self._end()

    async def _gather_available(self, first: bytes) -> tuple[bytes, bool]:
        """The available bytes in one piece, and whether the body ends with them.

        A scan of each of thousands of tiny chunks would block the loop.
        """
        pieces, size = [first], len(first)
        while size < _GATHER_BYTES:
            piece = self._client.body_now()
            if piece is None and await self._client.catch_up():
                continue
            if not piece:
                return b"".join(pieces), piece is not None
            pieces.append(piece)
            size += len(piece)
            if len(pieces) % _CHUNKS_PER_TURN == 0:
                await self._session.share.wait_turn()
        return b"".join(pieces), False

    def first(self) -> tuple[bytes, bool]:
        """The bytes to send with the head, and whether they are all; repeatable for a retry."""
        if self.is_complete:
            return self._held_back, True
        return self._released(), False

    async def pump(self, server: BodySink) -> None:
        """Send the rest as it arrives."""
        try:
            self._client.acknowledge()
            is_end = False
            while not is_end and (piece := await self._client.body()):
                data, is_end = await self._gather_available(piece)
                await self._scan_piece(data)
                if released := self._released():
                    await server.put(released, is_end=False)
                # Backpressure: only now may more arrive. Also for bytes that are held back, or
                # the bytes they wait for would have no window.
                self._client.acknowledge()
            self._end()
        except BaseException:
            server.abort_upload()
            raise
        await server.put(self._held_back, is_end=True)
        self.is_sent = True

    async def _scan_piece(self, piece: bytes) -> None:
        if self._scan is None:
            self._scan = BodyScan(
                self._request.headers,
                self._session.shared.known.index(),
                leak_reporter=self._leak_reporter,
                share=self._session.share,
            )
        await self._scan.look(piece)
        self._held_back += piece

    def _end(self) -> None:
        if self._scan is not None:
            self._scan.end()
        self.is_complete = True

    def close(self) -> None:
        if self._scan is not None:
            self._scan.close()

    def _released(self) -> bytes:
        hold_bytes = 0 if self._scan is None else self._scan.hold_bytes
        if len(self._held_back) <= hold_bytes:
            return b""
        cut = len(self._held_back) - hold_bytes
        data, self._held_back = self._held_back[:cut], self._held_back[cut:]
        return data

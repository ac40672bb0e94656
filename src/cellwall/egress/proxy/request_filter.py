"""What every request and its answer go through, by whatever version of HTTP they come.

The steps of each request: (1) read strictly, (2) judge host, method, path and headers, (3) look for
what must not leave, (4) put leased secrets in, (5) record, (6) ask the server, (7) give the answer
back without the secrets in it. The first and the last two are those of its version of HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from cellwall.core.errors import EgressRefused
from cellwall.core.types import Json
from cellwall.egress.destinations.allowlist import normal_path
from cellwall.egress.destinations.header_rules import HeaderRule
from cellwall.egress.inspection.body_filters import BodyScan, ResponseCleaner, clean_headers
from cellwall.egress.inspection.injection import InjectedHead, inject_secrets
from cellwall.egress.protocols.http1_framing import bad_request, fold_name
from cellwall.egress.protocols.http1_requests import Form, Request
from cellwall.egress.proxy.audit_events import LeakReporter
from cellwall.egress.proxy.client_connection import ClientConnection
from cellwall.egress.proxy.session import Destination, Session

Headers = Sequence[tuple[bytes, bytes]]
Fields = list[tuple[bytes, bytes]]

_TLS_PORT = 443
_NO_BODY = frozenset({204, 304})
_OF_PACKING = frozenset({b"accept-encoding", b"sec-websocket-extensions"})


@dataclass(frozen=True, slots=True)
class FilteredResponse:
    """The head of an answer as the code gets to see it."""

    headers: Fields
    cleaner: ResponseCleaner | None
    """For the body, and to be closed; None: it passes as it is."""
    has_body: bool
    """Whether it can have one."""


@dataclass(frozen=True, slots=True)
class OutgoingHead:
    """The head of a request as it leaves. `repr` shows none of it."""

    path: str = field(repr=False)
    headers: Fields = field(repr=False)


class RequestFilter:
    """The steps 2 to 5 and 7 for the requests of one client connection."""

    def __init__(
        self,
        session: Session,
        connection: ClientConnection,
        *,
        fixed: Destination | None,
        is_tls: bool,
    ) -> None:
        """`fixed` is the one host it is for; without it each request names its own (a proxy's)."""
        self._session = session
        self._connection = connection
        self._fixed = fixed
        self._is_tls = is_tls

    def authorize(self, request: Request) -> Destination:
        """Where it may go."""
        # (2)
        destination = self._destination(request)
        path = normal_path(request.path.partition("?")[0])
        for method in request.methods:
            if not any(rule.allows(method, path) for rule in destination.rules):
                raise EgressRefused(
                    f"no rule allows {method[:32]} for this path of "
                    f"{destination.host}:{destination.port}",
                    hint="Allow it with `--allow-domain 'METHOD host/path'` if it should be.",
                    code="CW-NOT-ALLOWED",
                )
        for bound in _concerned(destination, request):
            bound.check(request.headers)
        # (3) As the code has sent it: what is put in below was allowed to leave.
        self._session.shared.known.check_head(
            request.method, request.path, request.headers, self.leak_reporter(request)
        )
        return destination

    def leak_reporter(self, request: Request) -> LeakReporter:
        """For what leaves with it."""
        return self._session.leak_reporter(request.host, request.port, via=self._connection.via)

    def _destination(self, request: Request) -> Destination:
        fixed = self._fixed
        if fixed is None and request.form is not Form.ABSOLUTE:
            raise bad_request("a proxy is asked with a whole URL")
        if fixed is not None and (request.host, request.port) != (fixed.authority, fixed.port):
            raise EgressRefused(
                "the request is for another host than its connection",
                hint="Open a connection for each host.",
                code="CW-HOST-MISMATCH",
            )
        if not self._is_tls and request.port == _TLS_PORT:
            raise EgressRefused(
                "port 443 is reached with TLS only", hint="Use an https URL.", code="CW-NOT-TLS"
            )
        return self._session.match_rules(request.host, request.port, via=self._connection.via)

    async def prepare(
        self, request: Request, destination: Destination, headers: Fields
    ) -> OutgoingHead:
        """Its head as it leaves; `headers` without those that are meant for us."""
        # What was found since it was judged has closed the way for it, too.
        self._session.leak_limit.check_open()
        path = request.path
        bounds = _concerned(destination, request)
        for bound in bounds:
            # `Connection` may have named, and so taken away, what the server has to get.
            bound.check_leaving(headers)
        for bound in bounds:
            headers = bound.put(headers)
        if self._session.secrets:
            # (4)
            injected = self._inject(request, headers, destination)
            path, headers = injected.path, injected.headers
            if destination.secrets:
                # Before anything leaves: by the time of the answer the lease may be over.
                self._session.told(destination, injected.told)
                headers = _answerable(headers)
            # (5)
            await self._record(request, destination, injected)
        return OutgoingHead(path, headers)

    async def _record(
        self, request: Request, destination: Destination, injected: InjectedHead
    ) -> None:
        facts: dict[str, Json] = {
            "host": destination.host,
            "port": destination.port,
            "method": request.method,
            "via": self._connection.via,
        }
        for name in injected.used:
            await self._session.audit.write({"event": "secret-used", "secret": name, **facts})
        for name in injected.stayed:
            self._session.audit.record_once(
                {"event": "placeholder-stayed", "secret": name, **facts}
            )

    def _inject(self, request: Request, headers: Fields, destination: Destination) -> InjectedHead:
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
                "a header gives the request another method, for which the secret is not bound",
                hint="Send the request with the method that is meant.",
                code="CW-SECRET-METHOD",
            )
        return first

    def filter_response(
        self, request: Request, destination: Destination, status: int, headers: Headers
    ) -> FilteredResponse:
        """(7) for an answer's head; `headers` as they were written."""
        self._session.leak_limit.check_open()
        small = [(name.lower(), value) for name, value in headers]
        has_body = request.method != "HEAD" and status not in _NO_BODY
        echoes = self._session.echo_index_for(destination)
        if echoes is None:
            return FilteredResponse(small, None, has_body)
        # Also for what cannot have a body: that it has none is the server's to keep.
        cleaner = ResponseCleaner(small if has_body else (), echoes, self._session.share)
        return FilteredResponse(
            clean_headers(headers, echoes, has_body=has_body), cleaner, has_body
        )

    def filter_trailers(self, destination: Destination, trailers: Fields) -> Fields:
        """(7) for what follows a body."""
        echoes = self._session.echo_index_for(destination)
        return trailers if echoes is None else clean_headers(trailers, echoes, has_body=False)

    def filter_text(self, destination: Destination, text: bytes) -> bytes:
        """(7) for a text that stands by itself."""
        echoes = self._session.echo_index_for(destination)
        return text if echoes is None else echoes.cleaned(text)

    def record_echoes(self, cleaner: ResponseCleaner, destination: Destination) -> None:
        """What was taken out of an answer goes on record."""
        for name in cleaner.found:
            self._session.audit.record_once(
                {"event": "echo-removed", "secret": name, "host": destination.host}
            )


def _concerned(destination: Destination, request: Request) -> list[HeaderRule]:
    if not destination.header_rules:
        return []
    path = normal_path(request.path.partition("?")[0])
    return [bound for bound in destination.header_rules if bound.concerns(request.methods, path)]


def _answerable(headers: Fields) -> Fields:
    """Asks for an answer that can be looked through.

    Whole: a value that is fetched in parts is not met (`Range`, `X-Ms-Range`, `Request_Range`).
    """
    kept = [
        (name, value)
        for name, value in headers
        if name not in _OF_PACKING
        and (not fold_name(name).endswith(b"range") or name == b"content-range")
    ]
    return [*kept, (b"accept-encoding", b"identity")]


_GATHER_BYTES = 64 * 1024
_CHUNKS_PER_TURN = 64


class BodySource(Protocol):
    """Where a body comes from, by whatever version of HTTP."""

    def body_now(self) -> bytes | None:
        """The next piece that has come already, empty at the end; None: one has to wait for it."""

    async def catch_up(self) -> bool:
        """Read on in what has come already; False: that was all of it."""

    async def body(self) -> bytes:
        """The next piece; empty at the end."""

    def done(self) -> None:
        """What was taken until now has gone on its way: as much may come."""


class BodySink(Protocol):
    """Where it goes to."""

    async def put(self, data: bytes, *, is_end: bool) -> None: ...

    def cut(self) -> None:
        """The server must not take what it has of a request for the whole."""


class RequestUpload:
    """What has come goes with the head in one piece; the rest follows, its end held back.

    To be closed, whatever becomes of it.
    """

    def __init__(
        self, client: BodySource, session: Session, request: Request, leak_reporter: LeakReporter
    ) -> None:
        self.is_complete = False
        """Whether all of it has come."""
        self.is_sent = False
        """Whether what came after the head has gone too."""
        self._client = client
        self._session = session
        self._request = request
        self._leak_reporter = leak_reporter
        self._scan: BodyScan | None = None
        self._held = b""

    async def gather(self) -> None:
        """What has come already: mostly all of it."""
        data, is_end = await self._come(b"")
        if data:
            await self._take(data)
        if is_end:
            self._end()

    async def _come(self, first: bytes) -> tuple[bytes, bool]:
        """What is there, in one piece, and whether it is the end of the body.

        To look at each of thousands of tiny chunks by itself would stop everybody else.
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
        """To send with the head, and whether that is all; the same if it has to be sent again."""
        if self.is_complete:
            return self._held, True
        return self._released(), False

    async def pump(self, server: BodySink) -> None:
        """The rest, as it comes."""
        try:
            self._client.done()
            is_end = False
            while not is_end and (piece := await self._client.body()):
                data, is_end = await self._come(piece)
                await self._take(data)
                if released := self._released():
                    await server.put(released, is_end=False)
                # Not before: who sends faster than the server takes has to wait. But also for
                # what is held back here, or the rest that it waits for would have no room.
                self._client.done()
            self._end()
        except BaseException:
            server.cut()
            raise
        await server.put(self._held, is_end=True)
        self.is_sent = True

    async def _take(self, piece: bytes) -> None:
        if self._scan is None:
            self._scan = BodyScan(
                self._request.headers,
                self._session.shared.known.index(),
                leak_reporter=self._leak_reporter,
                share=self._session.share,
            )
        await self._scan.look(piece)
        self._held += piece

    def _end(self) -> None:
        if self._scan is not None:
            self._scan.end()
        self.is_complete = True

    def close(self) -> None:
        if self._scan is not None:
            self._scan.close()

    def _released(self) -> bytes:
        hold_bytes = 0 if self._scan is None else self._scan.hold_bytes
        if len(self._held) <= hold_bytes:
            return b""
        cut = len(self._held) - hold_bytes
        data, self._held = self._held[:cut], self._held[cut:]
        return data

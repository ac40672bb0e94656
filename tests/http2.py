"""Both sides of HTTP/2 on blocking sockets, on h2 itself: a plain server, and a client that tests
can make misbehave.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import h2.config
import h2.connection
import h2.events
import h2.exceptions
from h2.settings import SettingCodes

Header = tuple[bytes, bytes]
WAIT_S = 20.0
_GOAWAY = 7


@dataclass(slots=True)
class Got:
    """One request as the server got it."""

    stream_id: int
    headers: list[Header]
    body: bytes = b""
    has_trailers: bool = False

    def __getitem__(self, name: str) -> bytes | None:
        return dict(self.headers).get(name.encode())


@dataclass(slots=True, kw_only=True)
class Reply:
    status: int = 200
    headers: Sequence[Header] = ()
    body: bytes = b""
    trailers: Sequence[Header] = ()
    early: bool = False
    """Before the end of the request."""


def told(got: Got) -> Reply:
    """An answer that tells what came."""
    shown = {
        "method": (got[":method"] or b"").decode(),
        "path": (got[":path"] or b"").decode(),
        "authority": (got[":authority"] or b"").decode(),
        "headers": [
            [name.decode(), value.decode("latin-1")]
            for name, value in got.headers
            if not name.startswith(b":")
        ],
        "body": got.body.decode("latin-1"),
    }
    body = json.dumps(shown).encode()
    return Reply(headers=[(b"content-type", b"application/json")], body=body)


class ServerSide:
    """One connection of a server."""

    def __init__(self, sock: socket.socket, reply: Callable[[Got], Reply], seen: list[Got]) -> None:
        self.sock = sock
        self._reply = reply
        self._seen = seen
        self._requests: dict[int, Got] = {}
        self._waiting: dict[int, tuple[bytes, Sequence[Header]]] = {}
        self.resets: list[int] = []
        self._gone: set[int] = set()
        config = h2.config.H2Configuration(client_side=False, header_encoding=None)
        self.h2 = h2.connection.H2Connection(config)
        self.h2.initiate_connection()

    def run(self) -> None:
        """Until the other side ends."""
        with suppress(OSError, h2.exceptions.ProtocolError):
            self.sock.sendall(self.h2.data_to_send())
            while data := self.sock.recv(65536):
                events = self.h2.receive_data(data)
                self._gone |= {e.stream_id for e in events if isinstance(e, h2.events.StreamReset)}
                for event in events:
                    self.on(event)
                self._go_on()
                self.sock.sendall(self.h2.data_to_send())

    def on(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived():
                got = self._requests[event.stream_id] = Got(event.stream_id, list(event.headers))
                self.begun(got)
            case h2.events.DataReceived():
                self._requests[event.stream_id].body += event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.TrailersReceived():
                self._requests[event.stream_id].has_trailers = True
            case h2.events.StreamEnded():
                self.ended(self._requests.pop(event.stream_id))
            case h2.events.StreamReset():
                self._waiting.pop(event.stream_id, None)
                self.resets.append(event.stream_id)

    def begun(self, got: Got) -> None:
        """A head has come."""

    def ended(self, got: Got) -> None:
        """A whole request has come."""
        self._seen.append(got)
        reply = self._reply(got)
        if got.stream_id not in self._gone:  # a reset that came together with the request
            self.answer(got.stream_id, reply)

    def answer(self, stream_id: int, reply: Reply) -> None:
        headers = [(b":status", str(reply.status).encode()), *reply.headers]
        is_end = not reply.body and not reply.trailers
        self.h2.send_headers(stream_id, headers, end_stream=is_end)
        if not is_end:
            self._waiting[stream_id] = reply.body, reply.trailers

    def _go_on(self) -> None:
        """As much as there is room for."""
        for stream_id, (body, trailers) in tuple(self._waiting.items()):
            while body:
                room = self.h2.local_flow_control_window(stream_id)
                piece = body[: min(room, self.h2.max_outbound_frame_size)]
                if not piece:
                    break
                self.h2.send_data(stream_id, piece)
                body = body[len(piece) :]
            self._waiting[stream_id] = body, trailers
            if not body:
                del self._waiting[stream_id]
                if trailers:
                    self.h2.send_headers(stream_id, list(trailers), end_stream=True)
                else:
                    self.h2.end_stream(stream_id)


def serving(
    reply: Callable[[Got], Reply] = told, seen: list[Got] | None = None
) -> Callable[[socket.socket], None]:
    """What a server does with each connection."""
    kept = [] if seen is None else seen
    return lambda sock: ServerSide(sock, reply, kept).run()


@dataclass(slots=True)
class Answer:
    """What a client got on one stream."""

    status: int = 0
    headers: list[Header] = field(default_factory=list)
    body: bytes = b""
    trailers: list[Header] = field(default_factory=list)
    reset: int | None = None
    is_whole: bool = False

    @property
    def refusal(self) -> tuple[int, str]:
        """Status and code of an answer that refuses."""
        code = str(json.loads(self.body)["error"]["code"])
        assert (b"x-cellwall-refused", code.encode()) in self.headers
        return self.status, code

    @property
    def told(self) -> dict[str, object]:
        assert self.status == 200, (self.status, self.body)
        found: dict[str, object] = json.loads(self.body)
        return found


class Client:
    """A client inside, whose frames nobody checks before they leave."""

    def __init__(self, sock: socket.socket, authority: str, *, window: int | None = None) -> None:
        self.sock = sock
        self.authority = authority
        config = h2.config.H2Configuration(
            client_side=True,
            header_encoding=None,
            validate_outbound_headers=False,
            normalize_outbound_headers=False,
        )
        self.h2 = h2.connection.H2Connection(config)
        if window is not None:
            self.h2.local_settings[SettingCodes.INITIAL_WINDOW_SIZE] = window
            self.h2.local_settings.acknowledge()
        self.h2.initiate_connection()
        self.answers: dict[int, Answer] = {}
        self.goodbye: int | None = None
        self.pushes = 0
        self.is_over = False
        self._came = b""
        self.flush()

    def head(self, path: str = "/", *headers: Header, method: str = "GET") -> list[Header]:
        return [
            (b":method", method.encode()),
            (b":scheme", b"https"),
            (b":authority", self.authority.encode()),
            (b":path", path.encode()),
            *headers,
        ]

    def flush(self) -> None:
        self.say(self.h2.data_to_send())

    def say(self, data: bytes) -> None:
        """Bytes as they are. That the other side has ended shows when it is read."""
        with suppress(OSError):
            self.sock.sendall(data)

    def begin(self, headers: list[Header], body: bytes = b"", *, is_end: bool = True) -> int:
        """A request; its body must fit the windows."""
        stream_id = self.h2.get_next_available_stream_id()
        self.answers[stream_id] = Answer()
        self.h2.send_headers(stream_id, headers, end_stream=is_end and not body)
        self.more(stream_id, body, is_end=is_end and bool(body))
        return stream_id

    def more(self, stream_id: int, body: bytes, *, is_end: bool) -> None:
        while body:
            room = min(self.h2.local_flow_control_window(stream_id), 16384)
            if not room:
                self.flush()
                self.read()
                continue
            self.h2.send_data(stream_id, body[:room])
            body = body[room:]
        if is_end:
            self.h2.end_stream(stream_id)
        self.flush()

    def read(self) -> None:
        """What has come, or what comes next."""
        try:
            data = self.sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.is_over = True
            return
        self._came += data
        while len(self._came) >= 9:
            size = 9 + int.from_bytes(self._came[:3], "big")
            if len(self._came) < size:
                break
            came, self._came = self._came[:size], self._came[size:]
            self._take(came)
        self.flush()

    def _take(self, came: bytes) -> None:
        if came[3] == _GOAWAY:
            # h2 would take the connection for closed, and what is under way for lost.
            self.goodbye = int.from_bytes(came[13:17], "big")
            return
        # Our own side may have been made to break the protocol: only the end of it is still read.
        with suppress(h2.exceptions.ProtocolError):
            for event in self.h2.receive_data(came):
                self.on(event)

    def on(self, event: h2.events.Event) -> None:
        stream_id = getattr(event, "stream_id", None)
        answer = self.answers.setdefault(stream_id, Answer()) if stream_id else Answer()
        match event:
            case h2.events.ResponseReceived():
                answer.headers = list(event.headers)
                answer.status = int(dict(answer.headers)[b":status"])
            case h2.events.DataReceived():
                answer.body += event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case h2.events.TrailersReceived():
                answer.trailers = list(event.headers)
            case h2.events.StreamEnded():
                answer.is_whole = True
            case h2.events.StreamReset():
                answer.reset = int(event.error_code)
            case h2.events.PushedStreamReceived():
                self.pushes += 1

    def answer(self, stream_id: int) -> Answer:
        """The whole answer, or as much as there was before the stream or the connection ended."""
        answer = self.answers[stream_id]
        while not (answer.is_whole or answer.reset is not None or self.is_over):
            self.read()
        return answer

    def ask(
        self, path: str = "/", *headers: Header, method: str = "GET", body: bytes = b""
    ) -> Answer:
        return self.answer(self.begin(self.head(path, *headers, method=method), body))

    def end(self) -> int | None:
        """Reads until the connection ends; the code of the goodbye, if there was one."""
        while not self.is_over:
            self.read()
        return self.goodbye


def frame(kind: int, flags: int, stream_id: int, body: bytes = b"") -> bytes:
    """One frame, whatever is in it."""
    head = len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream_id.to_bytes(4, "big")
    return head + body

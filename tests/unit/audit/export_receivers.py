"""Receivers on real sockets, records that mean harm, and a reader of RFC 5424 of our own."""

from __future__ import annotations

import datetime as dt
import gzip
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import trustme

from cellwall.audit.files import LogSettings
from cellwall.audit.log import AuditLog
from cellwall.core.outcomes import Event, EventKind

HOSTILE = {
    "newlines": "a\nb\r\nc\u2028d\x85e",
    "quotes": '"\'`] \\" , ; ]] [x@1 y="z"]',
    "controls": "\x00\x07\x08\x1b[31mred\x1b]0;title\x07\x7f\x9b",
    "emoji": "🦀 \u202e ﷽ é",
    "surrogate": "\udcff \ud83d",
    "formula": '=HYPERLINK("http://evil")',
    "bom": "\ufeff<34>1 - - - - - - forged",
}
PRINCIPALS = (
    *("ann", "=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", '"quoted", and ]more\\'),
    *("line\nbreak", "esc\x1b[2J", "🦀", "\u202egnp.exe", "\uff1d1+1"),
)


def write_hostile(directory: str) -> None:
    """One of each kind of trouble, and one of each severity."""
    with AuditLog.open(directory, settings=LogSettings(max_field_bytes=8192)) as log:
        for principal in PRINCIPALS:
            log.write(Event(EventKind.INTENT, "act_1", principal, "cli", dict(HOSTILE)))
        log.write(Event(EventKind.DENIAL, "act_2", "ann", "mcp", {"status": "denied"}, "ses_1"))
        verdict = {"decision": {"verdict": "ask", "rule": "r"}}
        log.write(Event(EventKind.INTENT, "act_3", "ann", "sdk", verdict))
        log.write(Event(EventKind.OUTCOME, "act_3", "ann", "sdk", {"status": "error"}))
        log.write(Event(EventKind.OUTCOME, "act_4", "ann", "sdk", {"status": "ok"}))
        log.write(Event(EventKind.INTENT, "act_5", "ann", "cli", {"verdict": ["no", "text"]}))
        large = {f"part{number}": "x" * 8000 for number in range(13)}
        log.write(Event(EventKind.INTENT, "act_6", "ann", "cli", large))


# --- sockets


@contextmanager
def serving(work: Callable[[], None]) -> Iterator[None]:
    """A thread beside the test, gone with it; what fails in it fails the test."""
    problems: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield
    finally:
        thread.join(30)
        assert not thread.is_alive()
        assert not problems, problems


@dataclass
class StreamReceiver:
    """Takes connections until it is stopped; `got` has the bytes of each."""

    listener: socket.socket
    context: ssl.SSLContext | None = None
    closes_after_bytes: int | None = None
    got: list[bytes] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])

    @contextmanager
    def running(self) -> Iterator[StreamReceiver]:
        self.listener.settimeout(0.05)
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                try:
                    link, _ = self.listener.accept()
                except TimeoutError:
                    continue
                with link:
                    self._take(link)

        with self.listener, serving(work):
            try:
                yield self
            finally:
                stop.set()

    def _take(self, plain: socket.socket) -> None:
        plain.settimeout(10)
        try:
            link = self.context.wrap_socket(plain, server_side=True) if self.context else plain
        except OSError:
            return
        data = b""
        with link:
            while self.closes_after_bytes is None or len(data) < self.closes_after_bytes:
                block = link.recv(65_536 if self.closes_after_bytes is None else 100)
                if not block:
                    break
                data += block
            self.got.append(data)
            if isinstance(link, ssl.SSLSocket):
                try:
                    link.unwrap()
                except OSError:
                    return


def listening(host: str = "127.0.0.1") -> socket.socket:
    return socket.create_server((host, 0))


# --- HTTP


Reply = tuple[int, dict[str, str], bytes]


@dataclass
class Collector:
    """A real HTTP server that answers as it is told, the last answer again and again."""

    replies: list[Reply] = field(default_factory=lambda: [(200, {}, b"{}")])
    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    context: ssl.SSLContext | None = None
    port: int = 0

    @contextmanager
    def running(self) -> Iterator[Collector]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                collector.requests.append((self.path, headers, body))
                replies = collector.replies
                status, extra, answer = replies.pop(0) if len(replies) > 1 else replies[0]
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **extra}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = False

            def handle_error(self, *_: Any) -> None:
                pass  # a client that refuses our certificate

        server = Server(("127.0.0.1", 0), Handler)
        if self.context is not None:
            server.socket = self.context.wrap_socket(server.socket, server_side=True)
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            thread.join(10)
            server.server_close()

    def bodies(self) -> list[bytes]:
        return [gzip.decompress(body) for _, _, body in self.requests]


# --- certificates


@dataclass(frozen=True)
class Certificates:
    ca_file: str
    cert_file: str
    key_file: str

    def server(self, *, asks_for_client: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert_file, self.key_file)
        if asks_for_client:
            context.load_verify_locations(self.ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def make_certificates(
    folder: Path, *, host: str = "127.0.0.1", end: dt.datetime | None = None
) -> Certificates:
    """A test CA and a certificate for one address, for servers and clients."""
    authority = trustme.CA()
    issued = authority.issue_cert(host, not_after=end)
    paths = [str(folder / name) for name in ("ca.pem", "cert.pem", "key.pem")]
    authority.cert_pem.write_to_path(paths[0])
    issued.cert_chain_pems[0].write_to_path(paths[1])
    issued.private_key_pem.write_to_path(paths[2])
    return Certificates(*paths)


# --- RFC 5424


@dataclass(frozen=True)
class Message:
    facility: int
    severity: int
    time: dt.datetime
    hostname: str
    app_name: str
    proc_id: str
    msg_id: str
    data: dict[str, dict[str, str]]
    text: bytes


_HEAD = re.compile(
    rb"<(0|[1-9][0-9]{0,2})>1 "
    rb"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?Z) "
    rb"([\x21-\x7e]{1,255}) ([\x21-\x7e]{1,48}) ([\x21-\x7e]{1,128}) ([\x21-\x7e]{1,32}) "
)
_NAME = rb"[\x21\x23-\x3c\x3e-\x5c\x5e-\x7e]{1,32}"
_ELEMENT = re.compile(rb"\[(" + _NAME + rb")((?: " + _NAME + rb'="(?:[^"\\\]]|\\["\\\]])*")*)\]')
_PARAM = re.compile(rb" (" + _NAME + rb')="((?:[^"\\\]]|\\["\\\]])*)"')


def read_message(raw: bytes) -> Message:
    """Strict: whatever the grammar of RFC 5424, section 6, does not allow fails."""
    head = _HEAD.match(raw)
    assert head is not None, raw[:200]
    priority = int(head[1])
    assert priority <= 191
    at, data = head.end(), {}
    while (element := _ELEMENT.match(raw, at)) is not None:
        values = {name.decode(): value for name, value in _PARAM.findall(element[2])}
        name = element[1].decode()
        assert name not in data
        data[name] = {
            key: re.sub(r'\\(["\\\]])', r"\1", value.decode("utf-8"))
            for key, value in values.items()
        }
        at = element.end()
    assert data, raw[at : at + 200]
    assert raw[at : at + 1] == b" "
    return Message(
        priority // 8,
        priority % 8,
        dt.datetime.fromisoformat(head[2].decode()),
        *(head[number].decode() for number in (3, 4, 5, 6)),
        data,
        raw[at + 1 :],
    )


def read_frames(data: bytes) -> list[bytes]:
    """Octet counting (RFC 6587, 3.4.1)."""
    frames = []
    while data:
        count, space, rest = data.partition(b" ")
        assert space
        assert re.fullmatch(rb"[1-9][0-9]*", count), count
        assert len(rest) >= int(count)
        frames.append(rest[: int(count)])
        data = rest[int(count) :]
    return frames

"""A collector on loopback: takes OTLP over HTTP and decodes the protobuf."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from gzip import decompress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """What came, as bytes and as spans."""

    url: str = ""
    close: Callable[[], None] = lambda: None
    status: int = 200
    bodies: list[bytes] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    @property
    def spans(self) -> list[Span]:
        found = []
        for body in self.bodies:
            request = ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    found += scope.spans
        return found

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


def attributes(span: Span) -> dict[str, str]:
    return {each.key: each.value.string_value for each in span.attributes}


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = decompress(body)
            collector.bodies.append(body)
            collector.paths.append(self.path)
            self.send_response(collector.status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    collector.close = close
    try:
        yield collector
    finally:
        close()

"""A small API server over TLS: the paths, versions, watches and refusals of Kubernetes, for the
resources of agent-sandbox and reviews of tokens. Each body is checked by the strict schema of its kind."""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import queue
import ssl
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kubernetes_schemas import problems

REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
BASE = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/cellwall/sandboxclaims"
Resource = dict[str, Any]


def write_certificate(folder: Path) -> ssl.SSLContext:
    """For the API server and for services in pods; it is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "double")])
    now = dt.datetime.now(dt.UTC)
    names = [
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        x509.DNSName("cellwall.internal"),
    ]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    (folder / "key").touch(0o600)
    (folder / "key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "key")
    return context


class ApiDouble:
    """The claims of one namespace. `faults` are given instead of the next answers: a status, or
    bytes of a body with status 200, or "hang"."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.claims: dict[str, Resource] = {}
        self.version = 100
        self.token = "first-token"
        self.requests: list[tuple[str, str]] = []
        self.faults: deque[int | bytes | str] = deque()
        self.watch_faults: deque[int | bytes] = deque()
        self.watchers: list[queue.Queue[Resource | None]] = []
        self.is_generous = True
        """Sandboxes become ready at once."""
        self.pod_address = "127.0.0.1"
        self.sandbox_name = ""
        """Of every claim; empty: each has its own."""
        self.released = threading.Event()
        self.reviews: dict[str, Resource] = {}
        """The status for each token; any other is not authenticated."""

    def write(self, kind: str, claim: Resource) -> None:
        """A change of a claim, told to all watchers. The schema holds for our own writes as well."""
        assert problems(claim) == []
        with self.lock:
            self.version += 1
            claim["metadata"]["resourceVersion"] = str(self.version)
            name = claim["metadata"]["name"]
            if kind == "DELETED":
                self.claims.pop(name, None)
            else:
                self.claims[name] = claim
            for watcher in self.watchers:
                watcher.put({"type": kind, "object": json.loads(json.dumps(claim))})

    def make_ready(self, name: str, *, status: str = "True") -> None:
        claim = json.loads(json.dumps(self.claims[name]))
        condition = {
            "type": "Ready", "status": status, "reason": "Told", "message": "by the double",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        about = {
            "name": self.sandbox_name or f"pool-{name}",
            "podIPs": [self.pod_address] if status == "True" else [],
        }
        claim["status"] = {"conditions": [condition], "sandbox": about}
        self.write("MODIFIED", claim)

    def end_watches(self) -> None:
        for watcher in self.watchers:
            watcher.put(None)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: ApiDouble

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, body: object, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        self.api.requests.append((self.command, self.path))
        if self.headers["authorization"] != f"Bearer {self.api.token}":
            self._refuse(401)
            return
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if "watch" in query:
            self._watch()
        elif self.api.faults:
            self._fault(self.api.faults.popleft())
        elif parts.path == REVIEWS:
            self._review(json.loads(body))
        else:
            self._serve(parts.path.removeprefix(BASE).removeprefix("/"), body)

    do_GET = do_POST = do_PATCH = do_DELETE = _handle  # the library's names

    def _fault(self, fault: int | bytes | str) -> None:
        if fault == "hang":
            self.api.released.wait(30)
        elif isinstance(fault, bytes):
            self._answer(200, fault)
        else:
            self._refuse(int(fault))

    def _refuse(self, status: int) -> None:
        about = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}
        self._answer(status, about, **({"retry_after": "0"} if status == 429 else {}))

    def _serve(self, name: str, body: bytes) -> None:
        api = self.api
        with api.lock:
            if not name and self.command == "GET":
                about = {"resourceVersion": str(api.version)}
                self._answer(
                    200,
                    {
                        "kind": "SandboxClaimList",
                        "metadata": about,
                        "items": list(api.claims.values()),
                    },
                )
            elif not name and self.command == "POST":
                self._create(json.loads(body))
            elif name not in api.claims:
                self._refuse(404)
            elif self.command == "GET":
                self._answer(200, api.claims[name])
            elif self.command == "DELETE":
                claim = api.claims[name]
                api.write("DELETED", claim)
                self._answer(200, claim)
            else:
                self._patch(api.claims[name], json.loads(body))

    def _create(self, claim: Resource) -> None:
        if wrong := problems(claim):
            self._answer(422, {"kind": "Status", "code": 422, "message": "; ".join(wrong)})
            return
        name = claim["metadata"]["name"]
        self.api.write("ADDED", claim)
        self._answer(201, claim)
        if self.api.is_generous:
            self.api.make_ready(name)

    def _review(self, review: Resource) -> None:
        if self.command != "POST" or problems(review):
            self._refuse(422)
            return
        status = self.api.reviews.get(review["spec"]["token"], {"authenticated": False})
        answer = {**review, "metadata": {}, "status": status}
        assert problems(answer) == []
        self._answer(201, answer)

    def _patch(self, claim: Resource, change: Resource) -> None:
        if self.headers["content-type"] != "application/merge-patch+json":
            self._refuse(415)
            return
        about = change.get("metadata", {})
        if about.pop("resourceVersion", None) not in {None, claim["metadata"]["resourceVersion"]}:
            self._refuse(409)
            return
        new = _merged(claim, change)
        if problems(new):
            self._refuse(422)
            return
        self.api.write("MODIFIED", new)
        self._answer(200, new)

    def _watch(self) -> None:
        if self.api.watch_faults:
            fault = self.api.watch_faults.popleft()
            self._answer(200, fault) if isinstance(fault, bytes) else self._refuse(fault)
            return
        events: queue.Queue[Resource | None] = queue.Queue()
        since = int(parse_qs(urlsplit(self.path).query)["resourceVersion"][0])
        with self.api.lock:
            for claim in self.api.claims.values():
                if int(claim["metadata"]["resourceVersion"]) > since:
                    events.put({"type": "MODIFIED", "object": claim})
            self.api.watchers.append(events)
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.close_connection = True
        with suppress(OSError):  # the client has left
            while (event := events.get()) is not None:
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")


def _merged(old: Any, change: Any) -> Any:
    """RFC 7386."""
    if not isinstance(change, dict):
        return change
    new = dict(old) if isinstance(old, dict) else {}
    for name, value in change.items():
        if value is None:
            new.pop(name, None)
        else:
            new[name] = _merged(new.get(name), value)
    return new


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that leaves is no error here."""


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], context: ssl.SSLContext) -> Iterator[int]:
    """On a free port of loopback, with TLS."""
    server = _QuietServer(("127.0.0.1", 0), handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def api_server(context: ssl.SSLContext) -> Iterator[tuple[ApiDouble, int]]:
    api = ApiDouble()
    handler = type("Handler", (_Handler,), {"api": api})
    problems({})  # loads the schemas, which no client should wait for
    with serving(handler, context) as port:
        try:
            yield api, port
        finally:
            api.released.set()
            api.end_watches()

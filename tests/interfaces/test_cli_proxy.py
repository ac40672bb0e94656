"""`cellwall proxy`: real programs outside of any sandbox, each with its token and rules (NET-8)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cellwall as sdk
from cellwall.core.errors import BadInput
from cellwall.core.outcomes import EventKind
from cellwall.interfaces import REFUSED, agent_sdk
from conftest import audit_records, need
from interfaces import prepared_program
from interfaces.test_cli_process import DEADLINE_S, cellwall, error_code, until
from interfaces.test_network_clients import enter, fill
from outside import Outside, Seen, Site, internet

PASSPHRASE = "correct horse battery"
VALUE = "s3cr3t-Value-of-the-vault-0123456789"
QUICK = "[vault]\nargon2_memory_kib = 64\nargon2_passes = 1\nargon2_lanes = 1\n"
_VARIABLES = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}
_HTTPX = "import httpx2 as h; print(h.get('{url}/hello.txt').text, end='')"
_URLLIB = "import urllib.request as u; print(u.urlopen('{url}/hello.txt').read().decode(), end='')"
_PIP = (
    f"{sys.executable} -m pip download -q --no-cache-dir --disable-pip-version-check "
    "--index-url {url}/simple -d {folder} tinypackage && ls {folder}"
)
_NPM = (
    "cd {folder} && npm install -s --no-audit --no-fund --no-update-notifier --cache {folder}/c "
    "--registry {url}/ {package} && cat node_modules/{package}/index.js"
)
CLIENTS = {
    "curl": ("curl -sS {url}/hello.txt", "hello\n"),
    "wget": ("wget -qO- {url}/hello.txt", "hello\n"),
    "git": ("git clone -q {url}/repo.git {folder}/r && cat {folder}/r/README", "read me\n"),
    "pip": (_PIP, "tinypackage-1.0-py3-none-any.whl\n"),
    "npm": (_NPM, "module.exports = 'tiny'\n"),
    "httpx": (f'{sys.executable} -c "{_HTTPX}"', "hello\n"),
    "urllib": (f'{sys.executable} -c "{_URLLIB}"', "hello\n"),
}


@dataclass(frozen=True)
class Proxy:
    """A running `cellwall proxy`."""

    process: subprocess.Popen[bytes]
    address: tuple[str, int]
    clients: Mapping[str, Mapping[str, Any]]

    def env(self, client: str) -> dict[str, str]:
        return dict(self.clients[client]["env"])

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, bytes]:
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, errors


@contextmanager
def proxy(*words: str, stdin: bytes = b"", listen: str = "127.0.0.1:0") -> Iterator[Proxy]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    words = ("proxy", "--json", "--listen", listen, *words)
    with prepared_program.Popen(words, env=dict(os.environ), **pipes) as process:
        try:
            process.stdin.write(stdin)
            process.stdin.flush()
            line = process.stdout.readline()
            assert line, process.stderr.read()
            told = json.loads(line)
            host, _, port = told["address"].rpartition(":")
            clients = {each["name"]: each for each in told["clients"]}
            yield Proxy(process, (host, int(port)), clients)
        finally:
            process.kill()


def curl(env: Mapping[str, str], *words: str) -> tuple[int, str]:
    """The status of the answer, or of the proxy's answer to CONNECT, and the body."""
    command = ["curl", "-sS", "-w", "\n%{http_connect} %{http_code}", *words]
    done = subprocess.run(
        command, env={**_VARIABLES, **env}, capture_output=True, text=True, timeout=DEADLINE_S
    )
    body, _, statuses = done.stdout.rpartition("\n")
    connect, status = map(int, statuses.split())
    assert status or connect != 200, done.stderr  # an open tunnel is no answer
    return status or connect, body


@dataclass(frozen=True)
class World:
    outside: Outside
    sites: Mapping[str, Site]
    config: str
    home: str


def _reflect(seen: Seen) -> tuple[int, dict[str, str], bytes]:
    return 200, {}, json.dumps(seen.headers).encode()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, home = (tmp_path_factory.mktemp(name) for name in ("outside", "cellwall-home"))
    home.chmod(0o700)
    (folder / "shelf").mkdir()
    with ExitStack() as stack:
        outside = stack.enter_context(internet(folder))
        sites = {
            kind: outside.web(f"{kind}.test.example", tls=True, folder=folder / "shelf")
            for kind in ("passed", "opened")
        }
        fill(folder / "shelf", sites)
        sites["bound"] = outside.web("bound.test.example", tls=True, reply=_reflect)
        config = outside.config(QUICK)
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        enter(environment, str(home), "cold")
        with sdk.Vault.open(PASSPHRASE, create=True, config=config) as vault:
            vault.set("TOKEN", VALUE)
            vault.grant("TOKEN", host="bound.test.example", ports=(sites["bound"].port,))
        yield World(outside, sites, config, str(home))


@pytest.fixture(autouse=True)
def _inside_the_world(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(monkeypatch, world.home, "cold")
    monkeypatch.setenv("CELLWALL_CONFIG", world.config)
    # What the host trusts; clients get it along with the authority of their session.
    monkeypatch.setenv("SSL_CERT_FILE", world.outside.ca_file)


@pytest.fixture(scope="module")
def serving(world: World) -> Iterator[Proxy]:
    """One for all programs: TLS is passed through to one site, and opened for another."""
    with pytest.MonkeyPatch.context() as environment, ExitStack() as stack:
        enter(environment, world.home, "cold")
        environment.setenv("CELLWALL_CONFIG", world.config)
        environment.setenv("SSL_CERT_FILE", world.outside.ca_file)
        words = ["--client", "tools", "--allow-domain", world.sites["passed"].rule]
        words += ["--allow-domain", f"GET {world.sites['opened'].rule}/"]
        found = stack.enter_context(proxy(*words))
        environment.undo()
        yield found


@pytest.mark.requirement("NET-8", "NET-6")
@pytest.mark.parametrize(
    ("name", "kind"), [("curl", "passed"), *((name, "opened") for name in CLIENTS)]
)
def test_program_outside_works_with_the_printed_variables(
    name: str, kind: str, world: World, serving: Proxy, tmp_path: Path
) -> None:
    command, prints = CLIENTS[name]
    need(name in ("pip", "httpx", "urllib") or shutil.which(name), name)
    words = command.format(url=world.sites[kind].url, folder=tmp_path, package=f"tiny-{kind}")
    env = {**_VARIABLES, "HOME": str(tmp_path), **serving.env("tools")}
    done = subprocess.run(
        ["/bin/sh", "-c", words], env=env, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, prints, "")


@pytest.mark.requirement("NET-8")
def test_program_without_a_token_or_with_an_old_one_is_refused(
    world: World, serving: Proxy
) -> None:
    url = world.sites["passed"].url + "/hello.txt"
    env = serving.env("tools")
    assert curl(env, url) == (200, "hello\n")
    plain = "http://{}:{}".format(*serving.address)
    for wrong in (plain, plain.replace("//", "//tools:wrong@"), plain.replace("//", "//eve:x@")):
        assert curl({**env, "https_proxy": wrong, "HTTPS_PROXY": wrong}, url)[0] == 407


@pytest.mark.requirement("NET-8", "SEC-5", "SEC-2")
def test_each_client_has_its_own_domains_secrets_and_record(world: World) -> None:
    bound, passed = world.sites["bound"], world.sites["passed"]
    words = ["--client", "ann", "--client", "bob", "--secret", "ann=TOKEN"]
    words += ["--passphrase-fd", "0", "--allow-domain", bound.rule]
    words += ["--allow-domain", f"bob={passed.rule}"]
    with proxy(*words, stdin=f"{PASSPHRASE}\n".encode()) as running:
        ann = running.env("ann")
        # Nothing is opened for him: no authority but that of the servers.
        assert "SSL_CERT_FILE" not in running.env("bob")
        bob = {"CURL_CA_BUNDLE": world.outside.ca_file, **running.env("bob")}
        assert "TOKEN" not in bob
        assert ann["TOKEN"] != VALUE
        header = f"Authorization: Bearer {ann['TOKEN']}"
        status, body = curl(ann, "-H", header, bound.url)
        assert (status, VALUE in body) == (200, False)  # its echo is taken out
        assert bound.seen[-1].headers["authorization"] == f"Bearer {VALUE}"
        # A placeholder is worth nothing with another client's token.
        assert curl(bob, "-H", header, bound.url)[0] == 200
        assert bound.seen[-1].headers["authorization"] == f"Bearer {ann['TOKEN']}"
        # A value that leaves otherwise is found, whoever sends it.
        assert curl(ann, "-H", f"X-Key: {VALUE}", bound.url)[0] == 403
        assert curl(bob, passed.url + "/hello.txt") == (200, "hello\n")
        assert curl(ann, passed.url + "/hello.txt")[0] == 403
        folder = Path(running.clients["ann"]["folder"])
        assert (folder / "ca.pem").read_bytes().count(b"BEGIN CERTIFICATE") >= 2
        code, errors = running.stop()
    assert code == 0
    assert b"ann: passed.test.example" in errors
    assert list(folder.iterdir()) == []
    opened = ("--passphrase-fd", "0")
    words = ("audit", "search", "--kind", "connection", *opened)
    listed = cellwall(*words, stdin=f"{PASSPHRASE}\n".encode()).stdout
    assert b" client ann opened bound.test.example:" in listed
    records = [
        each for each in audit_records(passphrase=PASSPHRASE) if each["kind"] != EventKind.CONFIG
    ]
    text = json.dumps(records)
    tokens = [env["HTTPS_PROXY"].split("@")[0].rpartition(":")[2] for env in (ann, bob)]
    assert not any(word.encode() in errors or word in text for word in (*tokens, VALUE))
    for name in ("ann", "bob"):
        intent, *_ = (
            each for each in records if each["kind"] == "intent" and each["body"]["client"] == name
        )
        mine = [each for each in records if each["action_id"] == intent["action_id"]]
        opened = [each["body"] for each in mine if each["body"].get("event") == "opened"]
        assert {each["client"] for each in opened} == {name}
        (outcome,) = (each["body"] for each in mine if each["kind"] == "outcome")
        assert outcome["egress"]["connections"] == len(opened) > 0
        assert outcome["egress"]["bytes_up"] > 0
    used = [each["body"] for each in records if each["body"].get("event") == "secret-used"]
    assert [(each["client"], each["secret"]) for each in used] == [("ann", "TOKEN")]


@pytest.mark.requirement("NET-8", "AUD-3")
def test_killed_proxy_starts_again_on_its_port_and_old_tokens_are_void(world: World) -> None:
    rule, url = world.sites["opened"].rule, world.sites["opened"].url + "/hello.txt"
    words = ("--client", "again", "--allow-domain", f"GET {rule}/")
    with proxy(*words) as first:
        old = first.env("again")
        assert curl(old, url) == (200, "hello\n")
        authority = Path(old["SSL_CERT_FILE"]).read_bytes()
        first.process.kill()
        first.process.wait(DEADLINE_S)
    with proxy(*words, listen="{}:{}".format(*first.address)) as second:
        new = second.env("again")
        assert curl(new, url) == (200, "hello\n")
        assert curl(old, url)[0] == 407
        assert old["SSL_CERT_FILE"] == new["SSL_CERT_FILE"]
        assert Path(new["SSL_CERT_FILE"]).read_bytes() != authority
        assert second.stop(signal.SIGINT)[0] == 0
    assert cellwall("audit", "verify").returncode == 0


@pytest.mark.requirement("NET-8")
def test_open_connections_end_with_the_proxy(world: World) -> None:
    site = world.sites["passed"]
    with proxy("--client", "ends", "--allow-domain", site.rule) as running:
        with socket.create_connection(running.address, timeout=DEADLINE_S) as sock:
            token = running.env("ends")["HTTPS_PROXY"].split("@")[0].rpartition(":")[2]
            lines = (f"CONNECT {site.rule} HTTP/1.1", f"Host: {site.rule}")
            text = "\r\n".join((*lines, f"Proxy-Authorization: Bearer {token}", "", ""))
            sock.sendall(text.encode())
            assert sock.recv(100).startswith(b"HTTP/1.1 200 ")
            assert running.stop()[0] == 0
            try:
                assert sock.recv(1) == b""
            except ConnectionResetError:
                pass
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(running.address, timeout=DEADLINE_S)


@pytest.mark.requirement("NET-8")
def test_two_proxies_do_not_share_a_client(world: World, serving: Proxy) -> None:
    done = cellwall(
        "proxy", "--listen", "127.0.0.1:0", "--client", "tools", "--allow-domain", "a.b"
    )
    assert (done.returncode, error_code(done)) == (REFUSED, "CW-BAD-CLIENT")
    assert curl(serving.env("tools"), world.sites["passed"].url + "/hello.txt")[0] == 200


DOMAIN = ("--allow-domain", "a.example.com")


@pytest.mark.requirement("NET-8")
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--listen", "0.0.0.0:0", "--dangerously-beyond-loopback", *DOMAIN), "CW-PROXY-LISTEN"),
        (("--listen", "192.0.2.1:0", *DOMAIN), "CW-PROXY-LISTEN"),
        (("--listen", "192.0.2.1:0", "--dangerously-beyond-loopback", *DOMAIN), "CW-PROXY-LISTEN"),
        (("--listen", "127.0.0.1", *DOMAIN), "CW-PROXY-LISTEN"),
        (("--listen", "127.0.0.1:99999", *DOMAIN), "CW-PROXY-LISTEN"),
        (("--listen", "example.com:80", *DOMAIN), "CW-PROXY-LISTEN"),
        ((), "CW-BAD-CLIENT"),
        (("--client", "../x", *DOMAIN), "CW-BAD-CLIENT"),
        (("--client", "a", "--client", "a", *DOMAIN), "CW-BAD-CLIENT"),
        (("--client", "a", "--allow-domain", "b=a.example.com"), "CW-BAD-CLIENT"),
        (("--client", "a", "--client", "b", "--allow-domain", "a=x.example.com"), "CW-BAD-CLIENT"),
        (("--allow-domain", "*.com"), "CW-BAD-DOMAIN"),
        (("--dangerously-without-token", "client=x", *DOMAIN), "CW-USAGE"),
        (("--mounted-at", "cellwall", *DOMAIN), "CW-USAGE"),
        (("--dangerously-without-token", "eve=0", *DOMAIN), "CW-BAD-CLIENT"),
    ],
)
@pytest.mark.sample(6)
def test_bad_options_are_refused_with_a_hint_before_anything_listens(
    words: tuple[str, ...], code: str
) -> None:
    defaults = () if "--listen" in words else ("--listen", "127.0.0.1:0")
    done = cellwall("proxy", *defaults, *words)
    assert (done.returncode, error_code(done), done.stdout) == (REFUSED, code, b"")


@pytest.mark.requirement("NET-8")
def test_policy_judges_the_domains_of_each_client(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[permissions]\nallow = ["WebFetch(domain:a.example.com)"]\n')
    words = ("--policy", str(rules), "--client", "a", "--client", "b", *DOMAIN)
    with proxy(*words) as allowed:
        assert allowed.stop()[0] == 0
    done = cellwall(
        "proxy", "--json", "--listen", "127.0.0.1:0", *words, "--allow-domain", "b=b.example.com"
    )
    assert done.returncode == REFUSED
    assert json.loads(done.stdout)["error"]["code"] == "CW-DENIED"


@pytest.mark.requirement("NET-8")
def test_text_for_people_can_be_sourced_and_timeout_ends_it(world: World) -> None:
    site = world.sites["passed"]
    words = ("--client", "shell", "--allow-domain", site.rule, "--timeout", "0.1")
    done = cellwall("proxy", "--listen", "127.0.0.1:0", *words)
    assert (done.returncode, done.stderr) == (0, b"")
    shown = subprocess.run(
        ["/bin/sh", "-c", done.stdout.decode() + 'printf %s "$HTTPS_PROXY"'],
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.startswith("http://shell:")


@pytest.mark.requirement("NET-8")
def test_port_without_a_token_serves_a_program_that_cannot_send_one(world: World) -> None:
    site = world.sites["passed"]
    words = ("--client", "mute", "--allow-domain", site.rule)
    with proxy(*words, "--dangerously-without-token", "mute=0") as running:
        # As the options of the Claude Agent SDK, whose sandbox is such a program.
        report = json.dumps({"clients": [*running.clients.values()]})
        options = agent_sdk.behind_proxy(report, client="mute")
        network = options["sandbox"]["network"]
        port = running.clients["mute"]["port_without_token"]
        assert network == {"httpProxyPort": port, "socksProxyPort": port}
        assert [name for name in options["env"] if "proxy" in name.lower()] == []
        url, trust = site.url + "/hello.txt", {"CURL_CA_BUNDLE": world.outside.ca_file}
        assert curl({**trust, "https_proxy": f"http://127.0.0.1:{port}"}, url) == (200, "hello\n")
        main = "http://{}:{}".format(*running.address)
        assert curl({**trust, "https_proxy": main}, url)[0] == 407
        assert running.stop()[0] == 0


@pytest.mark.parametrize(
    "report", ["", "[]", "{}", '{"clients": [{"name": "claude"}]}', "[" * 9999]
)
def test_report_without_a_port_is_refused(report: str) -> None:
    with pytest.raises(BadInput) as caught:
        agent_sdk.behind_proxy(report)
    assert caught.value.code == "CW-NO-PROXY-PORT"


@pytest.mark.requirement("NET-8", "POL-8")
def test_client_that_a_person_must_allow_is_not_served_before(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[permissions]\nask = ["WebFetch(domain:a.example.com)"]\n')
    words = ("proxy", "--json", "--listen", "127.0.0.1:0", "--client", "asks", *DOMAIN)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = (*words, "--policy", str(rules))
    with prepared_program.Popen(command, env=dict(os.environ), **pipes) as process:
        try:
            until(lambda: json.loads(cellwall("approvals", "list", "--json").stdout)["questions"])
            process.send_signal(signal.SIGTERM)
            shown, _ = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 128 + signal.SIGTERM
    assert json.loads(shown)["error"]["code"] == "CW-INTERRUPTED"
    intents = [each for each in audit_records(passphrase=PASSPHRASE) if each["kind"] == "intent"]
    assert not any(each["body"].get("client") == "asks" for each in intents)


@pytest.mark.requirement("NET-8")
def test_proxy_that_cannot_tell_its_tokens_ends() -> None:
    with open("/dev/full", "wb") as full:
        words = ("proxy", "--listen", "127.0.0.1:0", "--client", "full", *DOMAIN)
        process = prepared_program.Popen(
            words,
            env=dict(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
        )
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == REFUSED
    assert b"[CW-OUTPUT-UNWRITABLE]" in errors


@pytest.mark.requirement("NET-8")
def test_lost_terminal_ends_the_proxy_in_order() -> None:
    with proxy("--client", "hangs", *DOMAIN) as running:
        assert running.stop(signal.SIGHUP) == (0, b"")
    ended = [each["body"] for each in audit_records(passphrase=PASSPHRASE, kind=EventKind.OUTCOME)]
    assert ended[-1]["egress"] == {"connections": 0, "bytes_up": 0, "bytes_down": 0}


@pytest.mark.requirement("NET-8")
def test_address_beyond_loopback_needs_an_option_that_says_dangerously() -> None:
    words = ("proxy", "--listen", "192.0.2.1:0", *DOMAIN)
    refused, bold = cellwall(*words), cellwall(*words, "--dangerously-beyond-loopback")
    assert b"--dangerously-beyond-loopback" in refused.stderr
    # With the option it is the kernel that refuses: this host has no such address.
    assert b"Cannot assign requested address" in bold.stderr

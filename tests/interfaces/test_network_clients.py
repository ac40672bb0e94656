"""Programs that people use, unchanged inside a cell, against real servers (NET-2, NET-6, NET-7).

Each runs over TLS that is passed through and over TLS that is opened. In the second case nothing
but the cell's variables makes it trust the session's authority. The server has an authority of its
own, so for the first case the same variables name that one.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pip
import pytest

import cellwall
from cellwall.core.outcomes import EventKind
from cellwall.runtime import wiring
from conftest import audit_records, need
from outside import Outside, Site, internet, project_uv

_UV = project_uv()
_TOOLS = f"/var/tmp/cellwall-test-tools-{os.getpid()}"
"""Copies that cells are shown: what lies below /tmp would be covered by a cell's own."""
_AUTHORITY = "/workspace/outside.pem"
_TRUSTING = (
    "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS", "PIP_CERT", "NPM_CONFIG_CAFILE",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Client:
    """`{url}`, `{host}`, `{port}` and `{package}` are those of the site that is asked."""

    command: str
    prints: str = "hello\n"
    vias: tuple[str, ...] = ("connect",)
    """How it may get out: one of these."""
    tool: str = "python3"


_FETCH = "fetch('{url}/hello.txt').then(r => r.text()).then(t => process.stdout.write(t))"
_URLLIB = "import urllib.request as u; print(u.urlopen('{url}/hello.txt').read().decode(), end='')"
_HTTP_CLIENT = (
    "import http.client as h; c = h.HTTPSConnection('{host}', {port}); "
    "c.request('GET', '/hello.txt'); print(c.getresponse().read().decode(), end='')"
)
CLIENTS = {
    "curl by CONNECT": Client(command="curl -sS {url}/hello.txt", tool="curl"),
    "curl by SOCKS": Client(
        command="curl -sS -x socks5h://127.0.0.1:3128 {url}/hello.txt", vias=("socks",), tool="curl"
    ),
    "curl without a proxy": Client(
        command="curl -sS --noproxy '*' {url}/hello.txt", vias=("transparent",), tool="curl"
    ),
    "wget": Client(command="wget -qO- {url}/hello.txt", tool="wget"),
    "git clone": Client(
        command="git clone -q {url}/repo.git {package} && cat {package}/README",
        prints="read me\n",
        tool="git",
    ),
    "pip download": Client(
        # Nobody has compiled it, and the second run need not do so again.
        command=f"PYTHONPYCACHEPREFIX=/tmp/compiled PYTHONPATH={_TOOLS} python3 -m pip download "
        "-q --no-cache-dir --disable-pip-version-check --index-url {url}/simple "
        "-d /tmp/pip-{package} tinypackage && ls /tmp/pip-{package}",
        prints="tinypackage-1.0-py3-none-any.whl\n",
    ),
    "uv pip install": Client(
        command=f"{_TOOLS}/uv pip install -q --no-cache --python python3 --index-url {{url}}/simple "
        "--target /tmp/uv-{package} tinypackage && cat /tmp/uv-{package}/tinypackage.py",
        prints="WORD = 'tiny'\n",
        tool=_UV or "uv",
    ),
    "npm install": Client(
        command="mkdir /tmp/npm-{package} && cd /tmp/npm-{package} && "
        "npm install -s --no-audit --no-fund --no-update-notifier --registry {url}/ {package} && "
        "cat node_modules/{package}/index.js",
        prints="module.exports = 'tiny'\n",
        tool="npm",
    ),
    # From node 24 on, it takes the proxy that NODE_USE_ENV_PROXY tells it to look for.
    "node fetch": Client(
        command=f'node -e "{_FETCH}"', vias=("transparent", "connect"), tool="node"
    ),
    "python urllib": Client(command=f'python3 -c "{_URLLIB}"'),
    "python http.client": Client(command=f'python3 -c "{_HTTP_CLIENT}"', vias=("transparent",)),
}


@dataclass(frozen=True)
class World:
    """A live sandbox, and what it may reach."""

    home: str
    sandbox: cellwall.Sandbox
    plain: Site
    keeping: Site
    """Its connections stay open for one more request."""
    sites: dict[str, Site]
    outside: Outside

    def ways(self, action_id: str) -> set[tuple[object, object, object]]:
        """(host, how, whether it was opened) of the connections that an action has on record."""
        found = audit_records(kind=EventKind.CONNECTION, action_id=action_id)
        bodies = [record["body"] for record in found]
        opened = [body for body in bodies if body["event"] == "opened"]
        return {(body["host"], body["via"], body["tls_opened"]) for body in opened}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder, home = (tmp_path_factory.mktemp(name) for name in ("outside", "cellwall-home"))
    home.chmod(0o700)
    shelf = folder / "shelf"
    shelf.mkdir()
    with ExitStack() as stack:
        outside = stack.enter_context(internet(folder))
        environment = stack.enter_context(pytest.MonkeyPatch.context())
        enter(environment, str(home), "warm")
        environment.setenv("SSL_CERT_FILE", outside.ca_file)
        plain = outside.web("plain.test.example", folder=shelf)
        keeping = outside.web("keeping.test.example")
        sites = {
            kind: outside.web(f"{kind}.test.example", tls=True, folder=shelf)
            for kind in ("passed", "opened")
        }
        fill(shelf, sites)
        shutil.copytree(Path(pip.__file__).parent, f"{_TOOLS}/pip")
        stack.callback(shutil.rmtree, _TOOLS)
        if _UV:
            shutil.copy(_UV, f"{_TOOLS}/uv")
        stack.callback(wiring.close_shared, str(home))
        sandbox = stack.enter_context(
            cellwall.Sandbox.create(
                config=outside.config(f"\n[sandbox]\nextra_read_only_paths = ['{_TOOLS}']"),
                memory="1g",
                allow_domains=[
                    plain.rule,
                    keeping.rule,
                    sites["passed"].rule,
                    f"GET {sites['opened'].rule}/",
                ],
            )
        )
        sandbox.files.write("outside.pem", Path(outside.ca_file).read_bytes())
        sandbox.files.write("wgetrc", f"ca_certificate = {_AUTHORITY}\n")
        # The certificates that egress itself trusts are read with the first action that may reach anything.
        assert sandbox.commands.run("true").exit_code == 0
        environment.undo()
        yield World(str(home), sandbox, plain, keeping, sites, outside)


def enter(environment: pytest.MonkeyPatch, home: str, path: str) -> None:
    environment.setenv("CELLWALL_HOME", home)
    environment.setenv("CELLWALL_PATH", path)
    environment.setenv("CELLWALL_SUPERVISOR", "off")
    environment.setenv("XDG_CONFIG_HOME", f"{home}/no-config")
    environment.delenv("CELLWALL_CONFIG", raising=False)


def fill(shelf: Path, sites: dict[str, Site]) -> None:
    """A file, a repository, a Python index and a registry of npm, all of plain files."""
    (shelf / "hello.txt").write_text("hello\n")
    if shutil.which("git"):
        _make_repository(shelf)
    _make_wheel(shelf / "simple/tinypackage")
    for kind, site in sites.items():
        _make_npm_package(shelf, f"tiny-{kind}", site)


def _make_repository(shelf: Path) -> None:
    source = shelf.parent / "source"
    source.mkdir()
    (source / "README").write_text("read me\n")
    for words in (
        ("init", "-q", source),
        ("-C", source, "add", "README"),
        ("-C", source, "commit", "-q", "-m", "First"),
        ("clone", "-q", "--bare", source, shelf / "repo.git"),
        ("-C", shelf / "repo.git", "update-server-info"),
    ):
        subprocess.run(
            ["git", "-c", "user.name=A", "-c", "user.email=a@test.example", *words],
            env={"PATH": os.environ["PATH"], "HOME": str(shelf.parent)},
            check=True,
            timeout=60,
        )


def _make_wheel(place: Path) -> None:
    place.mkdir(parents=True)
    files = {
        "tinypackage.py": "WORD = 'tiny'\n",
        "tinypackage-1.0.dist-info/METADATA": (
            "Metadata-Version: 2.1\nName: tinypackage\nVersion: 1.0\n"
        ),
        "tinypackage-1.0.dist-info/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    record = "tinypackage-1.0.dist-info/RECORD"
    files[record] = "".join(f"{name},,\n" for name in (*files, record))
    name = "tinypackage-1.0-py3-none-any.whl"
    with zipfile.ZipFile(place / name, "w") as wheel:
        for inner, text in files.items():
            wheel.writestr(inner, text)
    (place / "index.html").write_text(f'<!DOCTYPE html><a href="{name}">{name}</a>\n')


def _make_npm_package(shelf: Path, name: str, site: Site) -> None:
    meta = {"name": name, "version": "1.0.0"}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for inner, text in (
            ("package.json", json.dumps(meta)),
            ("index.js", "module.exports = 'tiny'\n"),
        ):
            entry = tarfile.TarInfo(f"package/{inner}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    (shelf / f"{name}-1.0.0.tgz").write_bytes(packed.getvalue())
    digest = hashlib.sha1(packed.getvalue(), usedforsecurity=False).hexdigest()
    dist = {"tarball": f"{site.url}/{name}-1.0.0.tgz", "shasum": digest}
    (shelf / name).write_text(
        json.dumps(
            {
                "name": name,
                "dist-tags": {"latest": "1.0.0"},
                "versions": {"1.0.0": {**meta, "dist": dist}},
            }
        )
    )


@pytest.mark.requirement("NET-2", "NET-6", "NET-7")
@pytest.mark.parametrize("kind", ["passed", "opened"])
@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.sample(10)
def test_client_works_unchanged(
    name: str, kind: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, site = CLIENTS[name], world.sites[kind]
    need(shutil.which(client.tool), client.tool)
    enter(monkeypatch, world.home, "warm")
    command = client.command.format(
        url=site.url, host=site.name, port=site.port, package=f"tiny-{kind}"
    )
    # Opened: its own variables as they are.
    trusts = dict.fromkeys(_TRUSTING, _AUTHORITY) | {"SYSTEM_WGETRC": "/workspace/wgetrc"}
    ran = world.sandbox.commands.run(command, envs=trusts if kind == "passed" else {}, timeout=60)
    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, client.prints, "")
    ways = world.ways(ran.outcome.action_id)
    assert ways in [{(site.name, via, kind == "opened")} for via in client.vias]


@pytest.mark.requirement("NET-6")
@pytest.mark.parametrize("kind", ["passed", "opened"])
def test_client_that_trusts_only_the_other_authority_is_not_fooled(kind: str, world: World) -> None:
    """The control of all the others: it is the variables that make them trust."""
    site, session = world.sites[kind], "/.cellwall/net/ca.pem"
    # The host's own authorities stand in the cell's file as well; the last one is the session's.
    made = world.sandbox.commands.run(
        f"tac {session} | sed '/BEGIN CERT/q' | tac > /tmp/session.pem"
    )
    assert made.exit_code == 0
    codes = {
        file: world.sandbox.commands.run(
            f"curl -fsS --cacert {file} {site.url}/hello.txt"
        ).exit_code
        for file in ("/tmp/session.pem", _AUTHORITY)
    }
    not_trusted = 60
    right, wrong = {"passed": 0, "opened": not_trusted}, {"passed": not_trusted, "opened": 0}
    assert codes == {_AUTHORITY: right[kind], "/tmp/session.pem": wrong[kind]}


@pytest.mark.requirement("NET-2", "NET-7")
@pytest.mark.parametrize(
    ("command", "via"),
    [
        ("curl -sS {url}/hello.txt", "http"),
        ("curl -sS -p {url}/hello.txt", "connect"),
        ("curl -sS -x socks5h://127.0.0.1:3128 {url}/hello.txt", "socks"),
        ("curl -sS --noproxy '*' {url}/hello.txt", "transparent"),
        ("wget -qO- {url}/hello.txt", "http"),
        (f'python3 -c "{_URLLIB}"', "http"),
    ],
)
def test_client_works_without_tls(
    command: str, via: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = command.partition(" ")[0]
    need(shutil.which(tool), tool)
    enter(monkeypatch, world.home, "warm")
    ran = world.sandbox.commands.run(command.format(url=world.plain.url))
    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "hello\n", "")
    assert world.ways(ran.outcome.action_id) == {(world.plain.name, via, False)}


@pytest.mark.requirement("NET-2", "NET-6", "NET-7")
def test_one_shot_cell_has_the_same_egress(
    world: World, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not live: made, used and ended within one call; on both paths."""
    need(shutil.which("curl"), "curl")
    monkeypatch.setenv("SSL_CERT_FILE", world.outside.ca_file)
    opened, plain = world.sites["opened"], world.plain
    ran = cellwall.run_command(
        f"curl -sS {opened.url}/hello.txt && curl -sS --noproxy '*' {opened.url}/hello.txt && "
        f"curl -sS {plain.url}/hello.txt && curl -sS --noproxy '*' {plain.url}/hello.txt",
        config=world.outside.config(),
        allow_domains=[plain.rule, f"GET {opened.rule}/"],
    )
    assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "hello\n" * 4, "")
    assert ran.outcome.sandbox_path == path
    # A connection to a server may serve more than one of the four.
    assert world.ways(ran.outcome.action_id) >= {
        (opened.name, "connect", True),
        (plain.name, "http", False),
    }


@pytest.mark.requirement("AUD-1", "NET-2")
def test_every_action_has_what_it_reached_on_record(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the connection of an earlier one would still be there to be used."""
    need(shutil.which("curl"), "curl")
    enter(monkeypatch, world.home, "warm")
    for _ in range(2):
        ran = world.sandbox.commands.run(f"curl -sS {world.keeping.url}/")
        assert (ran.exit_code, ran.stdout) == (0, "hello from outside\n")
        assert world.ways(ran.outcome.action_id) == {(world.keeping.name, "http", False)}

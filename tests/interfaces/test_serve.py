"""`cellwall serve`: start, refusals, TLS, sockets of systemd, the end. Real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import uuid
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import trustme

from conftest import need
from interfaces import prepared_program
from interfaces.served import DEADLINE_S, Place, Served, new_place, processes_with, until
from interfaces.test_cli_process import error_code
from newcomer import readme
from newcomer.hosts import Shown

pytestmark = pytest.mark.requirement("SRV-1")


@pytest.fixture
def place() -> Iterator[Place]:
    with new_place() as found:
        yield found


def refusal(place: Place, *words: str, **options: Any) -> tuple[int, str]:
    """The exit code and the error's code of a service that does not start."""
    process = place.start(*words, **options)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert out == b""
    return process.returncode, error_code(subprocess.CompletedProcess([], 0, out, err))


def new_session(client: httpx.Client) -> str:
    made = client.post("/v1/sessions", json={})
    assert made.status_code == 201, made.text
    return made.json()["id"]


def run(client: httpx.Client, session: str, *argv: str) -> httpx.Response:
    return client.post(f"/v1/sessions/{session}/commands", json={"command": list(argv)})


# The first start


@pytest.mark.requirement("SRV-2")
def test_one_command_serves_on_loopback_and_one_person_becomes_the_owner(place):
    with place.serving() as served:
        link = served.told["sign_in_link"]
        found = re.fullmatch(r"(http://127\.0\.0\.1:\d+)/#sign-in=(cwl_[\w-]{40,})", link)
        assert found is not None
        assert found[1] == served.url
        with served.client() as client:
            assert client.get("/v1/healthz").json() == {"status": "ok"}
            asked = {"link": found[2], "name": "ann", "password": "correct horse battery"}
            tokens = client.post("/v1/auth/token", json=asked)
            assert tokens.status_code == 200, tokens.text
            assert client.post("/v1/auth/token", json=asked).status_code in {401, 403}  # once
        with served.client(tokens.json()["access_token"]) as ann:
            assert ann.get("/v1/sessions").status_code == 200
        served.process.send_signal(signal.SIGTERM)
        assert served.ended() == 0
    with place.serving() as again:
        assert again.told["sign_in_link"] is None
    assert place.home.joinpath("cellwall.db").stat().st_mode & 0o077 == 0


def test_text_for_people(place):
    process = place.start("--port", "0")
    lines = [process.stdout.readline().decode() for _ in range(2)]
    process.terminate()
    assert process.wait(DEADLINE_S) == 0
    assert re.fullmatch(
        r"Cellwall listens on http://127\.0\.0\.1:\d+\. Ctrl-C ends it\.\n", lines[0]
    )
    assert "within 15 minutes: http://127.0.0.1:" in lines[1]
    process.communicate()


def test_the_lines_of_the_readme_serve_a_team(place):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    place.configure(f"[server]\nport = {port}\n")
    programs = place.folder / "bin"
    programs.mkdir()
    prepared_program.install_launcher(programs, user=place.user.get("user"))
    path = f"{programs}:{place.environment['PATH']}"
    lines = [
        step for step in readme.read() if re.match(r"cellwall (user|serve)|token=", step.shown_as)
    ]
    assert len(lines) == 3
    shown = []
    try:
        for step in lines:
            log = str(place.home / "log")
            line = step.command.replace("8750", port).replace("/tmp/readme-background.log", log)
            done = subprocess.run(
                ["sh", "-c", line], env={**place.environment, "PATH": path}, cwd=place.home,
                capture_output=True, text=True, timeout=DEADLINE_S, check=False,
            )  # fmt: skip
            assert step.faults(Shown(done.returncode, done.stdout.replace(port, "8750"), 0.0)) == []
            shown.append(done.stdout)
        assert json.loads(shown[2])["state"] == "live"
    finally:
        pid = json.loads(place.done("ps", "--json"))["supervisor"]
        os.kill(pid, signal.SIGTERM)
        until(lambda: not os.path.exists(f"/proc/{pid}"))


# Refusals


@pytest.mark.requirement("ISO-10")
def test_root_is_refused_unless_root_says_so(place):
    need(os.geteuid() == 0, "root")
    os.chown(place.home, 0, 0)
    os.chown(place.folder / "cellwall.toml", 0, 0)
    place.user = {}
    assert refusal(place, "--port", "0") == (125, "CW-SERVE-ROOT")
    with place.serving("--port", "0", "--dangerously-as-root") as served, served.client() as client:
        assert client.get("/v1/healthz").status_code == 200


@pytest.mark.requirement("SRV-3")
@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_beyond_loopback_only_with_tls(place, host):
    assert refusal(place, "--host", host, "--port", "0") == (125, "CW-SERVE-NO-TLS")


@pytest.mark.requirement("SRV-3")
def test_beyond_loopback_without_tls_by_a_setting_that_says_dangerously(place):
    place.configure("[server]\ndangerously_without_tls = true\n")
    with place.serving("--host", "0.0.0.0", "--port", "0") as served, served.client() as client:
        assert client.get("/v1/healthz").status_code == 200
        # The control: a name that no setting has is refused (DNS rebinding).
        refused = client.get("/v1/healthz", headers={"Host": "evil.example"})
        assert refused.json()["error"]["code"] == "CW-HOST"


def test_a_port_in_use_and_a_privileged_port(place):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert refusal(place, "--port", port) == (125, "CW-SERVE-LISTEN")
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) > 81:
        assert refusal(place, "--port", "81") == (125, "CW-SERVE-LISTEN")


def test_a_state_folder_that_cannot_be_used(place):
    place.home.chmod(0o755)
    assert refusal(place, "--port", "0") == (125, "CW-STATE-UNSAFE")
    gone = {"CELLWALL_HOME": "/proc/nowhere"}
    assert refusal(place, "--port", "0", env=gone) == (125, "CW-STATE")


@pytest.mark.parametrize("host", ["example.com", "fe80::1%lo", "", "127.0.0.1:80"])
def test_a_host_that_is_no_address(place, host):
    assert refusal(place, "--host", host, "--port", "0") == (125, "CW-USAGE")


# TLS


def certificate(place: Place, *names: str, authority: trustme.CA) -> tuple[Path, Path]:
    made = authority.issue_cert(*names)
    files = place.folder / "cert.pem", place.folder / "key.pem"
    made.private_key_pem.write_to_path(files[1])
    files[0].write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    for file in files:
        place.own(file)
    return files


def tls_settings(place: Place, more: str = "") -> str:
    files = place.folder / "cert.pem", place.folder / "key.pem"
    return f'[server]\ntls_certificate = "{files[0]}"\ntls_key = "{files[1]}"\n{more}'


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def outdated(side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


def handshake(client: ssl.SSLContext, place: Place) -> str:
    """With a server that still speaks it."""
    server = outdated(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(place.folder / "cert.pem", place.folder / "key.pem")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        thread = threading.Thread(
            target=lambda: server.wrap_socket(theirs, server_side=True).close()
        )
        thread.start()
        with client.wrap_socket(ours) as secure:
            thread.join(DEADLINE_S)
            return str(secure.version())


@pytest.mark.requirement("SRV-3")
def test_tls_by_files_also_beyond_loopback_and_a_renewed_certificate_is_used(place):
    authority = trustme.CA()
    certificate(place, "cellwall.test", "127.0.0.1", authority=authority)
    bounds = "housekeeping_s = 1.0\nrequest_timeout_s = 1.0\nmax_connections = 8\n"
    place.configure(tls_settings(place, bounds))
    with place.serving("--host", "0.0.0.0", "--port", "0") as served:
        port = int(served.url.rpartition(":")[2])
        assert served.url == f"https://cellwall.test:{port}"

        def connect(context: ssl.SSLContext) -> tuple[str, int]:
            with (
                socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as line,
                context.wrap_socket(line, server_hostname="cellwall.test") as secure,
            ):
                return str(secure.version()), hash(secure.getpeercert(binary_form=True))

        modern = trusting(authority)
        version, first = connect(modern)
        assert version == "TLSv1.3"
        older = trusting(authority)
        older.maximum_version = ssl.TLSVersion.TLSv1_2
        assert connect(older)[0] == "TLSv1.2"
        oldest = outdated(ssl.PROTOCOL_TLS_CLIENT)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            connect(oldest)
        assert handshake(oldest, place) == "TLSv1.1"  # the control: this client can do it
        with httpx.Client(verify=modern, base_url=f"https://127.0.0.1:{port}") as client:
            assert client.get("/v1/healthz").status_code == 200
        with pytest.raises(httpx.HTTPError):  # the control: an unknown authority
            httpx.get(f"https://127.0.0.1:{port}/v1/healthz")
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as silent:
            assert silent.recv(1) == b""  # no handshake comes, so the connection is closed
        certificate(place, "cellwall.test", authority=authority)
        until(lambda: connect(modern)[1] != first)
        # Handshakes that stay half open count as connections: else they take every descriptor.
        opened = Path(f"/proc/{served.process.pid}/fd")
        before, counts = len(os.listdir(opened)), [0]

        def are_accepted() -> bool:
            counts.append(len(os.listdir(opened)) - before)
            return counts[-1] > 0

        with ExitStack() as lines:
            for _ in range(60):
                lines.enter_context(socket.create_connection(("127.0.0.1", port)))
                are_accepted()
            until(are_accepted)
        assert max(counts) < 20  # 60 without a bound
        until(lambda: len(os.listdir(opened)) <= before)
        assert connect(modern)[0] == "TLSv1.3"


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        ("missing", "CW-TLS-FILE"),
        ("unreadable", "CW-TLS-FILE"),
        ("open", "CW-TLS-KEY-OPEN"),
        ("of another certificate", "CW-TLS-FILE"),
        ("encrypted", "CW-TLS-FILE"),
        ("no key", "CW-TLS-FILE"),
    ],
)
def test_a_key_that_cannot_be_used(place, damage, code):
    authority = trustme.CA()
    _, key = certificate(place, "localhost", authority=authority)
    place.configure(tls_settings(place))
    match damage:
        case "missing":
            key.unlink()
        case "unreadable":
            os.chown(key, 0, 0)
            need(os.geteuid() == 0, "root, to own a file that the user cannot read")
        case "open":
            key.chmod(0o644)
        case "of another certificate":
            authority.issue_cert("other.test").private_key_pem.write_to_path(key)
        case "encrypted":
            key.write_bytes(encrypted_key())
        case _:
            key.write_text("dear diary")
    assert refusal(place, "--port", "0") == (125, code)


def encrypted_key() -> bytes:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )


# systemd


@pytest.fixture
def manager(place) -> Iterator[socket.socket]:
    """The socket on which systemd hears from its services."""
    path = place.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(path))
        path.chmod(0o777)
        line.settimeout(DEADLINE_S)
        yield line


def test_it_tells_systemd_when_it_is_ready_alive_and_stopping(place, manager):
    heard = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "200000"}
    with place.serving(env=heard) as served:
        # It is alive already while it starts, which takes long on a busy host.
        while (text := manager.recv(4096).decode()) == "WATCHDOG=1":
            pass
        ready = f"READY=1\nSTATUS=listens on {served.url}\nMAINPID={served.process.pid}"
        assert text == ready
        assert manager.recv(4096).decode() == "WATCHDOG=1"
        served.process.terminate()
        while not (text := manager.recv(4096).decode()).startswith("STOPPING=1\n"):
            assert text == "WATCHDOG=1"
        assert "EXTEND_TIMEOUT_USEC=60000000" in text
        assert served.ended() == 0


ACTIVATE = """
import os, socket, sys
from cellwall.interfaces.cli.main import main
how = os.environ.pop("HOW")
given = socket.socket(socket.AF_INET, socket.SOCK_DGRAM if how == "a datagram socket" else socket.SOCK_STREAM)
given.bind(("0.0.0.0" if how == "beyond loopback" else "127.0.0.1", int(os.environ.pop("PORT"))))
if how not in ("a datagram socket", "not listening"):
    given.listen()
assert given.fileno() == 3
os.environ["LISTEN_PID"] = "1" if how == "of another process" else str(os.getpid())
os.environ["LISTEN_FDS"] = "99" if how == "too many" else "1"
given.detach()
sys.exit(main(sys.argv[1:]))
"""


def activated(place: Place, *words: str, how: str = "", port: int = 0) -> subprocess.Popen[bytes]:
    """Started as systemd starts the service of a socket unit."""
    return place.start(*words, code=ACTIVATE, env={"HOW": how, "PORT": str(port)})


def test_a_socket_of_systemd_is_used(place):
    process = activated(place, "--json")
    try:
        url = place.read_start(process)["address"]
        assert httpx.get(f"{url}/v1/healthz", timeout=DEADLINE_S).status_code == 200
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.requirement("SRV-3")
@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("beyond loopback", "CW-SERVE-NO-TLS"),
        ("with --port", "CW-USAGE"),
        ("not listening", "CW-SERVE-SOCKET"),
        ("a datagram socket", "CW-SERVE-SOCKET"),
        ("too many", "CW-SERVE-SOCKET"),
    ],
)
def test_a_socket_that_is_not_safe_or_no_listening_one_is_refused(place, how, code):
    words = ("--port", "0") if how == "with --port" else ()
    process = activated(place, *words, how=how)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, out) == (125, b"")
    assert error_code(subprocess.CompletedProcess([], 0, out, err)) == code


def test_sockets_for_another_process_are_left_alone(place):
    process = activated(place, "--port", "0", "--json", how="of another process")
    try:
        assert place.read_start(process)["address"].startswith("http://127.0.0.1:")
    finally:
        process.kill()
        process.communicate()


# The end


@pytest.mark.parametrize("how", ["SIGTERM", "Ctrl-C"])
def test_a_request_under_way_ends_before_the_service_and_a_new_one_is_refused(place, how):
    token, answers = place.token(), []
    with place.serving() as served, served.client(token) as client:
        session = new_session(client)
        assert run(client, session, "true").json()["status"] == "ok"
        gate = "until test -e go; do sleep 0.05; done; echo drained"

        def work() -> None:
            with served.client(token) as own:
                answers.append(run(own, session, "sh", "-c", gate).json())

        thread = threading.Thread(target=work)
        thread.start()
        until(lambda: client.get(f"/v1/sessions/{session}").json()["is_busy"])
        if how == "Ctrl-C":  # a terminal signals the whole group
            os.killpg(served.process.pid, signal.SIGINT)
        else:
            served.process.terminate()
        until(lambda: refuses(served))
        # On the host's side: nothing reaches the service any more.
        release = place.home / "workspaces" / session / "files" / "go"
        release.touch()
        assert served.ended() == 0
        thread.join(DEADLINE_S)
    assert [answer["stdout"] for answer in answers] == ["drained\n"]


def refuses(served: Served) -> bool:
    try:
        with served.client() as client:
            return client.get("/v1/healthz").status_code == 0
    except httpx.TransportError:
        return True


START_LATE = """
import builtins, os, sys
from cellwall.interfaces.cli.main import main
class Late:
    def __del__(self):  # here an exception of a signal handler would be lost
        os.write(1, b"now\\n")
        os.read(0, 1)
real = builtins.__import__
def slow(name, *rest):
    if name == "cellwall.interfaces.http.server":
        builtins.__import__ = real
        Late()
    return real(name, *rest)
builtins.__import__ = slow
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_the_start_is_not_lost(place, number):
    process = place.start("--port", "0", code=START_LATE, stdin=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"now\n"
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == -number
    finally:
        process.kill()
        process.communicate()


def test_after_the_drain_runs_are_ended_and_no_process_is_left(place):
    token, mark = place.token(), uuid.uuid4().hex
    place.configure("[server]\ndrain_s = 0.2\n")
    with place.serving() as served:
        with begun(served, token, mark):
            served.process.terminate()
            assert served.ended() == 0
        until(lambda: not processes_with(mark))
    assert place.done("ps", "--json") == b'{"supervisor": null, "sandboxes": []}\n'


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_it_at_once_with_all_cells(place, number):
    token, mark = place.token(), uuid.uuid4().hex
    with place.serving() as served, begun(served, token, mark):
        served.process.send_signal(signal.SIGTERM)
        until(lambda: refuses(served))
        served.process.send_signal(number)
        assert served.ended() == 128 + number
        until(lambda: not processes_with(mark))


class begun:
    """A run that does not end by itself, under way for as long as the block lasts."""

    def __init__(self, served: Served, token: str, mark: str) -> None:
        self._served, self._token, self._mark = served, token, mark

    def __enter__(self) -> None:
        def work() -> None:
            try:
                with self._served.client(self._token) as client:
                    run(client, new_session(client), "sh", "-c", f": {self._mark}; sleep 1000; :")
            except httpx.TransportError:
                return  # the service has ended

        self._thread = threading.Thread(target=work)
        self._thread.start()
        until(lambda: processes_with(self._mark))

    def __exit__(self, *_: object) -> None:
        self._served.process.kill()
        self._thread.join(DEADLINE_S)

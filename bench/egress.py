"""Egress against a direct connection and against tinyproxy; the allowlist; the vault.

Server, proxy and client are processes of their own, as they are outside of a benchmark. Rounds of
all parties are interleaved, and figures are ratios of medians of the same run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from argon2.low_level import Type, hash_secret_raw
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded

from cellwall.audit.log import AuditLog
from cellwall.core.network import Binding, EgressContext
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.types import Action, Principal, RunCommand
from cellwall.egress.destinations.allowlist import Allowlist
from cellwall.egress.limits import EgressSettings
from cellwall.egress.proxy.certificate_authority import Authority
from cellwall.egress.service import EgressService
from cellwall.secrets.format import VaultSettings
from cellwall.secrets.store import VaultStore

_BULK_BYTES = 512 << 20
_CHUNK_BYTES = 1 << 20
_REQUESTS = 4000
_CONNECTIONS = 32
_STREAMS = 2000
_NAME = "127.0.0.1"
_BODY = b"x" * 1024
_RULES = 10_000
_HERE = os.path.abspath(__file__)


def measure(rounds: int, *, quiet: bool) -> dict[str, Any]:
    for program in ("tinyproxy", "ab", "wrk"):
        if shutil.which(program) is None:
            sys.exit(f"bench egress needs {program}: `./dev bench egress` installs it")
    rounds = max(3, rounds // 10)
    with contextlib.ExitStack() as stack:
        bulk = stack.enter_context(_party("bulk"))
        web = stack.enter_context(_party("web"))
        ours = stack.enter_context(_party("proxy", str(bulk), str(web)))
        tiny = stack.enter_context(_tinyproxy())
        _say("bulk data", quiet=quiet)
        ways = {"direct": None, "cellwall": ours, "tinyproxy": tiny}
        speeds = _interleaved(rounds, ways, lambda proxy: _bulk(bulk, proxy))
        _say("requests", quiet=quiet)
        proxies: dict[str, int | None] = {"cellwall": ours, "tinyproxy": tiny}
        rates = _interleaved(rounds, proxies, lambda proxy: _requests(web, proxy))
        kept = _interleaved(rounds, proxies, lambda proxy: _requests_kept(web, proxy))
        _say("latency", quiet=quiet)
        waits = _interleaved(rounds, ways, lambda proxy: _latency(web, proxy))
        _say("HTTP/2", quiet=quiet)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        new = stack.enter_context(_party("new_web", folder))
        opened: dict[str, int | None] = {
            "direct": None,
            "cellwall": stack.enter_context(_party("proxy", "--opened", folder, str(new))),
        }
        streams = _interleaved(rounds, opened, lambda proxy: _streams(new, proxy, folder))
    mib = 1 << 20
    return {
        **{f"bulk_{name}_mib_per_s": round(_mid(each) / mib) for name, each in speeds.items()},
        "bulk_ratio_to_direct": round(_mid(speeds["cellwall"]) / _mid(speeds["direct"]), 2),
        "bulk_ratio_to_tinyproxy": round(_mid(speeds["cellwall"]) / _mid(speeds["tinyproxy"]), 2),
        **{f"requests_{name}_per_s": round(_mid(each)) for name, each in rates.items()},
        "requests_ratio_to_tinyproxy": round(_mid(rates["cellwall"]) / _mid(rates["tinyproxy"]), 2),
        **{f"requests_kept_{name}_per_s": round(_mid(each)) for name, each in kept.items()},
        "requests_kept_ratio_to_tinyproxy": round(
            _mid(kept["cellwall"]) / _mid(kept["tinyproxy"]), 2
        ),
        **{f"latency_{name}_ms_p50": round(_mid(each) * 1e3, 3) for name, each in waits.items()},
        "latency_added_ms_p50": round((_mid(waits["cellwall"]) - _mid(waits["direct"])) * 1e3, 3),
        **{f"http2_{name}_per_s": round(_mid(each)) for name, each in streams.items()},
        "http2_ratio_to_direct": round(_mid(streams["cellwall"]) / _mid(streams["direct"]), 2),
        **_allowlist(),
        **_vault(),
    }


def _mid(values: list[float]) -> float:
    return statistics.median(values)


def _interleaved(
    rounds: int, ways: dict[str, int | None], work: Callable[[int | None], float]
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, proxy in ways.items():
            found[name].append(work(proxy))
    return found


# --- clients


def _connect(port: int, proxy: int | None) -> socket.socket:
    line = socket.create_connection((_NAME, port if proxy is None else proxy), 30)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if proxy is not None:
        line.sendall(f"CONNECT {_NAME}:{port} HTTP/1.1\r\nHost: {_NAME}:{port}\r\n\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += line.recv(1) or sys.exit("the proxy hung up")
        if b" 200 " not in head.split(b"\r\n")[0]:
            sys.exit(head.decode())
    return line


def _bulk(port: int, proxy: int | None) -> float:
    """Bytes per second of one long answer."""
    room = bytearray(_CHUNK_BYTES)
    with _connect(port, proxy) as line:
        started, left = time.perf_counter(), _BULK_BYTES
        line.sendall(b"go")
        while left > 0:
            left -= line.recv_into(room) or sys.exit("cut short")
        return _BULK_BYTES / (time.perf_counter() - started)


def _requests_kept(port: int, proxy: int | None) -> float:
    """Requests per second of 32 connections that are kept where the proxy keeps them, by wrk."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        # The address of the proxy, the target of the request in its absolute form.
        script.write(f'request = function() return wrk.format("GET", "http://{_NAME}:{port}/") end')
        script.flush()
        words = ["wrk", "-t1", f"-c{_CONNECTIONS}", "-d2s", "-s", script.name]
        words += ["-H", f"Host: {_NAME}:{port}", f"http://{_NAME}:{proxy}/"]
        told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    rate = re.search(r"Requests/sec:\s+([\d.]+)", told)
    if rate is None or "Non-2xx" in told:
        sys.exit(told)
    return float(rate[1])


def _requests(port: int, proxy: int | None) -> float:
    """Requests per second, 32 at a time, each with a connection of its own, by ApacheBench."""
    words = ["ab", "-q", "-n", str(_REQUESTS), "-c", str(_CONNECTIONS)]
    words += ["-X", f"{_NAME}:{proxy}", f"http://{_NAME}:{port}/"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    failed = re.search(r"Failed requests:\s+(\d+)", told)
    rate = re.search(r"Requests per second:\s+([\d.]+)", told)
    if failed is None or rate is None or int(failed[1]):
        sys.exit(told)
    return float(rate[1])


def _streams(port: int, proxy: int | None, folder: str) -> float:
    """Requests per second, 32 at a time by one connection of HTTP/2, in TLS that is opened."""
    trust = ssl.create_default_context(
        cafile=os.path.join(folder, "server.pem" if proxy is None else "cell.pem")
    )
    trust.set_alpn_protocols(["h2"])
    head = [(":method", "GET"), (":scheme", "https"), (":authority", f"{_NAME}:{port}")]
    head.append((":path", "/"))
    with trust.wrap_socket(_connect(port, proxy), server_hostname=_NAME) as sock:
        line = H2Connection(H2Configuration())
        line.initiate_connection()
        started, begun, left = time.perf_counter(), 0, _STREAMS
        while left:
            while begun < _STREAMS and begun - (_STREAMS - left) < _CONNECTIONS:
                line.send_headers(2 * begun + 1, head, end_stream=True)
                begun += 1
            sock.sendall(line.data_to_send())
            for event in line.receive_data(sock.recv(65536) or sys.exit("cut short")):
                if isinstance(event, DataReceived):
                    size = event.flow_controlled_length
                    line.acknowledge_received_data(size, event.stream_id)
                left -= isinstance(event, StreamEnded)
        return _STREAMS / (time.perf_counter() - started)


def _latency(port: int, proxy: int | None) -> float:
    """The median of small requests in plain HTTP, a connection each."""
    times = []
    where = "/" if proxy is None else f"http://{_NAME}:{port}/"
    request = f"GET {where} HTTP/1.1\r\nHost: {_NAME}:{port}\r\nConnection: close\r\n\r\n".encode()
    for _ in range(50):
        started = time.perf_counter()
        with socket.create_connection((_NAME, proxy or port), 30) as line:
            line.sendall(request)
            while line.recv(65536):
                pass
        times.append(time.perf_counter() - started)
    return statistics.median(times)


# --- the other processes


@contextlib.contextmanager
def _party(*words: str) -> Iterator[int]:
    """Another life of this file; it prints its port first."""
    process = subprocess.Popen([sys.executable, _HERE, *words], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextlib.contextmanager
def _tinyproxy() -> Iterator[int]:
    with socket.socket() as probe, tempfile.TemporaryDirectory() as folder:
        probe.bind((_NAME, 0))
        port = probe.getsockname()[1]
        probe.close()
        path = os.path.join(folder, "tinyproxy.conf")
        with open(path, "w", encoding="ascii") as file:
            file.write(f"Port {port}\nListen {_NAME}\nMaxClients 512\nTimeout 60\n")
            file.write("LogLevel Critical\nDisableViaHeader Yes\n")
        process = subprocess.Popen(["tinyproxy", "-d", "-c", path], stdout=subprocess.DEVNULL)
        try:
            until = time.monotonic() + 10
            while time.monotonic() < until:
                with contextlib.suppress(OSError), socket.create_connection((_NAME, port), 1):
                    break
                time.sleep(0.02)
            yield port
        finally:
            process.kill()
            process.wait()


def _serve_bulk() -> None:
    chunk = bytes(_CHUNK_BYTES)
    with socket.create_server((_NAME, 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            line, _ = server.accept()
            with line, contextlib.suppress(OSError):
                if line.recv(2):
                    for _ in range(_BULK_BYTES // _CHUNK_BYTES):
                        line.sendall(chunk)


class _Web(asyncio.Protocol):
    _ANSWER = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(_BODY)
        + _BODY
    )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._text = b""

    def data_received(self, data: bytes) -> None:
        self._text += data
        while (end := self._text.find(b"\r\n\r\n")) >= 0:
            head, self._text = self._text[:end].lower(), self._text[end + 4 :]
            self._transport.write(self._ANSWER)
            if b"connection: close" in head or (b"http/1.0" in head and b"keep-alive" not in head):
                self._transport.close()


def _serve_web() -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(_Web, _NAME, 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(run())


class _NewWeb(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._line = H2Connection(H2Configuration(client_side=False))
        self._line.initiate_connection()

    def data_received(self, data: bytes) -> None:
        for event in self._line.receive_data(data):
            if isinstance(event, RequestReceived):
                self._line.send_headers(event.stream_id, [(":status", "200")])
                self._line.send_data(event.stream_id, _BODY, end_stream=True)
        self._transport.write(self._line.data_to_send())


def _serve_new_web(folder: str) -> None:
    authority = Authority()
    Path(folder, "server.pem").write_bytes(authority.pem)

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(
            _NewWeb, _NAME, 0, ssl=authority.context_for(_NAME, "h2")
        )
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(run())


def _serve_proxy(*ports: str) -> None:
    """As a cell's: the same service, on a socket that was made elsewhere; with a real record.

    With `--opened FOLDER` TLS is opened, and the folder has the authorities of both sides.
    """
    folder, trust, method = "", None, ""
    if ports[0] == "--opened":
        folder, ports, method = ports[1], ports[2:], "GET "
        trust = ssl.create_default_context(cafile=os.path.join(folder, "server.pem"))

    class Nothing:
        def values(self) -> dict[str, bytes]:
            return {"KEY": b"a-secret-that-nobody-sends"}

    settings = EgressSettings(
        max_total_connections=10**8,
        max_upload_bytes=1 << 50,
        max_download_bytes=1 << 50,
        bytes_per_s=1 << 40,
        dangerously_allow_addresses=(ip_network("127.0.0.0/8"),),
    )
    log = AuditLog.open(os.path.join(os.environ["CELLWALL_HOME"], "egress-audit"))

    async def record(body: dict[str, Any], who: EgressContext) -> None:
        event = Event(EventKind.CONNECTION, who.action_id, who.principal, who.interface, body)
        await log.record(event)

    action = Action(
        principal=Principal("bench", "sdk"),
        operation=RunCommand(("true",)),
        allow_domains=tuple(f"{method}{_NAME}:{port}" for port in ports),
    )

    async def run() -> None:
        service = EgressService(settings, record=record, known=Nothing(), upstream_tls=trust)
        listener = socket.create_server((_NAME, 0), backlog=1024)
        async with service.session(action, ()) as network:
            network.adopt({"proxy": listener})
            if folder:
                Path(folder, "cell.pem").write_bytes(network.files["ca.pem"])  # noqa: ASYNC240 - once
            print(listener.getsockname()[1], flush=True)
            await asyncio.Event().wait()

    asyncio.run(run())


# --- what needs no network


def _allowlist() -> dict[str, Any]:
    rules = [f"host{n}.example{n % 97}.com" for n in range(_RULES // 2)]
    rules += [f"*.part{n}.example{n % 89}.org" for n in range(_RULES // 2)]
    allowlist = Allowlist.of(rules)
    asked = ["host77.example77.com", "a.b.part4000.example84.org", "evil.example.com"]
    count = 20_000
    started = time.perf_counter()
    for at in range(count):
        allowlist.reach(asked[at % 3], 443)
    each = (time.perf_counter() - started) / count
    return {f"allowlist_{_RULES}_rules_us": round(each * 1e6, 2)}


def _vault() -> dict[str, Any]:
    """Unlocking against Argon2id alone with the same parameters; a lease with its end."""
    settings = VaultSettings()
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o700)
        vault = VaultStore(os.path.join(folder, "vault"), settings)
        vault.init(bytearray(b"a good passphrase"))
        for number in range(50):
            vault.set(f"SECRET_{number}", b"value-%d" % number * 4)
        vault.grant("SECRET_7", Binding(host="api.example.com"))
        alone, opened, leased = [], [], []
        for _ in range(7):
            started = time.perf_counter()
            hash_secret_raw(
                b"a good passphrase",
                b"0" * 16,
                time_cost=settings.argon2_passes,
                memory_cost=settings.argon2_memory_kib,
                parallelism=settings.argon2_lanes,
                hash_len=32,
                type=Type.ID,
            )
            alone.append(time.perf_counter() - started)
            vault.lock()
            started = time.perf_counter()
            vault.unlock(bytearray(b"a good passphrase"))
            opened.append(time.perf_counter() - started)
        for _ in range(2000):
            started = time.perf_counter()
            with vault.lease(["SECRET_7"], tool="run", session=""):
                leased.append(time.perf_counter() - started)
    return {
        "vault_argon2id_ms": round(_mid(alone) * 1e3, 1),
        "vault_unlock_ms": round(_mid(opened) * 1e3, 1),
        "vault_unlock_ratio": round(_mid(opened) / _mid(alone), 2),
        "vault_lease_us": round(_mid(leased) * 1e6, 1),
    }


def _say(text: str, *, quiet: bool) -> None:
    if not quiet:
        print(f"... {text}", file=sys.stderr)


if __name__ == "__main__":
    {"bulk": _serve_bulk, "web": _serve_web, "new_web": _serve_new_web, "proxy": _serve_proxy}[
        sys.argv[1]
    ](*sys.argv[2:])

"""The service over HTTP against the SDK in one run; load with many sessions; events; the cost of
authentication. Not called http.py: that would hide the standard library's module.

The SDK runs in this process and the service in its own, on the same machine, by turns. The full
load is `--sessions 200 --concurrent 50 --seconds 300`.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

import cellwall
from cellwall.admin.accounts import open_accounts
from cellwall.config.load import load_settings
from cellwall.core.types import Principal

PROGRAM = os.path.join(os.path.dirname(sys.executable), "cellwall")
_STARTS_WITHIN_S = 60.0
_WRITES = 20_000
_GAP_S = 5e-5
"""Between two writes of the program whose events are counted: 20,000 writes each second."""
_MEMORY = "64m"
"""Of each sandbox under load: the promises of all must fit into the host."""


@dataclass
class Load:
    """How much at once, and for how long."""

    sessions: int = 20
    concurrent: int = 8
    seconds: float = 15.0


@dataclass
class Served:
    """A running `cellwall serve`."""

    address: str
    pid: int
    token: str = ""
    config: str = ""

    def client(self) -> Client:
        return Client(self.address.removeprefix("http://"), self.token)


class Client:
    """One connection that is kept open; no library between the bytes and the clock."""

    def __init__(self, place: str, token: str) -> None:
        self._line = http.client.HTTPConnection(place, timeout=120)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, bytes]:
        data = None if body is None else json.dumps(body)
        self._line.request(method, path, data, self._headers)
        answer = self._line.getresponse()
        return answer.status, answer.read()

    def stream(self, path: str, body: dict[str, Any]) -> tuple[str, bytes]:
        """The id of a run, and all its server-sent events."""
        headers = {**self._headers, "Accept": "text/event-stream"}
        self._line.request("POST", path, json.dumps(body), headers)
        answer = self._line.getresponse()
        return answer.headers["Cellwall-Run"], answer.read()

    def new_session(self) -> str:
        status, body = self.ask("POST", "/v1/sessions", {"memory": _MEMORY, "keep_alive": 3600})
        assert status == 201, body
        return str(json.loads(body)["id"])

    def run(self, session: str, code: str = "1") -> dict[str, Any]:
        status, body = self.ask("POST", f"/v1/sessions/{session}/code", {"code": code})
        assert status == 200, body
        return dict(json.loads(body))

    def close(self) -> None:
        self._line.close()


def measure(rounds: int, *, quiet: bool, load: Load | None = None) -> dict[str, float]:
    load = load or Load()
    os.environ["CELLWALL_SUPERVISOR"] = "off"
    os.environ["CELLWALL_PATH"] = "warm"
    with tempfile.TemporaryDirectory(prefix="cellwall-bench-") as folder:
        config = Path(folder, "cellwall.toml")
        config.write_text(
            f"[server]\nmax_sessions_per_user = {load.sessions + 10}\n"
            f"[governor]\nmax_concurrent = {max(load.concurrent, 64)}\n"
        )
        with served(folder, str(config)) as service:
            figures = _told(_added(service, rounds), quiet=quiet)
            figures |= _told(_events(service), quiet=quiet)
            figures |= _told(_requests(service, rounds), quiet=quiet)
            figures |= _told(_loaded(service, load), quiet=quiet)
        figures |= anyio.run(_authentication, folder, str(config))
    return figures


def _told(figures: dict[str, float], *, quiet: bool) -> dict[str, float]:
    """Said as soon as they are known: the whole takes minutes."""
    if not quiet:
        print(f"bench http: {figures}", file=sys.stderr)
    return figures


@contextlib.contextmanager
def served(folder: str, config: str) -> Iterator[Served]:
    """A service in its own process, with the user `bench` and a token."""
    home = os.path.join(folder, "service")
    os.mkdir(home, 0o700)
    environ = {**os.environ, "CELLWALL_HOME": home}
    words = [PROGRAM, "serve", "--port", "0", "--json", "--config", config]
    if os.geteuid() == 0:
        words.append("--dangerously-as-root")
    with subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            started = json.loads(process.stdout.readline())
            served = Served(started["address"], process.pid, config=config)
            command(environ, config, "user", "add", "bench", "--role", "owner")
            made = command(environ, config, "token", "create", "--user", "bench", "--ttl", "12h")
            served.token = made.strip()
            yield served
        finally:
            process.terminate()
            process.wait(_STARTS_WITHIN_S)


def command(environ: dict[str, str], config: str, *words: str) -> str:
    """What a command of Cellwall prints."""
    done = subprocess.run(
        [PROGRAM, *words, "--config", config],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def _added(served: Served, rounds: int) -> dict[str, float]:
    """A run in a live sandbox by the SDK and over HTTP, by turns.

    Processor time counts the same on a busy machine; it is that of the whole process.
    """
    client = served.client()
    session = client.new_session()
    with cellwall.Sandbox.create(memory=_MEMORY) as sandbox:
        ways: dict[str, Callable[[], object]] = {
            "sdk": lambda: sandbox.run_code("1").raise_for_status(),
            "http": lambda: client.run(session),
        }
        clocks = {
            "sdk": lambda: _processor_ms(os.getpid()),
            "http": lambda: _processor_ms(served.pid),
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(5):
            for call in ways.values():
                call()
        for _ in range(rounds):
            for name, call in ways.items():
                taken[name].append(_timed_ms(call))
        spent = {}
        for name, call in ways.items():
            before = clocks[name]()
            for _ in range(rounds):
                call()
            spent[name] = (clocks[name]() - before) / rounds
    client.ask("DELETE", f"/v1/sessions/{session}")
    client.close()
    p50 = {name: statistics.median(values) for name, values in taken.items()}
    return {
        "sdk_run_p50_ms": round(p50["sdk"], 3),
        "http_run_p50_ms": round(p50["http"], 3),
        "http_adds_p50_ms": round(p50["http"] - p50["sdk"], 3),
        "http_run_fastest_ms": round(min(taken["http"]), 3),
        "sdk_run_fastest_ms": round(min(taken["sdk"]), 3),
        "http_over_sdk_ratio": round(p50["http"] / p50["sdk"], 3),
        "sdk_run_processor_ms": round(spent["sdk"], 3),
        "http_run_processor_ms": round(spent["http"], 3),
        "http_adds_processor_ms": round(spent["http"] - spent["sdk"], 3),
    }


def _processor_ms(pid: int) -> float:
    """Processor time of all threads of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / os.sysconf("SC_CLK_TCK")


def _timed_ms(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1000


def _events(served: Served) -> dict[str, float]:
    """Server-sent events of one connection: while they come, and read again after a lost one.

    One event is one piece of output of one stream, as the supervisor read it. A program that writes
    without a pause fills the pipe while it is read: few large events, many lines. One that waits a
    moment after each line shows how many events the service can make; it waits in a loop, since a
    sleep takes at least 0.1 ms more than it is told.
    """
    client = served.client()
    session = client.new_session()
    client.run(session)
    path = f"/v1/sessions/{session}/code"
    line = "os.write(1 + n % 2, b'line %d\\n' % n)"
    paced = (
        f"import os, time\nnext_s = time.perf_counter()\nfor n in range({_WRITES}):\n    {line}\n"
        f"    next_s += {_GAP_S}\n    while time.perf_counter() < next_s: pass"
    )
    before_ms, started = _processor_ms(served.pid), time.perf_counter()
    run, body = client.stream(path, {"code": paced})
    live_s = time.perf_counter() - started
    spent_ms = _processor_ms(served.pid) - before_ms
    count = body.count(b"\nevent: ")
    without_pause = f"import os\nfor n in range({10 * _WRITES}): {line}"
    started = time.perf_counter()
    _, whole = client.stream(path, {"code": without_pause})
    lines_s = time.perf_counter() - started
    assert whole.count(b"line ") >= 10 * _WRITES
    started = time.perf_counter()
    times = max(1, 20_000 // max(count, 1))
    for _ in range(times):
        status, body = client.ask("GET", f"/v1/sessions/{session}/runs/{run}/events")
        assert (status, body.count(b"\nevent: ")) == (200, count)
    again_s = time.perf_counter() - started
    client.close()
    return {
        "sse_events_of_one_run": count,
        "sse_live_events_per_s": round(count / live_s),
        "sse_live_processor_us_per_event": round(spent_ms * 1000 / count, 1),
        "sse_live_lines_per_s": round(10 * _WRITES / lines_s),
        "sse_replayed_events_per_s": round(count * times / again_s),
    }


def _requests(served: Served, rounds: int) -> dict[str, float]:
    """What a request costs by itself, and with authentication and ownership."""
    client = served.client()
    session = client.new_session()
    paths = {
        "healthz": "/healthz",
        "who_am_i": "/v1/auth/session",
        "own_session": f"/v1/sessions/{session}",
    }
    taken: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(max(rounds * 5, 100)):
        for name, path in paths.items():
            taken[name].append(_timed_ms(lambda path=path: client.ask("GET", path)))  # type: ignore[misc]  # the type of a default is unknown
    client.ask("DELETE", f"/v1/sessions/{session}")
    client.close()
    return {f"get_{name}_p50_ms": round(statistics.median(v), 3) for name, v in taken.items()}


@dataclass
class _Samples:
    memory_bytes: list[int] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    def take(self, pid: int) -> None:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        self.memory_bytes.append(resident * os.sysconf("SC_PAGE_SIZE"))
        self.descriptors.append(len(os.listdir(f"/proc/{pid}/fd")))


def _loaded(served: Served, load: Load) -> dict[str, float]:
    """Live sessions, and runs at once in some of them, for a while."""
    client = served.client()
    sessions = [client.new_session() for _ in range(load.sessions)]
    for session in sessions:
        client.run(session)  # its cell is made now
    taken_ms: list[float] = []
    errors: list[str] = []
    end = time.monotonic() + load.seconds

    def work(number: int) -> None:
        own = served.client()
        mine = sessions[number :: load.concurrent]
        at = 0
        while time.monotonic() < end and mine:
            started = time.perf_counter()
            try:
                found = own.run(mine[at % len(mine)])
                if found["status"] != "ok":
                    errors.append(str(found["error"]))
            except (AssertionError, OSError, http.client.HTTPException) as error:
                errors.append(repr(error)[:200])
                own.close()
            taken_ms.append((time.perf_counter() - started) * 1000)
            at += 1
        own.close()

    threads = [threading.Thread(target=work, args=(each,)) for each in range(load.concurrent)]
    samples = _Samples()
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        samples.take(served.pid)
        time.sleep(min(1.0, load.seconds / 20))
    for thread in threads:
        thread.join()
    for error in errors[:3]:
        print(f"bench http: {error}", file=sys.stderr)
    client.close()  # the service has closed it meanwhile: it was idle
    for session in sessions:
        client.ask("DELETE", f"/v1/sessions/{session}")
    client.close()
    p50, p99 = _percentile(taken_ms, 0.5), _percentile(taken_ms, 0.99)
    return {
        "load_sessions": load.sessions,
        "load_concurrent": load.concurrent,
        "load_seconds": load.seconds,
        "load_runs": len(taken_ms),
        "load_errors": len(errors),
        "load_runs_per_s": round(len(taken_ms) / load.seconds, 1),
        "load_p50_ms": round(p50, 2),
        "load_p99_ms": round(p99, 2),
        "load_p99_over_p50_ratio": round(p99 / p50, 2),
        "load_memory_growth_ratio": round(_growth(samples.memory_bytes), 3),
        "load_memory_end_mib": round(samples.memory_bytes[-1] / 2**20, 1),
        "load_descriptors_growth_ratio": round(_growth(samples.descriptors), 3),
        "load_descriptors_end": samples.descriptors[-1],
    }


def _percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _growth(values: list[int]) -> float:
    """The last quarter against the second: the first still fills caches."""
    quarter = max(1, len(values) // 4)
    return statistics.median(values[-quarter:]) / statistics.median(values[quarter : 2 * quarter])


async def _authentication(folder: str, config: str) -> dict[str, float]:
    """What each request does before its route: by a service token, and by an access token."""
    home = os.path.join(folder, "accounts")
    os.mkdir(home, 0o700)
    environ = {**os.environ, "CELLWALL_HOME": home}
    settings = load_settings(file=config, environ=environ)
    command(environ, config, "db", "migrate")
    url, address = "http://127.0.0.1", "127.0.0.1"
    root = Principal("root", "cli")
    async with open_accounts(home, settings, issuer=url, audit=_NoAudit()) as (accounts, _store):  # type: ignore[arg-type]  # writes nothing
        user = await accounts.directory.add_user("bench", role="user", by=root)
        link = await accounts.sign_in.make_link(user.id, by=root)
        pair = await accounts.sign_in.by_link(
            link, "correct horse battery", address=address, audience=f"{url}/v1"
        )
        # After the password, which ends every token.
        create = accounts.directory.create_token
        service, _ = await create(user.id, name="b", scopes=(), lives_s=600, by=root)
        figures = {}
        for name, token in {"service_token": service, "access_token": pair.access}.items():
            taken = []
            for _ in range(500):
                started = time.perf_counter()
                await accounts.authenticate(token, audience=f"{url}/v1", address=address)
                taken.append((time.perf_counter() - started) * 1000)
            figures[f"authenticate_{name}_p50_ms"] = round(statistics.median(taken), 4)
    return figures


class _NoAudit:
    """Takes events and keeps none: what is measured writes none."""

    def write(self, event: object) -> str:
        del event
        return "evt"

    async def record(self, event: object) -> str:
        return self.write(event)

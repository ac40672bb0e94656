"""The probes of the blast radius as data: programs for a cell, by line (radius_probes.toml)."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, Literal

from cellwall.core.limits import MIB, LimitName, Limits
from cellwall.core.outcomes import Outcome
from cellwall.core.types import Json, RunCode, WorkspaceMode

FACTS = "CELLWALL_PROBE"
"""The variable with the facts that a program is given, as JSON."""
MAX_WAIT_S = 60.0
SPARE_BYTES = 192 * MIB
"""For the interpreter beside the amount that a probe uses."""
_MIN_LIMITS = {
    "wall_s": MAX_WAIT_S,
    "cpu_s": MAX_WAIT_S,
    "cpus": 0.5,
    "memory_bytes": SPARE_BYTES,
    "processes": 32,
    "open_files": 128,
    "file_size_bytes": 16 * MIB,
    "disk_bytes": 16 * MIB,
    "file_count": 256,
    "output_bytes": MIB,
}
"""What a probe itself needs, also on a busy host: a configuration may allow less to a run."""
OutsideCheck = Literal["is_written", "is_unchanged", "has_ended"]

_PRELUDE = f"""
import json, os, re, socket, time
given, tried, wrong, broken = json.loads(os.environ["{FACTS}"]), [], [], []
"""
_TOOLS = """
def refusal(deed):
    try: deed()
    except OSError as error: return error.strerror or str(error) or "refused"
    return None
def can(name, deed):
    tried.append(name)
    reason = refusal(deed)
    if reason is not None: wrong.append(f"{name} was refused: {reason}")
def cannot(name, deed):
    tried.append(name)
    if refusal(deed) is None: wrong.append(f"{name} was possible")
tries = can if given.get("possible") else cannot
def control(name, deed):
    reason = refusal(deed)
    if reason is not None: broken.append(f"{name}: {reason}")
def makes(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    os.unlink(path)
def writes(path, text):
    with open(path, "w") as file: file.write(text)
def holds_text(data, text):
    if text.encode() not in data: raise OSError(2, "another content")
def holds(path, text):
    with open(path, "rb") as file: holds_text(file.read(), text)
def lists(place):
    with os.scandir(place) as found:
        if next(found, None) is None: raise OSError(2, "empty")
def fills(place, size):
    chunk, number = bytes(1 << 20), 0
    while size > 0:
        # Files far below the limit of one file.
        with open(f"{place}/fill-{number}", "wb", buffering=0) as file:
            for _ in range(8):
                part = chunk[:min(len(chunk), size)]
                if part: size -= file.write(part)
        number += 1
def writes_at(path, offset):
    with open(path, "wb") as file:
        file.seek(offset)
        file.write(b".")
def knocks_at_itself():
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname(), 5).close()
def through_proxy(*head):
    line = socket.create_connection(("127.0.0.1", 3128), 5)
    line.settimeout(15)
    line.sendall("".join(f"{each}\\r\\n" for each in (*head, "")).encode())
    return line
def asks(host, port, method="GET", path="/"):
    head = f"{method} http://{host}:{port}{path} HTTP/1.1"
    with through_proxy(head, f"Host: {host}:{port}", "Connection: close") as line:
        answer = line.makefile("rb").read(1 << 20)
    if not answer.startswith(b"HTTP/1."): raise OSError(5, "no answer")
    return answer
def check_answer(answer):
    found = re.search(rb"CW-[A-Z0-9-]+", answer)
    if b"CW-" in answer: raise OSError(1, f"by the proxy, {found[0].decode() if found else ''}")
def reaches(host, port, method, path, is_tls):
    if not is_tls:
        check_answer(asks(host, port, method, path))
        return
    import ssl
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    with through_proxy(f"CONNECT {host}:{port} HTTP/1.1", f"Host: {host}:{port}") as line:
        answer = b""
        while not answer.endswith(b"\\r\\n\\r\\n"):
            part = line.recv(1)
            if not part: raise OSError(5, "no answer")
            answer += part
        if b" 200" not in answer.partition(b"\\r\\n")[0]:
            check_answer(b"CW- " + line.recv(1 << 16))
        context.wrap_socket(line, server_hostname=host).close()
"""
_REPORT = '\n{"tried": tried, "wrong": wrong, "broken": broken}'


class Unprobed(Exception):
    """Nothing could be tried, or the trial proves nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeProgram:
    """A program that tries what one line says."""

    tried: str
    """For people: what was done."""
    code: RunCode
    before: RunCode | None
    """Run first, in another cell, and must succeed."""
    workspace: WorkspaceMode
    needs: str
    """The fact without which there is nothing to try."""
    domains: str
    """The fact that names hosts for this run."""
    after: OutsideCheck | None
    """What is checked outside, after the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitProbe:
    """Code that uses `amount` of something."""

    limit: LimitName
    of: frozenset[str]
    """The limits of the configuration that make this one."""
    use: str
    in_memory: bool
    max_amount: float | None
    is_waited_for: bool

    def to_code(self, amount: float) -> RunCode:
        shown = int(amount) if float(amount).is_integer() else amount
        text = f"{_PRELUDE}{_TOOLS}\namount = {shown!r}\n{self.use}\n"
        return RunCode("python", text.encode())


@dataclass(frozen=True, slots=True)
class RadiusProbes:
    """All probes, by the id of their line."""

    programs: Mapping[str, ProbeProgram]
    limits: Mapping[str, LimitProbe]
    trials: Mapping[str, str]
    """Code for a trial host, by name."""
    unprobed: Mapping[str, str]
    """The reason why a line has no probe."""


@functools.cache
def radius_probes() -> RadiusProbes:
    """From the table."""
    text = resources.files("cellwall.admin").joinpath("radius_probes.toml").read_text("utf-8")
    table = tomllib.loads(text)
    return RadiusProbes(
        {entry["line"]: _program(entry) for entry in table["program"]},
        {entry["line"]: _limit(entry) for entry in table["limit"]},
        table["trial"],
        table["unprobed"],
    )


def trial_code(name: str, given: Mapping[str, Json]) -> RunCode:
    """A program of a trial; its last expression is its report."""
    prelude = _PRELUDE.replace(f'json.loads(os.environ["{FACTS}"])', repr(dict(given)))
    return RunCode("python", f"{prelude}{_TOOLS}{radius_probes().trials[name]}".encode())


def raised_limits(limits: Limits, kept: frozenset[str]) -> Limits:
    """At least what a probe itself needs, but for the limits that are probed."""
    least = {name: max(getattr(limits, name), value) for name, value in _MIN_LIMITS.items()}
    return replace(limits, **{name: value for name, value in least.items() if name not in kept})


def ending(outcome: Outcome) -> str:
    """How a run ended, in a few words."""
    code = f" [{outcome.error.code}]" if outcome.error is not None else ""
    limit = f" ({outcome.limit})" if outcome.limit else ""
    last = (outcome.stderr.strip().splitlines() or [""])[-1][:200]
    return f"{outcome.status.value}{code}{limit} {last}".strip()


def _program(entry: Mapping[str, Any]) -> ProbeProgram:
    return ProbeProgram(
        tried=entry["tried"],
        code=_python(entry["code"]),
        before=_python(entry["before"]) if "before" in entry else None,
        workspace=WorkspaceMode(entry.get("workspace", "private")),
        needs=entry.get("needs", ""),
        domains=entry.get("domains", ""),
        after=entry.get("after"),
    )


def _limit(entry: Mapping[str, Any]) -> LimitProbe:
    return LimitProbe(
        limit=LimitName(entry["limit"]),
        of=frozenset(entry["of"]),
        use=entry["use"],
        in_memory=entry.get("in_memory", False),
        max_amount=entry.get("max"),
        is_waited_for=entry.get("is_waited_for", False),
    )


def _python(code: str) -> RunCode:
    return RunCode("python", f"{_PRELUDE}{_TOOLS}{code}{_REPORT}".encode())

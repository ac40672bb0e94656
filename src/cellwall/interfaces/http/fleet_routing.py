"""Which host a request is for, by its address and headers alone; pure.

A wrong guess costs a refusal and never a right: the host decides who the caller is and what the
caller may use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs

Kind = Literal["session", "approval", "snapshot", "new", "all", "mcp", "vault", "any"]

_ID = r"[a-z]{1,4}_[0-9a-hjkmnp-tv-z]{20,32}"
_SESSION = re.compile(rf"/(?:v1|ui)/sessions/({_ID})(?:/.*)?")
_APPROVAL = re.compile(rf"/(?:v1|ui)/approvals/({_ID})")
_SNAPSHOT = re.compile(rf"/(?:v1/snapshots|e2b/templates)/({_ID})")
_E2B_SANDBOX = re.compile(rf"/e2b(?:/v2)?/sandboxes/({_ID})(?:/.*)?")
_PREVIEW = re.compile(rf"[1-9][0-9]{{0,4}}-({_ID})\..+")
_NEW = frozenset({"/v1/sessions", "/e2b/sandboxes", "/e2b/v2/sandboxes"})
_LISTS = frozenset({*_NEW, "/v1/approvals", "/v1/snapshots", "/e2b/snapshots"})
_SECRETS = "/v1/secrets"
_E2B, _MCP, _METRICS = "/e2b/", "/mcp", "/metrics"
HOST_HEADER = b"cellwall-host"
LABELS_HEADER = b"cellwall-labels"
UNSERVED_HEADER = "cellwall-unserved"
"""Of an answer: the host has refused the request before anything was done."""
MCP_SESSION = b"mcp-session-id"
_MAX_LABELS = 16
Headers = Mapping[bytes, bytes]


def is_id(text: str) -> bool:
    """Whether a text has the form of an id; in a path it names nothing else."""
    return re.fullmatch(_ID, text) is not None


@dataclass(frozen=True, slots=True)
class Target:
    """What a request is about."""

    kind: Kind
    name: str = ""
    """Of the session, question or snapshot; of the host for `mcp` and `any`, where it is known."""


def target_of(method: str, path: str, headers: Headers) -> Target:
    """The target of a request or WebSocket."""
    named = headers.get(HOST_HEADER, b"").decode("latin-1")
    if named:
        return Target("any", named)
    host = headers.get(b"host", b"").decode("latin-1").partition(":")[0]
    patterns: tuple[tuple[re.Pattern[str], str, Kind], ...] = (
        (_PREVIEW, host, "session"),
        (_SESSION, path, "session"),
        (_E2B_SANDBOX, path, "session"),
        (_APPROVAL, path, "approval"),
        (_SNAPSHOT, path, "snapshot"),
    )
    for pattern, text, kind in patterns:
        if (match := pattern.fullmatch(text)) is not None:
            return Target(kind, match[1])
    if path == _SECRETS or path.startswith(f"{_SECRETS}/"):
        return Target("vault")
    if path in _LISTS and method == "GET":
        return Target("all")
    if path in _NEW and method == "POST":
        return Target("new")
    if path.startswith(_E2B) and (inner := headers.get(b"e2b-sandbox-id")):
        return Target("session", inner.decode("latin-1"))
    if path == _MCP:
        session = headers.get(MCP_SESSION, b"").decode("latin-1")
        is_new = not session and method == "POST" and b"mcp-protocol-version" not in headers
        return Target("new" if is_new else "mcp", session.rpartition(".")[2] if session else "")
    return Target("any")


def scraped_host(path: str, query: bytes) -> str:
    """`/metrics?host=svc_…`: of one host, as Prometheus can ask without headers of its own."""
    named = parse_qs(query.decode("latin-1")).get("host", []) if path == _METRICS else []
    return named[0] if len(named) == 1 and is_id(named[0]) else ""


def labels_of(headers: Headers) -> dict[str, str]:
    """`Cellwall-Labels: region=eu, gpu=a100`: what a new session asks of its host."""
    found: dict[str, str] = {}
    for part in headers.get(LABELS_HEADER, b"").decode("latin-1").split(",")[:_MAX_LABELS]:
        name, equals, value = part.strip().partition("=")
        if equals:
            found[name.strip()] = value.strip()
    return found


def without_host(session: bytes) -> bytes:
    """The id of an MCP session as its host knows it."""
    return session.rpartition(b".")[0] or session


def with_host(session: bytes, host_id: str) -> bytes:
    """The id of an MCP session as clients know it: every front finds the host by it."""
    return session + b"." + host_id.encode("ascii")

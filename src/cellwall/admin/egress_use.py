"""Who asked for which host, and what came of it: from records of connections and denials. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cellwall.core.errors import BadInput
from cellwall.policy.domains import host_of

NOT_ALLOWED = "CW-NOT-ALLOWED"
"""The code of a refusal that a domain of the sandbox lifts; others are about what was sent, or
where the name leads."""
_REFUSED = frozenset({"refused", "leak-refused"})
_USUAL_PORTS = frozenset({0, 80, 443})
"""0 is a name that was looked up."""


@dataclass(slots=True)
class AskedBySession:
    """The connections of one session to one host."""

    session_id: str
    who: str
    last: str
    opened: int = 0
    refused: int = 0
    denied: int = 0
    """Actions that the rules denied."""
    reason: str = ""
    code: str = ""
    ports: set[int] = field(default_factory=set)
    """Of refused connections."""

    @property
    def is_liftable(self) -> bool:
        """Whether a domain of the sandbox lifts the newest refusal."""
        return self.refused > 0 and self.code == NOT_ALLOWED

    def domains(self, host: str) -> tuple[str, ...]:
        """The narrowest domain rules for what was refused."""
        ports = sorted(self.ports - _USUAL_PORTS)
        usual = (host,) if self.ports & _USUAL_PORTS or not ports else ()
        return (*usual, *(f"{host}:{port}" for port in ports))


@dataclass(slots=True)
class HostUse:
    """What all sessions asked of one host."""

    host: str
    sessions: dict[str, AskedBySession] = field(default_factory=dict)
    """By id, the newest first."""

    @property
    def opened(self) -> int:
        return sum(each.opened for each in self.sessions.values())

    @property
    def refused(self) -> int:
        return sum(each.refused + each.denied for each in self.sessions.values())

    @property
    def is_liftable(self) -> bool:
        """Whether a rule or a domain of a sandbox lifts a refusal."""
        return any(each.is_liftable or each.denied for each in self.sessions.values())

    @property
    def who(self) -> list[str]:
        return sorted({each.who for each in self.sessions.values()})

    @property
    def last(self) -> str:
        return next((each.last for each in self.sessions.values()), "")

    @property
    def reason(self) -> str:
        """Of the newest refusal."""
        return next((each.reason for each in self.sessions.values() if each.reason), "")


def use_by_host(records: Iterable[Mapping[str, Any]]) -> list[HostUse]:
    """Hosts with the most refusals first. `records`: the newest first."""
    found: dict[str, HostUse] = {}
    for record in records:
        body = record["body"]
        for host in _hosts_in(record["kind"], body):
            use = found.setdefault(host, HostUse(host))
            asked = use.sessions.setdefault(
                record["session_id"],
                AskedBySession(record["session_id"], record["principal"], record["time"]),
            )
            _count(asked, record["kind"], body)
    return sorted(found.values(), key=lambda use: (-use.refused, -use.opened, use.host))


def _hosts_in(kind: str, body: Mapping[str, Any]) -> list[str]:
    if kind == "connection":
        host = body.get("host")
        is_package = str(body.get("event", "")).startswith("package-")
        return [host] if isinstance(host, str) and host and not is_package else []
    domain, url = body.get("domain"), body.get("url")
    if isinstance(domain, str) and domain:
        return [domain]
    try:
        return [host_of(url)] if isinstance(url, str) else []
    except BadInput:
        return []


def _count(asked: AskedBySession, kind: str, body: Mapping[str, Any]) -> None:
    event = body.get("event")
    if kind != "connection":
        asked.denied += 1
    elif event in _REFUSED:
        asked.refused += 1
        port = body.get("port")
        asked.ports |= {port} if isinstance(port, int) else set()
    elif event == "opened":
        asked.opened += 1
        return
    else:
        return
    if not asked.reason:
        asked.reason, asked.code = str(body.get("reason", "")), str(body.get("code", ""))

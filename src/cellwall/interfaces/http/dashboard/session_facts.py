"""What the records of one session tell: hosts, packages, findings, and how information could flow.

Pure: records in, lists for a page out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Body = Mapping[str, Any]
_MAX_HOSTS, _MAX_PACKAGES, _MAX_FINDINGS, _MAX_LABELS = 20, 50, 20, 12


@dataclass(frozen=True, slots=True)
class AskedHost:
    """A host that a session asked for."""

    host: str
    is_refused: bool
    count: int


@dataclass(frozen=True, slots=True)
class InformationFlow:
    """The three that must not meet in one session without a person's yes (rule of two)."""

    untrusted: Sequence[str]
    """Where content came from that other people can write."""
    private: Sequence[str]
    """What the session could read that others must not."""
    egress: Sequence[str]
    """Where the session could send data."""

    @property
    def is_complete(self) -> bool:
        """Whether all three met."""
        return bool(self.untrusted and self.private and self.egress)


def asked_hosts(connections: Sequence[Body]) -> list[AskedHost]:
    """The hosts, the most frequent first."""
    counted: Counter[tuple[str, bool]] = Counter()
    for body in connections:
        if "host" in body:
            counted[str(body["host"]), body.get("event") == "refused"] += 1
    return [
        AskedHost(host, is_refused, count)
        for (host, is_refused), count in counted.most_common(_MAX_HOSTS)
    ]


def served_packages(connections: Sequence[Body]) -> list[str]:
    """The packages that the registry proxy gave to the session."""
    names = (
        f"{body.get('ecosystem', '')} {body.get('name', '')} {body.get('version', '')}"
        for body in connections
        if body.get("event") == "package-served"
    )
    return list(dict.fromkeys(names))[:_MAX_PACKAGES]


def guard_findings(bodies: Sequence[Body]) -> list[dict[str, Any]]:
    """What the guard found, the newest first."""
    found: list[dict[str, Any]] = []
    for body in bodies:
        listed = body.get("findings")
        found += [each for each in listed if isinstance(each, dict)] if listed else []
    return found[:_MAX_FINDINGS]


def information_flow(bodies: Sequence[Body]) -> InformationFlow:
    """From the bodies of records of every kind; denied actions count for nothing."""
    untrusted: dict[str, None] = {}
    private: dict[str, None] = {}
    egress: dict[str, None] = {}
    for body in bodies:
        if _is_denied(body):
            continue
        untrusted |= dict.fromkeys(_untrusted(body))
        private |= dict.fromkeys(_private(body))
        egress |= dict.fromkeys(_egress(body))
    return InformationFlow(*(list(each)[:_MAX_LABELS] for each in (untrusted, private, egress)))


def _is_denied(body: Body) -> bool:
    decision = body.get("decision")
    about = decision if isinstance(decision, Mapping) else body
    return about.get("verdict") == "deny" or body.get("event") == "refused"


def _untrusted(body: Body) -> Iterator[str]:
    if "host" in body and "event" in body:
        yield f"host {body['host']}"
    elif "url" in body and "form" in body:
        yield f"page {body['url']}"
    if body.get("event") == "package-served":
        yield f"package {body.get('name', '')}"
    if body.get("message") == "received":
        yield f"message by {body.get('channel', '')}"
    if "server" in body and "tool" in body:
        yield f"tool {body['tool']} of {body['server']}"


def _private(body: Body) -> Iterator[str]:
    for name in _texts(body.get("secrets")):
        yield f"secret {name}"
    workspace = body.get("workspace")
    if isinstance(workspace, Mapping) and workspace.get("mode") not in (None, "private"):
        yield f"a directory of the host, {workspace['mode']}"
    if "account" in body:
        yield f"account {body['account']}"


def _egress(body: Body) -> Iterator[str]:
    yield from _texts(body.get("allow_domains"))
    for name in _texts(body.get("registries")):
        yield f"registry {name}"
    if "host" in body and "event" in body:
        yield str(body["host"])


def _texts(value: object) -> list[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else []

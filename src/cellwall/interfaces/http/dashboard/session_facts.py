"""What the records of one session tell: hosts, packages, findings, and labels.

Pure: records in, lists for a page out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cellwall.core.labels import LabelSet

Body = Mapping[str, Any]
_MAX_HOSTS, _MAX_PACKAGES, _MAX_FINDINGS = 20, 50, 20


@dataclass(frozen=True, slots=True)
class AskedHost:
    """A host that a session asked for."""

    host: str
    is_refused: bool
    count: int


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


def labels_in_records(bodies: Sequence[Body]) -> LabelSet:
    """The labels of a session that has ended, by the newest record that has them."""
    for body in bodies:
        labels = body.get("labels")
        if isinstance(labels, Mapping):
            return LabelSet.of_json(labels)
    return LabelSet()

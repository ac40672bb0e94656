"""Malicious versions that Cellwall ships, with their date and source (`bench/malicious_names.py`).

They are denied from the first start, before any feed is there. A snapshot is never complete, so
it does not count as a feed: without a fresh one, the profile decides as before.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

from cellwall.packages.names import Ecosystem
from cellwall.packages.osv import Advisory, Affected
from cellwall.packages.shipped_lists import read_list


@dataclass(frozen=True, slots=True)
class MaliciousSnapshot:
    """The malicious versions of each package, by canonical name."""

    versions: Mapping[str, frozenset[str]]
    day: date
    source: str
    sha256: str
    """Of the archive that the list was taken from."""

    @property
    def version_count(self) -> int:
        return sum(map(len, self.versions.values()))


@functools.cache
def malicious_snapshot(ecosystem: Ecosystem) -> MaliciousSnapshot:
    """The shipped snapshot about a registry. The loss of its file is an error: its packages would
    be let through."""
    dated, hashed, *lines = read_list(f"malicious-{ecosystem.value}")
    day, _, source = dated.removeprefix("# ").partition(" ")
    listed = (line.split(" ") for line in lines)
    versions = {name: frozenset(found) for name, *found in listed}
    return MaliciousSnapshot(
        versions, date.fromisoformat(day), source, hashed.removeprefix("# sha256 ")
    )


def snapshot_advisory(ecosystem: Ecosystem, name: str) -> Advisory | None:
    """What the snapshot reports about a canonical name. It always names versions."""
    snapshot = malicious_snapshot(ecosystem)
    found = snapshot.versions.get(name)
    if not found:
        return None
    affected = Affected(ecosystem, name, found, ())
    return Advisory(
        f"snapshot-{snapshot.day}",
        f"{snapshot.day}T00:00:00.000000Z",
        snapshot.source,
        is_withdrawn=False,
        affected=(affected,),
        is_snapshot=True,
    )

"""What the releases before each release were like (PKG-1). Pure.

A thief of an upload token publishes several versions in a row: the second one must not be
compared with the first one alone, which is stolen as well.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from cellwall.packages.facts import Project, Release

WINDOW = timedelta(days=90)
"""Releases of this time before a release count as much as the last one before it."""

_MAX_GROUPS = 8


@dataclass(frozen=True, slots=True)
class Before:
    """The release before a release, and the releases in the window before it."""

    last: Release
    had_provenance: bool
    maintainers: frozenset[frozenset[str]]
    """The sets of maintainers that the registry names for these releases, at most _MAX_GROUPS."""


def releases_before(project: Project) -> dict[str, Before]:
    """By version, in the order of upload; none for the first release."""
    timed = [(each.uploaded, each) for each in project.releases.values() if each.uploaded]
    timed.sort(key=lambda each: each[0])
    found: dict[str, Before] = {}
    window = _Window()
    for at, (uploaded, release) in enumerate(timed):
        if at:
            window.add(*timed[at - 1])
            window.drop_before(uploaded - WINDOW)
            found[release.version] = window.summary(timed[at - 1][1])
    return found


class _Window:
    """Counts instead of lists: a project may have thousands of releases in a month."""

    def __init__(self) -> None:
        self._releases: deque[tuple[datetime, Release]] = deque()
        self._people: Counter[frozenset[str]] = Counter()
        self._attested = 0

    def add(self, uploaded: datetime, release: Release) -> None:
        self._releases.append((uploaded, release))
        self._attested += bool(release.has_provenance)
        if release.maintainers:
            self._people[release.maintainers] += 1

    def drop_before(self, start: datetime) -> None:
        """The last release stays, however old it is."""
        while len(self._releases) > 1 and self._releases[0][0] < start:
            _, release = self._releases.popleft()
            self._attested -= bool(release.has_provenance)
            if release.maintainers:
                self._people[release.maintainers] -= 1
                if not self._people[release.maintainers]:
                    del self._people[release.maintainers]

    def summary(self, last: Release) -> Before:
        # The oldest first: a document with other people in each version must not cost a square.
        return Before(last, self._attested > 0, frozenset(islice(self._people, _MAX_GROUPS)))

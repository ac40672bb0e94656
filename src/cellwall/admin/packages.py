"""A person asks about packages, and keeps the feed of advisories up to date (PKG-1)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cellwall.config.models import Settings
from cellwall.core.errors import BadInput
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Permission, Principal
from cellwall.packages.evidence import PackageVerdict
from cellwall.packages.feed import Feed, FeedSource, ImportResult
from cellwall.packages.feed_update import FeedUpdater, Progress, UpdateResult
from cellwall.packages.names import Ecosystem, canonical_name
from cellwall.packages.osv_archive import main_ecosystem
from cellwall.packages.popular import PopularNames, popular_names
from cellwall.packages.registry.upstream import HttpUpstream
from cellwall.packages.risk import risk_of
from cellwall.packages.snapshot import MaliciousSnapshot, malicious_snapshot
from cellwall.packages.verdict import is_fresh
from cellwall.runtime.app import App
from cellwall.runtime.judging import require
from cellwall.runtime.package_judging import open_judge, package_rules, packages_folder
from cellwall.runtime.recording import AdminChange
from cellwall.runtime.registries import (
    registry_sites,
)

__all__ = [
    "Ecosystem",
    "FeedSource",
    "FeedState",
    "ImportResult",
    "MaliciousSnapshot",
    "PackageVerdict",
    "PopularNames",
    "UpdateResult",
    "feed_sources",
    "feed_state",
    "import_feed",
    "malicious_snapshot",
    "popular_names",
    "risk_of",
    "update_feed",
    "verify",
]


async def verify(
    app: App, ecosystem: Ecosystem, names: Sequence[str], *, is_offline: bool
) -> list[PackageVerdict]:
    """The verdict on each name; offline, without the facts of the registry."""
    judge = open_judge(app.settings, app.store.home)
    canonical = [canonical_name(ecosystem, name) for name in names]
    if is_offline:
        return [judge.judge_name(ecosystem, name) for name in canonical]
    site = registry_sites(app.settings, app.store.home)[ecosystem.value]
    verdicts = []
    async with HttpUpstream(site.origins) as upstream:
        # npm has packages whose names differ by case alone.
        wanted = names if ecosystem is Ecosystem.NPM else canonical
        for name in wanted:
            index = await site.registry.load(name, upstream, judge)
            verdicts.append(index.summary)
    return verdicts


def feed_sources(app: App) -> tuple[FeedSource, ...]:
    """The imported sources."""
    return _feed(app).sources()


@dataclass(frozen=True, slots=True)
class FeedState:
    """Whether there is a feed about a registry that counts, and the verdict on packages if not."""

    updated: datetime | None
    age_s: float | None
    is_fresh: bool
    without_feed: str


def feed_state(settings: Settings, home: str, ecosystem: Ecosystem) -> FeedState:
    """The state of the feed about one registry in a state folder."""
    updated, now = Feed(packages_folder(home)).updated(ecosystem), datetime.now(UTC)
    rules = package_rules(settings)
    return FeedState(
        updated,
        None if updated is None else (now - updated).total_seconds(),
        is_fresh(updated, now, rules),
        rules.without_feed.word,
    )


def update_feed(
    app: App, ecosystems: Sequence[Ecosystem], *, principal: Principal, progress: Progress
) -> list[UpdateResult]:
    """Download what changed."""
    require(app.settings, principal, Permission.PACKAGES_INSTALL)
    url = app.settings.packages.feed_url
    folder = os.path.join(packages_folder(app.store.home), "downloads")
    change = AdminChange(EventKind.CONFIG, "update", "packages feed", {"source": url})
    with (
        change.recorded(app.audit, principal) as outcome,
        FeedUpdater(_feed(app), folder, url, progress=progress) as updater,
    ):
        results = [updater.update(each) for each in ecosystems]
        outcome["advisories"] = sum(each.advisories for each in results)
    return results


def import_feed(
    app: App, path: str, *, principal: Principal, progress: Callable[[int, int], None]
) -> ImportResult:
    """Import an archive that a person has downloaded."""
    require(app.settings, principal, Permission.PACKAGES_INSTALL)
    if not os.path.isfile(path):
        raise BadInput("there is no such file", hint="Give the path of an OSV archive (all.zip).")
    ecosystem = main_ecosystem(path)
    about = f" ({ecosystem.value})" if ecosystem is not None else ""
    source = f"file {os.path.basename(path)}{about}"
    change = AdminChange(EventKind.CONFIG, "import", "packages feed", {"source": source})
    with change.recorded(app.audit, principal) as outcome:
        result = _feed(app).import_archive(path, source=source, progress=progress)
        outcome["advisories"] = result.advisories
    return result


def _feed(app: App) -> Feed:
    return Feed(packages_folder(app.store.home))

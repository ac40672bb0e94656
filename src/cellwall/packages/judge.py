"""Gathers the evidence on a package and judges it: the one way to a verdict (PKG-1, PKG-2).

The registry proxy, `packages verify` and installs by Cellwall itself all ask here, so that no
interface can skip a step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

from cellwall.core.packages import InstallRuling
from cellwall.packages.evidence import Evidence, PackageRules, PackageVerdict
from cellwall.packages.facts import Project
from cellwall.packages.feed import Feed
from cellwall.packages.history import releases_before
from cellwall.packages.names import Ecosystem, NameTrick, Resemblance
from cellwall.packages.osv import Advisory
from cellwall.packages.popular import (
    famous_twin,
    imported_package,
    name_index,
    popular_rank,
    popular_spelling,
)
from cellwall.packages.verdict import judge_facts, judge_pin, judge_project, judge_version


class NameRules(Hashable, Protocol):
    """What rules and people say about one package. Equal values rule alike."""

    def ruling(self, version: str | None) -> InstallRuling:
        """The ruling on one version; None is the package as a whole."""


Decide = Callable[[Ecosystem, str], NameRules]
"""The rules about a canonical name."""


class _NoRules:
    def ruling(self, version: str | None) -> InstallRuling:
        del version
        return InstallRuling()


_NO_RULES = _NoRules()


def _no_rule(ecosystem: Ecosystem, name: str) -> NameRules:
    del ecosystem, name
    return _NO_RULES


class PackageJudge:
    """Safe for threads: every call reads the feed anew."""

    def __init__(
        self,
        feed: Feed,
        rules: PackageRules,
        *,
        decide: Decide = _no_rule,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.rules = rules
        self._feed = feed
        self._decide = decide
        self._clock = clock

    def under(self, decide: Decide, rules: PackageRules | None = None) -> PackageJudge:
        """The same judge with these rules about names, and with other settings if given."""
        return PackageJudge(self._feed, rules or self.rules, decide=decide, clock=self._clock)

    @property
    def feed_revision(self) -> tuple[int, int] | None:
        """Verdicts of another revision of the feed may be outdated."""
        return self._feed.revision

    def rules_about(self, ecosystem: Ecosystem, name: str) -> NameRules:
        """The rules about a canonical name, as they are now."""
        return self._decide(ecosystem, name)

    def judge_name(self, ecosystem: Ecosystem, name: str) -> PackageVerdict:
        """Without the registry: the rules, the feed and the name itself."""
        return judge_project(self._evidence(ecosystem, name), self.rules)

    def judge(self, ecosystem: Ecosystem, name: str, project: Project | None) -> PackageVerdict:
        """With the registry's facts; None: the registry does not have the name."""
        evidence = self._evidence(ecosystem, name, project, is_registry_known=True)
        return judge_project(evidence, self.rules)

    def judge_pin(self, ecosystem: Ecosystem, name: str, version: str | None) -> PackageVerdict:
        """A version of a lock file without the registry; None where the lock names no version."""
        return judge_pin(self._evidence(ecosystem, name), version, self.rules)

    def judge_installed(self, ecosystem: Ecosystem, name: str, version: str) -> PackageVerdict:
        """A version that was judged before: the rules and the feed may have changed since. The
        name is the same, and is not compared again."""
        evidence = self._evidence(ecosystem, name, compares_name=False)
        return judge_pin(evidence, version, self.rules)

    def advisories(self, ecosystem: Ecosystem, name: str, version: str) -> list[Advisory]:
        """The advisories of the feed that cover this version."""
        found = self._feed.advisories(ecosystem, name)
        return [
            each for each in found if any(affected.covers(version) for affected in each.affected)
        ]

    def judge_versions(self, project: Project) -> dict[str, PackageVerdict]:
        """The verdict on every version of a project."""
        rules = self._decide(project.ecosystem, project.name)
        evidence = replace(
            self._evidence(project.ecosystem, project.name, project, is_registry_known=True),
            earlier=releases_before(project),
        )
        facts = judge_facts(evidence, self.rules)
        return {
            version: judge_version(
                replace(evidence, ruling=rules.ruling(version)), release, self.rules, facts
            )
            for version, release in project.releases.items()
        }

    def _evidence(
        self,
        ecosystem: Ecosystem,
        name: str,
        project: Project | None = None,
        *,
        is_registry_known: bool = False,
        compares_name: bool = True,
    ) -> Evidence:
        written = project.written if project is not None else ""
        imitated = popular_spelling(ecosystem, written) if written else None
        resemblances = _resemblances(ecosystem, name) if compares_name else ()
        if imitated is not None:  # `jsonstream`: the rank is that of `JSONStream`
            rank = popular_rank(ecosystem, name)
            resemblances = (Resemblance(NameTrick.LOOKALIKE, imitated, rank),)
        elif (twin := famous_twin(ecosystem, name)) is not None:
            imitated = twin
            resemblances = (Resemblance(NameTrick.LOOKALIKE, twin, popular_rank(ecosystem, twin)),)
        return Evidence(
            ecosystem,
            name,
            self._clock(),
            ruling=self._decide(ecosystem, name).ruling(None),
            advisories=self._feed.advisories(ecosystem, name),
            feed_updated=self._feed.updated(ecosystem),
            rank=popular_rank(ecosystem, name) if imitated is None else None,
            resemblances=resemblances,
            is_registry_known=is_registry_known,
            project=project,
        )


def _resemblances(ecosystem: Ecosystem, name: str) -> tuple[Resemblance, ...]:
    if popular_rank(ecosystem, name) is not None:
        return ()  # a ranked name imitates none; most trees need no index, which takes a second
    if (provider := imported_package(ecosystem, name)) is not None:
        return (Resemblance(NameTrick.REFERENCE, provider, popular_rank(ecosystem, provider)),)
    if found := name_index(ecosystem).resemblances(name):
        return found
    # A popular name of the other registry (lodash on PyPI) is squatted in this one.
    other = Ecosystem.NPM if ecosystem is Ecosystem.PYPI else Ecosystem.PYPI
    rank = popular_rank(other, name)
    is_popular = rank is not None and rank <= _OTHER_REGISTRY_RANK
    return (Resemblance(NameTrick.ECOSYSTEM, name, rank),) if is_popular else ()


_OTHER_REGISTRY_RANK = 2000

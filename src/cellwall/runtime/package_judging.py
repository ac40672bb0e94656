"""The judge of packages as configured: the settings, the feed, the rules of the policy files."""

# ruff: noqa: PLC0415  # late imports: most runs install no package, and need no policy engine

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from cellwall.config.models import Settings
from cellwall.core.errors import ConfigError
from cellwall.core.packages import InstallRuling
from cellwall.core.standing_grants import GrantsPort
from cellwall.core.verdict import Decision, Verdict
from cellwall.runtime.signed_grants import signed_grants
from cellwall.sandbox.templates.definitions import shipped_hashes

if TYPE_CHECKING:
    from cellwall.packages.evidence import PackageRules
    from cellwall.packages.judge import NameRules, PackageJudge
    from cellwall.packages.names import Ecosystem

_BROKEN = "a policy file that applies here is invalid, so no package is allowed"


def packages_folder(home: str) -> str:
    """The folder of feeds and artifacts in a state folder."""
    return os.path.join(home, "packages")


def package_rules(settings: Settings) -> PackageRules:
    """The rules of `[packages]`."""
    from cellwall.packages.evidence import PackageRules

    packages = settings.packages
    return PackageRules(
        min_age=timedelta(days=packages.min_age_days),
        allow_source=packages.dangerously_build_sources,
        without_feed=Verdict[packages.without_feed.upper()],
        max_feed_age=timedelta(days=packages.max_feed_age_days),
        without_rule=Verdict[packages.without_rule.upper()],
        denied_licenses=packages.denied_licenses,
        unknown_license=Verdict[packages.unknown_license.upper()],
        pinned=shipped_hashes(),
    )


def open_judge(
    settings: Settings, home: str, decide: Callable[[Ecosystem, str], NameRules] | None = None
) -> PackageJudge:
    """The judge with the feed of this state folder. Without `decide`, the rules that apply in this
    folder, read again when they change."""
    from cellwall.packages.feed import Feed
    from cellwall.packages.judge import PackageJudge

    decide = decide or partial(
        rules_about,
        named=settings.policy.files,
        cwd=os.getcwd(),
        environ=dict(os.environ),
        grants=signed_grants(home, settings),
    )
    return PackageJudge(Feed(packages_folder(home)), package_rules(settings), decide=decide)


def rules_about(
    ecosystem: Ecosystem,
    name: str,
    *,
    named: Sequence[str],
    cwd: str,
    environ: Mapping[str, str],
    grants: GrantsPort | None,
) -> NameRules:
    """The rules of all policy files that apply, as they are now."""
    return rules_now(named=named, cwd=cwd, environ=environ, grants=grants)(ecosystem, name)


def rules_now(
    *,
    named: Sequence[str],
    cwd: str,
    environ: Mapping[str, str],
    grants: GrantsPort | None,
) -> Callable[[Ecosystem, str], NameRules]:
    """The rules about any name, by the policy files that apply now; a broken file denies all."""
    from cellwall.runtime.policies import policy_without_files

    try:
        policy = policy_without_files(named=named, cwd=cwd, environ=environ, grants=grants)
    except ConfigError:
        # The message quotes a file and shows its path, and would reach the code in the cell.
        broken = _FixedRuling(InstallRuling(Decision.built_in(Verdict.DENY, "policy", _BROKEN)))
        return lambda _ecosystem, _name: broken
    return lambda ecosystem, name: policy.about_package(ecosystem.value, name)


@dataclass(frozen=True, slots=True)
class _FixedRuling:
    """Implements `NameRules`: one ruling for all versions."""

    fixed: InstallRuling

    def ruling(self, version: str | None) -> InstallRuling:
        del version
        return self.fixed

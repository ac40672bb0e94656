"""May this package be installed? The steps before any byte of an artifact is read (PKG-1, PKG-2).

  (1) an administrator's rule: a denial counts, an allowance answers the questions of (3) to (5),
      and lifts the limits of age and license where the rule says so; a person's approval answers
      the same questions and those of rules;
  (2) the feed: a package that is reported as malicious is denied, whatever a rule allows;
  (3) the name: one that imitates a popular name is asked about, with the popular name;
  (4) the registry: the project exists, its status, its age;
  (5) the version: yanked, too young, source only, license, provenance lost, deprecated,
      publisher or maintainers changed.

Every step adds reasons; the strictest reason is the verdict. Pure: the caller brings the facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from cellwall.core.packages import InstallRuling
from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import Evidence, EvidenceStep, PackageRules, PackageVerdict, Reason
from cellwall.packages.facts import Project, ProjectStatus, Release
from cellwall.packages.history import Before, releases_before
from cellwall.packages.licenses import LicenseState, judge_license
from cellwall.packages.names import NameTrick
from cellwall.packages.osv import Advisory

_MAX_CLOCK_ERROR = timedelta(days=1)
NOT_BUILT = "not-built"
"""The code of a version whose source may be built, and is not yet."""


def judge_project(evidence: Evidence, rules: PackageRules) -> PackageVerdict:
    """The verdict on a name, before a version is chosen: steps (1) to (4)."""
    reasons = [
        *_judge_rule(evidence, rules),
        *_judge_feed(evidence, None, rules),
        *judge_facts(evidence, rules),
    ]
    return _conclude(evidence, None, reasons)


def judge_facts(evidence: Evidence, rules: PackageRules) -> list[Reason]:
    """Steps (3) and (4), which are the same for every version."""
    return [*_judge_name(evidence), *_judge_registry(evidence, rules)]


def judge_version(
    evidence: Evidence,
    release: Release,
    rules: PackageRules,
    facts: Sequence[Reason] | None = None,
) -> PackageVerdict:
    """The verdict on one version of a project that exists: steps (1) to (5)."""
    reasons = [
        *_judge_rule(evidence, rules),
        *_judge_feed(evidence, release.version, rules),
        *(judge_facts(evidence, rules) if facts is None else facts),
        *_judge_release(evidence, release, rules),
    ]
    return _conclude(evidence, release.version, reasons)


def judge_pin(evidence: Evidence, version: str | None, rules: PackageRules) -> PackageVerdict:
    """The verdict on a version of a lock file without the registry: steps (1) to (3)."""
    reasons = [
        *_judge_rule(evidence, rules),
        *_judge_feed(evidence, version, rules),
        *_judge_name(evidence),
    ]
    return _conclude(evidence, version, reasons)


def answer_by_pin(verdict: PackageVerdict) -> PackageVerdict:
    """The verdict on artifacts whose hash Cellwall ships: exactly these bytes were chosen before.

    The pin is a rule of the distribution: like one of the administrator it answers questions, here
    also that of a missing feed. It overrules no denial, and no rule that asks.
    """
    asked = [e for e in verdict.reasons if e.verdict is Verdict.ASK and e.code != "rule"]
    kept = tuple(each for each in verdict.reasons if each not in asked)
    return replace(verdict, reasons=kept, answered=(*verdict.answered, *asked))


_LIFTED = {
    "age": frozenset(("too-young", "age-unknown", "new-project")),
    "license": frozenset(("license", "license-unknown")),
    "source": frozenset(("source-only",)),
}
"""The codes of each limit that a rule can lift: no other denial is lifted by anything."""


def _conclude(evidence: Evidence, version: str | None, reasons: Iterable[Reason]) -> PackageVerdict:
    """The verdict without the reasons that a rule or a person has answered."""
    kept: list[Reason] = []
    answered: list[Reason] = []
    for each in reasons:
        (answered if _is_answered(evidence.ruling, each) else kept).append(each)
    return PackageVerdict(
        evidence.ecosystem,
        evidence.name,
        version,
        tuple(kept),
        _suggest_name(evidence),
        evidence.ruling,
        tuple(answered),
    )


def _is_answered(ruling: InstallRuling, reason: Reason) -> bool:
    if any(reason.code in _LIFTED[limit] for limit in ruling.lifts if limit in _LIFTED):
        return True
    # A missing feed is no property of the package: a rule or an answer about a package says
    # nothing about the feed.
    if reason.verdict is not Verdict.ASK or reason.step is EvidenceStep.FEED:
        return False
    is_allowed = ruling.decision is not None and ruling.decision.verdict is Verdict.ALLOW
    return bool(ruling.approved_by) or (is_allowed and reason.step is not EvidenceStep.RULE)


# (1)
def _judge_rule(evidence: Evidence, rules: PackageRules) -> list[Reason]:
    decision = evidence.ruling.decision
    if decision is None:
        if rules.without_rule is Verdict.ALLOW:
            return []
        allowing = f"Install({evidence.ecosystem.value}:{evidence.name})"
        text = f"no rule allows {evidence.name}; a person can add the rule {allowing}"
        return [Reason(EvidenceStep.RULE, rules.without_rule, "no-rule", text)]
    if decision.verdict is Verdict.ALLOW:
        return []
    text = decision.reason or f"the rule {decision.rule} covers this package"
    return [Reason(EvidenceStep.RULE, decision.verdict, "rule", text)]


# (2)
def _judge_feed(evidence: Evidence, version: str | None, rules: PackageRules) -> list[Reason]:
    reasons: list[Reason] = []
    for advisory in evidence.advisories:
        if not any(each.covers(version) for each in advisory.affected):
            continue
        if advisory.is_snapshot and any(each.code == "malicious" for each in reasons):
            continue  # the feed has said so already
        if advisory.is_malicious and (version is not None or _names_every_version(advisory)):
            text = f"{_reporter(advisory)} reports {_named(evidence, version)} as malicious"
            reasons.append(Reason(EvidenceStep.FEED, Verdict.DENY, "malicious", text))
        elif version is not None and not advisory.is_malicious:
            text = f"{_named(evidence, version)} has a known vulnerability: {advisory.id}"
            reasons.append(Reason(EvidenceStep.FEED, Verdict.ALLOW, "vulnerable", text))
    updated = evidence.feed_updated
    if not is_fresh(updated, evidence.now, rules):
        state = "is missing" if updated is None else f"was updated {updated.date()}"
        text = f"the feed of malicious packages {state}; run: cellwall packages feed update"
        reasons.append(Reason(EvidenceStep.FEED, rules.without_feed, "feed", text))
    return reasons


def _reporter(advisory: Advisory) -> str:
    day = advisory.modified[:10]
    return f"the shipped snapshot of {day}" if advisory.is_snapshot else advisory.id


def is_fresh(updated: datetime | None, now: datetime, rules: PackageRules) -> bool:
    """Whether the feed counts. A time of the future (a wrong clock) would never grow old."""
    return updated is not None and -_MAX_CLOCK_ERROR < now - updated <= rules.max_feed_age


def _names_every_version(advisory: Advisory) -> bool:
    return any(
        (not each.versions and not each.ranges)
        or any(r.introduced is None and not (r.fixed or r.last) for r in each.ranges)
        for each in advisory.affected
    )


# (3)
_RESEMBLANCE_TEXTS = {
    NameTrick.REFERENCE: "{name} is a product or a module, not a well-known package",
    NameTrick.PLACEHOLDER: "{name} is a placeholder, not a package",
    NameTrick.SEPARATOR: "{name} is {target} (rank {rank}) with other separators",
    NameTrick.LOOKALIKE: "{name} looks like {target} (rank {rank})",
    NameTrick.WORD_ORDER: "{name} has the words of {target} (rank {rank}) in another order",
    NameTrick.AFFIX: "{name} is {target} (rank {rank}) with a word added",
    NameTrick.VERSION: "{name} is {target} (rank {rank}) with a number added",
    NameTrick.COMBINATION: (
        "{name} joins the names of two popular packages, {target} (rank {rank}) one"
    ),
    NameTrick.SCOPE: "{name} imitates {target} (rank {rank}) under another scope",
    NameTrick.ECOSYSTEM: "{name} is a package of another registry",
}
_MISSPELLED = "{name} is a misspelling of {target} (rank {rank})"


def _judge_name(evidence: Evidence) -> list[Reason]:
    reasons = []
    for found in evidence.resemblances[:3]:
        form = _RESEMBLANCE_TEXTS.get(found.trick, _MISSPELLED)
        text = form.format(name=evidence.name, target=found.target, rank=found.rank or "unknown")
        reasons.append(Reason(EvidenceStep.NAME, Verdict.ASK, found.trick.value, text))
    return reasons


def _suggest_name(evidence: Evidence) -> str | None:
    real = (each.target for each in evidence.resemblances if each.target != evidence.name)
    return next(real, None)


# (4)
def _judge_registry(evidence: Evidence, rules: PackageRules) -> list[Reason]:
    if not evidence.is_registry_known:
        return []
    registry, project = evidence.ecosystem.value, evidence.project
    if project is None or not project.releases:
        likely = next((r for r in evidence.resemblances if r.target != evidence.name), None)
        proposal = f"; did you mean {likely.target} (rank {likely.rank})?" if likely else ""
        text = f"{evidence.name} is not on {registry}{proposal}"
        return [Reason(EvidenceStep.REGISTRY, Verdict.DENY, "unknown", text)]
    if project.status is ProjectStatus.QUARANTINED:
        text = f"{registry} has quarantined {evidence.name}"
        return [Reason(EvidenceStep.REGISTRY, Verdict.DENY, "quarantined", text)]
    reasons = []
    if project.status is not ProjectStatus.ACTIVE:
        text = f"{registry} marks {evidence.name} as {project.status.value}"
        reasons.append(Reason(EvidenceStep.REGISTRY, Verdict.ALLOW, project.status.value, text))
    created = project.created
    if created is not None and evidence.now - created < rules.min_age:
        text = f"{evidence.name} was first published {_age(evidence.now - created)} ago"
        reasons.append(Reason(EvidenceStep.REGISTRY, Verdict.ASK, "new-project", text))
    return reasons


# (5)
def _judge_release(evidence: Evidence, release: Release, rules: PackageRules) -> list[Reason]:
    named, found = _named(evidence, release.version), []
    if release.is_yanked:
        found.append((Verdict.DENY, "yanked", f"{named} was yanked"))
    if release.uploaded is None and rules.min_age:
        found.append((Verdict.DENY, "age-unknown", f"the registry does not say how old {named} is"))
    elif release.uploaded is not None and evidence.now - release.uploaded < rules.min_age:
        age = _age(evidence.now - release.uploaded)
        text = f"{named} is {age} old; versions older than {_age(rules.min_age)} are allowed"
        found.append((Verdict.DENY, "too-young", text))
    if not release.has_built_file:
        found += _judge_source(evidence, release, named, rules)
    if release.deprecation:
        # The author's own words are not repeated: a model would read them as ours.
        found.append((Verdict.ALLOW, "deprecated", f"{named} is deprecated"))
    found += _judge_license(evidence.project, release, named, rules)
    before = _before(evidence, release)
    if before is not None and before.had_provenance and release.has_provenance is False:
        # A stolen upload token cannot attest: an attestation names the project's build workflow.
        text = f"{named} has no provenance, unlike the versions before"
        found.append((Verdict.DENY, "provenance-lost", text))
    if before is not None:
        found += _judge_people(before, release, named)
    return [Reason(EvidenceStep.VERSION, verdict, code, text) for verdict, code, text in found]


_Found = tuple[Verdict, str, str]


def _judge_source(
    evidence: Evidence, release: Release, named: str, rules: PackageRules
) -> list[_Found]:
    """A version without a wheel of the registry (PKG-3): only what Cellwall has built is shown."""
    found = []
    if not rules.allow_source:
        found.append((Verdict.DENY, "source-only", f"{named} exists as source only"))
    if not (rules.allow_source or "source" in evidence.ruling.lifts):
        return found
    if release.has_own_build:
        text = f"{named} exists as source only, from which Cellwall has built a wheel"
        return [*found, (Verdict.ALLOW, "own-build", text)]
    text = (
        f"{named} exists as source only and is not built yet; `cellwall packages install`, "
        "`sbx.packages.install` and the tool install_package build it, pip and uv do not"
    )
    return [*found, (Verdict.DENY, NOT_BUILT, text)]


def may_be_built(verdict: PackageVerdict, rules: PackageRules) -> PackageVerdict | None:
    """The verdict on a build of this version from its source; None: a build is not allowed.

    The same verdict, without the reason that the version is not built yet.
    """
    if not (rules.allow_source or "source" in verdict.ruling.lifts):
        return None
    kept = tuple(each for each in verdict.reasons if each.code != NOT_BUILT)
    found = replace(verdict, reasons=kept)
    return None if found.verdict is Verdict.DENY else found


def _judge_license(
    project: Project | None, release: Release, named: str, rules: PackageRules
) -> list[_Found]:
    if not rules.needs_licenses:
        return []
    expression = release.license or (project.license if project else None)
    state = judge_license(expression, rules.denied_licenses)
    if state is LicenseState.DENIED:
        denied = ", ".join(rules.denied_licenses)
        text = f"{named} needs a license that is denied here ({denied})"
        return [(Verdict.DENY, "license", text)]
    if state is LicenseState.UNKNOWN:
        return [(rules.unknown_license, "license-unknown", f"{named} names no known license")]
    return []


def _judge_people(before: Before, release: Release, named: str) -> list[_Found]:
    """The people behind a version, where its registry says who they were (npm)."""
    is_replaced = any(release.maintainers.isdisjoint(each) for each in before.maintainers)
    if release.maintainers and is_replaced and not release.has_provenance:
        text = f"{named} has none of the maintainers of the versions before"
        return [(Verdict.ASK, "maintainers-replaced", text)]
    known = {before.last.publisher, *before.last.maintainers}
    if release.publisher and before.last.publisher and release.publisher not in known:
        text = f"{named} has another publisher than the version before, who was no maintainer then"
        return [(Verdict.ALLOW, "publisher-changed", text)]
    return []


def _before(evidence: Evidence, release: Release) -> Before | None:
    if evidence.earlier is not None:
        return evidence.earlier.get(release.version)
    if evidence.project is None:
        return None
    return releases_before(evidence.project).get(release.version)


_MAX_SHOWN_VERSION = 64


def _named(evidence: Evidence, version: str | None) -> str:
    return evidence.name if version is None else f"{evidence.name} {version[:_MAX_SHOWN_VERSION]}"


def _age(age: timedelta) -> str:
    hours = max(1, round(age.total_seconds() / 3600))
    return f"{hours} hours" if hours < 48 else f"{hours // 24} days"

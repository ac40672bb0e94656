"""Rules for packages: `Install(pypi:requests)`, `Install(npm:@scope/*)`, `Install(pypi:x>=2,<3)`.

A rule for packages differs from a rule for a tool in one way: a package manager in a cell that may
use a registry gets a package that no rule names, since the checks of packages judge it. (A tool
that installs packages needs a rule like every other tool.) So an allowance is an exception to these
checks:

  (1) a rule that denies counts, then one that asks, in every layer;
  (2) a rule that allows answers the questions of the checks;
  (3) a rule that allows with `lifts` also lifts the named limits, and nothing else: no rule lifts
      the feed of malicious packages, a quarantine, a hash or the inspection of an archive;
  (4) a rule counts until the end of its last day (`until`, UTC);
  (5) what an untrusted project allows does not count.

Pure; the caller gives the day.
"""

# ruff: noqa: PLC0415  # late imports: only a rule with versions needs the parsers of versions

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING

from cellwall.core.packages import REGISTRIES, InstallRuling, normalized
from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.calls import group_of
from cellwall.policy.rules import (
    BadRule,
    LayerRules,
    Rule,
    RulesByLayer,
    decision_of,
    judge_by_layers,
    restrict,
)

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet
    from semver import Version as SemanticVersion

LIFTABLE_LIMITS = frozenset(("age", "license", "source"))
"""The limits that a rule can lift for its packages."""
MAX_NAME_CHARACTERS = 214

_HINT = "Write for example Install(pypi:requests), Install(npm:@scope/*), Install(pypi:x>=2,<3)."
_PYPI_NAME = re.compile(r"[a-z0-9*](?:[a-z0-9._*-]*[a-z0-9*])?", re.IGNORECASE | re.ASCII)
_NPM_NAME = re.compile(
    r"(?:@[a-z0-9~*][a-z0-9._~*-]*/)?[a-z0-9~*][a-z0-9._~*-]*", re.IGNORECASE | re.ASCII
)
_NAME_END = re.compile(r"[<>=!~]=|[<>]")
_CLAUSE = re.compile(r"(==|!=|<=|>=|~=|<|>)\s*([0-9][0-9A-Za-z.+!_-]*?)(\.\*)?")


@dataclass(frozen=True, slots=True)
class PackagePattern:
    """The packages of one rule. `versions` is empty for all versions."""

    ecosystem: str
    name: str
    """Canonical; `*` stands for any text."""
    versions: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> PackagePattern:
        """Raises `BadRule` with the offset of the mistake."""
        ecosystem, colon, rest = text.partition(":")
        if ecosystem not in REGISTRIES or not colon:
            known = " or ".join(f"{each}:" for each in REGISTRIES)
            raise BadRule(f"this names no registry: begin with {known}", hint=_HINT)
        at = _NAME_END.search(rest)
        end = at.start() if at else len(rest)
        name, clauses = rest[:end].rstrip(), rest[end:]
        offset = len(ecosystem) + 1
        form = _PYPI_NAME if ecosystem == "pypi" else _NPM_NAME
        if len(name) > MAX_NAME_CHARACTERS or not form.fullmatch(name):
            raise BadRule(f"this is not a package name of {ecosystem}", hint=_HINT, offset=offset)
        canonical = normalized(name) if ecosystem == "pypi" else name.lower()
        return cls(ecosystem, canonical, _parse_versions(ecosystem, clauses, offset + end))

    @property
    def text(self) -> str:
        return f"{self.ecosystem}:{self.name}{','.join(map(''.join, self.versions))}"

    def names(self, ecosystem: str, name: str, *, is_allowed: bool) -> bool:
        """Whether a rule means this canonical name."""
        if ecosystem != self.ecosystem:
            return False
        if self.name == "*" or "*" not in self.name:
            return self.name in {"*", name}
        # `@scope*` must not allow `@scope-of-another/x`; a denial means all that it could mean.
        return bool(_name_regex(self.name, is_allowed).fullmatch(name))

    def covers(self, version: str | None, *, is_allowed: bool) -> bool:
        """Whether a rule means this version; None is the package as a whole.

        A version that cannot be read might be any: a denial covers it, an allowance does not.
        """
        if not self.versions or version is None:
            return not self.versions
        try:
            if self.ecosystem == "pypi":
                return _is_in_specifiers(self.versions, version)
            return all(_is_in_clause(*clause, version) for clause in self.versions)
        except ValueError:
            return not is_allowed


parse_pattern = lru_cache(maxsize=4096)(PackagePattern.parse)


@lru_cache(maxsize=1024)
def _name_regex(pattern: str, is_allowed: bool) -> re.Pattern[str]:  # noqa: FBT001  # a cache key
    any_text = "[^/]*" if is_allowed else ".*"
    return re.compile(any_text.join(map(re.escape, re.split(r"\*+", pattern))))


def _parse_versions(ecosystem: str, text: str, offset: int) -> tuple[tuple[str, str], ...]:
    found = []
    for clause in text.split(",") if text else ():
        parsed = _CLAUSE.fullmatch(clause.strip())
        if parsed is None or (parsed[3] and parsed[1] not in {"==", "!="}):
            hint = "Write for example ==2.*, >=2,<3 or !=1.5."
            raise BadRule("this is not a range of versions", hint=hint, offset=offset)
        operator, version = parsed[1], parsed[2] + (parsed[3] or "")
        _check_version(ecosystem, operator, version, offset)
        found.append((operator, version))
        offset += len(clause) + 1
    return tuple(found)


def _check_version(ecosystem: str, operator: str, version: str, offset: int) -> None:
    try:
        if ecosystem == "pypi":
            _specifiers(((operator, version),))
        elif operator == "~=":
            raise BadRule(
                "rules for npm have no ~=", hint="Write for example >=2.1,<3.", offset=offset
            )
        else:
            _semantic(version.removesuffix(".*"))
    except ValueError:
        raise BadRule(
            f"this is not a version of {ecosystem}",
            hint="Write for example 2.1 or 2.1.0.",
            offset=offset,
        ) from None


# PyPI: PEP 440 with prereleases, which a rule covers like any other version.


@lru_cache(maxsize=1024)
def _specifiers(clauses: tuple[tuple[str, str], ...]) -> SpecifierSet:
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(",".join(map("".join, clauses)))


def _is_in_specifiers(clauses: tuple[tuple[str, str], ...], version: str) -> bool:
    from packaging.version import Version

    return _specifiers(clauses).contains(Version(version), prereleases=True)


# npm: semantic versions, with missing numbers as zeros.


def _is_in_clause(operator: str, bound: str, version: str) -> bool:
    found = _semantic(version, is_whole=True)
    if bound.endswith(".*"):
        numbers = [int(part) for part in bound.removesuffix(".*").split(".")]
        is_within = list(found.to_tuple()[: len(numbers)]) == numbers
        return is_within is (operator == "==")
    limit = _semantic(bound)
    order = found.compare(limit)
    if operator == "<" and found.prerelease and not limit.prerelease:
        # As in PEP 440: 3.0.0-rc.1 is not in <3.
        return order < 0 and found.replace(prerelease=None) != limit
    return {
        "==": order == 0,
        "!=": order != 0,
        "<=": order <= 0,
        ">=": order >= 0,
        "<": order < 0,
        ">": order > 0,
    }[operator]


def _semantic(text: str, *, is_whole: bool = False) -> SemanticVersion:
    from semver import Version

    return Version.parse(text, optional_minor_and_patch=not is_whole)


# The rules about one package


@dataclass(frozen=True, slots=True)
class NamedRules:
    """The rules that count today and name one package. Equal values rule alike."""

    subject: str
    rules: tuple[Rule, ...] = ()

    def ruling(self, version: str | None) -> InstallRuling:
        """The ruling on one version; None is the package as a whole."""
        matches = partial(_covers, version=version)
        layers = _layers_of(self.rules)
        refused = restrict(layers, matches, subject=self.subject)  # (1)
        if refused is not None:
            return InstallRuling(refused)
        allowing = [rule for each in layers for rule in each.allow if matches(rule)]
        if not allowing:
            return InstallRuling()
        # (2), (3) The rule that lifts most is reported, and each lifted limit is of some rule.
        widest = max(allowing, key=lambda rule: len(rule.lifts))
        lifts = frozenset(each for rule in allowing for each in rule.lifts)
        return InstallRuling(decision_of(widest, self.subject), lifts)


@lru_cache(maxsize=256)
def _layers_of(rules: tuple[Rule, ...]) -> tuple[LayerRules, ...]:
    return RulesByLayer.of(rules).layers


class InstallRules:
    """The rules for packages of a policy."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._all = tuple(rules)
        self._rules = tuple(rule for rule in self._all if group_of(rule.tool) == "install")

    @cached_property
    def layers(self) -> tuple[LayerRules, ...]:
        """The rules for packages by layer; a layer that is closed by other rules stays closed."""
        return RulesByLayer.of(self._all).for_group("install")

    def about(self, ecosystem: str, name: str, *, today: date) -> NamedRules:
        """The rules that name a package, by its canonical name."""
        found = (
            rule
            for rule in self._rules
            if not is_expired(rule, today) and _counts(rule) and _names(rule, ecosystem, name)
        )
        return NamedRules(f"Install({ecosystem}:{name})", tuple(found))

    def expired(self, today: date) -> tuple[Rule, ...]:
        """The rules that no longer count."""
        return tuple(rule for rule in self._rules if is_expired(rule, today))


def is_expired(rule: Rule, today: date) -> bool:
    """(4)"""
    return rule.until is not None and rule.until < today


def _counts(rule: Rule) -> bool:
    """(5)"""
    return not (rule.is_untrusted and rule.verdict is Verdict.ALLOW)


def _names(rule: Rule, ecosystem: str, name: str) -> bool:
    if rule.specifier is None:
        return True
    is_allowed = rule.verdict is Verdict.ALLOW
    return parse_pattern(rule.specifier).names(ecosystem, name, is_allowed=is_allowed)


def _covers(rule: Rule, version: str | None) -> bool:
    if rule.specifier is None:
        return True
    is_allowed = rule.verdict is Verdict.ALLOW
    return parse_pattern(rule.specifier).covers(version, is_allowed=is_allowed)


def judge_install(rules: InstallRules, package: str, *, today: date) -> Decision:
    """The decision on a call `Install(pypi:requests==2.1)` of a tool that installs packages.

    A layer that allows other calls, and not this one, denies it. Raises `BadRule` for a package
    that cannot be read.
    """
    asked = parse_pattern(package)
    subject = f"Install({asked.text})"
    is_one = not asked.versions or (len(asked.versions) == 1 and asked.versions[0][0] == "==")
    if "*" in asked.text or not is_one:
        raise BadRule("a call names one package, and at most one version", hint=_HINT)
    version = asked.versions[0][1] if asked.versions else None

    def matches(rule: Rule) -> bool:
        return (
            not is_expired(rule, today)
            and _names(rule, asked.ecosystem, asked.name)
            and _covers(rule, version)
        )

    found = judge_by_layers(rules.layers, matches, subject=subject)
    reason = "no rule names this package; the checks of packages judge it"
    return found or Decision(Verdict.ALLOW, "packages", reason, "built-in", subject)

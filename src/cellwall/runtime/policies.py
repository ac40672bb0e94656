"""The policy files that apply to an action, merged (POL-7).

   administrator   /etc/cellwall/policy.toml, and that of a fleet in the state folder
   user            policy.toml in the folder of the user's configuration
   project         .cellwall/policy.toml, .claude/settings.json and .claude/settings.local.json, in
                   the working directory and in each folder above it
   session         files named for this call; the user's and the project's are then ignored

A project's files come from the author of the project, who may be hostile. They can forbid. What
they allow applies only where the rules of the administrator, the user or the session allow it as
well, or where a person has trusted that exact content (`cellwall policy trust`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cellwall.core.home import cache_path, state_path
from cellwall.core.verdict import Verdict
from cellwall.policy.calls import ToolCall as Call
from cellwall.policy.calls import from_json as read_call
from cellwall.policy.calls import parse_call
from cellwall.policy.engine import Policy, registries_in
from cellwall.policy.policy_file import PolicyFile, load_policy_file
from cellwall.policy.protected_rules import build_file_rules
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import OTHERWISE, Layer, Rule, Source, closes_layer
from cellwall.runtime import policy_places
from cellwall.runtime.policy_places import is_there, project_files, user_policy

__all__ = [
    "Call",
    "Layer",
    "Policy",
    "PolicyPlace",
    "approved_rules_place",
    "effective_policy",
    "parse_call",
    "places",
    "policy_without_files",
    "read_call",
    "registries_in",
    "set_aside",
]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

Stamp = tuple[tuple[str, int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class PolicyPlace:
    """A policy file that applies, and its layer."""

    path: str
    layer: Layer


def places(
    *, named: Sequence[str] = (), cwd: str, environ: Mapping[str, str]
) -> tuple[PolicyPlace, ...]:
    """The policy files that exist; a file named for the session must exist."""
    found = [PolicyPlace(policy_places.ADMINISTRATOR, Layer.ADMINISTRATOR)]
    found.append(PolicyPlace(policy_places.fleet_policy(environ), Layer.ADMINISTRATOR))
    if named:
        found += [PolicyPlace(os.path.join(cwd, each), Layer.SESSION) for each in named]
    else:
        found.append(PolicyPlace(user_policy(environ), Layer.USER))
        found += [PolicyPlace(path, Layer.PROJECT) for path in project_files(cwd)]
    return tuple(each for each in found if each.layer is Layer.SESSION or is_there(each.path))


def approved_rules_place(named: Sequence[str], environ: Mapping[str, str]) -> PolicyPlace:
    """The file that gets the rules that a person approves, and its layer."""
    layer = Layer.SESSION if named else Layer.USER
    return PolicyPlace(policy_places.approved_rules_file(named, environ), layer)


def effective_policy(
    *,
    named: Sequence[str] = (),
    cwd: str,
    environ: Mapping[str, str],
    protects_build_files: bool = False,
) -> Policy:
    """The merged policy of all files that apply; read again only after a change."""
    return _effective(named, cwd, environ, protects_build_files=protects_build_files).policy


def policy_without_files(
    *, named: Sequence[str] = (), cwd: str, environ: Mapping[str, str]
) -> Policy:
    """The same for what names no file, such as each package of an installer: without the rules that
    protect Cellwall's own files, whose paths take longest to find."""
    found = places(named=named, cwd=cwd, environ=environ)
    return _load_places(found, environ, (), protects_build_files=False).policy


def set_aside(
    *, named: Sequence[str] = (), cwd: str, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """The project's files whose allow rules are ignored, since no person has trusted them."""
    return _effective(named, cwd, environ, protects_build_files=False).aside


def _effective(
    named: Sequence[str], cwd: str, environ: Mapping[str, str], *, protects_build_files: bool
) -> _Loaded:
    found = places(named=named, cwd=cwd, environ=environ)
    own = own_places(environ, found)
    return _load_places(found, environ, own, protects_build_files=protects_build_files)


def _load_places(
    found: tuple[PolicyPlace, ...],
    environ: Mapping[str, str],
    own: tuple[str, ...],
    *,
    protects_build_files: bool,
) -> _Loaded:
    is_project = any(each.layer is Layer.PROJECT for each in found)
    trust = policy_places.trust_stamp(environ) if is_project else None
    home = os.path.expanduser("~")
    return _load(found, _stamp(found), home, trust, own, protects_build_files=protects_build_files)


def _stamp(found: Sequence[PolicyPlace]) -> Stamp:
    stamps = []
    for each in found:
        try:
            status = os.stat(each.path)
        except OSError:  # reported when the file is read
            stamps.append((each.path, 0, 0, 0, 0))
        else:
            # Attack: the modification time can be set back; the time of the change cannot.
            times = status.st_mtime_ns, status.st_ctime_ns
            stamps.append((each.path, *times, status.st_size, status.st_ino))
    return tuple(stamps)


@dataclass(frozen=True, slots=True)
class _Loaded:
    policy: Policy
    aside: tuple[str, ...]


@lru_cache(maxsize=32)
def _load(
    found: tuple[PolicyPlace, ...],
    _: Stamp,
    home: str,
    trust: policy_places.TrustStamp | None,
    own: tuple[str, ...],
    *,
    protects_build_files: bool,
) -> _Loaded:
    files = [(each.path, _load_file(each, home)) for each in found]
    is_allowed_above = any(
        rule.layer is not Layer.PROJECT and closes_layer(rule)
        for _, file in files
        for rule in file.rules
    )
    trusted = frozenset() if trust is None else policy_places.read_trusted(trust)
    rules: list[Rule] = [_protecting(path) for path in own]
    rules += build_file_rules() if protects_build_files else ()
    aside = []
    for path, file in files:
        # The digest is of the text that was parsed: no file can be swapped in between.
        is_trusted = (os.path.realpath(path), file.sha256) in trusted
        if file.layer is not Layer.PROJECT or is_trusted:
            rules += file.rules
            continue
        if is_allowed_above:  # it can only tighten, and must not answer a question
            rules += [replace(rule, is_untrusted=True) for rule in file.rules if not rule.answers]
            continue
        # `otherwise` turns a denial into a question: it loosens, as an allow does.
        kept = [
            replace(rule, is_untrusted=True)
            for rule in file.rules
            if rule.verdict is not Verdict.ALLOW and rule.tool != OTHERWISE
        ]
        aside += [file.file] if len(kept) < len(file.rules) else []
        rules += kept
    return _Loaded(Policy.of(rules), tuple(aside))


def _load_file(place: PolicyPlace, home: str) -> PolicyFile:
    is_fleet = place.layer is Layer.ADMINISTRATOR and place.path != policy_places.ADMINISTRATOR
    shown = policy_places.FLEET_POLICY_NAME if is_fleet else None
    return load_policy_file(place.path, place.layer, home=home, shown=shown)


def own_places(environ: Mapping[str, str], found: Sequence[PolicyPlace]) -> tuple[str, ...]:
    """Paths that an agent must not write: they judge or log the agent."""
    # Attack: a rule set planted in the cache makes the guard and the redaction find nothing.
    places = [state_path(environ), cache_path(environ)]
    places += [os.path.dirname(user_policy(environ)), _PACKAGE]
    places += [each.path for each in found if each.layer is not Layer.PROJECT]
    real = (_real_path(path) for path in places)
    return tuple(dict.fromkeys((*places, *real)))


def _real_path(path: str) -> str:
    """As `os.path.realpath`, by the kernel: for each action, and Python asks it for each part."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not there, or not reachable
        return os.path.realpath(path)
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:  # no /proc
        return os.path.realpath(path)
    finally:
        os.close(descriptor)


def _protecting(path: str) -> Rule:
    spelled = re.sub(r"([\\*?\[\]{}!])", r"\\\1", path)
    return parse_rule(
        f"Write(/{spelled})",
        verdict=Verdict.DENY,
        source=Source("built-in"),
        layer=Layer.BUILT_IN,
        reason="Cellwall's own program, rules, settings and audit log",
    )

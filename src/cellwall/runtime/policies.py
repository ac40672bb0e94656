"""Which policy files count here, and the policy they make together (POL-7).

   administrator   /etc/cellwall/policy.toml
   user            policy.toml in the folder of the user's configuration
   project         .cellwall/policy.toml, .claude/settings.json and .claude/settings.local.json, in
                   the working directory and in each folder above it
   session         what was named for this call; the user's and the project's are then left aside

A project's files come from whoever wrote the project. They can forbid; what they allow counts only
where the administrator's, the user's or the session's rules allow it as well, or where a person has
trusted that very content (`cellwall policy trust`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cellwall.core.home import state_path
from cellwall.core.verdict import Verdict
from cellwall.policy.calls import ToolCall as Call
from cellwall.policy.calls import from_json as read_call
from cellwall.policy.calls import parse_call
from cellwall.policy.engine import Policy
from cellwall.policy.policy_file import load_policy_file
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import OTHERWISE, Layer, Rule, Source
from cellwall.runtime import policy_places, policy_trusted
from cellwall.runtime.policy_places import is_there, project_files, user_policy

__all__ = [
    "Call",
    "Policy",
    "effective_policy",
    "parse_call",
    "places",
    "read_call",
    "set_aside",
]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

Stamp = tuple[tuple[str, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class PolicyPlace:
    """A file that counts."""

    path: str
    layer: Layer


def places(
    *, named: Sequence[str] = (), cwd: str, environ: Mapping[str, str]
) -> tuple[PolicyPlace, ...]:
    """Those that are there; what was named must be."""
    found = [PolicyPlace(policy_places.ADMINISTRATOR, Layer.ADMINISTRATOR)]
    if named:
        found += [PolicyPlace(os.path.join(cwd, each), Layer.SESSION) for each in named]
    else:
        found.append(PolicyPlace(user_policy(environ), Layer.USER))
        found += [PolicyPlace(path, Layer.PROJECT) for path in project_files(cwd)]
    return tuple(each for each in found if each.layer is Layer.SESSION or is_there(each.path))


def effective_policy(*, named: Sequence[str] = (), cwd: str, environ: Mapping[str, str]) -> Policy:
    """Of all files that count; read again only when one of them has changed."""
    return _effective(named, cwd, environ).policy


def set_aside(
    *, named: Sequence[str] = (), cwd: str, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """The project's files whose allowing rules do not count, since nobody has trusted them."""
    return _effective(named, cwd, environ).aside


def _effective(named: Sequence[str], cwd: str, environ: Mapping[str, str]) -> _Loaded:
    found = places(named=named, cwd=cwd, environ=environ)
    is_project = any(each.layer is Layer.PROJECT for each in found)
    trust = policy_trusted.stamp(environ) if is_project else None
    own = own_places(environ, found)
    return _loaded(found, _stamp(found), os.path.expanduser("~"), trust, own)


def _stamp(found: Sequence[PolicyPlace]) -> Stamp:
    stamps = []
    for each in found:
        try:
            status = os.stat(each.path)
        except OSError:  # told when it is read
            stamps.append((each.path, 0, 0, 0))
        else:
            stamps.append((each.path, status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(stamps)


@dataclass(frozen=True, slots=True)
class _Loaded:
    policy: Policy
    aside: tuple[str, ...]


@lru_cache(maxsize=32)
def _loaded(
    found: tuple[PolicyPlace, ...],
    _: Stamp,
    home: str,
    trust: policy_trusted.Stamp | None,
    own: tuple[str, ...],
) -> _Loaded:
    files = [(each.path, load_policy_file(each.path, each.layer, home=home)) for each in found]
    is_allowed_above = any(
        rule.verdict is Verdict.ALLOW and rule.layer is not Layer.PROJECT and not rule.answers
        for _, file in files
        for rule in file.rules
    )
    trusted = frozenset() if trust is None else policy_trusted.read_trusted(trust)
    rules: list[Rule] = [_protecting(path) for path in own]
    aside = []
    for path, file in files:
        # The digest is of the text that was parsed: nothing can be put in between.
        is_trusted = (os.path.realpath(path), file.sha256) in trusted
        if file.layer is not Layer.PROJECT or is_trusted:
            rules += file.rules
            continue
        if is_allowed_above:  # it can only tighten; but a question is not for it to answer
            rules += [replace(rule, is_untrusted=True) for rule in file.rules if not rule.answers]
            continue
        # `otherwise` turns a denial into a question: that is no more for it to say than an allow.
        kept = [
            replace(rule, is_untrusted=True)
            for rule in file.rules
            if rule.verdict is not Verdict.ALLOW and rule.tool != OTHERWISE
        ]
        aside += [file.file] if len(kept) < len(file.rules) else []
        rules += kept
    return _Loaded(Policy.of(rules), tuple(aside))


def own_places(environ: Mapping[str, str], found: Sequence[PolicyPlace]) -> tuple[str, ...]:
    """What an agent must not write, wherever it lies: it judges or records the agent."""
    places = [state_path(environ), os.path.dirname(user_policy(environ)), _PACKAGE]
    places += [each.path for each in found if each.layer is not Layer.PROJECT]
    real = (os.path.realpath(path) for path in places)
    return tuple(dict.fromkeys((*places, *real)))


def _protecting(path: str) -> Rule:
    spelled = re.sub(r"([\\*?\[\]{}!])", r"\\\1", path)
    return parse_rule(
        f"Write(/{spelled})",
        verdict=Verdict.DENY,
        source=Source("built-in"),
        layer=Layer.BUILT_IN,
        reason="Cellwall's own program, rules, settings and record",
    )

"""The policy files that apply to an action, merged (POL-7).

   administrator   /etc/cellwall/policy.toml, and that of a fleet in the state folder
   user            policy.toml in the folder of the user's configuration
   project         .cellwall/policy.toml, .claude/settings.json and .claude/settings.local.json, in
                   the working directory and in each folder above it
   session         files named for this call; the user's and the project's are then ignored

A project's files come from the author of the project, who may be hostile. They can forbid. What
they allow applies only where the rules of the administrator, the user or the session allow it as
well, or where a person has trusted that exact content (`cellwall policy trust`).

Where `approvals.key` is configured, any process of the user could write the other files as well. So
each file that allows something needs the signature of the approver, and every call is refused until
the file has it: without its rules, those of other files could allow more. Only the file of the
administrator in /etc and the files of Cellwall itself need none (POL-13).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cellwall.core.errors import ConfigError
from cellwall.core.home import cache_path, state_path
from cellwall.core.standing_grants import GrantKind, GrantsPort, StandingGrant
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
    "check_signed",
    "effective_policy",
    "needs_signature",
    "parse_call",
    "places",
    "policy_grants",
    "policy_without_files",
    "read_call",
    "registries_in",
    "set_aside",
]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_PLAIN_PATH = re.compile(r"[~/][\w./@%+=:,-]*", re.ASCII)

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
    grants: GrantsPort | None,
    protects_build_files: bool = False,
) -> Policy:
    """The merged policy of all files that apply; read again only after a change. `grants` is None
    where no key is configured."""
    return _effective(named, cwd, environ, grants, protects_build_files=protects_build_files).policy


def policy_without_files(
    *,
    named: Sequence[str] = (),
    cwd: str,
    environ: Mapping[str, str],
    grants: GrantsPort | None,
) -> Policy:
    """The same for what names no file, such as each package of an installer: without the rules that
    protect Cellwall's own files, whose paths take longest to find."""
    found = places(named=named, cwd=cwd, environ=environ)
    return _load_places(found, environ, (), grants, protects_build_files=False).policy


def set_aside(
    *,
    named: Sequence[str] = (),
    cwd: str,
    environ: Mapping[str, str],
    grants: GrantsPort | None,
) -> tuple[str, ...]:
    """The project's files whose allow rules are ignored, since no person has trusted them."""
    return _effective(named, cwd, environ, grants, protects_build_files=False).aside


def _effective(
    named: Sequence[str],
    cwd: str,
    environ: Mapping[str, str],
    grants: GrantsPort | None,
    *,
    protects_build_files: bool,
) -> _Loaded:
    found = places(named=named, cwd=cwd, environ=environ)
    own = own_places(environ, found)
    return _load_places(found, environ, own, grants, protects_build_files=protects_build_files)


def _load_places(
    found: tuple[PolicyPlace, ...],
    environ: Mapping[str, str],
    own: tuple[str, ...],
    grants: GrantsPort | None,
    *,
    protects_build_files: bool,
) -> _Loaded:
    is_project = any(each.layer is Layer.PROJECT for each in found)
    trust = policy_places.trust_stamp(environ) if is_project else None
    home = os.path.expanduser("~")
    signed = None if grants is None else _SignatureCheck(grants, grants.stamp)
    stamp = _stamp(found)
    return _load(found, stamp, home, trust, own, signed, protects_build_files=protects_build_files)


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
class _SignatureCheck:
    """The signatures of the approver, at one moment."""

    grants: GrantsPort
    stamp: object


def check_signed(path: str, file: PolicyFile, grants: GrantsPort) -> None:
    """Raise for a file that is not a project's, and allows something without a signature."""
    is_exempt = path == policy_places.ADMINISTRATOR or policy_places.is_shipped((path,))
    if is_exempt or not needs_signature(file.rules):
        return
    if not grants.is_signed(policy_grants(path, file.sha256)[0]):
        raise ConfigError(
            f"{file.file} allows something, and the approver has not signed its present content",
            hint=f"Read it, then sign it: {_signing_command(path, file.file)}",
            code="CW-POLICY-UNSIGNED",
        )


def _signing_command(path: str, shown: str) -> str:
    """With the shown path, since other users may see it (ERR-1)."""
    if not shown.startswith(("/", "~")):  # of the fleet: its path is not shown
        return "cellwall approvals sign --only policy"
    return f"cellwall policy trust {shown if _PLAIN_PATH.fullmatch(shown) else shlex.quote(path)}"


def policy_grants(path: str, sha256: str) -> tuple[StandingGrant, ...]:
    """What the approver signs: this content at this place; the last one counts for its project.

    Attack: a link to a file that was signed for one project, at the place of the user's own policy
    or in another project. The links below a project's folder are not resolved, nor those of a file
    for all projects.
    """
    place = policy_places.absolute(path)
    found = [StandingGrant(GrantKind.POLICY, place, sha256)]
    for name in policy_places.PROJECT_FILES:
        if place.endswith(f"/{name}"):
            folder = os.path.realpath(place.removesuffix(f"/{name}") or "/")
            found.append(StandingGrant(GrantKind.PROJECT, os.path.join(folder, name), sha256))
    return tuple(found)


def needs_signature(rules: Iterable[Rule]) -> bool:
    """Whether any rule allows something."""
    return any(map(_loosens, rules))


def _loosens(rule: Rule) -> bool:
    """Whether the rule turns a stricter verdict into another one."""
    return rule.verdict is Verdict.ALLOW or bool(rule.answers) or rule.tool == OTHERWISE


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
    signed: _SignatureCheck | None,
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
        if signed is not None and file.layer is not Layer.PROJECT:
            check_signed(path, file, signed.grants)
        elif signed is not None:
            is_trusted = signed.grants.is_signed(policy_grants(path, file.sha256)[-1])
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

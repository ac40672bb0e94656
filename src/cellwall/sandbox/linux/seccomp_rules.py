"""The seccomp rules of `seccomp.toml`, loaded and checked; a doubtful entry is refused."""

from __future__ import annotations

import errno
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from cellwall.core.errors import SandboxFailed

# linux/audit.h
AUDIT_ARCH: Final[Mapping[str, int]] = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

ALL_BITS: Final = 0xFFFFFFFF
_ERRNOS: Final = (
    "EPERM", "EACCES", "EINVAL", "ENOMEM", "ENOSYS", "EOPNOTSUPP", "EAFNOSUPPORT",
)  # fmt: skip
_OFFSET_ARGS: Final = 16  # in struct seccomp_data
_SECTIONS: Final = {
    "allow", "allow_if", "pretend", "ignore", "deny", "descriptor", "zygote", "without_cgroup",
    "reported",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One comparison of 32 bits of one argument; see the head of `seccomp.toml`."""

    arg: int
    word: Literal["low", "high"]
    mask: int
    values: tuple[int, ...]
    negated: bool

    @property
    def offset(self) -> int:
        return _OFFSET_ARGS + 8 * self.arg + (4 if self.word == "high" else 0)


Row = tuple[Condition, ...]
Arguments = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyscallGroup:
    """Calls with the same answer: `allow` (errno 0: the call passes) or `deny`."""

    names: tuple[str, ...]
    errno: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionalSyscall:
    """A call that passes if every condition of one row holds, else fails; errno 0: as success."""

    name: str
    rows: tuple[Row, ...]
    errno: int
    reason: str
    passes: tuple[Arguments, ...]
    fails: tuple[Arguments, ...]
    unless: tuple[Row, ...] = ()
    """Checked when no row matches: reported as success, but not executed."""
    skips: tuple[Arguments, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorCheck:
    """Which arguments of these calls are descriptors, and when they count."""

    names: tuple[str, ...]
    args: tuple[int, ...]
    when: Row
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeccompRules:
    """The data files, loaded and checked."""

    numbers: Mapping[str, Mapping[str, int]]
    allow: tuple[SyscallGroup, ...]
    deny: tuple[SyscallGroup, ...]
    conditional: tuple[ConditionalSyscall, ...]
    descriptors: tuple[DescriptorCheck, ...]
    zygote: tuple[SyscallGroup, ...] = ()
    ignore: tuple[SyscallGroup, ...] = ()
    """Reported as success, but not executed."""
    without_cgroup: tuple[SyscallGroup, ...] = ()
    """Refused if no cgroup counts the memory they allocate."""
    reported: tuple[SyscallGroup, ...] = ()
    """They make a socket, of which init learns where the network namespace may be handed on."""


@cache
def load_rules() -> SeccompRules:
    """The rules that ship with Cellwall."""
    here = Path(__file__)
    try:
        document = tomllib.loads(here.with_name("seccomp.toml").read_text("utf-8"))
        numbers = tomllib.loads(here.with_name("syscall_numbers.toml").read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise rules_error("it cannot be read", detail=str(error)) from error
    return parse_rules(document, numbers)


def parse_rules(
    document: Mapping[str, Any], numbers: Mapping[str, Mapping[str, int]]
) -> SeccompRules:
    """Check both documents; a wrong or doubtful entry raises `SandboxFailed`."""
    try:
        rules = SeccompRules(
            numbers={arch: dict(numbers[arch]) for arch in AUDIT_ARCH},
            allow=tuple(_group(entry, answered=False) for entry in document["allow"]),
            deny=tuple(_group(entry, answered=True) for entry in document["deny"]),
            conditional=(
                *(_conditional(entry, pretended=False) for entry in document["allow_if"]),
                *(_conditional(entry, pretended=True) for entry in document["pretend"]),
            ),
            descriptors=tuple(_descriptor_check(entry) for entry in document["descriptor"]),
            zygote=tuple(_group(entry, answered=False) for entry in document["zygote"]),
            ignore=tuple(_group(entry, answered=False) for entry in document["ignore"]),
            without_cgroup=tuple(
                _group(entry, answered=True) for entry in document["without_cgroup"]
            ),
            reported=tuple(_group(entry, answered=False) for entry in document["reported"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise rules_error("an entry lacks a key or has a wrong one", detail=repr(error)) from error
    if set(document) != _SECTIONS:
        raise rules_error("it has an unknown section")
    _require_sound_names(rules)
    return rules


def rules_error(what: str, *, detail: str = "") -> SandboxFailed:
    """The error for invalid data files."""
    return SandboxFailed(
        f"The seccomp rules are broken: {what}.",
        code="CW-SECCOMP-RULES",
        hint="Install Cellwall again; its data files were changed.",
        detail=detail,
    )


def _require_sound_names(rules: SeccompRules) -> None:
    known = {name for table in rules.numbers.values() for name in table}
    groups = (*rules.allow, *rules.ignore, *rules.deny)
    decided = [name for group in groups for name in group.names]
    decided += [entry.name for entry in rules.conditional]
    checked = [name for check in rules.descriptors for name in check.names]
    building = [name for group in rules.zygote for name in group.names]
    if unknown := sorted({*decided, *checked, *building} - known):
        raise rules_error(f"no architecture knows {', '.join(unknown)}")
    for names in (decided, checked, building):
        if twice := sorted(name for name, count in Counter(names).items() if count > 1):
            # Two answers to one call: the last one would win silently.
            raise rules_error(f"named twice: {', '.join(twice)}")
    never = {name for group in (*rules.deny, *rules.ignore) for name in group.names}
    if useless := sorted(set(checked) - (set(decided) - never)):
        raise rules_error(f"a descriptor of a call that never passes: {', '.join(useless)}")
    reported = {name for group in rules.reported for name in group.names}
    if useless := sorted(reported - (set(decided) - never)):
        raise rules_error(f"reported, and never passes: {', '.join(useless)}")
    if both := sorted(reported & set(checked)):
        # Init could not tell which of the two a notification is about.
        raise rules_error(f"reported, and takes a descriptor: {', '.join(both)}")
    uncounted = {name for group in rules.without_cgroup for name in group.names}
    if useless := sorted(uncounted - (set(decided) - never)):
        raise rules_error(f"refused without a cgroup, and never passes: {', '.join(useless)}")


def _shape(entry: Mapping[str, Any], required: set[str], optional: frozenset[str]) -> None:
    if not required <= set(entry) <= required | optional:
        raise ValueError(f"keys {sorted(entry)}, expected {sorted(required)}")


def _reason(entry: Mapping[str, Any]) -> str:
    # A privilege without a reason cannot be reviewed.
    if not isinstance(entry["reason"], str) or not entry["reason"].strip():
        raise ValueError("empty reason")
    return entry["reason"]


def _names(entry: Mapping[str, Any]) -> tuple[str, ...]:
    if not entry["names"]:
        raise ValueError("no names")
    return tuple(entry["names"])


def _errno(entry: Mapping[str, Any]) -> int:
    if entry["errno"] not in _ERRNOS:
        raise ValueError(f"errno {entry['errno']!r}")
    return int(getattr(errno, entry["errno"]))


def _group(entry: Mapping[str, Any], *, answered: bool) -> SyscallGroup:
    _shape(entry, {"names", "reason"} | ({"errno"} if answered else set()), frozenset())
    return SyscallGroup(
        names=_names(entry), errno=_errno(entry) if answered else 0, reason=_reason(entry)
    )


def _conditional(entry: Mapping[str, Any], *, pretended: bool) -> ConditionalSyscall:
    keys = {"name", "any", "passes", "fails", "reason"}
    optional = frozenset[str]() if pretended else frozenset({"unless", "skips"})
    _shape(entry, keys if pretended else keys | {"errno"}, optional)
    unless, skips = entry.get("unless", ()), entry.get("skips", ())
    # An empty row always matches, and an empty list of examples tests nothing.
    if not entry["any"] or not all(entry["any"]) or not entry["passes"] or not entry["fails"]:
        raise ValueError(f"{entry['name']}: empty rows or examples")
    if not all(unless) or bool(unless) != bool(skips):
        raise ValueError(f"{entry['name']}: empty rows or examples")
    return ConditionalSyscall(
        name=entry["name"],
        rows=_rows(entry["any"]),
        unless=_rows(unless),
        skips=tuple(tuple(arguments) for arguments in skips),
        errno=0 if pretended else _errno(entry),
        reason=_reason(entry),
        passes=tuple(tuple(arguments) for arguments in entry["passes"]),
        fails=tuple(tuple(arguments) for arguments in entry["fails"]),
    )


def _rows(rows: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[Row, ...]:
    return tuple(tuple(_condition(condition) for condition in row) for row in rows)


def _descriptor_check(entry: Mapping[str, Any]) -> DescriptorCheck:
    _shape(entry, {"names", "args", "reason"}, frozenset({"when"}))
    if not entry["args"] or not all(arg in range(6) for arg in entry["args"]):
        raise ValueError(f"args {entry['args']!r}")
    return DescriptorCheck(
        names=_names(entry),
        args=tuple(entry["args"]),
        when=tuple(_condition(condition) for condition in entry.get("when", ())),
        reason=_reason(entry),
    )


def _condition(entry: Mapping[str, Any]) -> Condition:
    negated = "not_in" in entry
    key = "not_in" if negated else "in"
    _shape(entry, {"arg", key}, frozenset({"mask", "word"}))
    word, mask, values = entry.get("word", "low"), entry.get("mask", ALL_BITS), tuple(entry[key])
    if entry["arg"] not in range(6) or word not in ("low", "high") or not values:
        raise ValueError(f"condition {entry!r}")
    # A value outside the mask can never match: the condition would be always or never true.
    if not 0 < mask <= ALL_BITS or any(value < 0 or value & ~mask for value in values):
        raise ValueError(f"condition {entry!r}")
    return Condition(arg=entry["arg"], word=word, mask=mask, values=values, negated=negated)

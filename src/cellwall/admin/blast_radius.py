"""What code can read, write, execute, reach, spend and keep under the effective configuration.

Computed from the settings, the rules and the visible part of the host (CFG-3); not confirmed by
probes. `compute_blast_radius` is pure; `blast_radius` reads the host for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from cellwall.config.models import Settings, weakened
from cellwall.core.limits import size_text
from cellwall.core.types import Json
from cellwall.core.verdict import Verdict
from cellwall.policy.engine import Policy
from cellwall.policy.rules import Layer
from cellwall.sandbox.linux.outer_wall import DEVICES, HostRoot, survey

Verb = Literal["read", "write", "execute", "reach", "spend", "keep"]
VERBS: tuple[Verb, ...] = ("read", "write", "execute", "reach", "spend", "keep")
_MAX_NAMED = 12


@dataclass(frozen=True, slots=True)
class Ability:
    """One thing that code can do, or explicitly cannot."""

    verb: Verb
    what: str
    bound: str
    """How far it goes; empty where `what` says all."""
    setting: str = ""
    """The setting that decides; empty for what no setting changes."""
    is_weakened: bool = False
    """A `dangerously_` setting allows it."""

    def to_text(self) -> str:
        bound = f": {self.bound}" if self.bound else ""
        setting = f" [{self.setting}]" if self.setting else ""
        return f"{self.what}{bound}{setting}"


@dataclass(frozen=True, slots=True)
class BlastRadius:
    """All abilities, and the settings that weaken a wall."""

    profile: str
    abilities: tuple[Ability, ...]
    weakened: tuple[str, ...]

    def of(self, verb: Verb) -> tuple[Ability, ...]:
        return tuple(each for each in self.abilities if each.verb == verb)

    def to_text(self) -> str:
        lines = [f"profile: {self.profile}"]
        for verb in VERBS:
            lines += [f"{verb}:", *(f"  {each.to_text()}" for each in self.of(verb))]
        lines.append(f"weakened by: {', '.join(self.weakened) or 'nothing'}")
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, Json]:
        return {
            "profile": self.profile,
            "abilities": [asdict(each) for each in self.abilities],
            "weakened": list(self.weakened),
        }


def blast_radius(settings: Settings, policy: Policy) -> BlastRadius:
    """For this host."""
    return compute_blast_radius(settings, policy, survey())


def compute_blast_radius(settings: Settings, policy: Policy, host: HostRoot) -> BlastRadius:
    """From plain data."""
    abilities = (
        *_reads(settings, host),
        *_writes(settings),
        *_executes(settings, policy, host),
        *_reaches(settings, policy),
        *_spends(settings),
        *_keeps(settings),
    )
    return BlastRadius(settings.profile, abilities, weakened(settings))


def _reads(settings: Settings, host: HostRoot) -> Iterator[Ability]:
    yield Ability("read", "programs and libraries of the host", _named(host.binds))
    if host.foreign_python is not None:
        yield Ability("read", "the Python installation", "at /opt/python")
    yield Ability("read", "of /etc", _named(host.etc))
    yield Ability("read", "devices", _named(DEVICES))
    extra = settings.sandbox.extra_read_only_paths
    if extra:
        yield Ability(
            "read", "directories of the host", _named(extra), "sandbox.extra_read_only_paths"
        )
    yield Ability("read", "its own workspace, and a directory that a person gives to the run", "")
    if settings.workspace.dangerously_expose_sensitive_names:
        name = "workspace.dangerously_expose_sensitive_names"
        what = "protected names (.env, .ssh, keys) in a given directory"
        yield Ability("read", what, "exposed", name, is_weakened=True)
    else:
        yield Ability("read", "no protected names (.env, .ssh, keys) in a given directory", "")


def _writes(settings: Settings) -> Iterator[Ability]:
    limits = settings.limits.to_limits()
    size, count = size_text(limits.disk_bytes), limits.file_count
    yield Ability("write", "/workspace", f"{size}, {count} files", "limits.disk_bytes")
    yield Ability("write", "one file", size_text(limits.file_size_bytes), "limits.file_size_bytes")
    yield Ability("write", "/tmp", size_text(settings.sandbox.tmp_bytes), "sandbox.tmp_bytes")
    yield Ability("write", "/dev/shm", size_text(settings.sandbox.shm_bytes), "sandbox.shm_bytes")
    yield Ability(
        "write", "a directory of the host", "only one given as DIR:rw; :cow writes a copy"
    )


def _executes(settings: Settings, policy: Policy, host: HostRoot) -> Iterator[Ability]:
    yield Ability("execute", "programs", f"of {_named(host.binds)} and of the workspace")
    if settings.policy.dangerously_observe:
        name = "policy.dangerously_observe"
        yield Ability(
            "execute", "calls that rules deny", "logged, not refused", name, is_weakened=True
        )
    allowed: Counter[str] = Counter(
        rule.tool
        for rule in policy.rules
        if rule.verdict is Verdict.ALLOW and rule.layer is not Layer.BUILT_IN
    )
    found = [f"{tool} ({count})" if count > 1 else tool for tool, count in allowed.items()]
    yield Ability("execute", "calls that a rule allows", _named(found) or "none", "policy.files")
    for name in (
        "dangerously_without_cgroup",
        "dangerously_without_landlock",
        "dangerously_without_user_namespace",
    ):
        if getattr(settings.sandbox, name):
            without = name.removeprefix("dangerously_without_").replace("_", " ")
            what = f"without {without} where the host lacks it"
            yield Ability("execute", what, "", f"sandbox.{name}", is_weakened=True)
    if settings.hook.dangerously_outside:
        what = "commands of a hooked agent on the host"
        name = "hook.dangerously_outside"
        yield Ability("execute", what, "with all rights of the user", name, is_weakened=True)


def _reaches(settings: Settings, policy: Policy) -> Iterator[Ability]:
    egress, packages = settings.egress, settings.packages
    domains = _named(egress.allow_domains)
    yield Ability(
        "reach",
        "hosts, for every sandbox",
        domains or "none: a sandbox has no network interface",
        "egress.allow_domains",
    )
    fetched = [
        rule.specifier or "every host"
        for rule in policy.rules
        if rule.tool == "WebFetch"
        and rule.verdict is Verdict.ALLOW
        and rule.layer is not Layer.BUILT_IN
    ]
    if fetched:
        what = "hosts that a run names and a rule allows"
        yield Ability("reach", what, _named(fetched), "policy.files")
    registries = _named(packages.registries) or "only those that a run names"
    yield Ability("reach", "package registries, filtered", registries, "packages.registries")
    private = egress.dangerously_allow_addresses
    yield Ability(
        "reach",
        "private addresses",
        _named(private) or "none",
        "egress.dangerously_allow_addresses",
        is_weakened=bool(private),
    )
    sent = f"{size_text(egress.max_upload_bytes)} up, {size_text(egress.max_download_bytes)} down"
    yield Ability("reach", "bytes of one sandbox", sent, "egress.max_upload_bytes")


def _spends(settings: Settings) -> Iterator[Ability]:
    limits, budgets = settings.limits.to_limits(), settings.budgets
    yield Ability("spend", "time of one run", f"{limits.wall_s:g} s", "limits.wall_s")
    cpu = f"{limits.cpu_s:g} s on {limits.cpus:g} processors"
    yield Ability("spend", "processor", cpu, "limits.cpu_s")
    yield Ability("spend", "memory", size_text(limits.memory_bytes), "limits.memory_bytes")
    yield Ability("spend", "processes and threads", str(limits.processes), "limits.processes")
    yield Ability("spend", "output", size_text(limits.output_bytes), "limits.output_bytes")
    concurrent = str(settings.governor.max_concurrent)
    yield Ability("spend", "sandboxes at once", concurrent, "governor.max_concurrent")
    for name, unit in (("user_runs", "runs"), ("user_cpu_s", "s"), ("user_money", "money")):
        most = getattr(budgets, name)
        bound = f"{most:g} {unit} in {budgets.period_hours:g} h" if most else "no limit"
        yield Ability("spend", f"budget of a user, {unit}", bound, f"budgets.{name}")


def _keeps(settings: Settings) -> Iterator[Ability]:
    days = settings.workspace.keep_changes_days
    yield Ability("keep", "a private workspace", "removed with its session")
    what = "changes of a copy-on-write run, sealed"
    yield Ability("keep", what, f"{days} days", "workspace.keep_changes_days")
    for what, value, name in (
        ("records of what it did", settings.audit.keep_days, "audit.keep_days"),
        ("keys of session data", settings.retention.session_days, "retention.session_days"),
    ):
        bound = "no limit" if value is None else f"{value} days"
        yield Ability("keep", what, bound, name)


def _named(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMED
    shown = ", ".join(names[:_MAX_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown

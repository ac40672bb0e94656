"""What code can and cannot do under a configuration, line by line (CFG-3).

`abilities_of` is pure: it takes the settings, the rules and the visible part of the host.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from cellwall.config.models import Settings
from cellwall.core.limits import size_text
from cellwall.core.types import Json
from cellwall.core.verdict import Verdict
from cellwall.policy.engine import Policy
from cellwall.policy.rules import OTHERWISE, Layer, Rule
from cellwall.sandbox.linux.outer_wall import DEVICES, HostRoot

Verb = Literal["read", "write", "execute", "reach", "spend", "keep"]
VERBS: tuple[Verb, ...] = get_args(Verb)
_MAX_NAMED = 12
_NO_NETWORK = "none: a sandbox has no network interface"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """One thing that code can do, or cannot."""

    id: str
    """The verb and a name, such as `read.devices`; stable."""
    what: str
    bound: str = ""
    """How far it goes; empty where `what` says all."""
    setting: str = ""
    """The setting that decides; empty for what no setting changes."""
    is_possible: bool = True
    is_weakened: bool = False
    """A `dangerously_` setting allows it."""
    members: tuple[str, ...] = ()
    """What the bound consists of: paths, domains, rules. More of them open more, or, of an
    impossible thing, close more."""
    amount: float | None = None
    """The bound as a number, where a larger one opens more."""

    @property
    def verb(self) -> Verb:
        return cast("Verb", self.id.partition(".")[0])

    def to_text(self) -> str:
        bound = f": {self.bound}" if self.bound else ""
        setting = f" [{self.setting}]" if self.setting else ""
        return f"{self.what}{bound}{setting}"

    def to_json(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "verb": self.verb,
            "what": self.what,
            "bound": self.bound,
            "setting": self.setting,
            "is_possible": self.is_possible,
            "is_weakened": self.is_weakened,
            "members": list(self.members),
        }


def abilities_of(settings: Settings, policy: Policy, host: HostRoot) -> tuple[Ability, ...]:
    """All lines, by verb."""
    return (
        *_reads(settings, host),
        *_writes(settings),
        *_executes(settings, policy, host),
        *_reaches(settings, policy),
        *_spends(settings),
        *_keeps(settings),
    )


def _named(id_: str, what: str, members: Iterable[str], setting: str = "") -> Ability:
    """A thing whose bound is a list of names; without any, it is impossible."""
    named = tuple(members)
    return Ability(
        id=id_,
        what=what,
        bound=_listed(named) or "none",
        setting=setting,
        is_possible=bool(named),
        members=named,
    )


def _sized(id_: str, what: str, size_bytes: int, setting: str) -> Ability:
    bound = size_text(size_bytes)
    return Ability(id=id_, what=what, bound=bound, setting=setting, amount=size_bytes)


def _counted(id_: str, what: str, amount: float, unit: str, setting: str) -> Ability:
    bound = f"{amount:g} {unit}".rstrip() if math.isfinite(amount) else "no limit"
    return Ability(id=id_, what=what, bound=bound, setting=setting, amount=amount)


def _impossible(id_: str, what: str, bound: str = "") -> Ability:
    return Ability(id=id_, what=what, bound=bound, is_possible=False)


def _reads(settings: Settings, host: HostRoot) -> Iterator[Ability]:
    yield _named("read.programs", "programs and libraries of the host", host.binds)
    if host.foreign_python is not None:
        yield Ability(id="read.python", what="the Python installation", bound="at /opt/python")
    yield _named("read.etc", "of /etc", host.etc)
    yield _named("read.devices", "devices", DEVICES)
    extra = settings.sandbox.extra_read_only_paths
    if extra:
        name = "sandbox.extra_read_only_paths"
        yield _named("read.shared-directories", "directories of the host", extra, name)
    yield Ability(
        id="read.workspace",
        what="its own workspace, and a directory that a person gives to the run",
    )
    is_exposed = settings.workspace.dangerously_expose_sensitive_names
    yield Ability(
        id="read.protected-names",
        what="protected names (.env, .ssh, keys) in a given directory",
        bound="exposed" if is_exposed else "hidden",
        setting="workspace.dangerously_expose_sensitive_names",
        is_possible=is_exposed,
        is_weakened=is_exposed,
    )
    yield _impossible(
        "read.host-files",
        "other files of the host",
        "homes, the rest of /etc, /run, /var and /tmp of the host",
    )
    yield _impossible("read.environment", "environment variables of the process that starts it")
    yield _impossible("read.processes", "processes outside, their arguments and their memory")


def _writes(settings: Settings) -> Iterator[Ability]:
    limits, sandbox = settings.limits.to_limits(), settings.sandbox
    yield _sized("write.workspace", "/workspace", limits.disk_bytes, "limits.disk_bytes")
    yield _counted(
        "write.file-count", "files in /workspace", limits.file_count, "", "limits.file_count"
    )
    yield _sized("write.file-size", "one file", limits.file_size_bytes, "limits.file_size_bytes")
    # As the cell is built: neither is larger than the limit around it.
    tmp_bytes = min(sandbox.tmp_bytes, limits.disk_bytes)
    yield _sized("write.tmp", "/tmp", tmp_bytes, "sandbox.tmp_bytes")
    shm_bytes = min(sandbox.shm_bytes, limits.memory_bytes)
    yield _sized("write.shm", "/dev/shm", shm_bytes, "sandbox.shm_bytes")
    yield Ability(
        id="write.given-directory",
        what="a directory of the host",
        bound="only one given as DIR:rw",
    )
    yield _impossible("write.read-only-directory", "a directory given as DIR or DIR:ro")
    yield _impossible(
        "write.original", "the original of a directory given as DIR:cow", "changes go into a copy"
    )
    yield _impossible(
        "write.root", "the rest of its file system", "/, /usr, /etc, /dev, kernel settings in /proc"
    )


def _executes(settings: Settings, policy: Policy, host: HostRoot) -> Iterator[Ability]:
    bound = f"of {_listed(host.binds)} and of the workspace"
    yield Ability(id="execute.programs", what="programs", bound=bound, members=host.binds)
    written = [rule for rule in policy.rules if rule.layer is not Layer.BUILT_IN]
    allowing = [rule for rule in written if rule.verdict is Verdict.ALLOW]
    yield Ability(
        id="execute.allowed-calls",
        what="calls that a rule allows",
        bound=_counts(allowing) or "none",
        setting="policy.files",
        is_possible=bool(allowing),
        # A question about all other calls opens as much as an allow rule does.
        members=_texts([*allowing, *(rule for rule in written if rule.tool == OTHERWISE)]),
    )
    restricting = [
        rule for rule in written if rule.verdict is not Verdict.ALLOW and rule.tool != OTHERWISE
    ]
    yield Ability(
        id="execute.restricted-calls",
        what="calls that a rule denies, or asks a person about",
        bound=_counts(restricting) or "only built-in rules",
        setting="policy.files",
        is_possible=False,
        members=_texts(restricting),
    )
    is_observing = settings.policy.dangerously_observe
    yield Ability(
        id="execute.unmatched-calls",
        what="calls of an agent that no rule allows",
        bound="logged, not refused" if is_observing else "denied",
        setting="policy.dangerously_observe",
        is_possible=is_observing,
        is_weakened=is_observing,
    )
    yield _impossible("execute.root", "as root, or with a capability of the kernel")
    yield _impossible(
        "execute.kernel",
        "mounts, namespaces, programs in the kernel",
        "mount, unshare, setns, bpf, io_uring, keyrings, userfaultfd",
    )
    yield from _weakened_layers(settings)


def _weakened_layers(settings: Settings) -> Iterator[Ability]:
    for name in (
        "dangerously_without_cgroup",
        "dangerously_without_landlock",
        "dangerously_without_user_namespace",
    ):
        if getattr(settings.sandbox, name):
            layer = name.removeprefix("dangerously_without_").replace("_", " ")
            yield Ability(
                id=f"execute.without-{layer.replace(' ', '-')}",
                what=f"without {layer} where the host lacks it",
                setting=f"sandbox.{name}",
                is_weakened=True,
            )
    if settings.hook.dangerously_outside:
        yield Ability(
            id="execute.outside",
            what="commands of a hooked agent on the host",
            bound="with all rights of the user",
            setting="hook.dangerously_outside",
            is_weakened=True,
        )


def _reaches(settings: Settings, policy: Policy) -> Iterator[Ability]:
    egress, packages = settings.egress, settings.packages
    yield Ability(
        id="reach.hosts",
        what="hosts, for every sandbox",
        bound=_listed(egress.allow_domains) or _NO_NETWORK,
        setting="egress.allow_domains",
        is_possible=bool(egress.allow_domains),
        members=egress.allow_domains,
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
        yield _named("reach.rule-hosts", what, fetched, "policy.files")
    yield Ability(
        id="reach.registries",
        what="package registries, filtered",
        bound=_listed(packages.registries) or "only those that a run names",
        setting="packages.registries",
        is_possible=bool(packages.registries),
        members=packages.registries,
    )
    private = egress.dangerously_allow_addresses
    yield Ability(
        id="reach.private-addresses",
        what="private addresses",
        bound=_listed(private) or "none",
        setting="egress.dangerously_allow_addresses",
        is_possible=bool(private),
        is_weakened=bool(private),
        members=private,
    )
    yield _impossible(
        "reach.this-machine", "services of this machine", "loopback, its addresses, unix sockets"
    )
    yield _impossible(
        "reach.other-hosts", "every other host", "by name or address, and the resolver of the host"
    )
    upload, download = egress.max_upload_bytes, egress.max_download_bytes
    yield _sized("reach.upload", "sent by a sandbox with egress", upload, "egress.max_upload_bytes")
    yield _sized(
        "reach.download", "received by a sandbox with egress", download, "egress.max_download_bytes"
    )


def _spends(settings: Settings) -> Iterator[Ability]:
    limits, budgets = settings.limits.to_limits(), settings.budgets
    yield _counted("spend.wall", "time of one run", limits.wall_s, "s", "limits.wall_s")
    yield _counted("spend.cpu", "processor time", limits.cpu_s, "s", "limits.cpu_s")
    yield _counted("spend.cpus", "processors at once", limits.cpus, "", "limits.cpus")
    yield _sized("spend.memory", "memory", limits.memory_bytes, "limits.memory_bytes")
    yield _counted(
        "spend.processes", "processes and threads", limits.processes, "", "limits.processes"
    )
    yield _counted(
        "spend.open-files", "open files of a process", limits.open_files, "", "limits.open_files"
    )
    yield _sized("spend.output", "output", limits.output_bytes, "limits.output_bytes")
    concurrent = settings.governor.max_concurrent
    yield _counted(
        "spend.sandboxes", "sandboxes at once", concurrent, "", "governor.max_concurrent"
    )
    for name, unit in (("user_runs", "runs"), ("user_cpu_s", "s"), ("user_money", "money")):
        yield _counted(
            f"spend.{name.replace('_', '-')}",
            f"budget of a user of the service, {unit}",
            getattr(budgets, name) or math.inf,
            f"{unit} in {budgets.period_hours:g} h",
            f"budgets.{name}",
        )


def _keeps(settings: Settings) -> Iterator[Ability]:
    workspace = settings.workspace
    yield _impossible(
        "keep.files", "files of one run for the next", "a private workspace ends with its session"
    )
    yield _impossible("keep.processes", "a process after the end of its run")
    yield _impossible(
        "keep.unrecorded", "a run without a record", "refused if it cannot be written"
    )
    yield _counted(
        "keep.changes",
        "changes of a copy-on-write run, sealed",
        workspace.keep_changes_days,
        "days",
        "workspace.keep_changes_days",
    )
    yield _counted(
        "keep.sessions",
        "files of a session of the service that its owner keeps",
        workspace.keep_sessions_days,
        "days",
        "workspace.keep_sessions_days",
    )
    for id_, what, days, name in (
        ("records", "records of what it did", settings.audit.keep_days, "audit.keep_days"),
        ("keys", "keys of session data", settings.retention.session_days, "retention.session_days"),
    ):
        # Without an amount: a longer time opens nothing for the code.
        bound = "no limit" if days is None else f"{days} days"
        yield Ability(id=f"keep.{id_}", what=what, bound=bound, setting=name)


def _counts(rules: Sequence[Rule]) -> str:
    counts = Counter(rule.tool for rule in rules)
    return _listed([f"{tool} ({count})" if count > 1 else tool for tool, count in counts.items()])


def _texts(rules: Sequence[Rule]) -> tuple[str, ...]:
    """A denial is also more than a question: from deny to ask, one of two members goes."""
    words = {Verdict.DENY: ("ask", "deny"), Verdict.ASK: ("ask",), Verdict.ALLOW: ("allow",)}
    found = (f"{word} {rule.text}" for rule in rules for word in words[rule.verdict])
    return tuple(dict.fromkeys(found))


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMED
    shown = ", ".join(names[:_MAX_NAMED])
    return f"{shown} and {more} more" if more > 0 else shown

"""What code can and cannot do under a configuration, line by line (CFG-3).

`abilities_of` is pure: it takes the settings, the rules and the visible part of the host.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cellwall.admin.ability import Ability, counted, impossible, listed, named, sized, weakening
from cellwall.config.models import Settings
from cellwall.core.types import ROLE_NAMES
from cellwall.core.verdict import Verdict
from cellwall.policy.engine import Policy
from cellwall.policy.rules import OTHERWISE, Layer, Rule
from cellwall.runtime.session_labels import flow_mode
from cellwall.sandbox.linux.visible_host import DEVICES, HostRoot


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


def _reads(settings: Settings, host: HostRoot) -> Iterator[Ability]:
    yield named("read.programs", "programs and libraries of the host", host.binds)
    if host.foreign_python is not None:
        yield Ability(id="read.python", what="the Python installation", bound="at /opt/python")
    yield named("read.etc", "of /etc", host.etc)
    yield named("read.devices", "devices", DEVICES)
    extra = settings.sandbox.extra_read_only_paths
    if extra:
        name = "sandbox.extra_read_only_paths"
        yield named("read.shared-directories", "directories of the host", extra, name)
    own = "its own workspace, and a directory that a person gives to the run"
    yield Ability(
        id="read.workspace",
        what=own if _takes_directories(settings) else "its own workspace",
    )
    yield weakening(
        "read.protected-names",
        "protected names (.env, .ssh, keys) in a given directory",
        "workspace.dangerously_expose_sensitive_names",
        is_on=settings.workspace.dangerously_expose_sensitive_names,
        on="exposed",
        off="hidden",
    )
    yield impossible(
        "read.host-files",
        "other files of the host",
        "homes, the rest of /etc, /run, /var and /tmp of the host",
    )
    yield impossible("read.environment", "environment variables of the process that starts it")
    yield impossible("read.processes", "processes outside, their arguments and their memory")


def _takes_directories(settings: Settings) -> bool:
    """Containers of an engine get no directory of a user (docs/guides/backends.md)."""
    return settings.sandbox.backend == "native"


def _writes(settings: Settings) -> Iterator[Ability]:
    limits, sandbox = settings.limits.to_limits(), settings.sandbox
    yield sized("write.workspace", "/workspace", limits.disk_bytes, "limits.disk_bytes")
    yield counted(
        "write.file-count", "files in /workspace", limits.file_count, "", "limits.file_count"
    )
    yield sized("write.file-size", "one file", limits.file_size_bytes, "limits.file_size_bytes")
    # As the cell is built: neither is larger than the limit around it.
    tmp_bytes = min(sandbox.tmp_bytes, limits.disk_bytes)
    yield sized("write.tmp", "/tmp", tmp_bytes, "sandbox.tmp_bytes")
    shm_bytes = min(sandbox.shm_bytes, limits.memory_bytes)
    yield sized("write.shm", "/dev/shm", shm_bytes, "sandbox.shm_bytes")
    takes = _takes_directories(settings)
    yield Ability(
        id="write.given-directory",
        what="a directory of the host",
        bound="only one given as DIR:rw" if takes else "none is given to containers of an engine",
        setting="" if takes else "sandbox.backend",
        is_possible=takes,
    )
    yield impossible("write.read-only-directory", "a directory given as DIR or DIR:ro")
    yield impossible(
        "write.original", "the original of a directory given as DIR:cow", "changes go into a copy"
    )
    yield impossible(
        "write.root", "the rest of its file system", "/, /usr, /etc, /dev, kernel settings in /proc"
    )


def _executes(settings: Settings, policy: Policy, host: HostRoot) -> Iterator[Ability]:
    role = settings.roles.default
    yield Ability(
        id="execute.role",
        what="with the role of a local user whom no setting names",
        bound=role,
        setting="roles.default",
        amount=ROLE_NAMES.index(role),
    )
    bound = f"of {listed(host.binds)} and of the workspace"
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
    is_observing = settings.policy.dangerously_observe
    yield Ability(
        id="execute.restricted-calls",
        what="calls that a rule denies, or asks a person about",
        bound="logged, not refused"
        if is_observing
        else _counts(restricting) or "only built-in rules",
        setting="policy.dangerously_observe" if is_observing else "policy.files",
        is_possible=is_observing,
        is_weakened=is_observing,
        members=() if is_observing else _texts(restricting),
    )
    yield weakening(
        "execute.unmatched-calls",
        "calls of an agent that no rule allows",
        "policy.dangerously_observe",
        is_on=is_observing,
        on="logged, not refused",
        off="denied",
    )
    yield impossible("execute.root", "as root, or with a capability of the kernel")
    allows = settings.sandbox.second_user == "allow" and settings.sandbox.backend == "native"
    yield Ability(
        id="execute.second-user",
        what="as a second unprivileged user of the sandbox, named root",
        bound="only in a sandbox that asks for it; no capability, the same walls",
        setting="sandbox.second_user",
        is_possible=allows,
    )
    yield impossible(
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
    if settings.sandbox.backend == "kvm" and settings.sandbox.dangerously_emulate_machines:
        yield Ability(
            id="execute.emulated-machine",
            what="in a virtual machine that is emulated in software, which is no boundary",
            setting="sandbox.dangerously_emulate_machines",
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
    yield named(
        "reach.hosts",
        "hosts, for every sandbox",
        egress.allow_domains,
        "egress.allow_domains",
        empty="none: a sandbox has no network interface",
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
        yield named("reach.rule-hosts", what, fetched, "policy.files")
    yield named(
        "reach.registries",
        "package registries, filtered",
        packages.registries,
        "packages.registries",
        empty="only those that a run names",
    )
    private = egress.dangerously_allow_addresses
    line = named(
        "reach.private-addresses",
        "private addresses",
        private,
        "egress.dangerously_allow_addresses",
    )
    yield replace(line, is_weakened=bool(private))
    yield from _packages(settings)
    yield from _flows(settings)
    yield impossible(
        "reach.this-machine",
        "services of this machine, past the egress proxy",
        "loopback, its addresses, unix sockets",
    )
    if egress.unknown == "ask":
        yield Ability(
            id="reach.asked-hosts",
            what="every other host, after a person's yes while the connection waits",
            bound="each host and port by itself; the resolver of the host after the yes",
            setting="egress.unknown",
        )
    else:
        yield impossible(
            "reach.other-hosts",
            "every other host",
            "by name or address, and the resolver of the host",
        )
    upload, download = egress.max_upload_bytes, egress.max_download_bytes
    yield sized("reach.upload", "sent by a sandbox with egress", upload, "egress.max_upload_bytes")
    yield sized(
        "reach.download", "received by a sandbox with egress", download, "egress.max_download_bytes"
    )


def _flows(settings: Settings) -> Iterator[Ability]:
    """Whether the rule of two holds (POL-9)."""
    policy, word = settings.policy, flow_mode(settings)
    told = {"deny": "denied", "ask": "a person is asked", "show": "shown, not refused"}
    weaker = next(
        (
            name
            for name in ("dangerously_without_rule_of_two", "dangerously_observe")
            if getattr(policy, name)
        ),
        "",
    )
    yield Ability(
        id="reach.combined-flow",
        what="egress after untrusted content and private data in one session",
        bound=told[word],
        setting=f"policy.{weaker or 'rule_of_two'}",
        is_possible=word == "show",
        is_weakened=bool(weaker),
        amount=list(told).index(word),
    )
    trusted = policy.dangerously_trusted_domains
    if trusted:
        name = "policy.dangerously_trusted_domains"
        line = named("reach.trusted-domains", "domains that the rule of two trusts", trusted, name)
        yield replace(line, is_weakened=True)


def _packages(settings: Settings) -> Iterator[Ability]:
    packages = settings.packages
    yield Ability(
        id="reach.package-age",
        what="packages of a registry that are public for a while",
        bound=f"at least {packages.min_age_days} days",
        setting="packages.min_age_days",
        amount=-packages.min_age_days,
    )
    for name, what in (
        ("without_feed", "packages while the feed of malicious ones is missing or old"),
        ("without_rule", "packages that no rule names"),
    ):
        word = getattr(packages, name)
        yield Ability(
            id=f"reach.packages-{name.replace('_', '-')}",
            what=what,
            bound={"allow": "allowed", "ask": "a person is asked", "deny": "denied"}[word],
            setting=f"packages.{name}",
            is_possible=word != "deny",
            amount=("deny", "ask", "allow").index(word),
        )


def _spends(settings: Settings) -> Iterator[Ability]:
    limits, budgets = settings.limits.to_limits(), settings.budgets
    yield counted("spend.wall", "time of one run", limits.wall_s, "s", "limits.wall_s")
    yield counted("spend.cpu", "processor time", limits.cpu_s, "s", "limits.cpu_s")
    yield counted("spend.cpus", "processors at once", limits.cpus, "", "limits.cpus")
    memory = sized("spend.memory", "memory", limits.memory_bytes, "limits.memory_bytes")
    is_measured = settings.sandbox.dangerously_without_cgroup
    measured = ", exceeded for a moment where the host lacks a cgroup" if is_measured else ""
    yield replace(memory, bound=f"{memory.bound}{measured}")
    yield counted(
        "spend.processes", "processes and threads", limits.processes, "", "limits.processes"
    )
    yield counted(
        "spend.open-files", "open files of a process", limits.open_files, "", "limits.open_files"
    )
    yield sized("spend.output", "output", limits.output_bytes, "limits.output_bytes")
    concurrent = settings.governor.max_concurrent
    yield counted("spend.sandboxes", "sandboxes at once", concurrent, "", "governor.max_concurrent")
    for name, unit in (("user_runs", "runs"), ("user_cpu_s", "s"), ("user_money", "money")):
        yield counted(
            f"spend.{name.replace('_', '-')}",
            f"budget of a user of the service, {unit}",
            getattr(budgets, name) or math.inf,
            f"{unit} in {budgets.period_hours:g} h",
            f"budgets.{name}",
        )


def _keeps(settings: Settings) -> Iterator[Ability]:
    workspace = settings.workspace
    yield impossible(
        "keep.files", "files of one run for the next", "a private workspace ends with its session"
    )
    yield impossible("keep.processes", "a process after the end of its run")
    yield impossible("keep.unrecorded", "a run without a record", "refused if it cannot be written")
    yield counted(
        "keep.changes",
        "changes of a copy-on-write run, sealed",
        workspace.keep_changes_days,
        "days",
        "workspace.keep_changes_days",
    )
    yield counted(
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
    return listed([f"{tool} ({count})" if count > 1 else tool for tool, count in counts.items()])


def _texts(rules: Sequence[Rule]) -> tuple[str, ...]:
    """A denial is also more than a question: from deny to ask, one of two members goes."""
    words = {Verdict.DENY: ("ask", "deny"), Verdict.ASK: ("ask",), Verdict.ALLOW: ("allow",)}
    found = (f"{word} {rule.text}" for rule in rules for word in words[rule.verdict])
    return tuple(dict.fromkeys(found))

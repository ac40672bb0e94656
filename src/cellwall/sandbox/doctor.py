"""The host check: each layer, its state, why it matters, and a hint (ISO-12).

`gather` reads the host, `judge` decides; `judge` is pure, so that tests cover hosts that we do not
have. The single checks explain; the trial runs, on the path of every other run, are the proof.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from cellwall.core.errors import CellwallError
from cellwall.core.types import Json
from cellwall.sandbox import languages
from cellwall.sandbox.conformance import lacks_of
from cellwall.sandbox.containers.container_walls import find_engine, judge_engine
from cellwall.sandbox.linux.layers import Backend, HostLayers, NativeSettings
from cellwall.sandbox.linux.programs import cell_program, version_of
from cellwall.sandbox.linux.run_cgroup import read_text
from cellwall.sandbox.linux.seccomp_rules import AUDIT_ARCH
from cellwall.sandbox.machines.guest_image import find_kernel
from cellwall.sandbox.machines.machine_walls import gather_machine, judge_machine
from cellwall.sandbox.namespace_causes import NamespaceFacts, explain, gather_namespaces
from cellwall.sandbox.protection.placeholders import LeftoverPlaceholders

OLDEST_KERNEL = (5, 13)
_CONTAINERS_LACK = "owners of a user's directory, DIR:cow, transparent egress, warm cells, freezing"
_NOT_GIVEN: Mapping[Backend, str] = {
    "native": "",
    "container": _CONTAINERS_LACK,
    "gvisor": f"{_CONTAINERS_LACK}, directories of a user, egress, skills",
    "kvm": "directories of a user, egress, terminals, ports of servers inside, the file API for "
    "/tmp and /dev/shm, warm cells, a second user",
}
"""What each backend lacks beside the checks of the conformance suite, as its guide says."""


@dataclass(frozen=True, slots=True)
class HostCheck:
    """The result of one check."""

    name: str
    status: Literal["ok", "missing", "weak", "info"]
    found: str
    why: str
    hint: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class HostReport:
    """All checks; the host is usable if no required one is missing."""

    checks: tuple[HostCheck, ...]

    @property
    def usable(self) -> bool:
        return not any(check.required and check.status == "missing" for check in self.checks)

    def to_json(self) -> dict[str, Json]:
        return {"usable": self.usable, "checks": [asdict(check) for check in self.checks]}


@dataclass(frozen=True, slots=True)
class TrialRun:
    """A real run; `problem` is empty if it succeeded."""

    name: str
    why: str
    problem: str = ""
    hint: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class EngineTrial:
    """The container engine or emulator of the configuration; `problem` is empty if it suffices."""

    version: str
    problem: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The input of `judge`; tests write it by hand."""

    kernel: str
    machine: str
    euid: int
    layers: HostLayers
    bubblewrap_version: str
    cell: bool
    namespaces: NamespaceFacts
    seccomp_actions: str
    languages: dict[str, bool]
    pressure_known: bool
    weakened: tuple[str, ...]
    backend: Backend = "native"
    engine: EngineTrial | None = None
    trials: tuple[TrialRun, ...] = ()
    placeholders: tuple[LeftoverPlaceholders, ...] = ()
    """Placeholders in users' directories, after the sweep at start."""


def gather(*, weakened: tuple[str, ...], settings: NativeSettings | None = None) -> HostFacts:
    """Read the facts of this host, without trial runs; `settings` name a container engine."""
    layers = HostLayers.detect()
    try:
        cell_program()
        cell = True
    except CellwallError:
        cell = False
    return HostFacts(
        kernel=platform.release(),
        machine=platform.machine(),
        euid=os.geteuid(),
        layers=layers,
        bubblewrap_version=version_of(layers.bubblewrap) if layers.bubblewrap else "",
        cell=cell,
        namespaces=gather_namespaces(layers.bubblewrap),
        seccomp_actions=read_text("/proc/sys/kernel/seccomp/actions_avail"),
        languages=languages.available(),
        pressure_known=os.path.exists("/proc/pressure/memory"),
        weakened=weakened,
        backend=settings.backend if settings is not None else "native",
        engine=_try_engine(settings) if settings is not None else None,
    )


def _try_engine(settings: NativeSettings) -> EngineTrial | None:
    if settings.backend == "native":
        return None
    version = ""
    try:
        if settings.backend == "kvm":
            emulator = judge_machine(settings, gather_machine())
            version = version_of(emulator.program)
            kernel = find_kernel(settings.machine_kernel)
            return EngineTrial(f"{version}, kernel {kernel.release}")
        engine = find_engine(settings, os.environ).facts()
        version = engine.version
        judge_engine(settings, engine)
    except CellwallError as error:
        return EngineTrial(version, error.message, error.hint)
    return EngineTrial(version)


def judge(facts: HostFacts) -> HostReport:
    """Decide for each layer whether it is available."""
    checks = [
        _kernel(facts),
        _machine(facts),
        *_outer_wall(facts),
        _cell(facts),
        _seccomp(facts),
        _landlock(facts),
        _identity(facts),
        _memory_pressure(facts),
        *_languages(facts),
        *(_weakened(name) for name in facts.weakened),
        _placeholders(facts),
        *(_trial(trial) for trial in facts.trials),
    ]
    return HostReport(tuple(checks))


def _outer_wall(facts: HostFacts) -> list[HostCheck]:
    """Of the backend in use: the layers of the other one are not needed."""
    native = [_bubblewrap(facts), _user_namespaces(facts), _cgroup(facts)]
    if facts.backend == "native" or facts.engine is None:
        return native
    engine, is_machine = facts.engine, facts.backend == "kvm"
    return [
        *(native if is_machine else ()),  # around the emulator
        _layer(
            f"backend {facts.backend}",
            is_there=not engine.problem,
            found=": ".join(filter(None, [engine.version, engine.problem])),
            why="each cell has a kernel of its own, in a virtual machine"
            if is_machine
            else "the engine's containers are the outer wall: namespaces, root, cgroup",
            hint=engine.hint,
        ),
        HostCheck(
            f"not in {facts.backend}",
            "weak",
            "; ".join((_NOT_GIVEN[facts.backend], *(e.words for e in lacks_of(facts.backend)))),
            "this backend gives less than a native cell; each use of it is refused or bounded",
            'See docs/guides/backends.md, or use sandbox.backend = "native".',
            required=False,
        ),
    ]


def _layer(
    name: str, *, is_there: bool, found: str, why: str, hint: str, required: bool = True
) -> HostCheck:
    """The check of a layer that is there or missing; the hint is only for a missing one."""
    status: Literal["ok", "missing"] = "ok" if is_there else "missing"
    return HostCheck(name, status, found, why, "" if is_there else hint, required)


def _kernel(facts: HostFacts) -> HostCheck:
    version = re.match(r"(\d+)\.(\d+)", facts.kernel)
    return _layer(
        "kernel",
        is_there=version is not None and (int(version[1]), int(version[2])) >= OLDEST_KERNEL,
        found=f"Linux {facts.kernel}",
        why="namespaces, Landlock and the mount calls by descriptor need a recent kernel",
        hint="Use Linux 5.13 or newer.",
    )


def _machine(facts: HostFacts) -> HostCheck:
    return _layer(
        "architecture",
        is_there=facts.machine in AUDIT_ARCH,
        found=facts.machine,
        why="the system-call filter is written for x86_64 and aarch64",
        hint="Use an x86_64 or aarch64 machine with a 64-bit system.",
    )


def _bubblewrap(facts: HostFacts) -> HostCheck:
    path = facts.layers.bubblewrap
    problem, hint = facts.layers.bubblewrap_problem or (
        "not found",
        "apt-get install bubblewrap  (or your distribution's package)",
    )
    return _layer(
        "bubblewrap",
        is_there=path is not None,
        found=facts.bubblewrap_version if path else problem,
        why="the outer wall: namespaces and a minimal read-only root",
        hint=hint,
    )


def _cell(facts: HostFacts) -> HostCheck:
    return _layer(
        "cellwall-cell",
        is_there=facts.cell,
        found="built" if facts.cell else "not built",
        why="the inner walls, limits and clean-up are done by this program",
        hint="Install Cellwall again: pip install --force-reinstall .",
    )


def _user_namespaces(facts: HostFacts) -> HostCheck:
    why = "code runs as an unprivileged uid that owns nothing outside"
    cause = explain(facts.namespaces)
    if cause is not None:
        return HostCheck("user namespaces", "missing", cause.found, why, cause.hint)
    exempt = "; AppArmor restricts them, and bubblewrap has a profile"
    found = f"allowed{exempt if facts.namespaces.apparmor_restricts else ''}"
    return HostCheck("user namespaces", "ok", found, why)


def _seccomp(facts: HostFacts) -> HostCheck:
    missing = {"errno", "kill_process", "user_notif"} - set(facts.seccomp_actions.split())
    return _layer(
        "seccomp",
        is_there=not missing,
        found=f"no {', '.join(sorted(missing))}" if missing else "filters with all needed actions",
        why="system calls that lead out (mounts, namespaces, tracing, keyrings, bpf) are refused",
        hint="Use a kernel with CONFIG_SECCOMP_FILTER.",
    )


def _landlock(facts: HostFacts) -> HostCheck:
    abi = facts.layers.landlock_abi
    return _layer(
        "Landlock",
        is_there=abi > 0,
        found=f"ABI {abi}" if abi else "not available",
        why="writing stays confined even if a mount is undone; signals and abstract sockets from "
        "ABI 6",
        hint="Boot with `landlock` in the lsm= list (Linux 5.13 or newer).",
        # In a virtual machine its own kernel enforces it, and a run is refused where it does not.
        required="sandbox.dangerously_without_landlock" not in facts.weakened
        and facts.backend != "kvm",
    )


def _cgroup(facts: HostFacts) -> HostCheck:
    choice = facts.layers.cgroup
    if choice.way == "none" and "sandbox.dangerously_without_cgroup" in facts.weakened:
        # The setting accepts the missing cgroup; a hint that names the setting would be circular.
        why = "memory and processor time are measured, not enforced by the kernel"
        return HostCheck("cgroup", "weak", choice.reason, why, required=False)
    found = {
        "v2-root": "cgroup v2, a group of our own",
        "v1-root": f"cgroup v1: {', '.join(sorted(choice.bases))}",
        "systemd-user": "cgroup v2, a scope from the user's systemd",
        "none": choice.reason,
    }[choice.way]
    why = "memory, processes and processor time of a whole run are bounded, and its end is complete"
    return _layer("cgroup", is_there=choice.way != "none", found=found, why=why, hint=choice.hint)


def _identity(facts: HostFacts) -> HostCheck:
    found = "root; code runs as an unprivileged uid" if facts.euid == 0 else f"uid {facts.euid}"
    return HostCheck("started as", "info", found, "code never runs as root", required=False)


def _memory_pressure(facts: HostFacts) -> HostCheck:
    found = "PSI" if facts.pressure_known else "MemAvailable only"
    why = "new runs wait while the host is short of memory"
    return HostCheck("memory pressure", "info", found, why, required=False)


def _languages(facts: HostFacts) -> list[HostCheck]:
    return [
        _layer(
            f"language {name}",
            is_there=is_there,
            found="found" if is_there else "no interpreter or compiler",
            why="`cellwall code` needs it for this language",
            hint=languages.INSTALL_HINTS[name],
            required=False,
        )
        for name, is_there in facts.languages.items()
    ]


def _weakened(name: str) -> HostCheck:
    return HostCheck(
        name,
        "weak",
        "switched on",
        "a wall or a limit was given up",
        "Remove it where it is not needed.",
        required=False,
    )


def _placeholders(facts: HostFacts) -> HostCheck:
    name = "placeholders"
    why = "empty directories stand for missing protected names while a :rw sandbox lives"
    stuck = [each for each in facts.placeholders if not each.is_in_use]
    if stuck:
        found = "left behind: " + ", ".join(f"{len(e.names)} in {e.directory}" for e in stuck)
        place, names = shlex.quote(stuck[0].directory), shlex.join(stuck[0].names)
        hint = f"Remove those that are empty: cd {place} && rmdir {names}"
        return HostCheck(name, "weak", found, why, hint, required=False)
    if facts.placeholders:
        found = "of live sandboxes, in " + ", ".join(each.directory for each in facts.placeholders)
        return HostCheck(name, "info", found, why, required=False)
    return HostCheck(name, "ok", "none", why, required=False)


def _trial(trial: TrialRun) -> HostCheck:
    return _layer(
        trial.name,
        is_there=not trial.problem,
        found=trial.problem or "worked",
        why=trial.why,
        hint=trial.hint,
        required=trial.required,
    )

"""Whether this host can run cells in virtual machines, and with which emulator.

`judge_machine` is pure and takes plain facts, so that tests cover hosts that we do not have.
Something that is missing is a refusal with a hint (ISO-4).
"""

from __future__ import annotations

import os
import platform
import re
import stat
from dataclasses import dataclass

from cellwall.core.errors import LayerMissing
from cellwall.core.host_programs import ProgramRefused, host_program
from cellwall.sandbox.linux.layers import NativeSettings
from cellwall.sandbox.linux.run_cgroup import read_text
from cellwall.sandbox.machines.machine_plan import BOARDS, Emulator

_KVM = "/dev/kvm"
_OTHERS, _GROUP = 0o006, 0o060


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What the host has."""

    machine: str
    emulator: str | None
    emulator_problem: tuple[str, str] | None
    is_root: bool
    may_open_kvm: bool
    """This process may."""
    kvm_mode: int | None
    """Of /dev/kvm; None: it is not there."""
    kvm_group: int
    has_processor_flags: bool
    """The processor shows VT-x or AMD-V, or is of a kind that shows neither."""


def gather_machine() -> MachineFacts:
    """Read the facts."""
    machine = platform.machine()
    emulator, problem = None, None
    if machine in BOARDS:
        try:
            emulator = host_program(BOARDS[machine][0])
        except ProgramRefused as refused:
            problem = None if refused.is_missing else (refused.why, refused.hint)
    mode, group = None, 0
    try:
        found = os.stat(_KVM)
        if stat.S_ISCHR(found.st_mode):
            mode, group = stat.S_IMODE(found.st_mode), found.st_gid
    except OSError:
        pass
    flags = re.search(r"^flags\s*:(.*)$", read_text("/proc/cpuinfo"), re.MULTILINE)
    return MachineFacts(
        machine=machine,
        emulator=emulator,
        emulator_problem=problem,
        is_root=os.geteuid() == 0,
        may_open_kvm=os.access(_KVM, os.R_OK | os.W_OK),
        kvm_mode=mode,
        kvm_group=group,
        has_processor_flags=flags is None or not {"vmx", "svm"}.isdisjoint(flags[1].split()),
    )


def judge_machine(settings: NativeSettings, facts: MachineFacts) -> Emulator:
    """The emulator of this host, or a refusal. Pure."""
    if facts.machine not in BOARDS:
        raise LayerMissing(
            "virtual machines are described for x86_64 and aarch64 alone",
            hint='Use sandbox.backend = "native".',
            code="CW-LAYER-KVM",
        )
    program, board, _ = BOARDS[facts.machine]
    if facts.emulator is None:
        package = "qemu-system-x86" if facts.machine == "x86_64" else "qemu-system-arm"
        why, hint = facts.emulator_problem or (
            f"{program} is not installed",
            f"Install it: apt-get install --no-install-recommends {package}",
        )
        raise LayerMissing(why, hint=hint, code="CW-LAYER-QEMU")
    if settings.dangerously_emulate_machines:
        return Emulator(facts.emulator, board, is_virtualized=False)
    return Emulator(facts.emulator, board, is_virtualized=True, kvm_group=_kvm_group(facts))


def _kvm_group(facts: MachineFacts) -> int | None:
    """The group by which the emulator's unprivileged user may open /dev/kvm, if it needs one."""
    if facts.kvm_mode is None or not facts.has_processor_flags:
        raise LayerMissing(
            "this host has no /dev/kvm, or its processor gives no virtual machines",
            hint="Use a host with VT-x, AMD-V or Arm's virtualization, and load the module kvm; "
            'or choose sandbox.backend = "gvisor" for a kernel of its own around each cell.',
            code="CW-LAYER-KVM",
        )
    if facts.kvm_mode & _OTHERS == _OTHERS:
        return None
    if facts.is_root and facts.kvm_mode & _GROUP == _GROUP and facts.kvm_group != 0:
        return facts.kvm_group
    if not facts.is_root and facts.may_open_kvm:
        return None
    raise LayerMissing(
        "an unprivileged user may not open /dev/kvm here",
        hint="Give it to a group: chgrp kvm /dev/kvm && chmod 660 /dev/kvm; an ordinary user then "
        "joins this group (usermod -aG kvm NAME).",
        code="CW-LAYER-KVM",
    )

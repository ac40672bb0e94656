"""A cell in a virtual machine of its own.

(1) the shim, as for every cell, in a cgroup with the limits of the whole machine; (2) bubblewrap,
the relay and the emulator; (3) the guest boots, and its PID 1 reports; (4) the plans, and "go".
Until (4) nothing of a run is in the machine. From then on the relay serves the sockets and pipes
of an ordinary cell.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from cellwall.core.errors import CellwallError, LayerMissing, SandboxFailed
from cellwall.core.limits import Limits
from cellwall.sandbox.linux.channels import ready_to_read
from cellwall.sandbox.linux.outside_processes import (
    FIRST_SENT_FD,
    memory_file,
    write_memory_file,
)
from cellwall.sandbox.linux.prepared_cell import CellShape, PreparedCell
from cellwall.sandbox.linux.seccomp import build_around_emulator, host_arch
from cellwall.sandbox.linux.visible_host import HIDDEN_BELOW_USR
from cellwall.sandbox.machines.guest_usage import USAGE_BYTES, GuestMeter
from cellwall.sandbox.machines.machine_plan import (
    MachineSpec,
    guest_plan,
    host_limits,
    machine_shim_plan,
)

_BOOT_WITHIN_S = 60.0
_BOOT_EMULATED_WITHIN_S = 240.0


class MachineCell(PreparedCell):
    """One machine, with our ends of its pipes and sockets."""

    def __init__(self, shape: CellShape, name: str) -> None:
        super().__init__(shape, name)
        self._machine_plan_fd = memory_file("cellwall-machine", b"")
        self._stack.callback(os.close, self._machine_plan_fd)
        self._usage_fd = memory_file("cellwall-usage", bytes(USAGE_BYTES))
        self._stack.callback(os.close, self._usage_fd)
        self._guest: GuestMeter | None = None

    def limit_machine(self, limits: Limits, *, io_device: str | None) -> None:
        """The limits of everything around the code: its own are in the machine."""
        if self.group is None:  # by the walls
            raise LayerMissing("a virtual machine needs a cgroup", code="CW-LAYER-CGROUP")
        memory_bytes, tasks = host_limits(limits)
        whole = replace(limits, memory_bytes=memory_bytes, processes=tasks)
        self.group.limit(whole, io_device=io_device)
        self._guest = GuestMeter(self.group, self._usage_fd)
        self.meter = self._guest

    def boot(self, spec: MachineSpec, kernel_fd: int, initramfs: bytes) -> int:
        """Start the machine; returns the Landlock ABI of its kernel. Blocks."""
        self._shape.ledger.stop_flag.check()
        assert self.group is not None  # noqa: S101  # see `limit_machine`
        with ExitStack() as stack:
            image_fd = memory_file("cellwall-initramfs", initramfs)
            stack.callback(os.close, image_fd)
            filter_fd = memory_file("cellwall-filter", build_around_emulator(host_arch()))
            stack.callback(os.close, filter_fd)
            given = [descriptor for _, descriptor in sorted(self.pipes.inside.items())]
            sent = [self._cell_fd, kernel_fd, image_fd, filter_fd]
            sent += [
                self.pipes.status.inside,
                self._usage_fd,
                self._machine_plan_fd,
                self._plan_fd,
                *given,
            ]
            shown = [*spec.tools, *([spec.workspace] if spec.workspace is not None else [])]
            sent += [each.descriptor for each in shown]
            numbers = {fd: FIRST_SENT_FD + index for index, fd in enumerate(sent)}
            plan = machine_shim_plan(
                spec,
                self.group,
                cell_fd=self._cell_fd,
                kernel_fd=kernel_fd,
                initramfs_fd=image_fd,
                filter_fd=filter_fd,
                status_fd=self.pipes.status.inside,
                usage_fd=self._usage_fd,
                plan_fds=(self._machine_plan_fd, self._plan_fd),
                given=given,
                hidden=[path for path in HIDDEN_BELOW_USR if os.path.isdir(path)],
                number_of=numbers.__getitem__,
            )
            self.shim.begin(plan, sent)
        if self._shape.in_scope:
            self._entry.note_groups(self.group.remove)
        self.pipes.close_inside()
        self.pipes.status.close_inside()
        return self._wait_until_up(spec)

    def _wait_until_up(self, spec: MachineSpec) -> int:
        within_s = _BOOT_WITHIN_S
        if not spec.emulator.is_virtualized:
            within_s = _BOOT_EMULATED_WITHIN_S
        status, deadline = self.pipes.status, time.monotonic() + within_s
        while (left_s := deadline - time.monotonic()) > 0:
            ready = ready_to_read(status, self.shim, timeout_s=left_s)
            if status.fileno() not in ready:
                if ready and not self._goes_on():
                    break
                continue
            match status.receive():
                case ["up", abi] if abi.isdigit():
                    return int(abi)
                case ["fail", *words]:
                    raise self._no_boot(" ".join(words))
                case []:
                    break
        raise self._no_boot("machine-up")

    def _goes_on(self) -> bool:
        """The shim's message was no end."""
        match self.shim.receive():
            case ["fail", *words]:
                raise self.shim.failure(" ".join(words))
            case ["ended", *_] | []:
                return False
            case _:
                return True

    def _no_boot(self, step: str) -> CellwallError:
        error = self.shim.failure(step)
        return SandboxFailed(
            f"the virtual machine did not start (step {step})",
            hint="Run `cellwall doctor`; the kernel of sandbox.machine_kernel must have the 9p and "
            "virtio drivers, and the host enough free memory.",
            code="CW-MACHINE-BOOT",
            detail=error.detail,
        )

    def start_in_machine(self, spec: MachineSpec, inside: Sequence[int], init_plan: bytes) -> None:
        """The plan of the machine, then init's."""
        write_memory_file(self._machine_plan_fd, guest_plan(spec, inside))
        self.start_init(init_plan)

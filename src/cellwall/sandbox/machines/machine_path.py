"""One-shot runs and live cells in virtual machines, behind the same port as native cells."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import anyio

from cellwall.core.errors import LayerMissing, WorkspaceError
from cellwall.core.ids import new_id
from cellwall.core.network import CellNetwork
from cellwall.core.outcomes import RunResult
from cellwall.core.skills import Skill
from cellwall.core.types import Action, WorkspaceMode, WorkspaceMount
from cellwall.sandbox import languages
from cellwall.sandbox.linux import cell_plan, jobs
from cellwall.sandbox.linux.jobs import CellRunRequest
from cellwall.sandbox.linux.layers import (
    HostLayers,
    NativeSettings,
    UidLease,
    python_template_spec,
    tools_for,
    walls_for,
)
from cellwall.sandbox.linux.live_cell import LiveCellParts
from cellwall.sandbox.linux.live_cell_factory import skill_digests
from cellwall.sandbox.linux.outer_wall import HostDirectory
from cellwall.sandbox.linux.prepared_cell import CellShape
from cellwall.sandbox.linux.programs import cell_program
from cellwall.sandbox.linux.run_monitor import RunMonitor
from cellwall.sandbox.linux.walls import Walls
from cellwall.sandbox.machines.guest_image import GuestKernel, find_kernel, initramfs
from cellwall.sandbox.machines.machine_cell import MachineCell
from cellwall.sandbox.machines.machine_plan import (
    BOARDS,
    WORKSPACE_SHARED,
    Emulator,
    MachineSpec,
    numbers_in_machine,
)
from cellwall.sandbox.machines.machine_walls import gather_machine, judge_machine
from cellwall.sandbox.run_ledger import RunLedger

PATH_NAME = "machine"
_BUBBLEWRAP_BELOW = "/usr/"


@dataclass(frozen=True, slots=True)
class ReadyMachines:
    """What every machine of this process boots with."""

    emulator: Emulator
    kernel: GuestKernel
    initramfs: bytes


class MachineHost:
    """The emulator, the kernel and the walls of every machine; used by many threads."""

    def __init__(self, settings: NativeSettings, layers: HostLayers, ledger: RunLedger) -> None:
        self._settings, self._layers, self.ledger = settings, layers, ledger
        self._lock = threading.Lock()
        self._ready: ReadyMachines | None = None

    def ready(self) -> ReadyMachines:
        """Find the emulator and the kernel, and pack the initramfs. Blocks at first."""
        with self._lock:
            if self._ready is None:
                emulator = judge_machine(self._settings, gather_machine())
                kernel = find_kernel(self._settings.machine_kernel)
                with open(cell_program(), "rb") as file:
                    program = file.read()
                self._ready = ReadyMachines(emulator, kernel, initramfs(kernel, program))
            return self._ready

    def walls(self, *, open_files: int, uid_offset: int) -> Walls:
        """Those of a native cell. Landlock is judged once the kernel of the machine is known."""
        self.ready()
        settings = replace(
            self._settings, dangerously_without_landlock=True, dangerously_without_cgroup=False
        )
        walls = walls_for(settings, self._layers, uid_offset=uid_offset, open_files=open_files)
        if not walls.outer.bubblewrap.startswith(_BUBBLEWRAP_BELOW):
            raise LayerMissing(
                "bubblewrap is not below /usr, so that a virtual machine does not see it",
                hint="Install it with the system's packages: apt-get install bubblewrap",
                code="CW-LAYER-BUBBLEWRAP",
            )
        return replace(walls, in_machine=True, landlock_abi=0)

    def make_cell(self, walls: Walls, name: str, *, wants_stdin: bool = False) -> MachineCell:
        shape = CellShape.of(walls, self._layers, self.ledger, wants_stdin=wants_stdin)
        return MachineCell(shape, name)

    def boot(
        self,
        cell: MachineCell,
        walls: Walls,
        mount: WorkspaceMount,
        action: Action,
        tools: Sequence[HostDirectory],
    ) -> tuple[MachineSpec, Walls]:
        """Start the machine; the walls that its kernel gives the cell. Blocks."""
        ready, outer = self.ready(), walls.outer
        spec = MachineSpec(
            emulator=ready.emulator,
            processor_lacks=BOARDS[platform.machine()][2],
            outer=outer,
            owner=outer.drop_to if outer.drop_to is not None else os.geteuid(),
            limits=action.limits,
            host_processors=os.cpu_count() or 1,
            tools=tools,
            workspace=_workspace(mount),
        )
        cell.join_scope()
        cell.limit_machine(action.limits, io_device=jobs.block_device_of(mount))
        kernel_fd = os.open(ready.kernel.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            abi = cell.boot(spec, kernel_fd, ready.initramfs)
        finally:
            os.close(kernel_fd)
        if abi == 0 and not self._settings.dangerously_without_landlock:
            raise LayerMissing(
                "the kernel of the virtual machine has no Landlock",
                hint="Name another one in sandbox.machine_kernel, with `landlock` in its built-in "
                "list of modules, or accept the other walls alone with "
                "sandbox.dangerously_without_landlock = true.",
                code="CW-LAYER-LANDLOCK",
            )
        return spec, replace(walls, landlock_abi=abi)

    def tools(
        self,
        stack: ExitStack,
        walls: Walls,
        action: Action,
        program: languages.Program | None,
    ) -> list[HostDirectory]:
        spec = python_template_spec(action.template, self._settings.environment_of)
        return tools_for(stack, self._settings, walls.outer.root, program, spec)


class MachinePath:
    """One-shot runs; `run` may be called by many tasks at once."""

    def __init__(self, settings: NativeSettings, host: MachineHost) -> None:
        self._settings, self._host = settings, host

    async def run(self, request: CellRunRequest) -> RunResult:
        action, mount = request.action, request.mount
        _check(request.network, mount)
        program, code = jobs.program_of(action, only_deno=self._settings.only_deno)
        await anyio.to_thread.run_sync(self._host.ready)
        walls = self._host.walls(
            open_files=action.limits.open_files, uid_offset=request.slot.number
        )
        with ExitStack() as stack:
            tools = self._host.tools(stack, walls, action, program)
            cell = self._host.make_cell(walls, action.id, wants_stdin=action.stdin is not None)
            stack.callback(cell.close)
            spec, walls = await anyio.to_thread.run_sync(
                self._host.boot, cell, walls, mount, action, tools
            )
            # The machine's boot has a limit of its own.
            request = replace(request, started=time.monotonic())
            async with RunMonitor(request, cell, stdin=action.stdin) as monitor:
                inside = sorted(cell.pipes.inside)
                job = cell_plan.Job(
                    argv=program.argv,
                    env=jobs.environment(action, program, mount),
                    limits=action.limits,
                    mount=mount,
                    descriptors=jobs.program_descriptors(program, numbers_in_machine(inside)),
                    files=jobs.cold_files(program, code, home=jobs.home_of(mount)),
                    cwd=jobs.working_directory(action),
                    skills=request.skills,
                )
                cell.start_in_machine(spec, inside, cell_plan.init_plan(walls, job))
                return await monitor.until_end(
                    max_result_bytes=self._settings.max_result_bytes,
                    frame=jobs.interpreter_request(program, code, action),
                    path=PATH_NAME,
                )


class MachineCells:
    """Makes live cells; as `LiveCellFactory`."""

    def __init__(self, host: MachineHost) -> None:
        self._host = host

    def open(
        self,
        action: Action,
        mount: WorkspaceMount,
        skills: Sequence[Skill],
        network: CellNetwork | None,
    ) -> LiveCellParts:
        _check(network, mount)
        with ExitStack() as stack:
            uid = UidLease(f"{self._host.ledger.directory}.uids")
            stack.callback(uid.close)
            walls = self._host.walls(open_files=action.limits.open_files, uid_offset=uid.number)
            cell = self._host.make_cell(walls, new_id("cell"))
            stack.callback(cell.close)
            inside = sorted(cell.pipes.inside)
            with ExitStack() as until_sent:
                tools = self._host.tools(until_sent, walls, action, None)
                spec, walls = self._host.boot(cell, walls, mount, action, tools)
            files = jobs.base_files(home=jobs.home_of(mount)) | languages.inside_files()
            job = cell_plan.Job(
                limits=action.limits, mount=mount, files=files, is_once=False, skills=skills
            )
            cell.start_in_machine(spec, inside, cell_plan.init_plan(walls, job))
            cell.wait_until_ready()
            open_cell = stack.pop_all()
        return LiveCellParts(
            path=PATH_NAME,
            init=cell.pipes.status,
            meter=cell.meter,
            owner=walls.outer.drop_to,
            interpreter=languages.interpreter(),
            limits=action.limits,
            failure=cell.failure,
            close=open_cell.close,
            skills=skill_digests(skills),
            has_terminals=False,
            kill=cell.shim.kill,
        )

    def open_view(self, action: Action, mount: WorkspaceMount) -> int:  # noqa: ARG002  # the signature of native cells
        raise _no_directory()


def _check(network: CellNetwork | None, mount: WorkspaceMount) -> None:
    """Refuse what would need another descriptor of the host in the machine."""
    if network is not None:
        raise LayerMissing(
            "code in a virtual machine has no egress: no socket crosses to its kernel",
            hint='Run without allowed domains, or use sandbox.backend = "container" or "native".',
            code="CW-BACKEND-EGRESS",
        )
    if mount.dir_fd is not None and mount.mode is not WorkspaceMode.PRIVATE:
        raise _no_directory()


def _no_directory() -> WorkspaceError:
    return WorkspaceError(
        "a virtual machine is given no directory of a user: protected names in it would be covered "
        "by the kernel inside alone",
        hint='Copy the files in through the file API, or use sandbox.backend = "native".',
        code="CW-BACKEND-WORKSPACE",
    )


def _workspace(mount: WorkspaceMount) -> HostDirectory | None:
    if mount.dir_fd is None or mount.path is None:
        return None
    return HostDirectory(mount.dir_fd, mount.path, WORKSPACE_SHARED, False, mapped=True)

"""The sandbox port on Linux: warm where possible, cold otherwise, with the same walls in both.

A one-shot run has one cell, and leaves nothing. Cold, with a bubblewrap of its own:
(1) the program        (4) the outer wall            (7) read the counters, release the cgroup
(2) the layers         (5) limits, init's plan       (8) the result
(3) the cgroup         (6) watch: output, deadline

Warm, in a cell that a template has forked:
(1) the template       (3) a cell: ready, or made now   (5) watch, as on the cold path
(2) does it fit        (4) the program                  (6) the pool's worker cleans up
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress

import anyio

from cellwall.core.network import CellNetwork
from cellwall.core.outcomes import Finding, RunResult
from cellwall.core.sandbox_ports import LiveUsage, Slot, ToolCaller, WorkspaceLease
from cellwall.core.skills import Skill
from cellwall.core.types import Action, OutputSink, WorkspaceMode, WorkspaceMount
from cellwall.sandbox import languages
from cellwall.sandbox.containers.container_path import ContainerCells, ContainerHost, ContainerPath
from cellwall.sandbox.linux import cell_plan, jobs
from cellwall.sandbox.linux.channels import EgressSockets
from cellwall.sandbox.linux.forked_cell import WarmCell
from cellwall.sandbox.linux.frozen_cells import frozen
from cellwall.sandbox.linux.jobs import CellRunRequest
from cellwall.sandbox.linux.layers import (
    SHELL,
    HostLayers,
    NativeSettings,
    python_template_spec,
    tools_for,
    walls_for,
)
from cellwall.sandbox.linux.pool import Pool
from cellwall.sandbox.linux.prepared_cell import CellShape, PreparedCell, spare_cells
from cellwall.sandbox.linux.run_monitor import RunMonitor
from cellwall.sandbox.linux.second_user import check_allowed, check_mount
from cellwall.sandbox.linux.sessions import LiveSessions
from cellwall.sandbox.linux.template import CellContents, CellRecipe, Template
from cellwall.sandbox.machines.machine_path import MachineCells, MachineHost, MachinePath
from cellwall.sandbox.run_ledger import RunLedger


class ColdPath:
    """`run` may be called by many tasks at once."""

    def __init__(
        self, settings: NativeSettings, layers: HostLayers, ledger: RunLedger, pool: Pool
    ) -> None:
        self._settings = settings
        self._layers = layers
        self._ledger = ledger
        self._pool = pool
        self._wanted: deque[CellShape] = deque()

    def tidy_up(self) -> None:
        """After the result was returned: start the next spare cell in the background. Beside the
        run, it would take processor time from the caller who waits for the result."""
        if self._wanted:
            self._pool.worker.submit(self._renew_spares)

    def _renew_spares(self) -> None:
        with suppress(IndexError):
            while True:
                spare_cells.renew(self._wanted.popleft())

    async def run(self, request: CellRunRequest) -> RunResult:
        action, mount = request.action, request.mount
        # (1) The program.
        program, code = jobs.program_of(action, only_deno=self._settings.only_deno)
        # (2) The layers; a required layer that is missing is a refusal (ISO-4).
        walls = walls_for(
            self._settings,
            self._layers,
            uid_offset=request.slot.number,
            open_files=action.limits.open_files,
            has_second_user=action.second_user,
        )
        check_mount(action, mount)
        with ExitStack() as stack:
            spec = python_template_spec(action.template, self._settings.environment_of)
            tools = tools_for(stack, self._settings, walls.outer.root, program, spec)
            wants_stdin = action.stdin is not None
            shape = CellShape.of(walls, self._layers, self._ledger, wants_stdin=wants_stdin)
            # A spare cell was started before this run: it can show no directory of this run.
            is_plain = mount.dir_fd is None and not tools and request.network is None
            is_plain = is_plain and not shape.in_scope
            spare = spare_cells.take(shape) if is_plain else None
            cell, numbers = spare or (PreparedCell(shape, action.id), None)
            stack.callback(cell.close)
            egress = EgressSockets.open(request.network, stack)
            async with RunMonitor(request, cell, stdin=action.stdin) as monitor:
                # (3) The cgroup in which bubblewrap is born, (4) bubblewrap.
                if numbers is None:
                    if shape.in_scope:
                        await anyio.to_thread.run_sync(cell.join_scope)
                    numbers = cell.start_bubblewrap(mount, tools, egress)
                # (5) While bubblewrap works: every limit, then the plan, then init's start.
                cell.limit(action.limits, io_device=jobs.block_device_of(mount))
                home = jobs.home_of(mount)
                job = cell_plan.Job(
                    argv=program.argv,
                    env=jobs.environment(action, program, mount),
                    limits=action.limits,
                    mount=mount,
                    descriptors=jobs.program_descriptors(program, numbers),
                    files=jobs.cold_files(
                        program, code, home=home, has_second_user=action.second_user
                    ),
                    cwd=jobs.working_directory(action),
                    skills=request.skills,
                    egress=egress.plan(cell.egress_number) if egress else None,
                    as_second=jobs.is_second(action),
                )
                cell.start_init(cell_plan.init_plan(walls, job))
                if egress is not None:
                    await anyio.to_thread.run_sync(egress.hand_over)
                if is_plain and spare_cells.wants(shape):
                    self._wanted.append(shape)
                # (6)-(8) Until the end, whatever its cause.
                return await monitor.until_end(
                    max_result_bytes=self._settings.max_result_bytes,
                    frame=jobs.interpreter_request(program, code, action),
                )


class WarmPath:
    """`run` may be called by many tasks at once."""

    def __init__(self, settings: NativeSettings, pool: Pool) -> None:
        self._settings = settings
        self._pool = pool

    async def run(self, request: CellRunRequest) -> RunResult | None:
        """None: this run fits no template, or the template has not started yet."""
        action = request.action
        program, code = jobs.program_of(action, only_deno=self._settings.only_deno)
        # (1), (2)
        template = await self._template(request, program)
        if template is None:
            return None
        # (3)
        with ExitStack() as on_failure:
            egress = EgressSockets.open(request.network, on_failure)
            cell = self._cell(template, request, program, code, egress)
            on_failure.pop_all()
        try:
            if program.is_interpreter and not program.is_forked:
                cell.add_channel()
            async with RunMonitor(request, cell, stdin=action.stdin or b"") as monitor:
                if egress is not None:
                    await anyio.to_thread.run_sync(egress.hand_over)
                # (4)
                env = jobs.environment(action, program, request.mount)
                if action.stdin is None:
                    cell.channels.close_stdin()
                if not program.is_forked:
                    cell.start(program.argv, env, cwd=jobs.working_directory(action))
                base = env if program.is_forked else None
                # (5)
                result = await monitor.until_end(
                    max_result_bytes=self._settings.max_result_bytes,
                    frame=jobs.interpreter_request(program, code, action, base),
                    path="warm",
                )
        finally:
            # (6)
            self._pool.retire_used(cell)
        return result

    async def _template(
        self, request: CellRunRequest, program: languages.Program
    ) -> Template | None:
        if request.mount.dir_fd is not None and os.geteuid() != 0:
            return None  # an ordinary user cannot pass a mount into another namespace
        if request.mount.own_path is not None:
            return None  # the root that a template's cells share is sealed: no new mount point
        if request.action.second_user:
            return None  # one uid is mapped into a template
        spec = python_template_spec(request.action.template, self._settings.environment_of)
        if not program.is_forked:
            if spec.site_packages is not None:
                return None  # cells for commands are forked from a root without packages
            spec = SHELL
        template = self._pool.template(spec, wait=False)
        if template is None and self._settings.path == "warm":
            template = await anyio.to_thread.run_sync(lambda: self._pool.template(spec, wait=True))
        return template

    def _cell(
        self,
        template: Template,
        request: CellRunRequest,
        program: languages.Program,
        code: bytes,
        egress: EgressSockets | None,
    ) -> WarmCell:
        recipe, mount = CellRecipe(request.action.limits), request.mount
        files = {program.code_path: code} if program.code_path else None
        contents = CellContents(mount, files, request.skills, egress)
        if mount.dir_fd is None and mount.home and contents.adds_nothing:
            return self._pool.take(template, recipe)
        self._pool.hold(template)
        try:
            return WarmCell(template, recipe, contents)
        except BaseException:
            self._pool.release(template)
            raise


_WITHOUT_CGROUP = Finding(
    "weakened",
    "low",
    "this host gave no cgroup: memory and processor time were measured, not enforced by the kernel",
    rule="without-cgroup",
)
_WITHOUT_USER_NAMESPACE = Finding(
    "weakened",
    "low",
    "the container engine gives no user namespace: code ran in that of the host",
    rule="without-user-namespace",
)
_EMULATED = Finding(
    "weakened",
    "low",
    "the virtual machine was emulated in software, which is no boundary",
    rule="emulated-machine",
)


class NativeSandbox:
    """Implements the port `Sandbox`; `run` may be called by many tasks at once."""

    def __init__(
        self,
        settings: NativeSettings,
        layers: HostLayers,
        ledger: RunLedger,
        pool: Pool,
        containers: ContainerHost | MachineHost | None = None,
    ) -> None:
        """`containers`: a container engine or virtual machines are the outer walls, not bubblewrap
        alone."""
        self._settings = settings
        self._weakened: tuple[Finding, ...] = ()
        self._cold: ColdPath | ContainerPath | MachinePath
        factory: ContainerCells | MachineCells | None = None
        if isinstance(containers, MachineHost):
            self._cold, factory = MachinePath(settings, containers), MachineCells(containers)
            if settings.dangerously_emulate_machines:
                self._weakened = (_EMULATED,)
        elif containers is not None:
            self._cold, factory = ContainerPath(settings, containers), ContainerCells(containers)
            if settings.dangerously_without_user_namespace:
                self._weakened = (_WITHOUT_USER_NAMESPACE,)
        else:
            self._cold = ColdPath(settings, layers, ledger, pool)
            if layers.cgroup.way == "none":
                self._weakened = (_WITHOUT_CGROUP,)
        self._pool = pool
        self._warm = WarmPath(settings, pool) if containers is None else None
        self._sessions = LiveSessions(settings, layers, ledger, pool, factory)
        self.views = self._sessions.views
        self._under_way: set[int] = set()

    async def run(
        self,
        action: Action,
        *,
        slot: Slot,
        workspace: WorkspaceLease,
        sink: OutputSink | None,
        tools: ToolCaller | None = None,
        skills: Sequence[Skill] = (),
        network: CellNetwork | None = None,
    ) -> RunResult:
        if action.second_user:  # here for every backend: never one user in the name of two
            check_allowed(
                is_allowed=self._settings.allows_second_user, backend=self._settings.backend
            )
        request = CellRunRequest(
            action=action,
            slot=slot,
            workspace=workspace,
            sink=sink,
            tools=tools,
            skills=skills,
            network=network,
        )
        self._under_way.add(id(request))
        try:
            result = await self._run(request)
        finally:
            self._under_way.discard(id(request))
        return result.with_findings(self._weakened)

    async def _run(self, request: CellRunRequest) -> RunResult:
        if self.is_live(request.action, request.mount):
            return await self._sessions.run(request)
        if self._warm is not None and self._settings.path != "cold":
            result = await self._warm.run(request)
            if result is not None:
                return result
        return await self._cold.run(request)

    async def open_early(self, action: Action, *, slot: Slot, workspace: WorkspaceLease) -> None:
        """Not with a container engine: its cells take seconds to make, and many are never used."""
        if self._warm is not None and self.is_live(action, workspace.mount):
            request = CellRunRequest(action=action, slot=slot, workspace=workspace)
            await self._sessions.open_early(request)

    async def steer(self, action: Action) -> RunResult:
        return await self._sessions.steer(action)

    def is_live(self, action: Action, mount: WorkspaceMount) -> bool:
        """Code in a language without a live interpreter runs in a one-shot cell on the same files.

        Not with copy-on-write layers: a second mount of them is undefined to the kernel, and
        neither mount would show all that was written through the other.
        """
        if action.session_id is None:
            return False
        is_layered = mount.mode is WorkspaceMode.COPY_ON_WRITE
        return is_layered or jobs.language_of(action) in {"", *languages.STATEFUL}

    def live_usage(self, session_id: str, *, with_memory: bool = True) -> LiveUsage:
        return self._sessions.usage(session_id, with_memory=with_memory)

    def halt(self, session_id: str) -> None:
        self._sessions.halt(session_id)

    def close_unused(self, session_id: str) -> None:
        self._sessions.close_unused(session_id)

    def has_cell(self, session_id: str) -> bool:
        return self._sessions.cell_of(session_id) is not None

    @contextmanager
    def frozen(self, session_id: str) -> Iterator[None]:
        """No process of a live sandbox runs during the block."""
        cell = self._sessions.cell_of(session_id)
        with nullcontext() if cell is None else frozen(cell):
            yield

    def close_cell(self, session_id: str) -> None:
        self._sessions.close_cell(session_id)

    def end_session(self, session_id: str) -> None:
        self._sessions.end(session_id)

    @property
    def running_count(self) -> int:
        """Runs under way."""
        return len(self._under_way)

    @property
    def live_count(self) -> int:
        """Live sandboxes."""
        return self._sessions.count

    def tidy_up(self) -> None:
        self._pool.tidy_up()
        if isinstance(self._cold, ColdPath):
            self._cold.tidy_up()

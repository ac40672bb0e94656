"""One-shot runs: one cell for one run, and nothing left after it.

Cold, with one bubblewrap for the run:
(1) the program        (4) the outer wall            (7) read the counters, release the cgroup
(2) the layers         (5) limits, init's plan       (8) the result
(3) the cgroup         (6) watch: output, deadline

Warm, in a cell that a template has forked:
(1) the template       (3) a cell: ready, or made now   (5) watch, as on the cold path
(2) does it fit        (4) the program                  (6) the pool's worker cleans up
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace

import anyio

from cellwall.core.outcomes import RunResult
from cellwall.sandbox import languages
from cellwall.sandbox.linux import cell_plan, jobs
from cellwall.sandbox.linux.egress import EgressSockets
from cellwall.sandbox.linux.forked_cell import WarmCell
from cellwall.sandbox.linux.jobs import RunRequest
from cellwall.sandbox.linux.layers import HostLayers, NativeSettings, tools_for, walls_for
from cellwall.sandbox.linux.pool import Pool
from cellwall.sandbox.linux.prepared_cell import CellShape, PreparedCell, spare_cells
from cellwall.sandbox.linux.run_monitor import RunMonitor
from cellwall.sandbox.linux.template import CellContents, CellRecipe, Template
from cellwall.sandbox.linux.template_spec import SHELL, python_template_spec
from cellwall.sandbox.runs import RunLedger


class ColdPath:
    """`run` may be called by many tasks at once."""

    def __init__(self, settings: NativeSettings, layers: HostLayers, ledger: RunLedger) -> None:
        self._settings = settings
        self._layers = layers
        self._ledger = ledger

    async def run(self, request: RunRequest) -> RunResult:
        action, mount = request.action, request.mount
        # (1) The program.
        program, code = jobs.program_of(action)
        # (2) The layers; a required layer that is missing is a refusal (ISO-4).
        walls = walls_for(
            self._settings,
            self._layers,
            uid_offset=request.slot.number,
            open_files=action.limits.open_files,
        )
        with ExitStack() as stack:
            spec = python_template_spec(action.template, self._settings.environment_of)
            shown = tools_for(stack, self._settings, walls.outer.root, program, spec)
            shape = CellShape(
                self._ledger,
                walls.outer,
                self._layers.cgroup if walls.cgroup else None,
                wants_stdin=action.stdin is not None,
            )
            # A spare cell was started before this run: it can show no directory of this run.
            is_plain = mount.dir_fd is None and not shown and request.network is None
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
                    numbers = cell.start_bubblewrap(mount, shown, egress)
                # (5) While bubblewrap works: every limit, then the plan, then init's start.
                cell.limit(action.limits, io_device=jobs.block_device_of(mount))
                home = jobs.home_of(mount)
                job = cell_plan.Job(
                    argv=program.argv,
                    env=jobs.environment(action, program, home=home),
                    limits=action.limits,
                    mount=mount,
                    descriptors=jobs.program_descriptors(program, numbers),
                    files=jobs.cold_files(program, code, home=home),
                    cwd=jobs.working_directory(action),
                    skills=request.skills,
                    egress=egress.plan(cell.egress_number) if egress else None,
                )
                cell.start_init(cell_plan.init_plan(walls, job))
                if egress is not None:
                    await anyio.to_thread.run_sync(egress.hand_over)
                if is_plain:
                    spare_cells.renew(shape)
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

    async def run(self, request: RunRequest) -> RunResult | None:
        """None: this run fits no template, or the template has not started yet."""
        action = request.action
        program, code = jobs.program_of(action)
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
            async with RunMonitor(request, cell, stdin=action.stdin or b"") as monitor:
                if egress is not None:
                    await anyio.to_thread.run_sync(egress.hand_over)
                # (4)
                env = jobs.environment(action, program, home=jobs.home_of(request.mount))
                if action.stdin is None:
                    cell.channels.close_stdin()
                if not program.is_interpreter:
                    cell.start(program.argv, env, cwd=jobs.working_directory(action))
                # (5)
                result = await monitor.until_end(
                    max_result_bytes=self._settings.max_result_bytes,
                    frame=jobs.interpreter_request(program, code, action, env),
                )
        finally:
            # (6)
            self._pool.retire_used(cell)
        return replace(result, path="warm")

    async def _template(self, request: RunRequest, program: languages.Program) -> Template | None:
        if request.mount.dir_fd is not None and os.geteuid() != 0:
            return None  # an ordinary user cannot pass a mount into another namespace
        if request.mount.own_path is not None:
            return None  # the root that a template's cells share is sealed: no new mount point
        spec = python_template_spec(request.action.template, self._settings.environment_of)
        if not program.is_interpreter:
            if spec.site_packages is not None:
                return None  # cells for commands are forked from a root without packages
            spec = SHELL
        found = self._pool.template(spec, wait=False)
        if found is None and self._settings.path == "warm":
            found = await anyio.to_thread.run_sync(lambda: self._pool.template(spec, wait=True))
        return found

    def _cell(
        self,
        template: Template,
        request: RunRequest,
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

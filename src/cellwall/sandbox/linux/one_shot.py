"""The cold path: one bubblewrap for one run, with every layer, and nothing left after it.

(1) what to start      (4) the outer wall            (7) read the counters, let go
(2) which layers       (5) limits, init's plan       (8) the result
(3) the cgroup         (6) watch: output, deadline
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import anyio

from cellwall.core.network import CellNetwork
from cellwall.core.outcomes import RunResult
from cellwall.core.ports import Slot, ToolCaller, WorkspaceLease
from cellwall.core.skills import Skill
from cellwall.core.types import Action, OutputSink
from cellwall.sandbox import languages
from cellwall.sandbox.linux import cell_plan, cgroups, jobs
from cellwall.sandbox.linux.egress import WayOut
from cellwall.sandbox.linux.forked_cell import WarmCell
from cellwall.sandbox.linux.layers import HostLayers, NativeSettings, tools_for, walls_for
from cellwall.sandbox.linux.pool import Pool
from cellwall.sandbox.linux.prepared_cell import Shape, Standing, spares
from cellwall.sandbox.linux.run_monitor import Watch
from cellwall.sandbox.linux.template import Recipe, Template
from cellwall.sandbox.linux.template_spec import SHELL, Spec, python_spec
from cellwall.sandbox.runs import RunLedger


class ColdPath:
    """`run` may be called by many tasks at once."""

    def __init__(self, settings: NativeSettings, layers: HostLayers, ledger: RunLedger) -> None:
        self._settings = settings
        self._layers = layers
        self._ledger = ledger

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
        started = time.monotonic()
        # (1) What to start.
        program, code = jobs.program_of(action)
        # (2) Which layers; a required one that is missing is a refusal (ISO-4).
        walls = walls_for(
            self._settings,
            self._layers,
            uid_offset=slot.number,
            open_files=action.limits.open_files,
        )
        with ExitStack() as stack:
            spec = python_spec(action.template, self._settings.environment_of)
            shown = tools_for(stack, self._settings, walls.outer.root, program, spec)
            shape = Shape(
                self._ledger,
                walls.outer,
                self._layers.cgroup if walls.cgroup else None,
                wants_stdin=action.stdin is not None,
            )
            # Only a cell to which nothing of this run's is shown can have been raised before it.
            is_plain = workspace.mount.dir_fd is None and not shown and network is None
            is_plain = is_plain and not shape.in_scope
            taken = spares.take(shape) if is_plain else None
            standing, numbers = taken or (Standing(shape, action.id), None)
            stack.callback(standing.close)
            way_out = None if network is None else WayOut(network)
            if way_out is not None:
                stack.callback(way_out.close)
            watch = Watch(
                action, standing, workspace, started=started, stdin=action.stdin, tools=tools
            )
            async with watch:
                # (3) The cgroup into which bubblewrap is born, (4) bubblewrap.
                if numbers is None:
                    if shape.in_scope:
                        await anyio.to_thread.run_sync(standing.join_scope)
                    numbers = standing.raise_wall(workspace.mount, shown, way_out)
                # (5) While it works: every limit, then the plan, then the word to go on.
                standing.limit(action.limits, io_device=jobs.io_device(workspace))
                home = "/workspace" if workspace.mount.home else "/tmp"
                job = cell_plan.Job(
                    argv=program.argv,
                    env=jobs.environment(action, program, home=home),
                    limits=action.limits,
                    mount=workspace.mount,
                    descriptors=jobs.given(program, numbers),
                    files=jobs.files(program, code, home=home),
                    cwd=jobs.directory_of(action),
                    skills=skills,
                    opening=way_out.opening(standing.way_out_number) if way_out else None,
                )
                standing.go(cell_plan.init_plan(walls, job))
                if way_out is not None:
                    await anyio.to_thread.run_sync(way_out.hand_over)
                if is_plain:
                    spares.renew(shape)
                # (6)-(8) Until the end, whatever its cause.
                return await watch.until_end(
                    sink=sink,
                    max_result_bytes=self._settings.max_result_bytes,
                    request=jobs.request(program, code, action),
                )


class WarmPath:
    """`run` may be called by many tasks at once."""

    def __init__(self, settings: NativeSettings, pool: Pool) -> None:
        self._settings = settings
        self._pool = pool

    async def run(
        self,
        action: Action,
        *,
        workspace: WorkspaceLease,
        sink: OutputSink | None,
        tools: ToolCaller | None = None,
        skills: Sequence[Skill] = (),
        network: CellNetwork | None = None,
    ) -> RunResult | None:
        """None: this run does not fit a template, or there is none yet."""
        started = time.monotonic()
        program, code = jobs.program_of(action)
        # (1), (2)
        template = await self._template(action, program, workspace)
        if template is None:
            return None
        # (3)
        home = "/workspace" if workspace.mount.home else "/tmp"
        with ExitStack() as brief:
            way_out = None if network is None else WayOut(network)
            if way_out is not None:
                brief.callback(way_out.close)
            cell = self._cell(template, action, program, code, workspace, skills, way_out)
            brief.pop_all()
        try:
            async with Watch(
                action, cell, workspace, started=started, stdin=action.stdin or b"", tools=tools
            ) as watch:
                if way_out is not None:
                    await anyio.to_thread.run_sync(way_out.hand_over)
                # (4)
                env = jobs.environment(action, program, home=home)
                if action.stdin is None:
                    cell.channels.close_stdin()
                if not program.is_interpreter:
                    cell.start(program.argv, env, cwd=jobs.directory_of(action))
                # (5)
                result = await watch.until_end(
                    sink=sink,
                    max_result_bytes=self._settings.max_result_bytes,
                    request=jobs.request(program, code, action, env),
                )
        finally:
            # (6)
            self._pool.used(cell)
        return replace(result, path="warm")

    async def _template(
        self, action: Action, program: languages.Program, workspace: WorkspaceLease
    ) -> Template | None:
        if workspace.mount.dir_fd is not None and os.geteuid() != 0:
            return None  # an ordinary user cannot hand a mount into another namespace
        if workspace.mount.own_path is not None:
            return None  # the root that a template's cells share is sealed: no new mount point
        spec = spec_for(action, self._settings)
        if not program.is_interpreter:
            if spec.site_packages is not None:
                return None  # cells for commands are forked from a root without packages
            spec = SHELL
        must = self._settings.path == "warm"
        found = self._pool.template(spec, wait=False)
        if found is None and must:
            found = await anyio.to_thread.run_sync(lambda: self._pool.template(spec, wait=True))
        return found

    def _cell(
        self,
        template: Template,
        action: Action,
        program: languages.Program,
        code: bytes,
        workspace: WorkspaceLease,
        skills: Sequence[Skill],
        way_out: WayOut | None,
    ) -> WarmCell:
        recipe = Recipe(action.limits)
        mount = workspace.mount
        files = {program.code_path: code} if program.code_path else None
        is_plain = files is None and not skills and way_out is None
        if mount.dir_fd is None and mount.home and is_plain:
            return self._pool.take(template, recipe)
        device = (
            None if mount.dir_fd is None else cgroups.block_device(os.fstat(mount.dir_fd).st_dev)
        )
        self._pool.hold(template)
        try:
            return WarmCell(
                template,
                recipe,
                mount=mount,
                files=files,
                skills=skills,
                way_out=way_out,
                io_device=device,
            )
        except BaseException:
            self._pool.release(template)
            raise


def spec_for(action: Action, settings: NativeSettings) -> Spec:
    """The template that a live cell of this action's session, or its own interpreter, is of."""
    return python_spec(action.template, settings.environment_of)

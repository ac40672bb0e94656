"""The warm path: a one-shot run in a cell that a template has forked.

(1) which template     (3) a cell: ready, or made now   (5) watch, as on the cold path
(2) does it fit here   (4) what to run                  (6) tidying up is left to the housekeeper
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
from cellwall.core.ports import ToolCaller, WorkspaceLease
from cellwall.core.skills import Skill
from cellwall.core.types import Action, OutputSink
from cellwall.sandbox import languages
from cellwall.sandbox.linux import jobs, newgroups
from cellwall.sandbox.linux.egress import WayOut
from cellwall.sandbox.linux.forked_cell import WarmCell
from cellwall.sandbox.linux.layers import NativeSettings
from cellwall.sandbox.linux.pool import Pool
from cellwall.sandbox.linux.run_monitor import Watch
from cellwall.sandbox.linux.template import Recipe, Template
from cellwall.sandbox.linux.template_spec import SHELL, Spec, python_spec


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
            None if mount.dir_fd is None else newgroups.block_device(os.fstat(mount.dir_fd).st_dev)
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

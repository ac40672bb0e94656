"""The cold path: one bubblewrap for one run, with every layer, and nothing left after it.

(1) what to start      (4) the outer wall            (7) read the counters, let go
(2) which layers       (5) limits, init's plan       (8) the result
(3) the cgroup         (6) watch: output, deadline
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

import anyio

from cellwall.core.network import CellNetwork
from cellwall.core.outcomes import RunResult
from cellwall.core.ports import Slot, ToolCaller, WorkspaceLease
from cellwall.core.skills import Skill
from cellwall.core.types import Action, OutputSink
from cellwall.sandbox.linux import cellplan, jobs
from cellwall.sandbox.linux.layers import HostLayers, NativeSettings, tools_for, walls_for
from cellwall.sandbox.linux.specs import python_spec
from cellwall.sandbox.linux.standing import Shape, Standing, spares
from cellwall.sandbox.linux.watch import Watch
from cellwall.sandbox.linux.wayout import WayOut
from cellwall.sandbox.run_ledger import RunLedger


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
                job = cellplan.Job(
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
                standing.go(cellplan.init_plan(walls, job))
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

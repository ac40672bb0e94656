"""Cells forked from a template, seen from the supervisor.

The supervisor asks the zygote for one cell (`ForkedCell`, `WarmCell`), or takes one that the
template's shim has forked ahead, see prefork_queue.py.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

import anyio

from cellwall.core.errors import CellwallError, SandboxFailed
from cellwall.core.ids import new_id
from cellwall.core.limits import LimitName
from cellwall.sandbox.files.descriptors import closing_fd
from cellwall.sandbox.linux import cell_plan, jobs, run_cgroup
from cellwall.sandbox.linux.channels import (
    CellPipes,
    InitSocket,
    SupervisorEnds,
    ready_to_read,
)
from cellwall.sandbox.linux.outside_processes import memory_file
from cellwall.sandbox.linux.run_ending import EndingPatience, life_signs
from cellwall.sandbox.linux.run_io import RunIO
from cellwall.sandbox.linux.run_monitor import MonitoredRun
from cellwall.sandbox.linux.run_results import unkillable_process
from cellwall.sandbox.linux.template import NO_CONTENTS, CellContents, CellRecipe, Template

_READY_WITHIN_S = 10.0
_INIT_ENDS_WITHIN_S = 3.0
"""Init ends its cell when it is asked to; afterwards the cell is ended from outside."""
_POLL_EVERY_S = 0.01


class ForkedCell:
    """One cell, requested by the constructor; `wait_until_ready` waits for its walls."""

    def __init__(
        self,
        template: Template,
        recipe: CellRecipe,
        init: InitSocket,
        contents: CellContents,
        *,
        given: Sequence[int] = (),
    ) -> None:
        mount, egress = contents.mount, contents.egress
        self.recipe = recipe
        self.template = template
        self.init = init
        self.group: run_cgroup.RunCgroup | None = None
        self._view: int | None = None
        with ExitStack() as failed, ExitStack() as brief:
            sent: list[int] = []
            # Asked for first: the shim makes it while the cgroup is made here.
            receive_trees = None
            if mount is not None and mount.dir_fd is not None:
                receive_trees = brief.enter_context(template.requested_trees(mount))
            if template.group is not None:
                self.group = template.group.sibling(new_id("cell"))
                failed.callback(self.group.discard)
                self.group.limit(
                    recipe.limits,
                    io_device=None if mount is None else jobs.block_device_of(mount),
                    own_processes=run_cgroup.WARM_PROCESSES,
                )
                for descriptor in self.group.open_members():
                    brief.callback(os.close, descriptor)
                    sent.append(descriptor)
            plan = self._plan(brief, contents, joins=len(sent))
            if receive_trees is not None:
                tree, *views = receive_trees()
                brief.callback(os.close, tree)
                sent.append(tree)
                for view in views:
                    self._view = view
                    failed.callback(self._close_view)
                if recipe.is_once:
                    self._close_view()
            if egress is not None:
                sent.append(egress.inside)
            template.fork([plan, init.inside, *given, *sent])
            init.close_inside()
            if egress is not None:
                egress.close_inside()
            failed.pop_all()

    def _plan(self, brief: ExitStack, contents: CellContents, *, joins: int) -> int:
        if contents.mount is None and contents.adds_nothing:
            return self.template.plan_of(self.recipe, joins)
        plan = self.template.cell_plan(self.recipe, joins=joins, contents=contents)
        descriptor = memory_file("cellwall-cell", plan)
        brief.callback(os.close, descriptor)
        return descriptor

    def wait_until_ready(self) -> None:
        """Block until init reports that the walls are built, or raise the failure it reports."""
        if not ready_to_read(self.init, timeout_s=_READY_WITHIN_S):
            raise self.failure("ready-in-time")
        words = self.init.receive()
        if words != ["ready"]:
            raise self.failure(" ".join(words or ["gone"]))

    def take_view(self) -> int | None:
        """The mount of the merged layers, if any; the caller then owns the descriptor."""
        view, self._view = self._view, None
        return view

    def _close_view(self) -> None:
        view = self.take_view()
        if view is not None:
            os.close(view)

    def is_usable(self) -> bool:
        """Ready, or still being built: requests sent meanwhile wait in the socket."""
        words = self.init.receive()
        return words is None or words == ["ready"]

    def failure(self, step: str) -> CellwallError:
        # Init always reports before it exits: no report means a kill from outside.
        if step == "ended-without-a-word" or not self.template.is_alive():
            return SandboxFailed(
                "the cell, or the template behind it, was killed from outside",
                hint="Try again; a new one is started.",
                code="CW-TEMPLATE-GONE",
                detail=step,
            )
        return self.template.failure(step.removeprefix("fail "))

    def close(self) -> run_cgroup.RunCgroup | None:
        """Close the sockets, which ends every process of the cell. The caller removes the group."""
        group, self.group = self.group, None
        self._close_view()
        self.init.close()
        return group


class WarmCell(ForkedCell, MonitoredRun):
    """A cell for one run, which ends with the run."""

    def __init__(
        self,
        template: Template,
        recipe: CellRecipe,
        contents: CellContents = NO_CONTENTS,
    ) -> None:
        self.group_name: str | None = None
        """Of a preforked cell: the template's shim made this group and removes it."""
        with ExitStack() as stack:
            waits = template.spec.is_interpreter
            ends = CellPipes(stack, wants_stdin=True, owner=template.uid, has_channel=waits)
            inside = [ends.inside[number] for number in sorted(ends.inside)]
            given = inside if waits else ()
            super().__init__(template, recipe, ends.status, contents, given=given)
            if waits:
                ends.close_inside()
            self._take(ends, stack.pop_all())

    @classmethod
    def from_shim(
        cls,
        template: Template,
        recipe: CellRecipe,
        group: tuple[str, run_cgroup.RunCgroup | None],
        descriptors: Sequence[int],
    ) -> WarmCell:
        """A preforked cell, made by the template's shim."""
        cell = cls.__new__(cls)
        cell.template, cell.recipe = template, recipe
        cell.group_name, cell.group = group
        cell._view = None  # noqa: SLF001  # a second constructor
        with ExitStack() as stack:
            ends = CellPipes.from_shim(stack, descriptors)
            cell._take(ends, stack.pop_all())  # noqa: SLF001  # a second constructor
        return cell

    def _take(self, ends: CellPipes, stack: ExitStack) -> None:
        self._words: list[str] = []
        self._is_ended = False
        self._stopped_at: float | None = None
        self.is_group_clean = False
        """The run has ended, and no counter is left that the next run would inherit."""
        self._ends, self._stack = ends, stack
        self.init = ends.status

    def add_channel(self) -> None:
        """For a program that is an interpreter; before `start`."""
        self._ends.add_channel(self._stack)

    def start(self, argv: Sequence[str], env: Mapping[str, str], *, cwd: str) -> None:
        """Ask init to start the only program of a cell without a waiting interpreter."""
        plan = cell_plan.task_plan(argv, env, cwd=cwd, terminal=None)
        with closing_fd(memory_file("cellwall-task", plan)) as plan_fd:
            inside = [self._ends.inside[number] for number in sorted(self._ends.inside)]
            self.init.send("run", 0, descriptors=(plan_fd, *inside))
        self._ends.close_inside()

    @property
    def channels(self) -> SupervisorEnds:
        return self._ends.outside

    def status_fd(self) -> int:
        return self.init.fileno()

    def handle_message(self) -> bool:
        match words := self.init.receive():
            case ["exit", *_] | ["noexec", *_] | ["fail", *_]:
                self._words, self._is_ended = words, True
            case []:
                self._is_ended = True
            case _:  # "ready", "started", or nothing yet
                pass
        return not self._is_ended

    def is_ended(self, run_io: RunIO) -> bool:  # noqa: ARG002  # only init is believed
        return self._is_ended

    def begin_watching(self) -> None:
        self.init.send("go")

    def counters(self) -> run_cgroup.Counters:
        counters = self.group.counters() if self.group else run_cgroup.Counters()
        self.is_group_clean = self._is_ended and counters.is_clean
        return counters

    def pids(self) -> list[int]:
        return self.group.pids() if self.group else []

    def kill(self, limit: LimitName | None = None) -> None:  # noqa: ARG002  # every limit ends the whole cell
        self.init.send("stop")
        now = time.monotonic()
        if self._stopped_at is None:
            self._stopped_at = now
        elif now - self._stopped_at > _INIT_ENDS_WITHIN_S:
            self._kill_outside()

    def _kill_outside(self) -> None:
        """Init as well, which the kernel follows with its whole PID namespace."""
        for pid in self.pids():
            if pid > 1:  # 0 stands for a process outside our PID namespace
                # Listed a moment ago, in a group of this cell alone: the pid is not reused yet.
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)

    async def wait_gone(self) -> None:
        """Init has reaped every process before its last message, and is exiting. When init itself
        was killed, its socket is closed before the kernel ends the others (ISO-8)."""
        if self._words:
            return
        patience = EndingPatience(time.monotonic())
        while pids := self.pids():
            signs = None
            if patience.wants_signs:
                signs = life_signs(pids, self.counters().cpu_s)
            if patience.is_over(time.monotonic(), signs):
                raise unkillable_process()
            self._kill_outside()
            await anyio.sleep(_POLL_EVERY_S)

    async def abandon(self) -> None:
        self.init.shutdown_write()
        with anyio.move_on_after(_INIT_ENDS_WITHIN_S):
            while self.handle_message():
                await anyio.wait_readable(self.init)
        with suppress(SandboxFailed):
            await self.wait_gone()

    def exit_words(self) -> list[str]:
        return self._words

    def close(self) -> run_cgroup.RunCgroup | None:
        group = self.close_and_keep()
        if group is not None:
            group.close_files()
        return group

    def close_and_keep(self) -> run_cgroup.RunCgroup | None:
        """The group keeps its open files, for the next cell."""
        group = super().close()
        self._stack.close()
        return group

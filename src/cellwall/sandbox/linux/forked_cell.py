"""Cells forked from a template, seen from the supervisor.

The supervisor asks the zygote for one cell (`ForkedCell`, `WarmCell`), or asks the template's shim
to fork single-use cells ahead (`PreforkQueue`, cell/prefork.c): a request is one packet, a cell
another.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import Counter
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
    receive_descriptors,
)
from cellwall.sandbox.linux.outside_processes import memory_file
from cellwall.sandbox.linux.plan import Plan
from cellwall.sandbox.linux.run_ending import EndingPatience, life_signs
from cellwall.sandbox.linux.run_io import RunIO
from cellwall.sandbox.linux.run_monitor import MonitoredRun, unkillable_process
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


_MAX_DESCRIPTORS = 8
_OURS = 4
"""Our ends of the pipes and sockets; then two for an interpreter, or three for a program."""
_MAX_RECIPES = 16
_MAX_OPEN_GROUPS = 8
"""Five descriptors each."""
_CELL_WITHIN_S = 10.0


class PreforkQueue:
    """The queue of one template. Not thread-safe."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self._socket = template.shim.open_prefork(self._bases(), template.control)
        self._requested: dict[str, CellRecipe] = {}
        self._groups: dict[str, run_cgroup.RunCgroup] = {}
        """Groups that wait for their next cell, by their names, with open files."""
        self._recipes: dict[CellRecipe, int] = {}

    def _bases(self) -> bytes:
        plan, group = Plan(), self._template.group
        for base in group.bases if group else ():
            plan.step("base", base)
        plan.step("members", group.members_name if group else "none")
        for step in group.reset_steps() if group else ():
            plan.step("reset", *step)
        if self._template.uid is not None:
            plan.step("owner", self._template.uid)
        plan.step("given", int(self._template.spec.is_interpreter))
        return plan.encode()

    def pending(self, recipe: CellRecipe) -> int:
        """The number of requested cells that were not received yet."""
        return Counter(self._requested.values())[recipe]

    def request(self, recipe: CellRecipe) -> None:
        name = new_id("cell")
        group = self._template.group
        joins = len(group.bases) if group else 0
        plan = self._template.plan_of(recipe, joins)
        try:
            text = f"cell {name}".encode()
            socket.send_fds(self._socket, [text], [plan, self._recipe(recipe)])
        except BlockingIOError:
            return  # the shim has enough requests
        except OSError as error:
            raise self._template.gone(error) from error
        self._requested[name] = recipe

    def _recipe(self, recipe: CellRecipe) -> int:
        descriptor = self._recipes.get(recipe)
        if descriptor is None:
            while len(self._recipes) >= _MAX_RECIPES:
                os.close(self._recipes.pop(next(iter(self._recipes))))
            plan, group = Plan(), self._template.group
            steps = group.limit_steps(recipe.limits, run_cgroup.WARM_PROCESSES) if group else []
            for step in steps:
                plan.step("limit", *step)
            plan.step("end")
            descriptor = self._recipes[recipe] = memory_file("cellwall-recipe", plan.encode())
        return descriptor

    def receive(self) -> WarmCell | None:
        """The next finished cell; None if there is none yet."""
        try:
            packet, descriptors, flags = receive_descriptors(self._socket, 160, _MAX_DESCRIPTORS)
        except BlockingIOError:
            return None
        except OSError as error:
            raise self._template.gone(error) from error
        is_cut = flags & socket.MSG_CTRUNC or len(descriptors) not in (0, _OURS + 2, _OURS + 3)
        match packet.decode("ascii", "replace").split():
            case ["cell", name, group] if name in self._requested and is_cut:
                # This process is at its descriptor limit: the kernel dropped some of the cell's.
                for descriptor in descriptors:
                    os.close(descriptor)
                self._requested.pop(name)
                self.remove(group)
                raise SandboxFailed(
                    "this process has reached its limit of open files",
                    hint="Raise its limit of open files (ulimit -n).",
                    code="CW-CELL",
                )
            case ["cell", name, group] if name in self._requested:
                return WarmCell.from_shim(
                    self._template,
                    self._requested.pop(name),
                    (group, self._group(group)),
                    descriptors,
                )
            case ["nocell", name, number]:
                self._requested.pop(name, None)
                raise SandboxFailed(
                    "the host could not make another cell",
                    hint="Wait until it is less busy, or raise its limits.",
                    code="CW-CELL",
                    detail=os.strerror(int(number)),
                )
            case _:
                for descriptor in descriptors:
                    os.close(descriptor)
                raise self._template.gone(None)

    def _group(self, name: str) -> run_cgroup.RunCgroup | None:
        group = self._groups.pop(name, None)
        if group is None and self._template.group is not None:
            group = self._template.group.existing(name)
            group.keep_files_open()
        return group

    def wait(self) -> None:
        """Block until a cell or a failure was sent: about as long as making a cell takes."""
        if not ready_to_read(self._socket, timeout_s=_CELL_WITHIN_S):
            raise self._template.gone(None)

    def remove(self, name: str, group: run_cgroup.RunCgroup | None = None) -> None:
        """After the end of a cell. Without the `group`, whose counters are clean, its directories
        are removed; with the group they are used again."""
        if group is not None:
            while len(self._groups) >= _MAX_OPEN_GROUPS:
                self._groups.pop(next(iter(self._groups))).close_files()
            self._groups[name] = group
        with suppress(OSError):
            self._socket.send(f"remove {name} {'used' if group is None else 'clean'}".encode())

    def close(self) -> None:
        self._socket.close()
        while self._groups:
            self._groups.popitem()[1].close_files()
        while self._recipes:
            os.close(self._recipes.popitem()[1])

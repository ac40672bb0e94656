"""Cells forked from a template, from the supervisor's side."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import anyio

from cellwall.core.errors import CellwallError, SandboxFailed
from cellwall.core.limits import LimitName
from cellwall.core.skills import Skill
from cellwall.core.types import WorkspaceMount, new_id
from cellwall.sandbox.linux import cell_plan, run_cgroup
from cellwall.sandbox.linux.channels import Channels, Line, Outside, ready_to_read
from cellwall.sandbox.linux.egress import WayOut
from cellwall.sandbox.linux.run_io import Traffic
from cellwall.sandbox.linux.shim import memory_file
from cellwall.sandbox.linux.template import Recipe, Template

_READY_WITHIN_S = 10.0


class ForkedCell:
    """One cell. It is asked for when this is made; `wait_until_ready` says when it stands."""

    def __init__(
        self,
        template: Template,
        recipe: Recipe,
        line: Line,
        *,
        given: Sequence[int] = (),
        mount: WorkspaceMount | None = None,
        files: Mapping[str, bytes] | None = None,
        skills: Sequence[Skill] = (),
        way_out: WayOut | None = None,
        io_device: str | None = None,
    ) -> None:
        self.recipe = recipe
        self.template = template
        self.line = line
        self.group: run_cgroup.Group | None = None
        self._view: int | None = None
        with ExitStack() as failed, ExitStack() as brief:
            sent: list[int] = []
            if template.group is not None:
                self.group = template.group.sibling(new_id("cell"))
                failed.callback(self.group.discard)
                self.group.limit(
                    recipe.limits, io_device=io_device, own_processes=run_cgroup.WARM_PROCESSES
                )
                for descriptor in self.group.open_members():
                    brief.callback(os.close, descriptor)
                    sent.append(descriptor)
            plan = self._plan(brief, mount, files, skills, way_out, joins=len(sent))
            if mount is not None and mount.dir_fd is not None:
                tree, *views = template.trees(mount)
                brief.callback(os.close, tree)
                sent.append(tree)
                for view in views:
                    self._view = view
                    failed.callback(self._close_view)
                if recipe.is_once:
                    self._close_view()
            if way_out is not None:
                sent.append(way_out.inside)
            template.fork([plan, line.inside, *given, *sent])
            line.close_inside()
            if way_out is not None:
                way_out.close_inside()
            failed.pop_all()

    def _plan(
        self,
        brief: ExitStack,
        mount: WorkspaceMount | None,
        files: Mapping[str, bytes] | None,
        skills: Sequence[Skill],
        way_out: WayOut | None,
        *,
        joins: int,
    ) -> int:
        if mount is None and not files and not skills and way_out is None:
            return self.template.plan_of(self.recipe, joins)
        text = self.template.cell_plan(
            self.recipe, joins=joins, files=files, mount=mount, skills=skills, way_out=way_out
        )
        descriptor = memory_file("cellwall-cell", text)
        brief.callback(os.close, descriptor)
        return descriptor

    def wait_until_ready(self) -> None:
        """Blocks until init says that the walls stand, or raises what it says instead."""
        if not ready_to_read(self.line, timeout_s=_READY_WITHIN_S):
            raise self.failure("ready-in-time")
        words = self.line.heard()
        if words != ["ready"]:
            raise self.failure(" ".join(words or ["gone"]))

    def take_view(self) -> int | None:
        """The mount of the merged layers, if there are any; from now on the caller's to close."""
        view, self._view = self._view, None
        return view

    def _close_view(self) -> None:
        view = self.take_view()
        if view is not None:
            os.close(view)

    def is_usable(self) -> bool:
        """It stands, or will soon: what it is told meanwhile waits for it."""
        words = self.line.heard()
        return words is None or words == ["ready"]

    def failure(self, step: str) -> CellwallError:
        # Init says something before it ends, whatever happens inside: it was killed from outside.
        if step == "ended-without-a-word" or not self.template.is_alive():
            return SandboxFailed(
                "the cell, or the template behind it, was killed from outside",
                hint="Try again; a new one is started.",
                code="CW-TEMPLATE-GONE",
                detail=step,
            )
        return self.template.failure(step.removeprefix("fail "))

    def close(self) -> run_cgroup.Group | None:
        """Hang up, which ends whatever still runs. The group is left to whoever calls."""
        group, self.group = self.group, None
        self._close_view()
        self.line.close()
        return group


class WarmCell(ForkedCell):
    """For one run: it ends with it. Watched as `Running`, see watch.py."""

    def __init__(
        self,
        template: Template,
        recipe: Recipe,
        *,
        mount: WorkspaceMount | None = None,
        files: Mapping[str, bytes] | None = None,
        skills: Sequence[Skill] = (),
        way_out: WayOut | None = None,
        io_device: str | None = None,
    ) -> None:
        self.group_name: str | None = None
        """Of a cell from the stock: its keeper has made the group and removes it."""
        with ExitStack() as stack:
            waits = template.spec.is_interpreter
            ends = Channels(stack, wants_stdin=True, owner=template.uid, has_channel=waits)
            inside = [ends.inside[number] for number in sorted(ends.inside)]
            super().__init__(
                template,
                recipe,
                ends.status,
                given=inside if waits else (),
                mount=mount,
                files=files,
                skills=skills,
                way_out=way_out,
                io_device=io_device,
            )
            if waits:
                ends.close_inside()
            self._take(ends, stack.pop_all())

    @classmethod
    def received(
        cls, template: Template, recipe: Recipe, group_name: str, descriptors: Sequence[int]
    ) -> WarmCell:
        """One that the template's keeper has made."""
        cell = cls.__new__(cls)
        cell.template, cell.recipe, cell.group_name = template, recipe, group_name
        cell._view = None  # noqa: SLF001  # its own, in another constructor
        cell.group = template.group.named(group_name) if template.group is not None else None
        with ExitStack() as stack:
            ends = Channels.received(stack, descriptors)
            cell._take(ends, stack.pop_all())  # noqa: SLF001  # its own, in another constructor
        return cell

    def _take(self, ends: Channels, stack: ExitStack) -> None:
        self._words: list[str] = []
        self._is_ended = False
        self.is_group_clean = False
        """The run has ended, and nothing was counted that another one would inherit."""
        self._ends, self._stack = ends, stack
        self.line = ends.status

    def start(self, argv: Sequence[str], env: Mapping[str, str], *, cwd: str) -> None:
        """Have init start the one program of a cell without an interpreter."""
        plan = cell_plan.task_plan(argv, env, cwd=cwd, terminal=None)
        descriptor = memory_file("cellwall-task", plan)
        try:
            inside = [self._ends.inside[number] for number in range(3)]
            self.line.say("run", 0, descriptors=(descriptor, *inside))
        finally:
            os.close(descriptor)
            self._ends.close_inside()

    @property
    def channels(self) -> Outside:
        return self._ends.outside

    def voice(self) -> int:
        return self.line.fileno()

    def likely_end(self) -> int:
        return self.line.fileno()

    def hear(self) -> bool:
        match words := self.line.heard():
            case ["exit", *_] | ["noexec", *_] | ["fail", *_]:
                self._words, self._is_ended = words, True
            case []:
                self._is_ended = True
            case _:  # "ready", "started", or nothing yet
                pass
        return not self._is_ended

    def is_ended(self, traffic: Traffic) -> bool:  # noqa: ARG002  # init's word alone counts
        return self._is_ended

    def goes_on(self) -> None:
        self.line.say("go")

    def counters(self) -> run_cgroup.Counters:
        counters = self.group.counters() if self.group else run_cgroup.Counters()
        self.is_group_clean = self._is_ended and counters.is_clean
        return counters

    def pids(self) -> list[int]:
        return self.group.pids() if self.group else []

    def kill(self, limit: LimitName | None = None) -> None:  # noqa: ARG002  # all of it, whatever it was
        self.line.say("stop")

    async def until_gone(self) -> None:
        """Init has reaped every process before its last word; only it is left, and is leaving."""

    async def abandon(self) -> None:
        self.line.hang_up()
        while self.hear():
            await anyio.wait_readable(self.line)

    def last_words(self) -> list[str]:
        return self._words

    def close(self) -> run_cgroup.Group | None:
        group = super().close()
        self._stack.close()
        return group

"""Single-use cells that the template's shim forks ahead (cell/prefork.c).

A request is one packet, a finished cell another.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from contextlib import suppress

from cellwall.core.errors import SandboxFailed
from cellwall.core.ids import new_id
from cellwall.sandbox.linux import run_cgroup
from cellwall.sandbox.linux.channels import ready_to_read, receive_descriptors
from cellwall.sandbox.linux.forked_cell import WarmCell
from cellwall.sandbox.linux.outside_processes import memory_file
from cellwall.sandbox.linux.plan import Plan
from cellwall.sandbox.linux.template import CellRecipe, Template

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

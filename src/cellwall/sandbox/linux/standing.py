"""A cell whose outer wall stands: bubblewrap has made it, its init waits for a plan and the word.

Nothing of a run is in it yet, so one can be raised ahead, while the run before it is waited for.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from cellwall.core.errors import CellwallError
from cellwall.core.limits import LimitName, Limits
from cellwall.core.types import WorkspaceMode, WorkspaceMount, new_id
from cellwall.sandbox.linux import cgroups, groups, keeperplan, newgroups
from cellwall.sandbox.linux.cell_binary import cell_program
from cellwall.sandbox.linux.channels import Channels, Outside
from cellwall.sandbox.linux.keeper import FIRST_SENT_FD, Keeper, memory_file, write_memory_file
from cellwall.sandbox.linux.measured import Measured
from cellwall.sandbox.linux.traffic import Traffic
from cellwall.sandbox.linux.waiting import ready_to_read
from cellwall.sandbox.linux.watch import stuck
from cellwall.sandbox.linux.wayout import WayOut
from cellwall.sandbox.run_ledger import RunLedger

_SCOPE_WITHIN_S = 20.0
_READY_WITHIN_S = 20.0
_MAX_SHAPES = 4


@dataclass(frozen=True, slots=True)
class Shape:
    """What must be known to raise the outer wall. Cells of equal shape can stand in for another."""

    ledger: RunLedger
    outer: keeperplan.OuterWall
    cgroup: cgroups.Choice | None = field(hash=False)
    wants_stdin: bool
    is_template: bool = False

    @property
    def in_scope(self) -> bool:
        """In a user's scope a group can only be made once the keeper is there."""
        return self.cgroup is not None and self.cgroup.way == "systemd-user"


class Standing:
    """One such cell, with our ends of everything that leads into it."""

    def __init__(self, shape: Shape, name: str) -> None:
        self._shape = shape
        self.group: groups.Group | None = None
        self.meter: groups.Group | Measured | None = None
        """What tells the use of the cell: its group, or measurements where the host has none."""
        self._failure: CellwallError | None = None
        self._is_ended = False
        self._hands_view = False
        self._view: int | None = None
        self.way_out_number = -1
        """Of the line for a way out, in the cell."""
        self.is_gone = False
        """The keeper said that nothing of the cell is left."""
        with ExitStack() as stack:
            self._entry = stack.enter_context(shape.ledger.open(name))
            self.ends = Channels(
                stack,
                wants_stdin=shape.wants_stdin,
                owner=shape.outer.drop_to,
                for_zygote=shape.is_template,
            )
            self._cell_fd = os.open(cell_program(), os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, self._cell_fd)
            self._plan_fd = memory_file("cellwall-init", b"")
            stack.callback(os.close, self._plan_fd)
            self.keeper = Keeper(
                prefix=newgroups.scope_command(self._entry.id) if shape.in_scope else ()
            )
            stack.callback(self._discard_group)
            stack.callback(self.keeper.close)
            if shape.cgroup is not None and not shape.in_scope:
                name, nested = self._entry.id, shape.is_template
                self.group = newgroups.make_group(
                    shape.cgroup, name, nested=nested, note=self._entry.note_groups
                )
            self._stack = stack.pop_all()

    def join_scope(self) -> None:
        """Make the group beside the keeper, which systemd has put into the scope. May block."""
        if not self._shape.in_scope:
            return
        if not ready_to_read(self.keeper, timeout_s=_SCOPE_WITHIN_S):
            self.keeper.abandon()
        elif self.keeper.heard() == ["hello"]:
            nested = self._shape.is_template
            self.group = newgroups.group_in_scope(self.keeper.pid, nested=nested)
            return
        raise self.keeper.failure("systemd-scope")

    def raise_wall(
        self,
        mount: WorkspaceMount | None = None,
        tools: Sequence[keeperplan.Shown] = (),
        way_out: WayOut | None = None,
        *,
        lives_on: bool = False,
    ) -> Mapping[int, int]:
        """Start bubblewrap. Returns, of what the program is given, number inside -> in the cell."""
        shown = [*(keeperplan.shown_directories(mount) if mount else ()), *tools]
        inside = self.ends.inside
        sent = [self._cell_fd, self._plan_fd, self.ends.status.inside, *inside.values()]
        sent += [place.descriptor for place in shown]
        if way_out is not None:
            sent.append(way_out.inside)
        numbers = {fd: FIRST_SENT_FD + index for index, fd in enumerate(sent)}
        group, outer = self.group, self._shape.outer
        layered = mount is not None and mount.mode is WorkspaceMode.COPY_ON_WRITE
        self._hands_view = layered and lives_on
        plan = keeperplan.keeper_plan(
            outer,
            shown,
            cgroup2=group.unified if group else None,
            tasks=group.tasks if group else (),
            remove=group.remove if group else (),
            layers_inside=layered and outer.drop_to is None,
            cell_fd=self._cell_fd,
            plan_fd=self._plan_fd,
            status_fd=self.ends.status.inside,
            given=tuple(inside.values()),
            hands_view=self._hands_view,
            opening_fd=None if way_out is None else way_out.inside,
            number_of=numbers.__getitem__,
        )
        self.keeper.begin(plan, sent)
        self.ends.close_inside()
        self.ends.status.close_inside()
        if way_out is not None:
            self.way_out_number = numbers[way_out.inside]
            way_out.close_inside()
        if group is not None and self._shape.in_scope:
            self._entry.note_groups(group.remove)
        return {number: numbers[fd] for number, fd in inside.items()}

    def limit(self, limits: Limits, *, io_device: str | None) -> None:
        """Write every limit to the group; without one, remember what to measure against."""
        if self.group is None:
            self.meter = Measured(self.keeper.pid, limits)
            return
        self.group.limit(limits, io_device=io_device)
        self.meter = self.group

    def go(self, init_plan: bytes) -> None:
        """Every limit is written: init may carry out its plan."""
        write_memory_file(self._plan_fd, init_plan)
        self.ends.status.say("go")

    def wait_until_ready(self) -> None:
        """Blocks until a live cell's init says that the walls stand."""
        words = self._next_words()
        if words == ["view"]:
            words = self._next_words()
        if words != ["ready"]:
            raise self.keeper.failure(" ".join(words or ["gone"]).removeprefix("fail "))
        if self._hands_view and self._view is None:
            raise self.keeper.failure("view-sent")

    def _next_words(self) -> list[str] | None:
        line = self.ends.status
        if not ready_to_read(line, timeout_s=_READY_WITHIN_S):
            raise self.keeper.failure("ready-in-time")
        words, descriptor = line.heard_with_descriptor()
        if descriptor is not None:
            self._view = descriptor
            self._stack.callback(self._close_view)
        return words

    def take_view(self) -> int | None:
        """The mount of the merged layers, if there are any; from now on the caller's to close."""
        view, self._view = self._view, None
        return view

    def _close_view(self) -> None:
        view = self.take_view()
        if view is not None:
            os.close(view)

    def close(self) -> None:
        """Hang up, which ends whatever still runs, and leave nothing behind."""
        self._stack.close()

    # --- as `Running`, see watch.py

    @property
    def channels(self) -> Outside:
        return self.ends.outside

    def voice(self) -> int:
        return self.keeper.fileno()

    def likely_end(self) -> int:
        return self.keeper.fileno()

    def hear(self) -> bool:
        match self.keeper.heard():
            case ["fail", step, *rest]:
                self._failure = self.keeper.failure(" ".join([step, *rest]))
            case ["ended", *_] | []:  # or the keeper itself is gone
                self._is_ended = True
            case _:  # "hello", or nothing yet
                pass
        return not self._is_ended

    def is_ended(self, traffic: Traffic) -> bool:
        return self._is_ended and traffic.is_over

    def goes_on(self) -> None:
        """Init looks from the start: it was told the program with its plan."""

    def counters(self) -> groups.Counters:
        return self.meter.counters() if self.meter else groups.Counters()

    def pids(self) -> list[int]:
        return self.meter.pids() if self.meter else []

    def kill(self, limit: LimitName | None = None) -> None:  # noqa: ARG002  # all of it, whatever it was
        self.keeper.kill()

    async def until_gone(self) -> None:
        self.keeper.release()
        while words := await self.keeper.frame():
            match words:
                case ["gone", left]:
                    self.is_gone = left == "0"
                    if not self.is_gone:
                        raise stuck()
                    return
        # The keeper itself was killed: nobody said that the group is gone, so it is discarded.

    async def abandon(self) -> None:
        self.keeper.kill()
        self.keeper.release()
        while await self.keeper.frame():
            continue

    def last_words(self) -> list[str]:
        """Init sends its word before it ends, so it is already here, or will never be."""
        while words := self.ends.status.heard():
            if words[0] in ("exit", "noexec", "fail"):
                return words
        return []

    def failure(self, step: str) -> CellwallError:
        return self._failure or self.keeper.failure(step)

    def _discard_group(self) -> None:
        if self.group is not None and not self.is_gone:
            self.group.discard()


class Spares:
    """Cells raised ahead, one for the next run of each of the latest shapes; they end with us."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made_by = os.getpid()
        self._kept: dict[Shape, tuple[Standing, Mapping[int, int]] | None] = {}
        """None: of this shape there was one run so far, and who runs once pays for no other."""

    def take(self, shape: Shape) -> tuple[Standing, Mapping[int, int]] | None:
        with self._lock:
            kept = self._kept.get(shape)
            if kept is not None:
                self._kept[shape] = None
        if kept is not None and not kept[0].keeper.is_alive():
            kept[0].close()
            return None
        return kept

    def renew(self, shape: Shape) -> None:
        """Raise one, from the second run of a shape on."""
        with self._lock:
            if shape not in self._kept:
                while len(self._kept) >= _MAX_SHAPES:
                    oldest = self._kept.pop(next(iter(self._kept)))
                    if oldest is not None:
                        oldest[0].close()
                self._kept[shape] = None
            elif self._kept[shape] is None:
                standing = Standing(shape, new_id("cell"))
                try:
                    self._kept[shape] = standing, standing.raise_wall()
                except BaseException:
                    standing.close()
                    raise

    def close(self) -> None:
        with self._lock:
            kept, self._kept = self._kept, {}
        for each in kept.values():
            if each is not None and self._made_by == os.getpid():
                each[0].close()

    def forget_parent(self) -> None:
        """After a fork: a copy of the line would keep the parent's cell alive after its death."""
        self._lock = threading.Lock()
        _of_parents.append(self._kept)  # never finalised here: they are not ours to end
        for each in self._kept.values():
            if each is not None:
                each[0].keeper.drop_copy()
        self._kept, self._made_by = {}, os.getpid()


_of_parents: list[object] = []
spares = Spares()
atexit.register(spares.close)
os.register_at_fork(after_in_child=spares.forget_parent)

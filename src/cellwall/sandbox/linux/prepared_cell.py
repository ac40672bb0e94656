"""A cell behind its outer wall: bubblewrap runs, and init waits for its plan.

Nothing in it depends on a run yet, so it can be started ahead, during the previous run.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from cellwall.core.errors import CellwallError
from cellwall.core.forks import OwnerProcess, forget_in_child
from cellwall.core.ids import new_id
from cellwall.core.limits import LimitName, Limits
from cellwall.core.types import WorkspaceMode, WorkspaceMount
from cellwall.sandbox.linux import cgroups, outer_wall, run_cgroup
from cellwall.sandbox.linux.channels import CellPipes, EgressSockets, SupervisorEnds, ready_to_read
from cellwall.sandbox.linux.layers import HostLayers
from cellwall.sandbox.linux.outside_processes import (
    FIRST_SENT_FD,
    CellShim,
    memory_file,
    write_memory_file,
)
from cellwall.sandbox.linux.proc_usage import UsageSampler
from cellwall.sandbox.linux.process_table import is_suspended, start_time
from cellwall.sandbox.linux.programs import cell_program
from cellwall.sandbox.linux.run_io import RunIO
from cellwall.sandbox.linux.run_monitor import MonitoredRun
from cellwall.sandbox.linux.run_results import unkillable_process
from cellwall.sandbox.linux.walls import Walls
from cellwall.sandbox.run_ledger import RunLedger

_SCOPE_WITHIN_S = 20.0
_READY_WITHIN_S = 20.0
_MAX_SHAPES = 4


@dataclass(frozen=True, slots=True)
class CellShape:
    """The parameters of the outer wall. Prepared cells of equal shape are interchangeable."""

    ledger: RunLedger
    outer: outer_wall.OuterWall
    cgroup: cgroups.Choice | None = field(hash=False)
    wants_stdin: bool
    is_template: bool = False

    @classmethod
    def of(
        cls,
        walls: Walls,
        layers: HostLayers,
        ledger: RunLedger,
        *,
        wants_stdin: bool = False,
        is_template: bool = False,
    ) -> CellShape:
        cgroup = layers.cgroup if walls.cgroup else None
        return cls(ledger, walls.outer, cgroup, wants_stdin, is_template)

    @property
    def in_scope(self) -> bool:
        """A group in a systemd user scope can only be made once the shim runs in the scope."""
        return self.cgroup is not None and self.cgroup.way == "systemd-user"


class PreparedCell(MonitoredRun):
    """One prepared cell, with our ends of its pipes and sockets."""

    def __init__(self, shape: CellShape, name: str) -> None:
        self._shape = shape
        self.group: run_cgroup.RunCgroup | None = None
        self.meter: run_cgroup.Meter | None = None
        """Measures the cell: its cgroup, or samples from /proc on a host without cgroups."""
        self._failure: CellwallError | None = None
        self._is_ended = False
        self._hands_view = False
        self._view: int | None = None
        self.egress_number = -1
        """The number, in the cell, of the socket over which egress sockets are sent."""
        self.is_gone = False
        """The shim reported that no process of the cell is left."""
        with ExitStack() as stack:
            self._entry = stack.enter_context(shape.ledger.open(name))
            self.pipes = CellPipes(
                stack,
                wants_stdin=shape.wants_stdin,
                owner=shape.outer.drop_to,
                for_zygote=shape.is_template,
            )
            self._cell_fd = os.open(cell_program(), os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, self._cell_fd)
            self._plan_fd = memory_file("cellwall-init", b"")
            stack.callback(os.close, self._plan_fd)
            # Marked, so that an emergency stop finds the group without the ledger as well.
            name = f"{self._entry.id}.{shape.ledger.tag}"
            self.shim = CellShim(
                tag=shape.ledger.tag, prefix=cgroups.scope_command(name) if shape.in_scope else ()
            )
            stack.callback(self._discard_group)
            stack.callback(self.shim.close)
            self._entry.note_shim(self.shim.pid, start_time(self.shim.pid))
            if shape.cgroup is not None and not shape.in_scope:
                self.group = cgroups.make_group(
                    shape.cgroup, name, nested=shape.is_template, note=self._entry.note_groups
                )
            self._stack = stack.pop_all()

    def join_scope(self) -> None:
        """Make the group beside the shim, which systemd has put into the scope. Blocks."""
        if not self._shape.in_scope:
            return
        if not ready_to_read(self.shim, timeout_s=_SCOPE_WITHIN_S):
            self.shim.abandon()
        elif self.shim.receive() == ["hello"]:
            nested = self._shape.is_template
            self.group = cgroups.group_in_scope(self.shim.pid, nested=nested)
            return
        raise self.shim.failure("systemd-scope")

    def start_bubblewrap(
        self,
        mount: WorkspaceMount | None = None,
        tools: Sequence[outer_wall.HostDirectory] = (),
        egress: EgressSockets | None = None,
        *,
        lives_on: bool = False,
    ) -> Mapping[int, int]:
        """Returns the program's descriptors: number inside -> number in the cell."""
        self._shape.ledger.stop_flag.check()
        shown = [*(outer_wall.workspace_directories(mount) if mount else ()), *tools]
        inside = self.pipes.inside
        sent = [self._cell_fd, self._plan_fd, self.pipes.status.inside, *inside.values()]
        sent += [directory.descriptor for directory in shown]
        if egress is not None:
            sent.append(egress.inside)
        numbers = {fd: FIRST_SENT_FD + index for index, fd in enumerate(sent)}
        group, outer = self.group, self._shape.outer
        layered = mount is not None and mount.mode is WorkspaceMode.COPY_ON_WRITE
        self._hands_view = layered and lives_on
        plan = outer_wall.shim_plan(
            outer,
            shown,
            cgroup2=group.unified if group else None,
            tasks=group.tasks if group else (),
            remove=group.remove if group else (),
            layers_inside=layered and outer.drop_to is None,
            cell_fd=self._cell_fd,
            plan_fd=self._plan_fd,
            status_fd=self.pipes.status.inside,
            given=tuple(inside.values()),
            hands_view=self._hands_view,
            egress_fd=None if egress is None else egress.inside,
            number_of=numbers.__getitem__,
        )
        self.shim.begin(plan, sent)
        self.pipes.close_inside()
        self.pipes.status.close_inside()
        if egress is not None:
            self.egress_number = numbers[egress.inside]
            egress.close_inside()
        if group is not None and self._shape.in_scope:
            self._entry.note_groups(group.remove)
        return {number: numbers[fd] for number, fd in inside.items()}

    def limit(self, limits: Limits, *, io_device: str | None) -> None:
        """Write every limit to the cgroup; without one, keep the limits for the sampler."""
        if self.group is None:
            self.meter = UsageSampler(self.shim.pid, limits)
            return
        self.group.limit(limits, io_device=io_device)
        self.meter = self.group

    def start_init(self, init_plan: bytes) -> None:
        """After every limit is written: let init carry out its plan.

        The shim is in the ledger by now: a stop that begins after this check finds it.
        """
        self._shape.ledger.stop_flag.check()
        write_memory_file(self._plan_fd, init_plan)
        self.pipes.status.send("go")

    def wait_until_ready(self) -> None:
        """Block until the init of a live cell reports that its walls are built."""
        words = self._next_message()
        if words == ["view"]:
            words = self._next_message()
        if words != ["ready"]:
            raise self.shim.failure(" ".join(words or ["gone"]).removeprefix("fail "))
        if self._hands_view and self._view is None:
            raise self.shim.failure("view-sent")

    def _next_message(self) -> list[str] | None:
        line = self.pipes.status
        if not ready_to_read(line, timeout_s=_READY_WITHIN_S):
            raise self.shim.failure("ready-in-time")
        words, descriptor = line.receive_with_descriptor()
        if descriptor is not None:
            self._view = descriptor
            self._stack.callback(self._close_view)
        return words

    def take_view(self) -> int | None:
        """The mount of the merged layers, if any; the caller then owns the descriptor."""
        view, self._view = self._view, None
        return view

    def _close_view(self) -> None:
        view = self.take_view()
        if view is not None:
            os.close(view)

    def close(self) -> None:
        """Close the sockets, which ends every process of the cell, and remove the cgroup."""
        self._stack.close()

    # --- as a monitored run

    @property
    def channels(self) -> SupervisorEnds:
        return self.pipes.outside

    def status_fd(self) -> int:
        return self.shim.fileno()

    def handle_message(self) -> bool:
        match self.shim.receive():
            case ["fail", step, *rest]:
                self._failure = self.shim.failure(" ".join([step, *rest]))
            case ["ended", *_] | []:  # or the shim itself has died
                self._is_ended = True
            case _:  # "hello", or nothing yet
                pass
        return not self._is_ended

    def is_ended(self, run_io: RunIO) -> bool:
        return self._is_ended and run_io.is_over

    def begin_watching(self) -> None:
        """Init checks from the start: its plan names the program."""

    def counters(self) -> run_cgroup.Counters:
        return self.meter.counters() if self.meter else run_cgroup.Counters()

    def pids(self) -> list[int]:
        return self.meter.pids() if self.meter else []

    def kill(self, limit: LimitName | None = None) -> None:  # noqa: ARG002  # every limit ends the whole cell
        self.shim.kill()

    async def wait_gone(self) -> None:
        self.shim.release()
        while words := await self.shim.next_message():
            match words:
                case ["gone", left]:
                    self.is_gone = left == "0"
                    if not self.is_gone:
                        raise unkillable_process()
                    return
        # The shim itself was killed and has not reported the group's end: `close` discards it.

    async def abandon(self) -> None:
        self.shim.kill()
        self.shim.release()
        while await self.shim.next_message():
            continue

    def exit_words(self) -> list[str]:
        """Init reports before it exits, so the report is already here or never comes."""
        while words := self.pipes.status.receive():
            if words[0] in ("exit", "noexec", "fail"):
                return words
        return []

    def failure(self, step: str) -> CellwallError:
        return self._failure or self.shim.failure(step)

    def _discard_group(self) -> None:
        if self.group is None or self.is_gone:
            return
        if self._shape.ledger.stop_flag.is_known_set() and is_suspended(self.shim.pid):
            return  # removing the group would kill its frozen processes
        self.group.discard()


class SpareCells:
    """Prepared cells for the next run, one for each of the latest shapes; they end with us."""

    def __init__(self) -> None:
        self._lock, self._renewing = threading.Lock(), threading.Lock()
        self._owner = OwnerProcess()
        self._kept: dict[CellShape, tuple[PreparedCell, Mapping[int, int]] | None] = {}
        """None: this shape had one run so far; a process that runs once pays for no spare."""

    def take(self, shape: CellShape) -> tuple[PreparedCell, Mapping[int, int]] | None:
        with self._lock:
            spare = self._kept.get(shape)
            if spare is not None:
                self._kept[shape] = None
        if spare is not None and not spare[0].shim.is_alive():
            spare[0].close()
            return None
        return spare

    def wants(self, shape: CellShape) -> bool:
        """Whether the next run of this shape would find none: from its second run on."""
        with self._lock:
            if shape in self._kept:
                return self._kept[shape] is None
            while len(self._kept) >= _MAX_SHAPES:
                oldest = self._kept.pop(next(iter(self._kept)))
                if oldest is not None:
                    oldest[0].close()
            self._kept[shape] = None
            return False

    def renew(self, shape: CellShape) -> None:
        """Start one, if it is still wanted. May block."""
        with self._renewing:
            if not self._is_wanted(shape):
                return
            prepared = PreparedCell(shape, new_id("cell"))
            try:
                started = prepared, prepared.start_bubblewrap()
                is_kept = self._keep(shape, started)
            except BaseException:
                prepared.close()
                raise
        if not is_kept:  # forgotten meanwhile
            prepared.close()

    def _is_wanted(self, shape: CellShape) -> bool:
        with self._lock:
            return shape in self._kept and self._kept[shape] is None

    def _keep(self, shape: CellShape, spare: tuple[PreparedCell, Mapping[int, int]]) -> bool:
        with self._lock:
            is_wanted = shape in self._kept and self._kept[shape] is None
            if is_wanted:
                self._kept[shape] = spare
            return is_wanted

    def close(self) -> None:
        """End all, also one that a thread is starting."""
        with self._renewing, self._lock:
            spares, self._kept = self._kept, {}
        for each in spares.values():
            if each is not None and self._owner.is_current:
                each[0].close()

    def forget_parent(self) -> None:
        """A copy of the shim's socket would keep the parent's cell alive after the parent."""
        self._lock, self._renewing = threading.Lock(), threading.Lock()
        _parents_cells.append(self._kept)  # never finalised here: the parent ends them
        for each in self._kept.values():
            if each is not None:
                each[0].shim.drop_copy()
        self._kept, self._owner = {}, OwnerProcess()


_parents_cells: list[object] = []
spare_cells = SpareCells()
atexit.register(spare_cells.close)
forget_in_child(spare_cells)

"""Running templates, and single-use cells that are forked before a run needs them."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from cellwall.core.errors import CellwallError, SandboxFailed
from cellwall.core.forks import OwnerProcess, forget_in_child
from cellwall.sandbox.linux.forked_cell import WarmCell
from cellwall.sandbox.linux.layers import HostLayers, NativeSettings, TemplateSpec
from cellwall.sandbox.linux.pool_worker import PoolWorker
from cellwall.sandbox.linux.prefork_queue import PreforkQueue
from cellwall.sandbox.linux.template import CellRecipe, Template, TemplateGone
from cellwall.sandbox.run_ledger import RunLedger

_MAX_READY = 16
_SHRINK_AFTER_S = 5.0
_MAX_RECIPES = 8
_FORGET_AFTER_S = 60.0
_RETRY_AFTER_S = 60.0
_RECYCLE_S = 3600.0


@dataclass(slots=True)
class _ReadyCells:
    """Cells of one recipe, and the number that recent demand asks for."""

    cells: deque[WarmCell] = field(default_factory=deque)
    target: int = 1
    taken_at: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class _TemplateSlot:
    """The template of one spec, and the cells forked from it."""

    template: Template | None = None
    failed_at: float = 0.0
    used_at: float = field(default_factory=time.monotonic)
    made_at: float = 0.0
    calls: int = 0
    is_starting: bool = False
    ready: dict[CellRecipe, _ReadyCells] = field(default_factory=dict)
    prefork: PreforkQueue | None = None


class Pool:
    """One for each runtime. A caller never waits longer than it takes to make one cell."""

    def __init__(
        self,
        settings: NativeSettings,
        layers: HostLayers,
        ledger: RunLedger,
        *,
        idle_s: float,
    ) -> None:
        self._settings, self._layers, self._ledger, self._idle_s = settings, layers, ledger, idle_s
        self._tick_callbacks: list[Callable[[], None]] = []
        self._reset()
        _POOLS.add(self)
        forget_in_child(self)

    def _reset(self) -> None:
        self._owner = OwnerProcess()
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._slots: dict[TemplateSpec, _TemplateSlot] = {}
        self._users: Counter[Template] = Counter()
        self._retired: set[Template] = set()
        self._used_cells: deque[WarmCell] = deque()
        self._hits = self._misses = 0
        self.worker = PoolWorker(self._tick, self._ledger.stop_flag.is_known_set)

    # --- templates

    def template(self, spec: TemplateSpec, *, wait: bool) -> Template | None:
        """The running template. None while it starts, if the caller does not wait."""
        is_to_start = False
        with self._lock:
            slot = self._slots.setdefault(spec, _TemplateSlot())
            slot.used_at = time.monotonic()
            slot.calls += 1
            if slot.template is not None and slot.template.is_alive():
                self._hits += not wait  # who waits has asked before
                return slot.template
            if not wait:
                self._misses += 1
                # A single run does not pay for a template; a failed start is not repeated at once.
                is_worth = slot.calls > 1 and not slot.is_starting
                if is_worth and time.monotonic() - slot.failed_at > _RETRY_AFTER_S:
                    is_to_start = slot.is_starting = True
        if wait:
            return self._start(spec)
        if is_to_start:
            # Without the lock: after `close` there is no thread, and the start happens here.
            self.worker.submit(partial(self._start_quietly, spec))
        return None

    def warm_names(self) -> frozenset[str]:
        """The names of the templates that run now."""
        with self._lock:
            return frozenset(
                spec.name
                for spec, slot in self._slots.items()
                if slot.template is not None and slot.template.is_alive()
            )

    def warm_up(self, *specs: TemplateSpec) -> None:
        """Start templates, and a cell of each, in the background before the first call."""
        for spec in specs:
            with self._lock:
                self._slots.setdefault(spec, _TemplateSlot())
            self.worker.submit(partial(self._warm_up, spec))

    def _warm_up(self, spec: TemplateSpec) -> None:
        with suppress(CellwallError, OSError):
            template = self._start(spec)
            recipe = CellRecipe(self._settings.usual_limits)
            with self._lock:
                slot = self._slots.get(spec)
                if slot is None or slot.template is not template:
                    return
                self._ready_cells(slot, recipe)
                self._prefork_queue(slot, template)
                self._refill(slot, recipe)

    def _start_quietly(self, spec: TemplateSpec) -> None:
        with suppress(CellwallError, OSError):
            self._start(spec)

    def _start(self, spec: TemplateSpec) -> Template:
        with self._starting:
            slot = self._slots.get(spec)
            if slot is None:
                raise _closed_meanwhile(spec)
            if slot.template is not None and slot.template.is_alive():
                return slot.template
            self._close_slot(slot)
            try:
                template = Template(spec, self._settings, self._layers, self._ledger)
                try:
                    # The kernel may refuse the nested namespaces that cells need.
                    trial = WarmCell(template, CellRecipe(self._settings.usual_limits))
                    try:
                        trial.wait_until_ready()
                    finally:
                        self.worker.remove(trial.close())
                except BaseException:
                    template.close()
                    raise
            except CellwallError:
                slot.failed_at = time.monotonic()
                raise
            finally:
                slot.is_starting = False
            # `close` does not wait for a start, and ends only the templates that it finds.
            with self._lock:
                is_open = self._slots.get(spec) is slot
                if is_open:
                    slot.template, slot.made_at = template, time.monotonic()
            if not is_open:
                template.close()
                raise _closed_meanwhile(spec)
            return template

    def hold(self, template: Template) -> None:
        """One of its cells is in use: the template is not ended before `release`."""
        with self._lock:
            self._users[template] += 1

    def release(self, template: Template) -> None:
        with self._lock:
            self._users[template] -= 1
            is_last = self._users[template] <= 0
            if is_last:
                del self._users[template]
            is_over = is_last and template in self._retired
            if is_over:
                self._retired.remove(template)
        if is_over:
            template.close()

    def _retire(self, slot: _TemplateSlot) -> None:
        """Fork no new cells. Cells in use go on; the release of the last one ends the template."""
        template = slot.template
        if template is not None and template.is_alive() and self._users[template] > 0:
            slot.template = None
            self._retired.add(template)
        self._close_slot(slot)

    def _close_slot(self, slot: _TemplateSlot) -> None:
        template, slot.template = slot.template, None
        ready, slot.ready = slot.ready, {}
        for ready_cells in ready.values():
            while ready_cells.cells:
                ready_cells.cells.popleft().close()
        prefork, slot.prefork = slot.prefork, None
        if prefork is not None:
            prefork.close()
        if template is not None:
            template.close()  # which also removes the cgroups of all its cells

    # --- cells

    def take(self, template: Template, recipe: CellRecipe) -> WarmCell:
        """A new, unused cell: one that is ready, or one made now."""
        with self._lock:
            slot = self._slots[template.spec]
            ready_cells = self._ready_cells(slot, recipe)
            ready_cells.taken_at = time.monotonic()
            prefork = self._prefork_queue(slot, template)
            self._collect(slot, prefork)
            if not ready_cells.cells:
                # The next caller may find none either: keep more.
                ready_cells.target = min(ready_cells.target + 1, _MAX_READY)
            while True:
                while ready_cells.cells:
                    cell = ready_cells.cells.popleft()
                    if cell.is_usable():
                        self._users[cell.template] += 1
                        return cell
                    self._discard(slot, cell)
                try:
                    if not prefork.pending(recipe):
                        prefork.request(recipe)
                    prefork.wait()
                    self._collect(slot, prefork)
                except TemplateGone:
                    # Dead or too slow: the next call finds or starts another template.
                    self._retire(slot)
                    raise

    def _ready_cells(self, slot: _TemplateSlot, recipe: CellRecipe) -> _ReadyCells:
        ready_cells = slot.ready.get(recipe)
        if ready_cells is None:
            ready_cells = slot.ready[recipe] = _ReadyCells()
            while len(slot.ready) > _MAX_RECIPES:
                oldest = min(slot.ready, key=lambda each: slot.ready[each].taken_at)
                self._discard_all(slot, slot.ready.pop(oldest))
        return ready_cells

    def _prefork_queue(self, slot: _TemplateSlot, template: Template) -> PreforkQueue:
        if slot.prefork is None:
            slot.prefork = PreforkQueue(template)
        return slot.prefork

    def _collect(self, slot: _TemplateSlot, prefork: PreforkQueue) -> None:
        while (cell := prefork.receive()) is not None:
            ready_cells = slot.ready.get(cell.recipe)
            if ready_cells is None:
                self._discard(slot, cell)
            else:
                ready_cells.cells.append(cell)

    def retire_used(self, cell: WarmCell) -> None:
        """After its run. Cleaning up and forking the next cell would take processor time from the
        caller who waits for the result: `tidy_up` does both later."""
        self._used_cells.append(cell)

    def tidy_up(self) -> None:
        """After the result was returned: clean up in the background."""
        if self._used_cells:
            self.worker.submit(self._tidy_used)

    def _tidy_used(self) -> None:
        with suppress(IndexError):
            while True:
                self._tidy(self._used_cells.popleft())

    def _tidy(self, cell: WarmCell) -> None:
        group = cell.close_and_keep()
        if group is not None and not (cell.group_name and cell.is_group_clean):
            group.close_files()
        if cell.group_name is None:
            self.worker.remove(group)
        with self._lock, suppress(SandboxFailed, OSError):
            slot = self._slots.get(cell.template.spec)
            # Otherwise its template is ending, and removes the group.
            if slot is not None and slot.prefork is not None and slot.template is cell.template:
                if cell.group_name is not None:
                    slot.prefork.remove(cell.group_name, group if cell.is_group_clean else None)
                self._refill(slot, cell.recipe)
            elif group is not None:
                group.close_files()
        self.release(cell.template)

    def _refill(self, slot: _TemplateSlot, recipe: CellRecipe) -> None:
        ready_cells, prefork = slot.ready.get(recipe), slot.prefork
        if ready_cells is None or prefork is None:
            return
        for _ in range(ready_cells.target - len(ready_cells.cells) - prefork.pending(recipe)):
            prefork.request(recipe)

    def _discard(self, slot: _TemplateSlot, cell: WarmCell) -> None:
        cell.close()
        if slot.prefork is not None and cell.group_name is not None:
            slot.prefork.remove(cell.group_name)

    def _discard_all(self, slot: _TemplateSlot, ready_cells: _ReadyCells) -> None:
        while ready_cells.cells:
            self._discard(slot, ready_cells.cells.popleft())

    def counts(self) -> tuple[int, int]:
        """Running templates, and cells that are ready."""
        with self._lock:
            slots = list(self._slots.values())
            ready = sum(len(each.cells) for slot in slots for each in slot.ready.values())
        return sum(slot.template is not None for slot in slots), ready

    def uses(self) -> tuple[int, int]:
        """How many calls found their template running, and how many did not."""
        with self._lock:
            return self._hits, self._misses

    # --- upkeep

    def on_tick(self, work: Callable[[], None]) -> None:
        """Also call `work` about every second while the worker runs."""
        self._tick_callbacks.append(work)

    def stay_awake(self) -> None:
        """Run the worker for live cells, also in a pool whose templates were closed."""
        self.worker.open()
        self.worker.submit(lambda: None)

    def _tick(self) -> None:
        """End cells and templates without recent use."""
        for work in self._tick_callbacks:
            work()
        self._tidy_used()  # of runs whose caller was cancelled
        now = time.monotonic()
        with self._lock:
            for slot in self._slots.values():
                for recipe, ready_cells in list(slot.ready.items()):
                    if now - ready_cells.taken_at > _FORGET_AFTER_S:
                        self._discard_all(slot, slot.ready.pop(recipe))
                    elif now - ready_cells.taken_at > _SHRINK_AFTER_S and ready_cells.target > 1:
                        ready_cells.target -= 1
                        while len(ready_cells.cells) > ready_cells.target:
                            self._discard(slot, ready_cells.cells.pop())
                if slot.template is None:
                    continue
                in_use = bool(slot.ready) or self._users[slot.template] > 0
                idle = now - slot.used_at > self._idle_s and not in_use
                # The cells of one zygote share its address layout and hash seed: not for ever.
                if idle or now - slot.made_at > _RECYCLE_S:
                    self._retire(slot)

    def close(self) -> None:
        """End every template and every cell."""
        if not self._owner.is_current:
            return
        self._tidy_used()
        with self._lock:
            slots, self._slots = self._slots, {}
            retired, self._retired = self._retired, set()
        for slot in slots.values():
            self._close_slot(slot)
        for template in retired:
            template.close()
        self.worker.close()

    def forget_parent(self) -> None:
        """A copy of a socket would keep the parent's template alive after the parent."""
        for slot in self._slots.values():
            if slot.template is not None:
                slot.template.drop_copy()
        for template in self._retired:
            template.drop_copy()
        _parents_objects.append((self._slots, self._retired, self._used_cells))
        self._reset()


def _closed_meanwhile(spec: TemplateSpec) -> TemplateGone:
    return TemplateGone(
        f"the template {spec.name} was closed while it started",
        hint="Try again; a new one is started.",
        code="CW-TEMPLATE-GONE",
    )


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()
_parents_objects: list[object] = []
"""Never finalised in a child: their finalisers would end the parent's cells."""


def close_all() -> None:
    """End every template of this process."""
    for pool in list(_POOLS):
        pool.close()


atexit.register(close_all)

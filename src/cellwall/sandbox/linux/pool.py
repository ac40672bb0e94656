"""Templates that live, and single-use cells that stand ready before anybody needs them."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from cellwall.core.errors import CellwallError, SandboxFailed
from cellwall.sandbox.linux.housekeeper import Housekeeper
from cellwall.sandbox.linux.layers import HostLayers, NativeSettings
from cellwall.sandbox.linux.specs import Spec
from cellwall.sandbox.linux.stock import Stock, TemplateGone
from cellwall.sandbox.linux.template import Recipe, Template
from cellwall.sandbox.linux.warmcell import WarmCell
from cellwall.sandbox.run_ledger import RunLedger

_MAX_READY = 16
_QUIET_S = 5.0
_MAX_RECIPES = 8
_FORGET_AFTER_S = 60.0
_RETRY_AFTER_S = 60.0
_RECYCLE_S = 3600.0


@dataclass(slots=True)
class _Shelf:
    """Cells of one recipe, and how many of them demand has asked for lately."""

    cells: deque[WarmCell] = field(default_factory=deque)
    target: int = 1
    taken_at: float = field(default_factory=time.monotonic)


@dataclass(slots=True)
class _Place:
    """A template and what was made of it."""

    template: Template | None = None
    error: CellwallError | None = None
    failed_at: float = 0.0
    used_at: float = field(default_factory=time.monotonic)
    made_at: float = 0.0
    calls: int = 0
    is_starting: bool = False
    shelves: dict[Recipe, _Shelf] = field(default_factory=dict)
    stock: Stock | None = None


class Pool:
    """For one house. Callers never wait for more than the making of one cell."""

    def __init__(
        self,
        settings: NativeSettings,
        layers: HostLayers,
        ledger: RunLedger,
        *,
        idle_s: float,
    ) -> None:
        self._settings, self._layers, self._ledger, self._idle_s = settings, layers, ledger, idle_s
        self._reset()
        _POOLS.add(self)

    def _reset(self) -> None:
        self._made_by = os.getpid()
        self._lock = threading.Lock()
        self._starting = threading.Lock()
        self._places: dict[Spec, _Place] = {}
        self._users: Counter[Template] = Counter()
        self._retired: set[Template] = set()
        self._used: deque[WarmCell] = deque()
        self._also: list[Callable[[], None]] = []
        self.housekeeper = Housekeeper(self._tick)

    # --- templates

    def template(self, spec: Spec, *, wait: bool) -> Template | None:
        """The living template. None while it starts, where the caller does not want to wait."""
        with self._lock:
            place = self._places.setdefault(spec, _Place())
            place.used_at = time.monotonic()
            place.calls += 1
            if place.template is not None and place.template.is_alive():
                return place.template
            if not wait:
                # Who runs once does not pay for a template; a failure is not repeated at once.
                is_worth = place.calls > 1 and not place.is_starting
                if is_worth and time.monotonic() - place.failed_at > _RETRY_AFTER_S:
                    place.is_starting = True
                    self.housekeeper.do(lambda: self._start_quietly(spec))
                return None
        return self._start(spec)

    def warm_up(self, *specs: Spec) -> None:
        """Have templates, and a cell of each, ready before the first call; in the background."""
        for spec in specs:
            with self._lock:
                self._places.setdefault(spec, _Place())
            self.housekeeper.do(partial(self._warm_up, spec))

    def _warm_up(self, spec: Spec) -> None:
        with suppress(CellwallError, OSError):
            template = self._start(spec)
            recipe = Recipe(self._settings.usual_limits)
            with self._lock:
                place = self._places[spec]
                self._shelf(place, recipe)
                self._stock(place, template)
                self._refill(place, recipe)

    def _start_quietly(self, spec: Spec) -> None:
        with suppress(CellwallError, OSError):
            self._start(spec)

    def _start(self, spec: Spec) -> Template:
        with self._starting:
            place = self._places[spec]
            if place.template is not None and place.template.is_alive():
                return place.template
            self._let_go(place)
            try:
                template = Template(spec, self._settings, self._layers, self._ledger)
                try:
                    # The kernel may refuse the nested namespaces that a template lives by.
                    trial = WarmCell(template, Recipe(self._settings.usual_limits))
                    try:
                        trial.wait_until_ready()
                    finally:
                        self.housekeeper.remove(trial.close())
                except BaseException:
                    template.close()
                    raise
            except CellwallError as error:
                place.error, place.failed_at = error, time.monotonic()
                raise
            finally:
                place.is_starting = False
            place.template, place.error, place.made_at = template, None, time.monotonic()
            return template

    def hold(self, template: Template) -> None:
        """A cell of it is in use: it is not ended until that is told by `release`."""
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

    def _retire(self, place: _Place) -> None:
        """No new cells of it. Whoever uses one of its cells goes on; the last one ends it."""
        template = place.template
        if template is not None and template.is_alive() and self._users[template] > 0:
            place.template = None
            self._retired.add(template)
        self._let_go(place)

    def _let_go(self, place: _Place) -> None:
        template, place.template = place.template, None
        shelves, place.shelves = place.shelves, {}
        for shelf in shelves.values():
            while shelf.cells:
                shelf.cells.popleft().close()
        stock, place.stock = place.stock, None
        if stock is not None:
            stock.close()
        if template is not None:
            template.close()  # and the groups of all its cells go with it

    # --- cells

    def take(self, template: Template, recipe: Recipe) -> WarmCell:
        """A fresh cell nobody has used: one that stands ready, or one made now."""
        with self._lock:
            place = self._places[template.spec]
            shelf = self._shelf(place, recipe)
            shelf.taken_at = time.monotonic()
            stock = self._stock(place, template)
            self._take_in(place, stock)
            if not shelf.cells:
                # Somebody may soon come and find nothing again: more are wanted.
                shelf.target = min(shelf.target + 1, _MAX_READY)
            while True:
                while shelf.cells:
                    cell = shelf.cells.popleft()
                    if cell.is_usable():
                        self._users[cell.template] += 1
                        return cell
                    self._discard(place, cell)
                try:
                    if not stock.expected(recipe):
                        stock.ask(recipe)
                    stock.wait()
                    self._take_in(place, stock)
                except TemplateGone:
                    # Dead or too slow: the next call finds, or starts, another one.
                    self._retire(place)
                    raise

    def _shelf(self, place: _Place, recipe: Recipe) -> _Shelf:
        shelf = place.shelves.get(recipe)
        if shelf is None:
            shelf = place.shelves[recipe] = _Shelf()
            while len(place.shelves) > _MAX_RECIPES:
                oldest = min(place.shelves, key=lambda each: place.shelves[each].taken_at)
                self._clear(place, place.shelves.pop(oldest))
        return shelf

    def _stock(self, place: _Place, template: Template) -> Stock:
        if place.stock is None:
            place.stock = Stock(template)
        return place.stock

    def _take_in(self, place: _Place, stock: Stock) -> None:
        while (cell := stock.taken()) is not None:
            shelf = place.shelves.get(cell.recipe)
            if shelf is None:
                self._discard(place, cell)
            else:
                shelf.cells.append(cell)

    def used(self, cell: WarmCell) -> None:
        """Its run has ended. Tidying up after it, and making the next one, takes the processors
        from whoever waits for the answer: see `tidy_up`."""
        self._used.append(cell)

    def tidy_up(self) -> None:
        """The answers are given: now there is time."""
        if self._used:
            self.housekeeper.do(self._tidy_used)

    def _tidy_used(self) -> None:
        with suppress(IndexError):
            while True:
                self._tidy(self._used.popleft())

    def _tidy(self, cell: WarmCell) -> None:
        group = cell.close()
        if cell.group_name is None:
            self.housekeeper.remove(group)
        with self._lock, suppress(SandboxFailed, OSError):
            place = self._places.get(cell.template.spec)
            # Else its template is on its way out, and takes the group along.
            if place is not None and place.stock is not None and place.template is cell.template:
                if cell.group_name is not None:
                    place.stock.remove(cell.group_name, is_clean=cell.is_group_clean)
                self._refill(place, cell.recipe)
        self.release(cell.template)

    def _refill(self, place: _Place, recipe: Recipe) -> None:
        shelf, stock = place.shelves.get(recipe), place.stock
        if shelf is None or stock is None:
            return
        for _ in range(shelf.target - len(shelf.cells) - stock.expected(recipe)):
            stock.ask(recipe)

    def _discard(self, place: _Place, cell: WarmCell) -> None:
        cell.close()
        if place.stock is not None and cell.group_name is not None:
            place.stock.remove(cell.group_name, is_clean=False)

    def _clear(self, place: _Place, shelf: _Shelf) -> None:
        while shelf.cells:
            self._discard(place, shelf.cells.popleft())

    def on_tick(self, work: Callable[[], None]) -> None:
        """Also done about every second, once anything lives here."""
        self._also.append(work)

    def stay_awake(self) -> None:
        """Something lives that is to be looked at, also in a pool whose templates were ended."""
        self.housekeeper.open()
        self.housekeeper.do(lambda: None)

    def _tick(self) -> None:
        """Let go of what nobody has asked for."""
        for work in self._also:
            work()
        self._tidy_used()  # of runs whose caller went away
        now = time.monotonic()
        with self._lock:
            for place in self._places.values():
                for recipe, shelf in list(place.shelves.items()):
                    if now - shelf.taken_at > _FORGET_AFTER_S:
                        self._clear(place, place.shelves.pop(recipe))
                    elif now - shelf.taken_at > _QUIET_S and shelf.target > 1:
                        shelf.target -= 1
                        while len(shelf.cells) > shelf.target:
                            self._discard(place, shelf.cells.pop())
                if place.template is None:
                    continue
                in_use = bool(place.shelves) or self._users[place.template] > 0
                idle = now - place.used_at > self._idle_s and not in_use
                # Cells of one zygote share its memory's layout and its hash seed: not for ever.
                if idle or now - place.made_at > _RECYCLE_S:
                    self._retire(place)

    def close(self) -> None:
        """End every template, and with them every cell."""
        if self._made_by != os.getpid():
            return
        self._tidy_used()
        with self._lock:
            places, self._places = self._places, {}
            retired, self._retired = self._retired, set()
        for place in places.values():
            self._let_go(place)
        for template in retired:
            template.close()
        self.housekeeper.close()

    def forget_parent(self) -> None:
        """After a fork: nothing of the parent's is ours; a copy of a line would keep it alive."""
        for place in self._places.values():
            if place.template is not None:
                place.template.drop_copy()
        for template in self._retired:
            template.drop_copy()
        _of_parents.append((self._places, self._retired, self._used))
        also = self._also
        self._reset()
        self._also = also


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()
_of_parents: list[object] = []


def close_all() -> None:
    """End every template of this process."""
    for pool in list(_POOLS):
        pool.close()


def _forget_parents() -> None:
    for pool in _POOLS:
        pool.forget_parent()


atexit.register(close_all)
os.register_at_fork(after_in_child=_forget_parents)

"""Templates that live, and single-use cells that stand ready before anybody needs them."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from holdfast.core.errors import HoldfastError
from holdfast.sandbox.native.groups import Group
from holdfast.sandbox.native.housekeeper import Housekeeper
from holdfast.sandbox.native.layers import HostLayers, NativeSettings
from holdfast.sandbox.native.specs import Spec
from holdfast.sandbox.native.template import Recipe, Template
from holdfast.sandbox.native.warmcell import WarmCell
from holdfast.sandbox.runs import RunLedger

_MOST_READY = 16
_BREATH_S = 0.002
"""The run that has just ended is still being recorded."""
_MOST_RECIPES = 8
_FORGET_AFTER_S = 60.0
_RETRY_AFTER_S = 60.0


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
    error: HoldfastError | None = None
    failed_at: float = 0.0
    used_at: float = field(default_factory=time.monotonic)
    calls: int = 0
    is_starting: bool = False
    live: int = 0
    shelves: dict[Recipe, _Shelf] = field(default_factory=dict)


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
        with suppress(HoldfastError, OSError):
            template = self._start(spec)
            recipe = Recipe(self._settings.usual_limits)
            with self._lock:
                self._places[spec].shelves.setdefault(recipe, _Shelf())
            self._refill(template, recipe)

    def _start_quietly(self, spec: Spec) -> None:
        with suppress(HoldfastError, OSError):
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
            except HoldfastError as error:
                place.error, place.failed_at = error, time.monotonic()
                raise
            finally:
                place.is_starting = False
            place.template, place.error = template, None
            return template

    def hold(self, template: Template) -> Callable[[], None]:
        """A live cell is made of it: it is not let go until the answer is called."""
        place = self._places[template.spec]
        with self._lock:
            place.live += 1

        def release() -> None:
            with self._lock:
                place.live -= 1

        return release

    def why_not(self, spec: Spec) -> HoldfastError | None:
        place = self._places.get(spec)
        return None if place is None else place.error

    def _let_go(self, place: _Place) -> None:
        template, place.template = place.template, None
        shelves, place.shelves = place.shelves, {}
        for shelf in shelves.values():
            while shelf.cells:
                self.housekeeper.remove(shelf.cells.popleft().close())
        if template is not None:
            template.close()

    # --- cells

    def take(self, template: Template, recipe: Recipe) -> WarmCell:
        """A fresh cell nobody has used: one that stands ready, or one made now."""
        with self._lock:
            place = self._places[template.spec]
            shelf = place.shelves.get(recipe)
            if shelf is None:
                shelf = place.shelves[recipe] = _Shelf()
                self._forget_oldest(place)
            shelf.taken_at = time.monotonic()
            found = None
            while shelf.cells and found is None:
                cell = shelf.cells.popleft()
                if cell.template is template and cell.is_usable():
                    found = cell
                else:
                    self.housekeeper.remove(cell.close())
            if not shelf.cells:
                # Somebody may soon come and find nothing: more are wanted.
                shelf.target = min(shelf.target + 1, _MOST_READY)
        return found if found is not None else WarmCell(template, recipe)

    def used(self, cell: WarmCell) -> None:
        """Its run has ended: tidy up, and only now make the next, which costs the same processors."""
        group = cell.close()
        after = partial(self._after, cell.template, cell.recipe, group)
        self.housekeeper.do(after, after_s=_BREATH_S)

    def _after(self, template: Template, recipe: Recipe, group: Group | None) -> None:
        self._refill(template, recipe)
        self.housekeeper.leave_to_die(group)

    def _forget_oldest(self, place: _Place) -> None:
        while len(place.shelves) > _MOST_RECIPES:
            oldest = min(place.shelves, key=lambda recipe: place.shelves[recipe].taken_at)
            for cell in place.shelves.pop(oldest).cells:
                self.housekeeper.remove(cell.close())

    def _refill(self, template: Template, recipe: Recipe) -> None:
        while True:
            with self._lock:
                place = self._places.get(template.spec)
                shelf = None if place is None else place.shelves.get(recipe)
                if place is None or shelf is None or place.template is not template:
                    return
                if len(shelf.cells) >= shelf.target:
                    return
            cell = WarmCell(template, recipe)
            with self._lock:
                is_wanted = place.shelves.get(recipe) is shelf
                if is_wanted:
                    shelf.cells.append(cell)
            if not is_wanted:  # let go of in the meantime
                self.housekeeper.remove(cell.close())
                return

    def _tick(self) -> None:
        """Let go of what nobody has asked for."""
        now = time.monotonic()
        with self._lock:
            for place in self._places.values():
                for recipe, shelf in list(place.shelves.items()):
                    if now - shelf.taken_at > _FORGET_AFTER_S:
                        for cell in place.shelves.pop(recipe).cells:
                            self.housekeeper.remove(cell.close())
                    elif now - shelf.taken_at > 5.0 and shelf.target > 1:
                        shelf.target -= 1
                        while len(shelf.cells) > shelf.target:
                            self.housekeeper.remove(shelf.cells.pop().close())
                idle = not place.live and now - place.used_at > self._idle_s
                if idle and place.template is not None and not place.shelves:
                    self._let_go(place)

    def close(self) -> None:
        """End every template, and with them every cell."""
        if self._made_by != os.getpid():
            return
        with self._lock:
            places, self._places = self._places, {}
        for place in places.values():
            self._let_go(place)
        self.housekeeper.close()

    def forget_parent(self) -> None:
        """After a fork: nothing of the parent's is ours; a copy of a line would keep it alive."""
        for place in self._places.values():
            if place.template is not None:
                place.template.drop_copy()
        _of_parents.append(self._places)
        self._reset()


_POOLS: weakref.WeakSet[Pool] = weakref.WeakSet()
_of_parents: list[object] = []


def close_all() -> None:
    for pool in list(_POOLS):
        pool.close()


def _forget_parents() -> None:
    for pool in _POOLS:
        pool.forget_parent()


atexit.register(close_all)
os.register_at_fork(after_in_child=_forget_parents)

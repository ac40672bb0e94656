"""The runtimes a supervisor keeps, one for each way in which its clients are configured."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from cellwall.runtime.wiring import House, open_house, settings_files

_MAX_HOUSES = 8
Key = tuple[object, ...]


@dataclass(slots=True)
class _Kept:
    house: House
    guests: int = 0
    is_retired: bool = False


class Houses:
    """A configuration file that was changed, added or removed makes another runtime.

    Whoever takes one gives it back: a runtime with a run or a sandbox in it is never closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Key, _Kept] = {}
        self._of: dict[int, _Kept] = {}

    def take(self, config: str | None, profile: str | None, shaping: Mapping[str, str]) -> House:
        files = tuple(_stamp(path) for path in settings_files(config, shaping))
        key: Key = (config, profile, tuple(sorted(shaping.items())), files)
        # Under the lock: clients that come while it is opened wait for it, and open no second one.
        with self._lock:
            kept = self._kept.pop(key, None)
            if kept is None:
                kept = _Kept(open_house(config=config, profile=profile, environ=shaping))
                kept.house.warm_up()
                self._of[id(kept.house)] = kept
                while len(self._kept) >= _MAX_HOUSES:
                    self._retire(self._kept.pop(next(iter(self._kept))))
            self._kept[key] = kept  # the one used last is let go last
            kept.guests += 1
            return kept.house

    def give_back(self, house: House) -> None:
        with self._lock:
            kept = self._of[id(house)]
            kept.guests -= 1
            if kept.is_retired:
                self._retire(kept)

    def _retire(self, kept: _Kept) -> None:
        kept.is_retired = True
        if not kept.guests:
            del self._of[id(kept.house)]
            # It may take a moment, and whoever is here has something else to do.
            threading.Thread(target=kept.house.close, name="cellwall-close", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            everything, self._of, self._kept = list(self._of.values()), {}, {}
        for kept in everything:
            kept.house.close()


def _stamp(path: str) -> tuple[object, ...]:
    try:
        info = os.stat(path)
    except OSError:
        return (path, None)
    return (path, info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size)

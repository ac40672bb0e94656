"""The runtimes a supervisor keeps, one for each way in which its clients are configured."""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.runtime.wiring import House, open_house, settings_files

_MOST_HOUSES = 8
Key = tuple[object, ...]


class Houses:
    """A configuration file that was changed, added or removed makes another runtime."""

    def __init__(self) -> None:
        self._houses: dict[Key, House] = {}

    def get(self, config: str | None, profile: str | None, shaping: Mapping[str, str]) -> House:
        files = tuple(_stamp(path) for path in settings_files(config, shaping))
        key: Key = (config, profile, tuple(sorted(shaping.items())), files)
        house = self._houses.pop(key, None)
        if house is None:
            house = open_house(config=config, profile=profile, environ=shaping)
            house.warm_up()
            while len(self._houses) >= _MOST_HOUSES:
                self._houses.pop(next(iter(self._houses))).close()
        self._houses[key] = house  # the one used last is let go last
        return house

    def close(self) -> None:
        while self._houses:
            self._houses.popitem()[1].close()


def _stamp(path: str) -> tuple[object, ...]:
    try:
        info = os.stat(path)
    except OSError:
        return (path, None)
    return (path, info.st_dev, info.st_ino, info.st_mtime_ns, info.st_size)

"""Which worker runs which tests: a file, or a group, is run by one of them, the slowest first.

`--dist loadgroup` hands out single tests. What a module or a worker prepares for its tests is then
prepared by each worker, and the controller looks at all tests run so far whenever one is done: of
25,000 tests that alone took 40 s.

`.venv/bin/python tests/scheduling.py` writes `slow_files.json` anew, from the last whole run here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

# A worker that is left alone at the end shall have little left to do.
FIRST_FOLDERS = (
    *("tests/examples/", "tests/adversarial/", "tests/interfaces/", "tests/fuzz/"),
    "tests/contract/",
)
_SLOW_FILES = Path(__file__).with_name("slow_files.json")
# For a new clone: the seconds of a whole run elsewhere. Only their order counts.
SLOW_FILES: Mapping[str, float] = json.loads(_SLOW_FILES.read_text())
_SLOW_S = 4.0


def find_scope(nodeid: str) -> str:
    """The group, which xdist appends to the name; else the file."""
    is_grouped = nodeid.rfind("@") > nodeid.rfind("]")
    return nodeid.rsplit("@", 1)[1] if is_grouped else nodeid.partition("::")[0]


def rank_scope(scope: str, tests: int, seconds: Mapping[str, float]) -> tuple[int, float]:
    """The slowest first, by the seconds of earlier runs in this clone; before them what is new:
    groups, then the files of `SLOW_FILES`, then the slow folders, then the rest, of each the ones
    with many tests first.
    """
    if scope in seconds:
        return len(FIRST_FOLDERS) + 3, -seconds[scope]
    if not scope.endswith(".py"):
        return 0, -tests
    if scope in SLOW_FILES:
        return 1, -SLOW_FILES[scope]
    found = [place for place, folder in enumerate(FIRST_FOLDERS, 2) if scope.startswith(folder)]
    return (*found, len(FIRST_FOLDERS) + 2)[0], -tests


class ScopeSeconds:
    """How long each file and group took, kept in pytest's cache, apart for `--fast`."""

    def __init__(self, config: pytest.Config) -> None:
        self._cache = getattr(config, "cache", None)  # none with `-p no:cacheprovider`
        self._key = f"cellwall/seconds{'-fast' * config.getoption('--fast')}"
        self.known: dict[str, float] = {}
        if self._cache is not None:
            self.known = self._cache.get(self._key, {})
        self._running: dict[str, float] = {}

    def add(self, scope: str, seconds: float, *, is_last: bool) -> None:
        self._running[scope] = self._running.get(scope, 0.0) + seconds
        if is_last:
            self.known[scope] = round(self._running.pop(scope), 2)

    @pytest.hookimpl
    def pytest_sessionfinish(self) -> None:
        if self._cache is not None:
            self._cache.set(self._key, self.known)


class FilesInTurn(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    def __init__(self, config: pytest.Config, log: object) -> None:
        super().__init__(config, log)
        self._seconds = ScopeSeconds(config)
        config.pluginmanager.register(self._seconds, "scope-seconds")

    def _split_scope(self, nodeid: str) -> str:
        return find_scope(nodeid)

    def schedule(self) -> None:
        """All scopes are known before the first is handed out: order them as they are added."""
        if self.collection is None and self.registered_collections:
            sizes: dict[str, int] = {}
            for nodeid in next(iter(self.registered_collections.values())):
                scope = find_scope(nodeid)
                sizes[scope] = sizes.get(scope, 0) + 1
            known = self._seconds.known
            for scope in sorted(sizes, key=lambda scope: rank_scope(scope, sizes[scope], known)):
                self.workqueue[scope] = {}
        super().schedule()
        if self.collection is None:  # the workers found different tests
            self.workqueue.clear()

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        scope = find_scope(self.registered_collections[node][item_index])
        super().mark_test_complete(node, item_index, duration)
        # What is done needs not be counted again with each further test.
        is_last = all(self.assigned_work[node][scope].values())
        self._seconds.add(scope, duration, is_last=is_last)
        if is_last:
            del self.assigned_work[node][scope]


def slow_files(seconds: Mapping[str, float]) -> dict[str, float]:
    """Those of `SLOW_FILES`, the slowest first; groups come first without it."""
    slowest = sorted(seconds.items(), key=lambda each: (-each[1], each[0]))
    return {
        scope: round(time_s, 1)
        for scope, time_s in slowest
        if time_s >= _SLOW_S and scope.endswith(".py") and Path(scope).is_file()
    }


if __name__ == "__main__":
    known = Path(".pytest_cache/v/cellwall/seconds").read_text()
    _SLOW_FILES.write_text(json.dumps(slow_files(json.loads(known)), indent=1) + "\n")

"""The first collection in a new clone: one worker imports everything, the others rewrite test modules.

pytest compiles each test module with its assertions rewritten, which takes half a minute of processor
time for all of them, and Python compiles what they import. Workers that collect at the same time would
each do all of that. So the first worker collects alone; the others rewrite the modules meanwhile, from
the last one on, and collect when it is done: then everything is compiled.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite

VARIABLE = "CELLWALL_FIRST_COLLECTION"
"""`./dev test` sets it where nothing has been compiled."""
_WAIT_S = 300.0


class FirstCollection:
    """The pytest plugin of a worker."""

    def __init__(self, config: pytest.Config, worker: Mapping[str, Any]) -> None:
        self._config = config
        self._number = int(worker["workerid"].removeprefix("gw"))
        self._others = int(worker["workercount"]) - 1
        self._done = Path(tempfile.gettempdir(), f"cellwall-collected-{worker['testrunuid']}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        if self._number == 0:
            try:
                return (yield)
            finally:
                self._done.touch()
        modules = sorted(self._config.rootpath.glob("tests/**/test_*.py"), reverse=True)
        for module in modules[self._number - 1 :: self._others]:
            if self._done.exists():
                break
            rewrite_module(module, self._config)
        deadline = time.monotonic() + _WAIT_S
        while not self._done.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        return (yield)

    def pytest_sessionfinish(self) -> None:
        if self._number == 0:
            self._done.unlink(missing_ok=True)


def rewrite_module(module: Path, config: pytest.Config) -> None:
    """Write the file that pytest loads instead of the module, as its import hook does."""
    folder = rewrite.get_cache_dir(module)
    compiled = folder / f"{module.stem}{rewrite.PYC_TAIL}"
    if sys.dont_write_bytecode or compiled.exists() or not rewrite.try_makedirs(folder):
        return
    try:
        stat, code = rewrite._rewrite_test(module, config)
    except SyntaxError:
        return  # the collection tells of it
    rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, stat, compiled)


def is_first_collection(config: pytest.Config) -> bool:
    """Asked once by each worker: processes of its tests get no such variable."""
    return hasattr(config, "workerinput") and os.environ.pop(VARIABLE, "") == "1"

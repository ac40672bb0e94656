"""A waiting interpreter: everything common is imported, and cells are forked from it.

It holds no secret and no network, reads nothing that code wrote, and runs no code itself: the loop
that makes cells is C (cell/zygote.c), and returns only in an interpreter inside a finished cell.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONTROL = 3
WARM_UP = b"import sys\nx = [str(n) for n in range(3)]\nprint(end='')\n(x and None)"


def preload(names: list[str]) -> None:
    """Import what most code imports; what is not there, or does not import, is left out."""
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            print(f"not preloaded: {name}: {type(error).__name__}", file=sys.stderr)


def main(runner: Any, names: list[str], paths: list[str]) -> None:
    """Prepare, serve, and become one of the forked interpreters."""
    sys.path += paths
    preload(names)
    show = runner.load("show")
    show.prepare_plots()
    library = ctypes.PyDLL("/.holdfast/cell.so")
    before, after = ctypes.pythonapi.PyOS_BeforeFork, ctypes.pythonapi.PyOS_AfterFork_Child
    before.restype = after.restype = None
    gc.collect()
    gc.freeze()  # its pages stay shared: no later collection writes to them
    before()
    if library.holdfast_zygote(CONTROL) != 0:
        os._exit(125)
    after()  # new locks and thread ids; `random` seeds itself anew
    renew_randomness()
    channel = runner.Channel()
    os.set_inheritable(runner.CHANNEL, False)
    session = runner.Session(channel)
    # Touches the pages that any code will touch, while nobody waits for it yet.
    compile(WARM_UP, "<holdfast>", "exec")
    exec(compile(WARM_UP, "<holdfast>", "exec"), {})
    session.serve()


def renew_randomness() -> None:
    """Cells of one template must not draw the same numbers."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "uuid" in sys.modules:
        sys.modules["uuid"]._node = None  # type: ignore[attr-defined]  # drawn anew when asked for

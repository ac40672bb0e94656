"""A waiting interpreter: everything common is imported, and cells are forked from it.

It holds no secret and no network, reads nothing that code wrote, and runs no code itself: the loop
that makes cells is C (cell/zygote.c), and returns only in an interpreter inside a finished cell.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

CONTROL = 3
EMPTY = {"code": 0, "env": {}, "stdin": None, "tools": []}
WARM_UP = b"import sys\nx = {n: str(n) for n in range(3)}\nprint('', end='')\n1"


def preload(names: list[str]) -> None:
    """Import what most code imports; what is not there, or does not import, is left out."""
    for name in names:
        before = set(sys.modules)
        try:
            importlib.import_module(name)
        except Exception as error:
            print(f"not preloaded: {name}: {type(error).__name__}", file=sys.stderr)
            for half_made in set(sys.modules) - before:
                del sys.modules[half_made]


def main() -> None:
    """Prepare, serve, and become one of the forked interpreters."""
    with open("/.cellwall/template.json", "rb") as file:
        wanted = json.load(file)
    import _cellwall_runner as runner  # type: ignore[import-not-found]  # there, inside

    show = runner.show()
    # Of the standard library, while no package is in reach: its optional imports (`copy` looks for
    # `org.python.core`) would run a module of a package here, before any cell has its walls.
    preload(wanted["preload"])
    runner.add_packages(wanted["paths"])
    if any(name.startswith("matplotlib") for name in wanted["packages"]):
        show.prepare_plots()
    preload(wanted["packages"])
    # They were for the imports; a cold interpreter has none of them either.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.pop(name, None)
    library = ctypes.PyDLL("/.cellwall/cell.so")
    before, after = ctypes.pythonapi.PyOS_BeforeFork, ctypes.pythonapi.PyOS_AfterFork_Child
    before.restype = after.restype = None
    # What the standard library registered has nothing to do in a process that only just begins.
    atexit._clear()
    gc.collect()
    gc.freeze()  # its pages stay shared: no later collection writes to them
    before()
    if library.cellwall_zygote(CONTROL) != 0:
        os._exit(125)
    after()  # new locks and thread ids; `random` seeds itself anew
    restore_signals()
    renew_randomness()
    channel = runner.Channel()
    runner.keep_channel()
    # Touches the pages that any code will touch, while nobody waits for it yet.
    runner.Session(Silence()).run(dict(EMPTY), WARM_UP)
    runner.Session(channel).serve()


class Silence:
    """A channel for the rehearsal."""

    def write(self, message: dict[str, Any]) -> None:
        json.loads(json.dumps(message))


def restore_signals() -> None:
    """As every Python has them; the cell's init, our parent, wants none."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def renew_randomness() -> None:
    """Cells of one template must not draw the same numbers."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "uuid" in sys.modules:
        sys.modules["uuid"]._node = None  # type: ignore[attr-defined]  # drawn anew when asked for

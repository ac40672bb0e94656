"""The zygote: a waiting interpreter with common modules imported, from which cells are forked.

The zygote holds no secret, has no network, reads no bytes of untrusted code and runs no untrusted
code: the loop that forks cells is C (cell/zygote.c), and returns only in the interpreter of a
finished cell.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found, unused-ignore]  # the C part of `signal`, without stubs
import atexit
import ctypes
import gc
import importlib
import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cellwall.sandbox.inside.channel import (
        REPORTS,
        REQUESTS,
        Channel,
        encode_json,
        protect_channel,
    )
else:
    from _cellwall_channel import REPORTS, REQUESTS, Channel, encode_json, protect_channel

CONTROL = 3
CELL, REHEARSAL = 0, 1  # what a child of the C loop is (cell/zygote.c)
SETTLED_AFTER = 20  # Python 3.11 adapts code after 8 calls, and tries again in growing distances
EMPTY = {"code": 0, "env": {}, "stdin": None, "tools": []}
WARM_UP = b"import sys\nx = {n: str(n) for n in range(3)}\nprint('', end='')\n1"


def preload(names: list[str]) -> None:
    """Import modules that most code uses; one that is missing or fails to import is skipped."""
    for name in names:
        before = set(sys.modules)
        try:
            importlib.import_module(name)
        except Exception as error:
            print(f"not preloaded: {name}: {type(error).__name__}", file=sys.stderr)
            for half_made in set(sys.modules) - before:
                del sys.modules[half_made]


def main() -> None:
    """Prepare, serve requests, and return in each forked interpreter."""
    with open("/.cellwall/template.json", "rb") as file:
        template = json.load(file)
    import _cellwall_runner as runner  # type: ignore[import-not-found]  # exists inside the cell

    show = runner.show()
    runner.load("_cellwall_tools")
    # The standard library first, while no package is on the path: its optional imports (`copy`
    # tries `org.python.core`) would run a module of a package here, before a cell has its walls.
    preload(template["preload"])
    runner.add_packages(template["paths"])
    if any(name.startswith("matplotlib") for name in template["packages"]):
        show.prepare_plots()
    preload(template["packages"])
    # Only for the imports; a cold interpreter has none of them either.
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        os.environ.pop(name, None)
    library = ctypes.PyDLL("/.cellwall/cell.so")
    before, after = ctypes.pythonapi.PyOS_BeforeFork, ctypes.pythonapi.PyOS_AfterFork_Child
    before.restype = after.restype = None
    tell_touched = library.cellwall_tell_touched  # looked up here: that takes pages as well
    frame = settle(runner)
    # Handlers that the standard library registered must not run in a new process.
    atexit._clear()
    gc.collect()
    gc.freeze()  # pages stay shared: no later collection writes to them
    before()
    role = library.cellwall_zygote(CONTROL)
    if role not in (CELL, REHEARSAL):
        os._exit(125)
    after()  # new locks and thread ids; `random` reseeds itself
    restore_signals()
    renew_randomness()
    if role == REHEARSAL:
        rehearse(runner, frame)
        tell_touched()
        os._exit(0)
    channel = Channel()
    protect_channel()
    # Faults in the pages that any code touches, while no caller waits.
    runner.CodeSession(NullChannel()).run(dict(EMPTY), WARM_UP)
    runner.CodeSession(channel).serve()


def request_frame(code: bytes) -> bytes:
    """A request to run this code, as the supervisor sends it to a single-use cell."""
    request = {**EMPTY, "once": True, "base": dict(os.environ), "paths": []}
    text = json.dumps(request).encode()
    return len(text).to_bytes(4, "big") + len(code).to_bytes(4, "big") + text + code


def settle(runner: Any) -> bytes:
    """Run code of our own until the interpreter adapts its instructions and caches no more.

    It writes them into the objects of the code and into its own variables: each cell would do so
    anew, in pages of its own. Returns the frame of the rehearsal, which takes pages as well.
    """
    import builtins

    main, path = sys.modules["__main__"], list(sys.path)
    frame = request_frame(WARM_UP)
    for _ in range(SETTLED_AFTER):
        channel = GivenChannel(frame)
        request = channel.wait("code")
        if request is not None:
            runner.CodeSession(channel).run(*request)
        restore_signals()
    sys.modules["__main__"], sys.path[:] = main, path
    vars(builtins).pop("display")  # that of the last of our own sessions
    return request_frame(WARM_UP.replace(b"'', end=''", b"1"))


def rehearse(runner: Any, frame: bytes) -> None:
    """Run one piece of code from its frame to its report, as the interpreter of a cell does."""
    channel = Channel()
    for given in (1, 2, REPORTS):
        reading, writing = os.pipe()
        os.dup2(writing, given)
    reading, writing = os.pipe()
    os.dup2(reading, REQUESTS)
    os.write(writing, frame)
    protect_channel()
    runner.CodeSession(NullChannel()).run(dict(EMPTY), WARM_UP)
    session = runner.CodeSession(channel)
    request = channel.wait("code")
    if request is not None:
        session.run(*request)


class GivenChannel(Channel):
    """Has one frame and no descriptors."""

    def __init__(self, frame: bytes) -> None:
        super().__init__()
        self._buffer += frame

    def write(self, message: dict[str, Any]) -> None:
        encode_json(message)


class NullChannel:
    """Discards the report of the warm-up run."""

    def write(self, message: dict[str, Any]) -> None:
        json.loads(json.dumps(message))


def restore_signals() -> None:
    """As in every Python; the cell's init, the parent, has reset them. By the C part of `signal`,
    which makes no members of enumerations."""
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
    _signal.signal(_signal.SIGXFSZ, _signal.SIG_IGN)


def renew_randomness() -> None:
    """Cells of one template must not draw the same random numbers."""
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "uuid" in sys.modules:
        sys.modules["uuid"]._node = None  # type: ignore[attr-defined]  # drawn again on demand

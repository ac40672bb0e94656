"""pip, started so that it can start no program and, if asked, write in one directory alone.

Audit hooks hold in Python alone and cannot be taken away. No code of a package runs in pip, so
there is nobody inside to go around them; what they stop is pip itself, led by what it reads.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

from cellwall.sandbox.templates import installer

REFUSED = "cellwall: no program may be started"
REFUSED_PLACE = "cellwall: nothing may be written there"
WITHIN_S = 1800.0
_SCRIPT = f"""
import os, signal, sys
signal.alarm({int(WITHIN_S)})  # also where nobody is left to end it: it holds a lock
place, only_in = sys.argv.pop(1), sys.argv.pop(1)
STARTS = {{"subprocess.Popen", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.fork",
          "os.forkpty", "pty.spawn"}}
CHANGES = {{"os.rename", "os.link", "os.symlink", "os.mkdir", "os.chmod", "os.chown", "os.remove",
           "os.rmdir", "os.truncate"}}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
def is_outside(path):
    if not isinstance(path, (str, bytes)):
        return False  # a descriptor
    real = os.path.realpath(os.fsdecode(path))
    return real != os.devnull and not (real + "/").startswith(only_in + "/")
def refuse(event, given):
    if event in STARTS:
        raise PermissionError({REFUSED!r})
    if only_in and (
        (event == "open" and given[2] & WRITES and is_outside(given[0]))
        # A name that is not absolute is one in a directory that was opened.
        or (event in CHANGES and any(map(is_outside, filter(os.path.isabs, names(given)))))
    ):
        raise PermissionError({REFUSED_PLACE!r})
def names(given):
    return [each for each in given if isinstance(each, (str, bytes))]
sys.addaudithook(refuse)
if place:
    sys.path.insert(0, place)
import runpy
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


def ways(
    python: str, words: tuple[str, ...], *, only_in: str = ""
) -> Iterator[tuple[list[str], tuple[str, ...]]]:
    """Its own pip, the wheels of pip that fit it, the pip beside Cellwall. Not uv: a hook of ours
    holds in no program that is not Python."""
    beside = importlib.util.find_spec("pip")
    folders = [
        os.path.dirname(place) for place in (beside and beside.submodule_search_locations) or ()
    ]
    kept = os.path.realpath(only_in) if only_in else ""
    for place in ("", *installer.pip_wheels(python), *folders):
        yield [python, "-I", "-c", _SCRIPT, place, kept], words

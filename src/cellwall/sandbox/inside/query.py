"""Runs inside a cell without network: uv looks at the Pythons here, and its answers are printed.

uv starts an interpreter to learn its version and paths, and keeps the answer in its cache. The
entries of that cache are printed as one line of JSON: path below the cache -> content in base64.
"""

from __future__ import annotations

import base64
import json
import os
import sys

_CACHE = "/tmp/.cellwall-query"
"""/tmp belongs to this cell alone."""
_FIND = ("python", "find", "--no-config", "--no-project", "--quiet", "--cache-dir", _CACHE)


def main(uv: str, *pythons: str) -> int:
    """Ask about each of these Pythons, by its path."""
    for python in pythons:
        _ask(uv, python)
    print(json.dumps(_entries()))
    return 0


def _ask(uv: str, python: str) -> None:
    words = (uv, *_FIND, "--system", python)
    actions = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    child = os.posix_spawn(uv, words, os.environ, file_actions=actions)  # noqa: TID251  # inside a cell
    os.waitpid(child, 0)


def _entries() -> dict[str, str]:
    found = {}
    for folder, _, files in os.walk(_CACHE):
        for path in (os.path.join(folder, name) for name in files if name.endswith(".msgpack")):
            with open(path, "rb") as file:
                found[os.path.relpath(path, _CACHE)] = base64.b64encode(file.read()).decode()
    return found


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

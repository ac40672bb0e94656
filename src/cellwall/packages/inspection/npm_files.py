"""Which files of an npm package Node runs, whatever their folders and suffixes are (PKG-1).

Tests, documents and examples are not loaded, so they are not screened: unless the manifest or the
code of the package names one. Node runs a file without the suffix of JavaScript as JavaScript.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cellwall.core.limits import MIB
from cellwall.packages.inspection.code_screening import JAVASCRIPT
from cellwall.parsing.budget import checked

MAX_SPARE_BYTES = 32 * MIB
_MAX_FILE_BYTES = MIB
_NOT_LOADED = frozenset({"test", "tests", "__tests__", "docs", "example", "examples", "benchmark"})
# Node reads these as data, and nothing else can be in a package that is not run.
_DATA = (".json", ".node", ".wasm", ".map", ".md", ".css", ".html", ".svg", ".png", ".d.ts")
_RELATIVE = re.compile(rb"[\"'`](\.{1,2}/[^\"'`\n]{1,200})[\"'`]")
_MAX_DEPTH = 8
_MAX_NAMES = 100_000


def is_loaded(path: str) -> bool:
    """Whether a package loads the file unless its code says otherwise."""
    return path.endswith(JAVASCRIPT) and _NOT_LOADED.isdisjoint(path.split("/")[:-1])


class SpareFiles:
    """Files that are screened only if something names them, within a bound of memory."""

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._dropped: set[str] = set()
        self._names: set[str] = set()
        self._bytes = 0
        self.is_incomplete = False
        """Whether something names a file that was too large to keep."""

    def add(self, path: str, data: bytes) -> None:
        if path.endswith(_DATA) or b"\0" in data[:1024]:
            return
        if len(data) > _MAX_FILE_BYTES or self._bytes + len(data) > MAX_SPARE_BYTES:
            self._dropped.add(path)
            return
        self._bytes += len(data)
        self._files[path] = data

    def note_names(self, path: str, data: bytes) -> None:
        """The files that a source names by a relative path."""
        if len(self._names) < _MAX_NAMES:
            self._names.update(relative_names(path, data))

    def take(self, names: Iterable[str]) -> list[tuple[str, bytes]]:
        """The files of these names and those that the noted sources name, and so on."""
        found: list[tuple[str, bytes]] = []
        waiting = {*names, *self._names}
        for _ in range(_MAX_DEPTH):
            taken = [each for name in sorted(waiting) for each in self._find(name)]
            waiting = {name for path, data in taken for name in relative_names(path, data)}
            found += taken
        return found

    def _find(self, name: str) -> Iterator[tuple[str, bytes]]:
        """As Node finds a file."""
        path = posixpath.normpath(name).lstrip("/")
        if "*" in path:  # a subpath pattern of `exports`
            prefix = path.partition("*")[0]
            for each in [each for each in self._files if each.startswith(prefix)]:
                yield each, self._files.pop(each)
            return
        for each in (path, f"{path}.js", f"{path}.cjs", f"{path}.mjs", f"{path}/index.js"):
            self.is_incomplete = self.is_incomplete or each in self._dropped
            if (data := self._files.pop(each, None)) is not None:
                yield each, data


def relative_names(path: str, data: bytes) -> Iterator[str]:
    """The files that a source names by a path from its own folder."""
    folder = posixpath.dirname(path)
    for match in checked(_RELATIVE.finditer(data)):
        yield posixpath.normpath(posixpath.join(folder, match[1].decode("utf-8", "replace")))


def entry_files(manifest: Mapping[str, Any]) -> Iterator[str]:
    """The files that a manifest says are loaded or run."""
    yield from _texts(
        [manifest.get(key) for key in ("main", "module", "bin", "exports", "imports")]
    )


def _texts(value: object, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth < _MAX_DEPTH and isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each, depth + 1)


def started_files(script: str, folder: str = "") -> Iterator[str]:
    """The files of the package that a script runs: `node scripts/install.js`."""
    for word in words_of(script):
        path = posixpath.normpath(posixpath.join(folder, word))
        yield path
        yield f"{path}.js"
        yield f"{path}/index.js"


def words_of(script: str) -> list[str]:
    """The words of a shell command, as far as they can be told apart."""
    try:
        return shlex.split(script.replace("&&", " ").replace(";", " "))
    except ValueError:
        return script.split()

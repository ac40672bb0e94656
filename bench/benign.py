"""Ordinary texts, drawn fresh from what a Debian machine has installed; nothing of it is stored.

Sources of installed packages, their READMEs, manual pages, change logs, logs and documentation:
what an agent reads all day, and must be able to read without an alarm (GRD-8).
"""

from __future__ import annotations

import gzip
import itertools
import os
import random
import re
import shutil
import subprocess
import sysconfig
import zlib
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

Row = dict[str, str | int]

_MAX_CHARACTERS = 60_000
_DOC = Path("/usr/share/doc")
_MAN = Path("/usr/share/man")
_LOG = Path("/var/log")
_OVERSTRUCK = re.compile(r".\x08")


def draw(count: int, *, seed: int = 7, kinds: Collection[str] = ()) -> list[Row]:
    """`count` rows with label 0, in equal parts of each kind (or of `kinds`) where there are
    enough."""
    chance = random.Random(seed)
    pure, plat = Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("stdlib"))
    sources: dict[str, Callable[[], Iterator[Path]]] = {
        "python": lambda: _files(plat, "*.py", chance),
        "package": lambda: _files(pure, "*.py", chance),
        "readme": lambda: itertools.chain(_files(pure, "METADATA", chance), _named(_DOC, chance)),
        "code": lambda: _code(chance),
        "manual": lambda: _files(_MAN / "man1", "*.gz", chance, _MAN / "man8", _MAN / "man5"),
        "changelog": lambda: _files(_DOC, "*hange*", chance),
        "documentation": lambda: _documentation(chance),
        "log": lambda: _files(_LOG, "*", chance),
    }
    if kinds:
        sources = {kind: files for kind, files in sources.items() if kind in kinds}
    rows: list[Row] = []
    for kind, files in sources.items():
        share = (count - len(rows)) // (len(sources) - list(sources).index(kind))
        rows += itertools.islice(_pieces(kind, files(), chance, share), share)
    if kinds:
        return rows
    # Where a kind is scarce (a machine with few logs), Python's own library fills up.
    rest = _pieces("python", _files(plat, "*.py", chance), random.Random(seed + 1), count)
    rows += itertools.islice(rest, max(0, count - len(rows)))
    return rows


def _pieces(kind: str, files: Iterator[Path], chance: random.Random, wanted: int) -> Iterator[Row]:
    for path in files:
        text = _read(path, kind)
        if len(text) < 200 or "\0" in text:
            continue
        # One file gives one piece; a long log gives many, for there are few of them.
        cuts = max(1, min(wanted, len(text) // 4000)) if kind in ("log", "changelog") else 1
        for at in range(cuts):
            size = int(300 * 2 ** chance.uniform(0, 7.6))
            start = at * len(text) // cuts if cuts > 1 else 0
            start = text.rfind("\n", 0, start) + 1
            if cuts == 1 and len(text) > size:
                start = text.rfind("\n", 0, chance.randrange(len(text) - size)) + 1
            piece = text[start : start + min(size, _MAX_CHARACTERS)]
            if len(piece) > 200:
                yield {"text": piece, "label": 0, "kind": kind, "group": path.name}


def _read(path: Path, kind: str) -> str:
    try:
        if kind == "manual" and shutil.which("man"):
            told = subprocess.run(
                ["man", "-l", str(path)],
                capture_output=True,
                timeout=30,
                env={**os.environ, "MANWIDTH": "80", "MANPAGER": "cat", "LC_ALL": "C.UTF-8"},
                check=False,
            ).stdout
            return _OVERSTRUCK.sub("", told.decode("utf-8", "replace"))
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error, subprocess.TimeoutExpired):
        return ""
    return data[:2_000_000].decode("utf-8", "replace")


def _files(folder: Path, pattern: str, chance: random.Random, *more: Path) -> Iterator[Path]:
    found = [path for each in (folder, *more) for path in each.rglob(pattern) if path.is_file()]
    found.sort()
    chance.shuffle(found)
    return iter(found)


def _named(folder: Path, chance: random.Random) -> Iterator[Path]:
    names = ("README*", "NEWS*", "FAQ*", "TODO*", "INSTALL*", "HACKING*")
    found = sorted(path for name in names for path in folder.rglob(name) if path.is_file())
    chance.shuffle(found)
    return iter(found)


def _code(chance: random.Random) -> Iterator[Path]:
    roots = (
        Path("/usr/include"),
        Path("/usr/share/perl"),
        Path("/usr/share"),
        Path("/usr/lib/node_modules"),
    )
    endings = {".h", ".pm", ".js", ".c", ".sh", ".ts", ".cmake", ".vim", ".lua", ".css", ".json"}
    found = {
        Path(base, name)
        for root in roots
        for base, _, names in os.walk(root)
        for name in names
        if os.path.splitext(name)[1] in endings
    }
    ordered = sorted(found)
    chance.shuffle(ordered)
    return iter(ordered)


def _documentation(chance: random.Random) -> Iterator[Path]:
    endings = {".html", ".txt", ".md", ".rst", ".gz"}
    found = sorted(
        path
        for path in itertools.chain(
            _DOC.rglob("*"), Path(sysconfig.get_path("purelib")).rglob("*.md")
        )
        if path.suffix in endings and "hange" not in path.name and path.is_file()
    )
    chance.shuffle(found)
    return iter(found)

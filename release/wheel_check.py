"""Checks that a wheel is what its name promises. Pure but for reading the file."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import zipfile
from collections.abc import Iterator

from release.elf_files import ElfFacts, NotElf, read_elf

PROGRAM = "cellwall/sandbox/linux/cellwall-cell"
LIBRARIES = ("cellwall/sandbox/linux/cellwall-cell.so", "cellwall/guard/ctext/cellwall-passes.so")
_PLATFORM = re.compile(
    r"-py3-none-(manylinux_(\d+)_(\d+)|musllinux_(\d+)_(\d+))_(x86_64|aarch64)\.whl"
)
_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?")
_LIBC = {
    "manylinux": {
        *("libc.so.6", "libpthread.so.0"),  # both of glibc; one file since glibc 2.34
        *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
    },
    "musllinux": {"libc.so"},
}


def problems(path: str) -> list[str]:
    """What is wrong with a wheel; empty if nothing is."""
    match = _PLATFORM.search(path)
    if match is None:
        return ["its name has no platform of a release"]
    kind = "manylinux" if match[2] else "musllinux"
    glibc = (int(match[2]), int(match[3])) if match[2] else (0, 0)
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        found = [f"{each} is missing" for each in (PROGRAM, *LIBRARIES) if each not in names]
        for name in sorted(names):
            try:
                facts = read_elf(wheel.read(name))
            except NotElf:
                continue
            found += [f"{name}: {why}" for why in _elf_problems(name, facts, match[6], kind, glibc)]
        found += _record_problems(wheel)
        if PROGRAM in names and wheel.getinfo(PROGRAM).external_attr >> 16 & 0o111 == 0:
            found.append(f"{PROGRAM} is not executable")
    return found


def _elf_problems(
    name: str, facts: ElfFacts, machine: str, kind: str, glibc: tuple[int, int]
) -> Iterator[str]:
    if facts.machine != machine:
        yield f"it is for {facts.machine}"
    if name not in (PROGRAM, *LIBRARIES):
        yield "a native file that nobody expects"
    if name == PROGRAM and not facts.is_static:
        yield "the program is not static, and a cell has no libraries for it"
    strangers = set(facts.needed) - _LIBC[kind]
    if strangers:
        yield f"it needs {sorted(strangers)}"
    for version in facts.versions:
        stated = _GLIBC.fullmatch(version)
        if stated is None or (int(stated[1]), int(stated[2])) > glibc:
            yield f"it needs {version}"


def _record_problems(wheel: zipfile.ZipFile) -> Iterator[str]:
    (record,) = (each for each in wheel.namelist() if each.endswith(".dist-info/RECORD"))
    rows = {row[0]: row[1] for row in csv.reader(io.StringIO(wheel.read(record).decode()))}
    if rows.keys() != set(wheel.namelist()):
        yield "its RECORD lists other files"
    for name, stated in rows.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest()).rstrip(b"=")
        if name != record and stated != f"sha256={digest.decode()}":
            yield f"{name} is not what RECORD says"

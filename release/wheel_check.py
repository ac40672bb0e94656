"""Checks that a wheel is what its name promises. Pure but for reading the file."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import re
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import BytesParser

from release.elf_files import ElfFacts, NotElf, read_elf

PROGRAM = "cellwall/sandbox/linux/cellwall-cell"
LIBRARIES = (
    "cellwall/sandbox/linux/cellwall-cell.so",
    "cellwall/sandbox/files/cellwall-survey.so",
    "cellwall/guard/ctext/cellwall-passes.so",
)
_PLATFORM = re.compile(
    r"cellwall-([0-9a-z.]+)-"
    r"(py3-none-(?:manylinux_(\d+)_(\d+)|musllinux_\d+_\d+)_(x86_64|aarch64))\.whl"
)
_PACKAGE = "cellwall/"
_ELF = b"\x7fELF"
_GLIBC = re.compile(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?")
_LIBC = {
    "manylinux": {
        *("libc.so.6", "libpthread.so.0"),  # both of glibc; one file since glibc 2.34
        *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
    },
    "musllinux": {"libc.so"},
}


def source_files(archive: str) -> frozenset[str]:
    """The files of the package in a source archive, by their names in a wheel."""
    with tarfile.open(archive) as source:
        names = (each.name.partition("/src/")[2] for each in source if each.isfile())
        return frozenset(name for name in names if name.startswith(_PACKAGE))


def problems(path: str, *, sources: frozenset[str] | None = None) -> list[str]:
    """What is wrong with a wheel; empty if nothing is. `sources` are the files that it must have
    beside the native ones, and no others."""
    match = _PLATFORM.fullmatch(os.path.basename(path))
    if match is None:
        return ["its name has no platform of a release"]
    kind = "manylinux" if match[3] else "musllinux"
    glibc = (int(match[3]), int(match[4])) if match[3] else (0, 0)
    native = {PROGRAM, *LIBRARIES}
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        wanted = native | (sources or frozenset())
        found = [f"{each} is missing" for each in sorted(wanted - names)]
        if sources is not None:
            more = {name for name in names - wanted if ".dist-info/" not in name}
            found += [f"{each} is not in the source archive" for each in sorted(more)]
        for name in sorted(names):
            data = wheel.read(name)
            try:
                facts = read_elf(data)
            except NotElf:
                if data.startswith(_ELF):
                    found.append(f"{name}: a native file of another kind of machine")
                continue
            found += [f"{name}: {why}" for why in _elf_problems(name, facts, match[5], kind, glibc)]
        found += _metadata_problems(wheel, version=match[1], tag=match[2])
        found += _record_problems(wheel)
        if PROGRAM in names and wheel.getinfo(PROGRAM).external_attr >> 16 & 0o111 == 0:
            found.append(f"{PROGRAM} is not executable")
    return found


def _metadata_problems(wheel: zipfile.ZipFile, *, version: str, tag: str) -> Iterator[str]:
    """Installers read the name, package indexes read the files inside: both must say the same."""
    folder = f"cellwall-{version}.dist-info"
    for file, field, wanted in (("METADATA", "Version", version), ("WHEEL", "Tag", tag)):
        try:
            stated = BytesParser().parsebytes(wheel.read(f"{folder}/{file}")).get_all(field)
        except KeyError:
            yield f"{folder}/{file} is missing"
            continue
        if stated != [wanted]:
            yield f"{file} says {field} {stated}, the name says {wanted}"


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

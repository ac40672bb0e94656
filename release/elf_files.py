"""What a native file needs of the machine it runs on, read from its ELF structures. Pure.

A wheel's platform is a promise: no library but libc, no symbol of a newer libc, this processor.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_MACHINES = {62: "x86_64", 183: "aarch64"}
_PT_DYNAMIC, _PT_LOAD, _PT_INTERP = 2, 1, 3
_DT_NEEDED, _DT_STRTAB, _DT_VERNEED, _DT_VERNEEDNUM = 1, 5, 0x6FFFFFFE, 0x6FFFFFFF


class NotElf(Exception):
    """Not a 64-bit little-endian ELF file."""


@dataclass(frozen=True, slots=True)
class ElfFacts:
    """Of one program or library."""

    machine: str
    needed: tuple[str, ...]
    """Libraries that the loader has to find."""
    versions: tuple[str, ...]
    """Versions of symbols, such as GLIBC_2.17."""
    is_static: bool


def read_elf(data: bytes) -> ElfFacts:
    """The facts of a file; raises `NotElf`."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise NotElf
    (machine,) = struct.unpack_from("<H", data, 18)
    (offset,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    headers = [struct.unpack_from("<IIQQQQQQ", data, offset + n * size) for n in range(count)]
    loads = [(each[3], each[2], each[5]) for each in headers if each[0] == _PT_LOAD]
    dynamic = next((each for each in headers if each[0] == _PT_DYNAMIC), None)
    has_loader = any(each[0] == _PT_INTERP for each in headers)
    entries: list[tuple[int, int]] = []
    if dynamic is not None:
        rows = range(dynamic[2], dynamic[2] + dynamic[5], 16)
        entries = [struct.unpack_from("<QQ", data, at) for at in rows]
    table = dict(entries)

    def place(address: int) -> int:
        return next(
            at + address - start for start, at, length in loads if start <= address < start + length
        )

    def text(offset_in_table: int) -> str:
        at = place(table[_DT_STRTAB]) + offset_in_table
        return data[at : data.index(b"\0", at)].decode("ascii")

    needed = tuple(text(value) for tag, value in entries if tag == _DT_NEEDED)
    versions: list[str] = []
    at = place(table[_DT_VERNEED]) if _DT_VERNEED in table else 0
    for _ in range(table.get(_DT_VERNEEDNUM, 0)):
        _, parts, _, aux, following = struct.unpack_from("<HHIII", data, at)
        inner = at + aux
        for _ in range(parts):
            _, _, _, name, step = struct.unpack_from("<IHHII", data, inner)
            versions.append(text(name))
            inner += step
        at += following
    is_static = not has_loader and not needed
    return ElfFacts(
        _MACHINES.get(machine, str(machine)), needed, tuple(sorted(versions)), is_static
    )

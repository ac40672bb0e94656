"""A limit on everything: the names, the safe defaults and the reason for each (LIM-1).

The defaults here are the only ones: configuration, documentation and JSON schema read them from
`Limits` (CFG-2).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import TypeVar

from cellwall.core.errors import BadInput

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class LimitName(StrEnum):
    """The name in a result of the limit that ended the run."""

    WALL = "wall"
    CPU = "cpu"
    MEMORY = "memory"
    PROCESSES = "processes"
    DISK = "disk"
    FILE_SIZE = "file_size"
    OUTPUT = "output"
    OPEN_FILES = "open_files"


Number = TypeVar("Number", int, float)


def _limit(default: Number, reason: str, *, least: Number, most: Number) -> Number:
    return field(default=default, metadata={"reason": reason, "least": least, "most": most})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one run. Every value has an upper bound: there is no "unlimited"."""

    wall_s: float = _limit(30.0, "a hung program must not hold its slot", least=0.01, most=86_400.0)
    cpu_s: float = _limit(
        30.0, "processor time of all processes together; a spinner ends", least=0.01, most=86_400.0
    )
    cpus: float = _limit(
        1.0, "share of processors, so that other sandboxes keep working", least=0.05, most=256.0
    )
    memory_bytes: int = _limit(
        512 * MIB,
        "memory of all processes, /tmp and caches together",
        least=8 * MIB,
        most=1024 * GIB,
    )
    processes: int = _limit(128, "processes and threads; ends fork bombs", least=1, most=32_768)
    open_files: int = _limit(
        1024, "descriptors of one process; ends descriptor leaks", least=32, most=65_536
    )
    file_size_bytes: int = _limit(256 * MIB, "size of one file", least=4 * KIB, most=1024 * GIB)
    disk_bytes: int = _limit(
        256 * MIB,
        "new data in the workspace; the same again for /tmp",
        least=64 * KIB,
        most=1024 * GIB,
    )
    file_count: int = _limit(
        65_536, "files in the workspace; inodes run out before bytes do", least=16, most=16_777_216
    )
    output_bytes: int = _limit(
        4 * MIB, "standard output and error together; ends output floods", least=1, most=GIB
    )
    io_bytes_per_s: int = _limit(
        512 * MIB,
        "disk bandwidth, where the host has the controller",
        least=64 * KIB,
        most=1024 * GIB,
    )

    def __post_init__(self) -> None:
        for spec in fields(self):
            value = getattr(self, spec.name)
            least, most = spec.metadata["least"], spec.metadata["most"]
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or (isinstance(value, float) and math.isnan(value)):
                raise BadInput(
                    f"limit {spec.name} must be a number, not {value!r:.40}",
                    hint=_range_hint(spec.name, least, most),
                    code="CW-BAD-LIMIT",
                )
            if spec.type == "int" and not isinstance(value, int):
                raise BadInput(
                    f"limit {spec.name} must be a whole number, not {value!r:.40}",
                    hint=_range_hint(spec.name, least, most),
                    code="CW-BAD-LIMIT",
                )
            if not least <= value <= most:
                raise BadInput(
                    f"limit {spec.name} = {_format(spec.name, value)} is out of range",
                    hint=_range_hint(spec.name, least, most),
                    code="CW-BAD-LIMIT",
                )


_SIZE = re.compile(r"(\d{1,15})(?:\.(\d{1,3}))?\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_MAX_SHOWN = 1 << 63
_UNITS = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1024 * GIB}


def _range_hint(name: str, least: float, most: float) -> str:
    unit = " seconds" if name.endswith("_s") and not name.endswith("_per_s") else ""
    return f"Use a value from {_format(name, least)} to {_format(name, most)}{unit}."


def _format(name: str, value: float) -> str:
    if abs(value) >= _MAX_SHOWN:  # it cannot become a float
        return f"{value!r:.40}"
    is_size = name.endswith(("_bytes", "_bytes_per_s"))
    return size_text(int(value)) if is_size else f"{value!r:.40}".removesuffix(".0")


def size_text(number: int) -> str:
    """The shortest text that `parse_size` reads as this number: `512m`, `1t`, `5`."""
    for unit in ("t", "g", "m", "k"):
        if number and number % _UNITS[unit] == 0:
            return f"{number // _UNITS[unit]}{unit}"
    return str(number)


def parse_size(text: str | int, *, what: str = "size") -> int:
    """`512m`, `1.5G`, `64KiB`, `4096` -> bytes. Anything else is refused."""
    if isinstance(text, bool):
        raise BadInput(f"{what} must be a size, not a truth value", hint=_SIZE_HINT)
    if isinstance(text, int):
        return text
    found = _SIZE.fullmatch(text.strip()) if text.isascii() else None
    if found is None:
        raise BadInput(f"{what}: {text!r:.60} is not a size", hint=_SIZE_HINT, code="CW-BAD-SIZE")
    whole, part, unit, _ = found.groups()
    scale = _UNITS[unit.lower()]
    fraction = int(part) * scale // 10 ** len(part) if part else 0
    return int(whole) * scale + fraction


_SIZE_HINT = "Write a number with an optional unit, for example 512m, 1.5g or 65536."

"""Outputs of programs that are little like prose: what `yes`, `seq`, `ls -l` and others print.

Each is the same in every run. Some are nearly what an attacker would write to slow the guard down.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable

_SEED = 5


def texts(size: int) -> dict[str, str]:
    """A text of this many characters for each kind."""
    chance = random.Random(_SEED)
    return {kind: _filled(line, chance, size) for kind, line in _LINES.items()}


def _filled(line: Callable[[random.Random, int], str], chance: random.Random, size: int) -> str:
    lines: list[str] = []
    length = number = 0
    while length < size:
        lines.append(line(chance, number))
        length += len(lines[-1]) + 1
        number += 1
    return "\n".join(lines)[:size]


def _listing(chance: random.Random, number: int) -> str:
    bytes_, minute = chance.randrange(99_999), chance.randrange(60)
    return f"-rw-r--r-- 1 root root {bytes_:>8} Nov 18 11:{minute:02} file{number}.txt"


def _table(chance: random.Random, number: int) -> str:
    return f"{number},{chance.random():.4f},{chance.choice('abcxyz')},{chance.choice('01')}"


def _record(chance: random.Random, number: int) -> str:
    return json.dumps({"id": number, "ok": chance.random() < 0.5, "tags": ["a", str(number)]})


def _dump(chance: random.Random, number: int) -> str:
    data = chance.randbytes(16)
    shown = "".join(chr(each) if 32 < each < 127 else "." for each in data)
    return f"{number * 16:08x}: {data.hex(' ', 2)}  {shown}"


def _address(_: random.Random, number: int) -> str:
    return f"https://example{number}.com/path/{number}?q={number * 7}&r=%20x"


def _entry(chance: random.Random, number: int) -> str:
    took, part = chance.randrange(99), chance.randrange(1 << 30)
    return f"2026-11-18T11:00:00.{number % 1000:03}Z INFO id={part:x} took {took}ms status=200"


_LINES: dict[str, Callable[[random.Random, int], str]] = {
    "yes": lambda _chance, _number: "y",
    "spaced": lambda _chance, _number: "h e l l o  w o r l d",
    "seq": lambda _chance, number: str(number),
    "ls": _listing,
    "csv": _table,
    "json": _record,
    "hexdump": _dump,
    "base64": lambda chance, _number: base64.b64encode(chance.randbytes(57)).decode(),
    "bits": lambda chance, _number: " ".join(chance.choice("01") for _ in range(40)),
    "letters": lambda chance, _number: "".join(chance.choice("ACGT") for _ in range(70)),
    "urls": _address,
    "fields": _entry,
    "entities": lambda _chance, _number: "&lt;p&gt;&#65;&amp;" * 4,
    "escapes": lambda _chance, _number: "\\x41\\u0042\\n\\t" * 4,
}

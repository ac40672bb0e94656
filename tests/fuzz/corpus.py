"""The kept inputs of a target: one text file, one Python bytes literal in each line.

A line that begins with `#` says why the next input is there: which finding it repeats.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).with_name("corpora")


def path_of(name: str) -> Path:
    """Where the inputs of a target are kept."""
    return FOLDER / f"{name}.txt"


def read(name: str) -> list[bytes]:
    """The inputs of a target."""
    lines = path_of(name).read_text("ascii").splitlines()
    return [ast.literal_eval(line) for line in lines if line and not line.startswith("#")]


def add(name: str, inputs: Iterable[bytes]) -> int:
    """Appends those that are new; returns how many."""
    path = path_of(name)
    old = set(read(name)) if path.exists() else set()
    new = sorted(set(inputs) - old, key=lambda each: (len(each), each))
    if new:
        with path.open("a", encoding="ascii") as file:
            file.writelines(f"{each!r}\n" for each in new)
    return len(new)

"""Texts that were written one by one for training the guard: no grammar, copied from no data set.

Hosts, people and paths in them (`/root/.npm/_logs` in an error of npm) are made up or parts of the
programs that are quoted, and belong to no machine. The shipped weights are made from these bytes.

Each file of bench/guard_data/written has the records of one author and is a family of its own: left
out of training, it shows how the classifier does on wordings of somebody else. A record is a head
line and a text:

    === attack placed PLACE      the attack alone, to be put between two sentences of some text
    === attack whole PLACE       a document with the attack between U+27E6 and U+27E7
    === attack direct PLACE      a whole message to a model
    === ordinary placed PLACE    a passage, to be put into a longer text
    === ordinary whole PLACE     a complete text
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cellwall.core.errors import BadInput

FOLDER = Path(__file__).resolve().parent / "guard_data" / "written"
_HEAD = re.compile(r"^=== (attack|ordinary) (placed|whole|direct) (\S+)[ \t]*$", re.MULTILINE)
_BEGIN, _END = "\u27e6", "\u27e7"


@dataclass(frozen=True, slots=True)
class Written:
    """One record."""

    author: str
    is_attack: bool
    form: str
    """`placed`, `whole` or `direct`."""
    place: str
    text: str
    start: int = -1
    """Where the attack stands in a whole document."""
    end: int = -1

    @property
    def family(self) -> str:
        return f"written {self.author}" if self.is_attack else f"near written {self.author}"


def written(folder: Path = FOLDER) -> list[Written]:
    """All records, by file and in their order."""
    return [each for path in sorted(folder.glob("*.txt")) for each in _records(path)]


def _records(path: Path) -> Iterator[Written]:
    text = path.read_text("utf-8")
    heads = list(_HEAD.finditer(text))
    lines = sum(line.startswith("===") for line in text.splitlines())
    if lines != len(heads):
        raise BadInput(f"{path.name} has a head line of another form", hint="See guard_written.py.")
    ends = [*(head.start() for head in heads[1:]), len(text)]
    for head, end in zip(heads, ends, strict=True):
        is_attack, form = head[1] == "attack", head[2]
        inner = text[head.end() : end].strip("\n").rstrip()
        start, stop = inner.find(_BEGIN), inner.find(_END)
        is_marked = 0 <= start < stop and inner.count(_BEGIN) == inner.count(_END) == 1
        if is_marked != (is_attack and form == "whole") or not inner:
            raise BadInput(
                f"{path.name}: the record before character {end} is empty or wrongly marked",
                hint="Only an attack in a whole document has marks, one of each.",
            )
        if not is_marked:
            yield Written(path.stem, is_attack, form, head[3], inner)
            continue
        plain = inner.replace(_BEGIN, "").replace(_END, "")
        yield Written(path.stem, is_attack, form, head[3], plain, start, stop - 1)

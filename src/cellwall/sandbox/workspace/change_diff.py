"""The changes of a copy-on-write run in the format of `git diff` (FS-2); code chose both texts."""

from __future__ import annotations

import difflib
import itertools
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.files.root import status_of
from cellwall.sandbox.workspace.changes import Change, changes, content_of, rank

# difflib is at least quadratic, and code chooses both texts. Beyond this many pairs of lines a
# file is shown as replaced completely.
_MAX_LINE_PAIRS = 1_000_000
_MAX_LINE_PAIRS_TOTAL = 4_000_000
_CONTEXT_LINES = 3
_Opcode = tuple[str, int, int, int, int]


def unified_diff(
    lower: FileTree, upper: FileTree, *, max_bytes: int, instruction_paths: Collection[str] = ()
) -> str:
    """The changes as `git diff` writes them, marked ones first; truncated, with a note, at
    `max_bytes`."""
    parts: list[str] = []
    left_bytes = max_bytes
    pairs_left = _MAX_LINE_PAIRS_TOTAL
    for change in rank(changes(lower, upper), instruction_paths):
        for section, pairs in _sections(lower, upper, change, left_bytes, pairs_left):
            pairs_left -= pairs
            left_bytes -= len(section.encode())
            if left_bytes < 0:
                parts.append(f"… the diff is longer than {max_bytes} bytes; the rest is left out\n")
                return "".join(parts)
            parts.append(section)
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Side:
    mode: int
    data: bytes
    whole: bool


def _sections(
    lower: FileTree, upper: FileTree, change: Change, most: int, pairs_left: int
) -> Iterator[tuple[str, int]]:
    old = _side(lower, change.path, most) if change.kind != "added" else None
    new = _side(upper, change.path, most) if change.kind != "removed" else None
    # git shows a change of type as a removal and an addition
    pairs = [(old, None), (None, new)] if change.kind == "type" else [(old, new)]
    for before, after in pairs:
        if before is not None or after is not None:
            yield _section(change, before, after, pairs_left)


def _side(tree: FileTree, path: str, most: int) -> _Side | None:
    status = status_of(tree, path)
    if status is None or stat.S_ISDIR(status.st_mode):
        return None
    try:
        data = content_of(tree, path, most)
    except OSError:
        return _Side(status.st_mode, b"", whole=False)
    return _Side(status.st_mode, data, whole=len(data) == status.st_size)


def _section(
    change: Change, old: _Side | None, new: _Side | None, pairs_left: int
) -> tuple[str, int]:
    old_name, new_name = _quote("a/" + change.path), _quote("b/" + change.path)
    lines = [f"diff --git {old_name} {new_name}"]
    if old is None and new is not None:
        lines.append(f"new file mode {_git_mode(new.mode)}")
        old_name = "/dev/null"
    elif new is None and old is not None:
        lines.append(f"deleted file mode {_git_mode(old.mode)}")
        new_name = "/dev/null"
    elif old is not None and new is not None and old.mode != new.mode:
        lines += [f"old mode {_git_mode(old.mode)}", f"new mode {_git_mode(new.mode)}"]
    header = "\n".join(lines) + "\n"
    if change.kind == "mode":
        return header, 0
    before, after = _lines(old), _lines(new)
    if before is None or after is None:
        return f"{header}Binary files {old_name} and {new_name} differ\n", 0
    hunks, pairs = _hunks(before, after, pairs_left)
    return header + (f"--- {old_name}\n+++ {new_name}\n{hunks}" if hunks else ""), pairs


def _git_mode(mode: int) -> str:
    return f"{stat.S_IFMT(mode) | (0 if stat.S_ISLNK(mode) else stat.S_IMODE(mode)):06o}"


def _quote(name: str) -> str:
    """A name as git quotes it: a newline in a name must not forge lines of the diff."""
    raw = os.fsencode(name)
    try:
        plain = raw.decode().isprintable() and not set('"\\') & set(name)
    except UnicodeDecodeError:
        plain = False
    if plain:
        return name
    shown = (chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03o}" for b in raw)
    return '"' + "".join(shown) + '"'


def _lines(side: _Side | None) -> list[str] | None:
    """Lines with their ends; None for binary content. Only \\n ends a line, as in git."""
    if side is None:
        return []
    try:
        text = side.data.decode()
    except UnicodeDecodeError:
        return None
    if not side.whole or "\0" in text:
        return None
    *lines, last = text.split("\n")
    return [line + "\n" for line in lines] + [last] * bool(last)


def _hunks(old: list[str], new: list[str], pairs_left: int) -> tuple[str, int]:
    same_start = _common_length(old, new)
    rest = min(len(old), len(new)) - same_start
    same_end = min(rest, _common_length(reversed(old), reversed(new)))
    lead, tail = min(same_start, _CONTEXT_LINES), min(same_end, _CONTEXT_LINES)
    skip = same_start - lead
    a, b = old[skip : len(old) - same_end + tail], new[skip : len(new) - same_end + tail]
    pairs = len(a) * len(b)
    groups: Iterable[Sequence[_Opcode]]
    if pairs <= min(_MAX_LINE_PAIRS, pairs_left):
        groups = difflib.SequenceMatcher(None, a, b).get_grouped_opcodes(_CONTEXT_LINES)
    else:
        pairs, a_end, b_end = 0, len(a) - tail, len(b) - tail
        groups = [
            [
                ("equal", 0, lead, 0, lead),
                ("replace", lead, a_end, lead, b_end),
                ("equal", a_end, len(a), b_end, len(b)),
            ]
        ]
    return "".join(_hunk(a, b, group, skip) for group in groups), pairs


def _common_length(one: Iterable[str], other: Iterable[str]) -> int:
    """The number of equal lines at the start."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _hunk(old: list[str], new: list[str], group: Sequence[_Opcode], skip: int) -> str:
    before = _span(group[0][1] + skip, group[-1][2] + skip)
    after = _span(group[0][3] + skip, group[-1][4] + skip)
    parts = [f"@@ -{before} +{after} @@\n"]
    for tag, a_start, a_end, b_start, b_end in group:
        if tag == "equal":
            parts += [_line(" ", line) for line in old[a_start:a_end]]
        else:
            parts += [_line("-", line) for line in old[a_start:a_end]]
            parts += [_line("+", line) for line in new[b_start:b_end]]
    return "".join(parts)


def _span(start: int, end: int) -> str:
    length = end - start
    return f"{start + 1 if length else start},{length}"


def _line(sign: str, line: str) -> str:
    return sign + line if line.endswith("\n") else f"{sign}{line}\n\\ No newline at end of file\n"

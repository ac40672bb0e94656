"""The changes of a copy-on-write run: which to see first, and the same as a diff (FS-2).

`lower` is the host's directory, unchanged by the run; `upper` is the layer that overlayfs wrote in
a user namespace (`userxattr`, no redirects, no metadata-only copies). Both are read by descriptor.
The diff has the format of `git diff`; code chose both texts.
"""

from __future__ import annotations

import codecs
import difflib
import errno
import itertools
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cellwall.core.errors import WorkspaceError
from cellwall.core.protected_names import build_files, load
from cellwall.sandbox.files.descriptors import (
    MAX_WALK_ENTRIES,
    FileKind,
    closing_fd,
    kind_of,
    open_regular,
    proc_path,
    read_at_most,
)
from cellwall.sandbox.files.file_tree import FileTree
from cellwall.sandbox.files.root import status_of
from cellwall.sandbox.files.walking import WalkStep

_CHUNK = 1 << 20
_HEAD_BYTES = 8000  # where git looks for a NUL
_MAX_PATH_BYTES = 4095  # MAX_PATH without its NUL: a deeper node cannot be opened by its path

ChangeKind = Literal["added", "modified", "removed", "mode", "type"]


@dataclass(frozen=True, slots=True)
class Change:
    """One changed path. Sizes are None for directories and for a missing side."""

    kind: ChangeKind
    path: str
    entry_kind: FileKind
    size_before: int | None
    size_after: int | None
    binary: bool = False
    mark: str = ""
    """Why a person should see it first; see `mark_of`."""


def changes(
    lower: FileTree, upper: FileTree, *, max_entries: int = MAX_WALK_ENTRIES
) -> tuple[Change, ...]:
    """Every path that a run added, changed or removed, in order of path."""
    by_path: dict[str, Change] = {}
    present: set[str] = set()
    uncovered: list[str] = []  # lower directories that the upper layer hides
    for step in upper.walk(max_entries=max_entries, descend=_can_be_opened):
        if not _can_be_opened(step):
            # Listed, so that `apply` refuses this path alone and applies all others.
            kind, size = kind_of(step.status.st_mode), _size(step.status)
            by_path[step.path] = Change("added", step.path, kind, None, size)
            continue
        old = status_of(lower, step.path)
        if _is_whiteout(upper, step):
            if old is not None:
                by_path[step.path] = _removal(lower, step.path, old)
        else:
            present.add(step.path)
            change = _compare(lower, upper, step, old)
            if change is not None:
                by_path[step.path] = change
        if _hides_lower(upper, step) and old is not None and stat.S_ISDIR(old.st_mode):
            uncovered.append(step.path)
    for path in uncovered:
        for below in lower.walk(path, max_entries=max_entries):
            if below.path not in present:
                by_path[below.path] = _removal(lower, below.path, below.status)
    return tuple(by_path[path] for path in sorted(by_path))


def _can_be_opened(step: WalkStep) -> bool:
    return len(os.fsencode(step.path)) <= _MAX_PATH_BYTES


def _overlay_attribute(place: int | str, name: str) -> bytes:
    for space in ("user", "trusted"):
        try:
            return os.getxattr(place, f"{space}.overlay.{name}")
        except OSError as error:
            if error.errno not in {errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES}:
                raise
    return b""


def _is_whiteout(upper: FileTree, step: WalkStep) -> bool:
    status = step.status
    if stat.S_ISCHR(status.st_mode):
        return status.st_rdev == 0
    if (
        not stat.S_ISREG(status.st_mode)
        or status.st_size
        or _overlay_attribute(step.dir_fd, "opaque") != b"x"
    ):
        return False
    with upper.node(step.path) as node:
        # The attribute marks a whiteout by its presence; its value is empty.
        return any(n.endswith(".overlay.whiteout") for n in os.listxattr(proc_path(node)))


def _hides_lower(upper: FileTree, step: WalkStep) -> bool:
    """Whether the upper entry hides the content of the lower directory."""
    if not stat.S_ISDIR(step.status.st_mode):
        return True
    with upper.node(step.path) as node:
        if _overlay_attribute(proc_path(node), "redirect"):
            raise WorkspaceError(
                "the changes were written by an overlay with redirects, which cannot be read",
                hint="Run it again; Cellwall mounts without redirects.",
                code="CW-OVERLAY-FOREIGN",
            )
        return _overlay_attribute(proc_path(node), "opaque") == b"y"


def _size(status: os.stat_result | None) -> int | None:
    return None if status is None or stat.S_ISDIR(status.st_mode) else status.st_size


def _removal(lower: FileTree, path: str, old: os.stat_result) -> Change:
    binary = _is_binary(lower, path)
    return Change("removed", path, kind_of(old.st_mode), _size(old), None, binary)


def _compare(
    lower: FileTree, upper: FileTree, step: WalkStep, old: os.stat_result | None
) -> Change | None:
    new, path, kind = step.status, step.path, _change_kind(lower, upper, step, old)
    if kind is None:
        return None
    binary = _is_binary(upper, path) or (
        old is not None and kind != "mode" and _is_binary(lower, path)
    )
    return Change(kind, path, kind_of(new.st_mode), _size(old), _size(new), binary)


def _change_kind(
    lower: FileTree, upper: FileTree, step: WalkStep, old: os.stat_result | None
) -> ChangeKind | None:
    if old is None:
        return "added"
    new = step.status
    if stat.S_IFMT(old.st_mode) != stat.S_IFMT(new.st_mode):
        return "type"
    if stat.S_ISLNK(new.st_mode):
        targets = {content_of(tree, step.path, _MAX_PATH_BYTES) for tree in (lower, upper)}
        return None if len(targets) == 1 else "modified"
    if stat.S_ISREG(new.st_mode) and (
        old.st_size != new.st_size or not _same_bytes(lower, upper, step.path)
    ):
        return "modified"
    return None if stat.S_IMODE(old.st_mode) == stat.S_IMODE(new.st_mode) else "mode"


def _same_bytes(lower: FileTree, upper: FileTree, path: str) -> bool:
    try:
        with (
            lower.node(path) as old_node,
            upper.node(path) as new_node,
            closing_fd(open_regular(old_node)) as old,
            closing_fd(open_regular(new_node)) as new,
        ):
            while part := os.read(old, _CHUNK):
                if part != os.read(new, len(part)):
                    return False
            return not os.read(new, 1)
    except PermissionError:
        return False  # a file that cannot be compared is reported as changed


def content_of(tree: FileTree, path: str, most: int) -> bytes:
    """A file's first bytes, at most `most`, or a symlink's target."""
    with tree.node(path) as node:
        if stat.S_ISLNK(os.fstat(node).st_mode):
            return os.fsencode(os.readlink("", dir_fd=node))
        with closing_fd(open_regular(node)) as fd:
            return read_at_most(fd, most)


def _is_binary(tree: FileTree, path: str) -> bool:
    try:
        head = content_of(tree, path, _HEAD_BYTES)
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the head may end within a character
    except OSError:
        return False  # a directory, a device, or unreadable
    except UnicodeDecodeError:
        return True
    return b"\0" in head


INSTRUCTIONS = "instructions for agents"
_PROTECTED = "protected name"
_BUILD = "runs code when built or tested"


def rank(unranked: Iterable[Change], instruction_paths: Collection[str] = ()) -> tuple[Change, ...]:
    """The same changes with their marks: marked ones first, else in the same order.

    `instruction_paths` are targets of symlinks with names of instructions.
    """
    marked = [
        replace(
            change, mark=INSTRUCTIONS if change.path in instruction_paths else mark_of(change.path)
        )
        for change in unranked
    ]
    order = [INSTRUCTIONS, _PROTECTED, _BUILD, ""]
    return tuple(sorted(marked, key=lambda change: order.index(change.mark)))


def mark_of(path: str) -> str:
    """Why a change of that path should be looked at; empty for an ordinary file."""
    groups = load().groups_of(path)
    if is_instruction(path):
        return INSTRUCTIONS
    if groups:
        return _PROTECTED
    return _BUILD if build_files().groups_of(path) else ""


def is_instruction(path: str) -> bool:
    """Text that agents obey, and nothing else that is protected."""
    return load().groups_of(path) == {"instruction"}


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

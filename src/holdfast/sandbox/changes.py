"""What a copy-on-write run changed, and how it is taken over (FS-2).

`lower` is the host's directory, unchanged by the run; `upper` is what overlayfs wrote, made in a
user namespace (`userxattr`, no redirects, no metadata-only copies). Both are read by descriptor.
"""

from __future__ import annotations

import codecs
import difflib
import errno
import os
import secrets
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from holdfast.core.errors import WorkspaceError
from holdfast.sandbox.beneath import (
    ENTRIES_MAX,
    Beneath,
    Kind,
    Visit,
    copy_data,
    held,
    is_blocked,
    kind_of,
    make_one_dir,
    new_owner,
    open_regular,
    pinned,
    refusal,
    replacing,
)
from holdfast.sandbox.protected import Protection

_CHUNK = 1 << 20
_HEAD_BYTES = 8000  # where git looks for a NUL
# difflib is quadratic and worse; the code that ran chooses both texts. Beyond this many pairs
# of lines a file is shown as replaced whole.
_LINE_PAIRS_MAX = 1_000_000
_LINE_PAIRS_TOTAL_MAX = 4_000_000
_CONTEXT_LINES = 3

_Opcode = tuple[str, int, int, int, int]
ChangeKind = Literal["added", "modified", "removed", "mode", "type"]


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs. Sizes are None for directories and where there is nothing."""

    kind: ChangeKind
    path: str
    entry_kind: Kind
    size_before: int | None
    size_after: int | None
    binary: bool = False


@dataclass(frozen=True, slots=True)
class ApplyReport:
    """What was taken over, and what was not and why, as (path, reason)."""

    applied: tuple[Change, ...]
    refused: tuple[tuple[str, str], ...]


def changes(
    lower: Beneath, upper: Beneath, *, max_entries: int = ENTRIES_MAX
) -> tuple[Change, ...]:
    """Every path that a run added, changed or removed, in order of path."""
    found: dict[str, Change] = {}
    present: set[str] = set()
    uncovered: list[str] = []  # lower directories of which nothing shines through
    for step in upper.visit(max_entries=max_entries):
        old = _status(lower, step.path)
        if _is_whiteout(upper, step):
            if old is not None:
                found[step.path] = _removed(lower, step.path, old)
        else:
            present.add(step.path)
            change = _compared(lower, upper, step, old)
            if change is not None:
                found[step.path] = change
        if _covers(upper, step) and old is not None and stat.S_ISDIR(old.st_mode):
            uncovered.append(step.path)
    for path in uncovered:
        for below in lower.visit(path, max_entries=max_entries):
            if below.path not in present:
                found[below.path] = _removed(lower, below.path, below.status)
    return tuple(found[path] for path in sorted(found))


def _status(beneath: Beneath, path: str) -> os.stat_result | None:
    try:
        with beneath.node(path) as node:
            return os.fstat(node)
    except OSError as error:
        # A link or a file on the way: below it there is nothing of that path.
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            return None
        raise refusal(path, error) from error


def _mark(place: int | str, name: str) -> bytes:
    for space in ("user", "trusted"):
        try:
            return os.getxattr(place, f"{space}.overlay.{name}")
        except OSError as error:
            if error.errno not in {errno.ENODATA, errno.EOPNOTSUPP, errno.EPERM, errno.EACCES}:
                raise
    return b""


def _is_whiteout(upper: Beneath, step: Visit) -> bool:
    status = step.status
    if stat.S_ISCHR(status.st_mode):
        return status.st_rdev == 0
    if not stat.S_ISREG(status.st_mode) or status.st_size or _mark(step.dir_fd, "opaque") != b"x":
        return False
    with upper.node(step.path) as node:
        # The mark is the presence of the attribute; its value is empty.
        return any(n.endswith(".overlay.whiteout") for n in os.listxattr(pinned(node)))


def _covers(upper: Beneath, step: Visit) -> bool:
    """Whether what is in the lower directory of that path is gone."""
    if not stat.S_ISDIR(step.status.st_mode):
        return True
    with upper.node(step.path) as node:
        if _mark(pinned(node), "redirect"):
            raise WorkspaceError(
                "the changes were written by an overlay with redirects and cannot be read",
                mend="Run it again; Holdfast mounts without redirects.",
                code="HF-OVERLAY-FOREIGN",
            )
        return _mark(pinned(node), "opaque") == b"y"


def _size(status: os.stat_result | None) -> int | None:
    return None if status is None or stat.S_ISDIR(status.st_mode) else status.st_size


def _removed(lower: Beneath, path: str, old: os.stat_result) -> Change:
    binary = _is_binary(_head(lower, path))
    return Change("removed", path, kind_of(old.st_mode), _size(old), None, binary)


def _compared(
    lower: Beneath, upper: Beneath, step: Visit, old: os.stat_result | None
) -> Change | None:
    new, path, kind = step.status, step.path, _compared_kind(lower, upper, step, old)
    if kind is None:
        return None
    binary = _is_binary(_head(upper, path)) or (
        old is not None and kind != "mode" and _is_binary(_head(lower, path))
    )
    return Change(kind, path, kind_of(new.st_mode), _size(old), _size(new), binary)


def _compared_kind(
    lower: Beneath, upper: Beneath, step: Visit, old: os.stat_result | None
) -> ChangeKind | None:
    if old is None:
        return "added"
    new = step.status
    if stat.S_IFMT(old.st_mode) != stat.S_IFMT(new.st_mode):
        return "type"
    if stat.S_ISLNK(new.st_mode):
        return None if _target(lower, step.path) == _target(upper, step.path) else "modified"
    if stat.S_ISREG(new.st_mode) and (
        old.st_size != new.st_size or not _same_bytes(lower, upper, step.path)
    ):
        return "modified"
    return None if stat.S_IMODE(old.st_mode) == stat.S_IMODE(new.st_mode) else "mode"


def _target(beneath: Beneath, path: str) -> str:
    with beneath.node(path) as node:
        return os.readlink("", dir_fd=node)


def _same_bytes(lower: Beneath, upper: Beneath, path: str) -> bool:
    try:
        with (
            lower.node(path) as old_node,
            upper.node(path) as new_node,
            held(open_regular(old_node)) as old,
            held(open_regular(new_node)) as new,
        ):
            while part := os.read(old, _CHUNK):
                if part != os.read(new, len(part)):
                    return False
            return not os.read(new, 1)
    except PermissionError:
        return False  # what cannot be compared is told as changed


def _content(beneath: Beneath, path: str, most: int) -> bytes:
    with beneath.node(path) as node:
        if stat.S_ISLNK(os.fstat(node).st_mode):
            return os.fsencode(os.readlink("", dir_fd=node))
        with held(open_regular(node)) as fd:
            parts = []
            while most > 0 and (part := os.read(fd, min(most, _CHUNK))):
                parts.append(part)
                most -= len(part)
            return b"".join(parts)


def _head(beneath: Beneath, path: str) -> bytes:
    try:
        return _content(beneath, path, _HEAD_BYTES)
    except OSError:
        return b""  # a directory, a device, or not ours to read


def _is_binary(head: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # the end may cut a character
    except UnicodeDecodeError:
        return True
    return b"\0" in head


# The diff.


def unified_diff(lower: Beneath, upper: Beneath, *, max_bytes: int) -> str:
    """The changes as `git diff` would write them; cut, and told so, at `max_bytes`."""
    parts: list[str] = []
    left = max_bytes
    pairs_left = _LINE_PAIRS_TOTAL_MAX
    for change in changes(lower, upper):
        for section, pairs in _sections(lower, upper, change, left, pairs_left):
            pairs_left -= pairs
            left -= len(section.encode())
            if left < 0:
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
    lower: Beneath, upper: Beneath, change: Change, most: int, pairs_left: int
) -> Iterator[tuple[str, int]]:
    old = _side(lower, change.path, most) if change.kind != "added" else None
    new = _side(upper, change.path, most) if change.kind != "removed" else None
    # git shows another type as a removal and an addition
    pairs = [(old, None), (None, new)] if change.kind == "type" else [(old, new)]
    for before, after in pairs:
        if before is not None or after is not None:
            yield _section(change, before, after, pairs_left)


def _side(beneath: Beneath, path: str, most: int) -> _Side | None:
    status = _status(beneath, path)
    if status is None or stat.S_ISDIR(status.st_mode):
        return None
    try:
        data = _content(beneath, path, most)
    except OSError:
        return _Side(status.st_mode, b"", whole=False)
    return _Side(status.st_mode, data, whole=len(data) == status.st_size)


def _section(
    change: Change, old: _Side | None, new: _Side | None, pairs_left: int
) -> tuple[str, int]:
    old_name, new_name = _quoted("a/" + change.path), _quoted("b/" + change.path)
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


def _quoted(name: str) -> str:
    """A name as git quotes it: a newline in one must not forge lines of the diff."""
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
    """Lines with their ends; None for what cannot be shown. Only \\n ends a line, as in git."""
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
    same_start = _common(zip(old, new, strict=False))
    rest = min(len(old), len(new)) - same_start
    same_end = min(rest, _common(zip(reversed(old), reversed(new), strict=False)))
    lead, tail = min(same_start, _CONTEXT_LINES), min(same_end, _CONTEXT_LINES)
    skip = same_start - lead
    a, b = old[skip : len(old) - same_end + tail], new[skip : len(new) - same_end + tail]
    pairs = len(a) * len(b)
    groups: Iterable[Sequence[_Opcode]]
    if pairs <= min(_LINE_PAIRS_MAX, pairs_left):
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


def _common(pairs: Iterable[tuple[str, str]]) -> int:
    count = 0
    for one, other in pairs:
        if one != other:
            break
        count += 1
    return count


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


# Taking over.


def apply(
    lower: Beneath,
    upper: Beneath,
    protection: Protection,
    *,
    started_ns: int,
    blocked_extensions: Collection[str] = (),
    force: bool = False,
    dry_run: bool = False,
    max_entries: int = ENTRIES_MAX,
) -> ApplyReport:
    """Take the changes over to the host's directory; what is refused is told, the rest goes on.

    `started_ns` is when the run started, by `time.clock_gettime_ns(CLOCK_REALTIME_COARSE)`, the
    clock of file times. What the host changed after it is kept, unless `force`. A `dry_run` says
    what would happen and writes nothing.
    """
    found = changes(lower, upper, max_entries=max_entries)
    removals = [change for change in reversed(found) if change.kind == "removed"]
    others = [change for change in found if change.kind != "removed"]
    applied: list[Change] = []
    turned_down: list[tuple[str, str]] = []
    # Removals first and the deepest first: a directory that keeps a refused name stays.
    for change in (*removals, *others):
        reason = _name_objection(change, protection, blocked_extensions)
        try:
            if not reason and change.kind != "removed":
                reason = _node_objection(upper, change.path, protection)
            if not reason and not force and _is_newer(lower, change.path, started_ns):
                reason = "changed on the host since the run"
            if not reason:
                if not dry_run:
                    _take_over(lower, upper, change)
                applied.append(change)
        except OSError as error:
            reason = _words(error)
        if reason:
            turned_down.append((change.path, reason))
    return ApplyReport(tuple(applied), tuple(sorted(turned_down)))


def _words(error: OSError) -> str:
    return refusal("", error).message.removeprefix("'' ")


def _name_objection(
    change: Change, protection: Protection, blocked_extensions: Collection[str]
) -> str:
    try:
        change.path.encode()
    except UnicodeEncodeError:
        return "its name is not valid text"
    treatment = protection.treatment_of(change.path, is_dir=_shape(change.entry_kind))
    if treatment is not None:
        return f"protected name ({treatment.value.replace('_', '-')})"
    if change.kind in {"added", "modified", "type"} and is_blocked(
        change.path.rpartition("/")[2], blocked_extensions
    ):
        return "blocked extension"
    return ""


def _shape(kind: Kind) -> bool | None:
    return {"dir": True, "file": False}.get(kind)  # a link counts as whatever it could be


def _node_objection(upper: Beneath, path: str, protection: Protection) -> str:
    with upper.node(path) as node:
        mode = os.fstat(node).st_mode
        if stat.S_ISLNK(mode):
            return _link_objection(path, os.readlink("", dir_fd=node), protection)
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return "device, FIFO or socket"
    if stat.S_ISREG(mode) and mode & (stat.S_ISUID | stat.S_ISGID):
        return "set-user-id or set-group-id bit"
    return ""


def _link_objection(path: str, target: str, protection: Protection) -> str:
    """Links may only lead to places inside, and not to a protected one under another name.

    `..` is allowed at the start alone: after a name that is itself a link it would lead
    elsewhere than it reads.
    """
    if target.startswith("/"):
        return "link to an absolute path"
    parts = [part for part in target.split("/") if part not in {"", "."}]
    ups = _common((part, "..") for part in parts)
    way = path.split("/")[:-1]
    if ups > len(way) or ".." in parts[ups:]:
        return "link that leads out of the workspace"
    if protection.treatment_of("/".join([*way[: len(way) - ups], *parts[ups:]])) is not None:
        return "link to a protected name"
    return ""


def _is_newer(lower: Beneath, path: str, started_ns: int) -> bool:
    # A directory's times change with every name in it; it is removed only when it is empty.
    old = _status(lower, path)
    return (
        old is not None
        and not stat.S_ISDIR(old.st_mode)
        and max(old.st_mtime_ns, old.st_ctime_ns) > started_ns
    )


def _take_over(lower: Beneath, upper: Beneath, change: Change) -> None:
    with lower.parent(change.path) as (parent, name):
        if change.kind == "removed":
            _drop(parent, name, is_dir=change.entry_kind == "dir")
            return
        with upper.node(change.path) as source:
            mode = os.fstat(source).st_mode
            old = _status(lower, change.path)
            was_dir = old is not None and stat.S_ISDIR(old.st_mode)
            if change.kind == "mode":
                with lower.node(change.path) as node:
                    os.chmod(pinned(node), mode & 0o777)
            elif stat.S_ISDIR(mode):
                if old is not None:
                    _drop(parent, name, is_dir=was_dir)
                make_one_dir(parent, name, mode=mode | 0o700)
            else:
                if was_dir:
                    os.rmdir(name, dir_fd=parent)
                _put(parent, name, source, old)


def _drop(parent: int, name: str, *, is_dir: bool) -> None:
    if is_dir:
        os.rmdir(name, dir_fd=parent)
    else:
        os.unlink(name, dir_fd=parent)


def _put(parent: int, name: str, source: int, old: os.stat_result | None) -> None:
    """A file or a link in the place of whatever is there, in one step."""
    status = os.fstat(source)
    owner = new_owner(parent)
    if stat.S_ISLNK(status.st_mode):
        temporary = f".holdfast-{secrets.token_hex(8)}"
        os.symlink(os.readlink("", dir_fd=source), temporary, dir_fd=parent)
        if owner is not None:
            os.chown(temporary, *owner, dir_fd=parent, follow_symlinks=False)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        return
    if owner is not None and old is not None and stat.S_ISREG(old.st_mode):
        owner = (old.st_uid, old.st_gid)
    with (
        held(open_regular(source)) as data,
        replacing(parent, name, mode=status.st_mode, owner=owner, durable=True) as fd,
    ):
        copy_data(data, fd)

"""Finds every cell of a state folder on this host, of every process that started one (OBS-3).

Three sources, of which each alone is enough where the others were lost:
  1. the ledger of runs names the shim of each cell, with its start time;
  2. the command line of a shim has the tag of its state folder;
  3. the cgroup of each process of a cell has the tag in its name.

Nothing that code inside could forge is believed: a cell cannot write the ledger, cannot change its
cgroup, and its processes are in another PID namespace than a shim. The search reads no memory of a
cell's process, which could block the reader: a command line is read only of a process in our own
PID namespace.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from cellwall.core.errors import BadInput
from cellwall.core.ids import check_id
from cellwall.sandbox.files.descriptors import closing_fd, read_at_most
from cellwall.sandbox.linux import cgroups
from cellwall.sandbox.linux.process_table import CellProcess, ProcessTable
from cellwall.sandbox.linux.run_cgroup import read_text

_SHIM_NAME = "cellwall-cell"
_ATTENDS = b"attend"
FIRST = 2  # bubblewrap's monitor, and the first process of the cell's PID namespace
_MAX_ENTRY_BYTES = 1024 * 1024
_MAX_COMMAND_BYTES = 4096
_IN_PATH = re.compile(
    r"(?P<group>.*/cellwall[/-](?P<cell>[0-9A-Za-z_-]+)\.(?P<tag>[0-9a-f]+)(?:\.scope)?)"
    r"(?:/(?P<inner>cell_[0-9a-z]+))?(?:/|$)"
)
_OPEN_ENTRY = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class FoundCell:
    """A template, with all its cells, or a cell with an outer wall of its own."""

    id: str
    """The id in the ledger; of a cell that is not in the ledger, the name of its cgroup."""
    shim: CellProcess | None
    processes: tuple[CellProcess, ...]
    """All but the shim, parents before children."""
    unified_groups: tuple[str, ...] = ()
    """The v2 groups by which the kernel freezes and kills all processes at once."""
    is_shim_inside: bool = False
    """Whether those groups contain the shim, as a scope of systemd does."""
    inner: tuple[str, ...] = ()
    """The ids of the cells of a template, by their cgroups."""
    is_container: bool = False
    """Its processes are below a container engine; `processes` has only the holder of its life."""


def continues_itself(pid: int) -> bool:
    """Whether the kernel will continue a suspended process for it: by a POSIX timer that sends
    SIGCONT. A program has no other use for such a timer."""
    numbers = re.findall(r"^signal: (\d+)/", read_text(f"/proc/{pid}/timers"), re.MULTILINE)
    return any(int(number) == signal.SIGCONT for number in numbers)


class CellSearch:
    """The search for the cells of one ledger, which may be repeated while they end. It remembers
    what cannot change about a process, so that a repeated search opens nothing of a process that
    is ending; see `ProcessTable`."""

    def __init__(self, ledger: str, tag: str) -> None:
        self._ledger, self._tag = ledger, tag
        self._table = ProcessTable()
        self._members: dict[tuple[int, int], _Membership | None] = {}
        self._is_fresh = True
        self.was_complete = False
        """Whether the last search looked at every process, and took nothing from an earlier one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._table.close()

    def is_same(self, process: CellProcess) -> bool:
        """Whether this process, and no other of its pid, is still there."""
        return self._table.is_same(process)

    def find(self, *, is_detailed: bool = False) -> tuple[FoundCell, ...]:
        """All cells that have a living process; see `find_cells`."""
        self.was_complete, self._is_fresh = self._is_fresh, False
        table, tag = self._table.read(), self._tag
        noted = {shim: name for name, shim in _noted_shims(self._ledger)}
        shims: dict[int, str] = {}
        for process in table.values():
            name = noted.get((process.pid, process.started))
            if name is not None and _is_shim(process, None):
                shims[process.pid] = name
            elif _is_shim(process, tag):
                shims[process.pid] = ""
        for pid in [pid for pid in shims if table[pid].parent in shims]:
            del shims[pid]  # the child that is about to execute bubblewrap
        trees = _trees(table, shims)
        below = {pid for tree in trees.values() for pid in tree}
        # The group of a cell is that of its first process. Every process outside of a known tree is
        # looked at as well: its shim may be gone, before the kernel delivers the signal of its
        # death.
        asked = (
            table.keys()
            if is_detailed
            else [
                *(pid for pid in table if pid not in below),
                *(pid for tree in trees.values() for pid in tree[:FIRST]),
            ]
        )
        members = {pid: each for pid in asked if (each := self._member(table[pid])) is not None}
        for shim, tree in trees.items():
            below_shim = _Membership(shims[shim] or f"shim-{shim}", "", "", is_ours=True)
            for pid in tree:  # once the shim has ended, nothing needs to be opened to know them
                self._members.setdefault((pid, table[pid].started), below_shim)
        unified = next((mount for mount in _mounts() if mount.version == 2), None)
        return tuple(_assemble(table, shims, trees, members, unified))

    def _member(self, process: CellProcess) -> _Membership | None:
        """As it was when the process was first looked at."""
        key = (process.pid, process.started)
        if key not in self._members:
            self._members[key] = _membership(process.pid, self._tag)
        return self._members[key]

    def forget_others(self) -> None:
        """The next search looks again at the processes that were in no cell: one may have been put
        into a cell's group since."""
        self._is_fresh = True
        self._members = {key: each for key, each in self._members.items() if each is not None}


def find_cells(ledger: str, tag: str, *, is_detailed: bool = False) -> tuple[FoundCell, ...]:
    """All cells of the state folder that have a living process, by one pass over /proc.

    `is_detailed` also names the cells of each template, which takes as long as the search itself.
    """
    with CellSearch(ledger, tag) as search:
        return search.find(is_detailed=is_detailed)


def _trees(table: Mapping[int, CellProcess], shims: Mapping[int, str]) -> dict[int, list[int]]:
    """shim -> all processes below it, parents first: the first PID 1 ends its whole namespace."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    trees: dict[int, list[int]] = {}
    for shim in shims:
        found, waiting = [], [shim]
        while waiting:
            waiting = [child for each in waiting for child in children.get(each, ())]
            found += waiting
        trees[shim] = found
    return trees


@dataclass(frozen=True, slots=True)
class _Membership:
    """The cgroup of a process of a cell."""

    cell: str
    inner: str
    unified: str
    """Its path in the v2 hierarchy, if that has the tag."""
    is_ours: bool = False
    """Known from an earlier search, in which the process was below a shim."""


def _assemble(
    table: Mapping[int, CellProcess],
    shims: Mapping[int, str],
    trees: Mapping[int, Sequence[int]],
    members: Mapping[int, _Membership],
    unified: cgroups.CgroupMount | None,
) -> Iterator[FoundCell]:
    def make(name: str, shim: CellProcess | None, pids: Iterable[int]) -> FoundCell:
        found = [members[pid] for pid in pids if pid in members]
        paths = sorted({each.unified for each in found if each.unified})
        return FoundCell(
            name or min((each.cell for each in found), default=f"shim-{shim.pid if shim else 0}"),
            shim,
            tuple(table[pid] for pid in pids),
            tuple(cgroups.directory_of(unified, path) for path in paths) if unified else (),
            is_shim_inside=shim is not None and shim.pid in members,
            inner=tuple(sorted({each.inner for each in found if each.inner})),
            is_container=any(_role(table[pid])[:1] == [_ATTENDS] for pid in [*pids][:FIRST]),
        )

    seen: set[int] = set(shims)
    for pid, noted in shims.items():
        below = [each for each in trees[pid] if each not in seen]
        seen.update(below)
        yield make(noted, table[pid], below)
    orphans: dict[str, list[int]] = {}
    for pid, member in members.items():
        if pid not in seen and (member.is_ours or _is_of_us(pid)):
            orphans.setdefault(member.cell, []).append(pid)
    for name, pids in orphans.items():
        yield make(name, None, pids)


def _is_shim(process: CellProcess, tag: str | None) -> bool:
    words = _role(process)
    return words[:1] == [b"keep"] and (tag is None or words[3:4] == [tag.encode()])


def _role(process: CellProcess) -> list[bytes]:
    """The arguments of a `cellwall-cell` of ours outside all cells: by its program, its user and
    its PID namespace, which no cell shares."""
    if process.name != _SHIM_NAME:
        return []
    try:
        place = f"/proc/{process.pid}"
        if os.stat(place).st_uid != os.geteuid():
            return []
        if os.stat(f"{place}/ns/pid").st_ino != os.stat("/proc/self/ns/pid").st_ino:
            return []
        with closing_fd(os.open(f"{place}/cmdline", os.O_RDONLY | os.O_CLOEXEC)) as descriptor:
            return os.read(descriptor, _MAX_COMMAND_BYTES).split(b"\0")[1:]
    except OSError:
        return []


def _noted_shims(ledger: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """(id, (pid, start time)) of each entry. A link, a FIFO or a damaged entry is skipped: the
    other sources still find its cell."""
    try:
        names = os.listdir(ledger)
    except OSError:
        return
    for name in names:
        with suppress(OSError, ValueError, TypeError, RecursionError, BadInput):
            path = os.path.join(ledger, check_id(name))
            with closing_fd(os.open(path, _OPEN_ENTRY)) as descriptor:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    continue
                notes = json.loads(read_at_most(descriptor, _MAX_ENTRY_BYTES) or b"{}")
            match notes:
                case {"shim": [int(pid), int(started)]} if pid > 1:
                    yield name, (pid, started)


def _is_of_us(pid: int) -> bool:
    """Attack: another user makes a cgroup with our tag, which stands on command lines, and
    suspends a process in it. A stop could not end that process, so no lift would be accepted.

    Not by the owner of the folder in /proc: root owns that of a process that is not dumpable.
    """
    found = re.search(r"^Uid:\t(\d+)", read_text(f"/proc/{pid}/status"), re.MULTILINE)
    return os.geteuid() == 0 or (found is not None and int(found[1]) == os.geteuid())


def _mounts() -> tuple[cgroups.CgroupMount, ...]:
    return cgroups.parse_mounts(read_text("/proc/self/mountinfo"))


def _membership(pid: int, tag: str) -> _Membership | None:
    text = read_text(f"/proc/{pid}/cgroup")
    if tag not in text:
        return None
    found: _Membership | None = None
    for controller, path in cgroups.parse_membership(text).items():
        match = _IN_PATH.match(path)
        if match is not None and match["tag"] == tag:
            unified = match["group"] if controller == "" else found.unified if found else ""
            found = _Membership(match["cell"], match["inner"] or "", unified)
    return found

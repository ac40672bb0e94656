"""What the host sees of the processes of an attack program, each as its attack has left it.

A process can hide from this view, but not change it: namespaces, mounts, root, capabilities and
open kernel objects are what the host's /proc says. A process that is not seen proves nothing.
"""

from __future__ import annotations

import os
import secrets
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from cellwall.redteam.sealed_report import SENTINEL

_NAMESPACES = "/proc/{pid}/ns"
_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
_SAME = ("Uid", "Gid", "Groups", *_CAPABILITIES, "NoNewPrivs", "Seccomp", "TracerPid")
_KERNEL_OBJECT = "anon_inode:"
_HARMLESS_OBJECTS = frozenset({"anon_inode:[pidfd]", "anon_inode:[eventpoll]"})


@dataclass(frozen=True, slots=True)
class _View:
    """One process, from outside."""

    pid: int
    namespaces: Mapping[str, str]
    status: Mapping[str, str]
    root: str
    mounts: bytes
    objects: frozenset[str]


@dataclass(slots=True)
class ProcessWitness:
    """Looks at the processes that call themselves by its mark."""

    mark: str = field(default_factory=lambda: f"rt{secrets.token_hex(2)}")
    _views: dict[str, _View] = field(default_factory=dict)
    _parents: set[int] = field(default_factory=set)

    def look(self) -> None:
        """Note every process with the mark; behind it stands the checksum of its attack's name."""
        for pid in _pids():
            with suppress(OSError, ValueError, KeyError):
                self._parents.add(int(_status(pid)["PPid"]))
                name = _read(f"/proc/{pid}/comm").decode("ascii", "replace").strip()
                mark, _, attack = name.partition(".")
                if mark == self.mark:
                    self._views[attack] = _view(pid)

    @property
    def can_see(self) -> bool:
        """Whether the first process, which attacks nothing, was seen."""
        return self.sees(SENTINEL)

    def sees(self, attack: str) -> bool:
        return _checksum(attack) in self._views

    def effects(self, attack: str) -> list[str]:
        """How the process differs from the one that attacks nothing."""
        usual, view = self._views[_checksum(SENTINEL)], self._views[_checksum(attack)]
        found = [
            f"another {name} namespace"
            for name, link in view.namespaces.items()
            if usual.namespaces.get(name) != link
        ]
        found += [f"another {name}" for name in _SAME if usual.status[name] != view.status[name]]
        if view.root != usual.root:
            found.append("another root")
        if view.mounts != usual.mounts:
            found.append("other mounts")
        found += [f"an open {name}" for name in sorted(view.objects - usual.objects)]
        return found

    def has_child(self, attack: str) -> bool:
        """Whether the process has a child that it has not waited for."""
        return self._views[_checksum(attack)].pid in self._parents


def _checksum(name: str) -> str:
    """As in stage.py: a name of a process has 15 characters."""
    return f"{zlib.crc32(name.encode()):08x}"


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _view(pid: int) -> _View:
    status = _status(pid)
    folder = _NAMESPACES.format(pid=pid)
    descriptors = f"/proc/{pid}/fd"
    links = {os.readlink(f"{descriptors}/{number}") for number in os.listdir(descriptors)}
    objects = {link for link in links if link.startswith(_KERNEL_OBJECT)} - _HARMLESS_OBJECTS
    return _View(
        pid=pid,
        namespaces={name: _link(f"{folder}/{name}") for name in os.listdir(folder)},
        status=status,
        root=os.readlink(f"/proc/{pid}/root"),
        mounts=_read(f"/proc/{pid}/mountinfo"),
        objects=frozenset(objects),
    )


def _link(path: str) -> str:
    """Empty for a namespace that has no process yet, as of children after `unshare`."""
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""


def _status(pid: int) -> dict[str, str]:
    text = _read(f"/proc/{pid}/status").decode("utf-8", "replace")
    pairs = (line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    return dict(pair for pair in pairs if len(pair) == 2)


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()

"""Fork safety: what a forked child may not touch, in one place.

A child of `os.fork` has copies of the parent's sockets, files and locks, and none of its threads.
Two rules keep parent and child apart (ADR 0016):

  (1) an object that ends something outside this process (a cell, a file, a connection) asks an
      `OwnerProcess` first: in a child its `close` only closes copies;
  (2) an object with threads, locks or sockets of its own registers with `forget_in_child`: its
      `forget_parent` runs in every child, before any other code of the child.

`os.register_at_fork` is called here only. CPython calls its hooks for `os.fork`, `os.forkpty` and
`multiprocessing`, and so do embedding servers (PyOS_AfterFork_Child). A fork in C that skips the
hooks is still noticed by (1), which compares the process id as well; the process id alone is not
enough, since a child that is PID 1 of a new PID namespace can have the id of its parent.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Protocol


class ForkAware(Protocol):
    """Starts over in a forked child."""

    def forget_parent(self) -> None:
        """Drop copies of the parent's descriptors, and make new locks. Must not block."""


class OwnerProcess:
    """The process that made an object."""

    __slots__ = ("_generation", "_pid")

    def __init__(self) -> None:
        self._generation, self._pid = _hook.generation, os.getpid()

    @property
    def is_current(self) -> bool:
        """False in every child that was forked since."""
        return self._generation == _hook.generation and self._pid == os.getpid()


class _ForkHook:
    def __init__(self) -> None:
        self.generation = 0
        self._aware: list[weakref.ref[ForkAware]] = []
        self._callbacks: list[Callable[[], object]] = []

    def add(self, instance: ForkAware) -> None:
        self._aware = [known for known in self._aware if known() is not None]
        self._aware.append(weakref.ref(instance))

    def add_callback(self, callback: Callable[[], object]) -> None:
        self._callbacks.append(callback)

    def run_in_child(self) -> None:
        self.generation += 1
        instances = [known() for known in self._aware]
        work = [each.forget_parent for each in instances if each is not None]
        for step in (*work, *self._callbacks):
            try:
                step()
            except Exception as error:  # noqa: BLE001  # the other objects must still forget
                import logging  # noqa: PLC0415  # late: it takes longer to import than this module

                log = logging.getLogger("cellwall")
                log.warning("forgetting the parent process failed: %s", type(error).__name__)


_hook = _ForkHook()
os.register_at_fork(after_in_child=_hook.run_in_child)


def forget_in_child(instance: ForkAware) -> None:
    """Call `instance.forget_parent()` in every child forked while `instance` exists."""
    _hook.add(instance)


def call_in_child(callback: Callable[[], object]) -> None:
    """For module state: call `callback()` in every forked child."""
    _hook.add_callback(callback)

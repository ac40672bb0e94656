"""Fork safety: a child knows that it owns nothing of its parent, and starts over."""

from __future__ import annotations

import gc
import os
import weakref

import pytest

from cellwall.core import forks
from cellwall.core.forks import OwnerProcess, call_in_child, forget_in_child


class Aware:
    def __init__(self, *, fails: bool = False) -> None:
        self.forgotten = 0
        self._fails = fails
        forget_in_child(self)

    def forget_parent(self) -> None:
        if self._fails:
            raise ValueError("broken")
        self.forgotten += 1


def _exit_code_of(check: object) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if check() else 1)  # type: ignore[operator]  # a callable
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_only_the_process_that_made_an_object_owns_it():
    owner = OwnerProcess()
    assert owner.is_current
    assert _exit_code_of(lambda: not owner.is_current and OwnerProcess().is_current) == 0
    assert owner.is_current


def test_a_child_with_the_same_pid_owns_nothing(monkeypatch: pytest.MonkeyPatch):
    owner, pid = OwnerProcess(), os.getpid()

    def check() -> bool:
        monkeypatch.setattr(os, "getpid", lambda: pid)
        return not owner.is_current

    assert _exit_code_of(check) == 0


def test_a_fork_without_hooks_is_noticed(monkeypatch: pytest.MonkeyPatch):
    owner, other = OwnerProcess(), os.getpid() + 1
    monkeypatch.setattr(os, "getpid", lambda: other)
    assert not owner.is_current


def test_every_object_forgets_its_parent_even_if_another_fails():
    first, broken, last = Aware(), Aware(fails=True), Aware()
    assert _exit_code_of(lambda: (first.forgotten, last.forgotten) == (1, 1)) == 0
    assert (first.forgotten, broken.forgotten, last.forgotten) == (0, 0, 0)


def test_callbacks_run_in_the_child_alone():
    seen: list[int] = []
    call_in_child(lambda: seen.append(os.getpid()))
    try:
        assert _exit_code_of(lambda: seen == [os.getpid()]) == 0
        assert seen == []
    finally:
        forks._hook._callbacks.pop()


def test_registering_keeps_no_object_alive():
    aware = Aware()
    watched = weakref.ref(aware)
    del aware
    gc.collect()
    assert watched() is None

"""A spare cell: used once, only for its own shape, and only if it is still alive."""

from __future__ import annotations

import os
import select
import signal
import threading
import time

import pytest

import cellwall
from cellwall.sandbox.linux import pool, prepared_cell
from cellwall.sandbox.linux.prepared_cell import PreparedCell, spare_cells


@pytest.fixture(autouse=True)
def no_spare():
    spare_cells.close()
    yield
    spare_cells.close()


def _kept_pid() -> int | None:
    """Once the background work of the runs so far is done."""
    for each in list(pool._POOLS):
        done = threading.Event()
        each.worker.submit(done.set)
        assert done.wait(60)
    kept = [each[0].shim.pid for each in spare_cells._kept.values() if each is not None]
    return kept[0] if kept else None


def test_one_run_does_not_pay_for_another():
    cellwall.run_command(["true"])
    assert _kept_pid() is None


def test_the_next_run_of_the_same_shape_uses_the_spare_cell():
    cellwall.run_command(["true"])
    cellwall.run_command(["true"])
    first = _kept_pid()
    assert first is not None
    assert cellwall.run_command(["echo", "hi"]).stdout == "hi\n"
    assert _kept_pid() not in (None, first)


def test_a_run_of_another_shape_leaves_it_alone():
    for _ in range(2):
        cellwall.run_command(["true"])
    pid = _kept_pid()
    assert cellwall.run_command(["cat"], stdin="hi").stdout == "hi"
    assert pid is not None
    assert _kept_pid() == pid


@pytest.mark.requirement("ISO-4")
def test_one_that_died_while_it_waited_is_replaced():
    for _ in range(2):
        cellwall.run_command(["true"])
    pid = _kept_pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert cellwall.run_command(["echo", "hi"]).stdout == "hi\n"


@pytest.mark.requirement("ISO-8")
def test_the_end_waits_for_one_that_is_being_started_and_forgets_one_that_is_wanted(monkeypatch):
    begun, go_on, made = threading.Event(), threading.Event(), list[PreparedCell]()

    class Slow(PreparedCell):
        def start_bubblewrap(self, *args, **options):
            made.append(self)
            begun.set()
            assert go_on.wait(60)
            return super().start_bubblewrap(*args, **options)

    cellwall.run_command(["true"])
    with monkeypatch.context() as patch:
        cellwall.run_command(["true"])
        assert _kept_pid() is not None
        patch.setattr(prepared_cell, "PreparedCell", Slow)
        assert cellwall.run_command(["true"]).status == "ok"  # by the spare; the next is started
        assert begun.wait(60)
    ending = threading.Thread(target=spare_cells.close)
    ending.start()
    go_on.set()
    ending.join(60)
    assert _kept_pid() is None
    assert not made[0].shim.is_alive()
    (shape,) = [each for each in [made[0]._shape] if not spare_cells.wants(each)]
    spare_cells.close()
    spare_cells.renew(shape)  # wanted once, and forgotten since
    assert _kept_pid() is None


@pytest.mark.requirement("ISO-8")
def test_a_spare_that_cannot_be_started_is_no_failure_of_the_run(monkeypatch):
    class Broken(PreparedCell):
        def start_bubblewrap(self, *_args, **_options):
            raise OSError("no more processes")

    for _ in range(2):
        cellwall.run_command(["true"])
    assert _kept_pid() is not None
    monkeypatch.setattr(prepared_cell, "PreparedCell", Broken)
    assert cellwall.run_command(["true"]).status == "ok"
    assert _kept_pid() is None
    monkeypatch.undo()
    assert cellwall.run_command(["echo", "hi"]).stdout == "hi\n"


@pytest.mark.requirement("LIM-1")
@pytest.mark.slow
def test_the_limits_are_those_of_the_run_that_takes_it():
    for _ in range(2):
        cellwall.run_command(["true"])
    assert _kept_pid() is not None
    code = "import os; b = bytearray(200 << 20); print(len(b))"
    argv = ["python3", "-I", "-S", "-c", code]
    assert cellwall.run_command(argv, memory="64m").limit == "memory"
    assert cellwall.run_command(argv, memory="400m").status == "ok"


@pytest.mark.requirement("ISO-8")
@pytest.mark.slow
def test_it_does_not_outlive_its_process_in_a_forked_child():
    for _ in range(2):
        cellwall.run_command(["true"])
    reading, writing = os.pipe()
    parent = os.fork()
    if parent == 0:  # a process that holds a spare, and leaves a child behind when it is killed
        for _ in range(2):
            cellwall.run_command(["true"])
        pid = _kept_pid()
        if os.fork() == 0:
            os.close(reading)
            time.sleep(30)
            os._exit(0)
        os.write(writing, b"%d" % (pid or 0))
        time.sleep(30)
        os._exit(0)
    os.close(writing)
    shim = os.pidfd_open(int(os.read(reading, 20)))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    poll = select.poll()
    poll.register(shim, select.POLLIN)
    assert poll.poll(10_000)
    os.close(shim)
    os.close(reading)

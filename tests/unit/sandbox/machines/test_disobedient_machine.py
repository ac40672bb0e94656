"""Code that has taken over the kernel of a machine is not asked twice to keep to its limits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from cellwall.core.limits import LimitName, Limits
from cellwall.sandbox.linux import live_cell, live_runs
from cellwall.sandbox.linux.channels import InitSocket
from cellwall.sandbox.linux.live_cell import CellTask, LiveCell, LiveCellParts, LiveInterpreter
from cellwall.sandbox.linux.live_runs import CodeRun, CommandRun
from unit.sandbox.machines.relay_host import wait_for

pytestmark = pytest.mark.requirement("LIM-2", "LIM-6", "ISO-11")


class Machine:
    """A live cell whose init reads nothing and answers nothing."""

    def __init__(self, stack: ExitStack, *, is_machine: bool = True) -> None:
        self.kills = 0
        self.init, self.status = InitSocket(), InitSocket()
        stack.callback(self.init.close)
        stack.callback(self.status.close)
        parts = LiveCellParts(
            path="machine",
            init=self.init,
            meter=None,
            owner=None,
            interpreter=(),
            limits=Limits(),
            failure=lambda step: AssertionError(step),  # type: ignore[arg-type,return-value]  # unused
            close=lambda: None,
            kill=self.kill if is_machine else None,
        )
        self.cell = LiveCell(parts, max_result_bytes=1)
        channels: Any = SimpleNamespace(status=self.status, channel=None)
        self.task = CellTask(1, channels, lambda: None, started=0.0)

    def kill(self) -> None:
        """As the shim: every descriptor of the relay closes."""
        self.kills += 1
        self.status.close_inside()
        self.init.close_inside()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("limit", [LimitName.DISK, LimitName.WALL])
def test_a_machine_that_goes_on_past_a_limit_is_ended_from_outside(
    stack: ExitStack, limit: LimitName, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(stack)
    run = CommandRun(machine.cell, machine.task, machine.cell.counters())
    run.kill(limit)
    assert machine.kills == 0  # told first
    monkeypatch.setattr(live_cell, "OBEYS_WITHIN_S", 0.2)

    def is_killed() -> bool:
        run.kill(limit)
        return machine.kills > 0

    wait_for(is_killed)
    assert not machine.cell.is_alive()


def test_a_cell_of_this_kernel_is_never_ended_for_it(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: its init does as it is told, and the cell goes on."""
    monkeypatch.setattr(live_cell, "OBEYS_WITHIN_S", 0.0)
    machine = Machine(stack, is_machine=False)
    for _ in range(3):
        machine.cell.end_processes(LimitName.DISK)
    assert machine.kills == 0
    assert machine.cell.is_alive()


@pytest.mark.parametrize("answers", [True, False])
def test_the_end_of_a_run_does_not_wait_for_ever_for_a_machine(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    monkeypatch.setattr(live_runs, "OBEYS_WITHIN_S", 60.0 if answers else 0.2)
    machine = Machine(stack)
    interpreter: Any = LiveInterpreter("", machine.task, None, stops_when_interrupted=True)  # type: ignore[arg-type]  # nothing is read
    run = CodeRun(machine.cell, interpreter)
    assert run.begin_release()
    if answers:
        machine.task.handle_words(["rest", "-"])
    anyio.run(run.wait_gone)
    assert (machine.kills, run.state) == ((0, "kept") if answers else (1, "lost"))

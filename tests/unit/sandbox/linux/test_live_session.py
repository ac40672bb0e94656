"""Which checks of a live cell between its calls are left out, and which never (LIM-1, LIM-6)."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from cellwall.core.limits import LimitName, Limits
from cellwall.sandbox.linux import live_session
from cellwall.sandbox.linux.live_session import LiveSession, exceeded_limit
from cellwall.sandbox.linux.run_cgroup import RunCgroup


@dataclass
class FakeCell:
    """Its counters, and the checks that were made of it."""

    cpu_s_now: float | None = 1.0
    meter: object = field(default_factory=lambda: RunCgroup(1, {}))
    counts: int = 0
    searches: int = 0
    is_over: bool = False
    bounded_by_kernel: bool = False

    @property
    def parts(self) -> Any:
        return SimpleNamespace(limits=Limits(), meter=self.meter)

    def cpu_s(self) -> float | None:
        return self.cpu_s_now

    def code_pids(self) -> list[int]:
        return []

    # As the lease of its workspace, and as what counts its kernel memory.

    def is_filling(self, _limits: Limits) -> bool:
        return True

    def has_room(self, _limits: Limits, _unlinked: object) -> bool:
        self.searches += 1
        return not self.is_over

    def is_due(self) -> bool:
        return True

    def exceeds_limit(self) -> bool:
        self.counts += 1
        return self.is_over


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> FakeCell:
    monkeypatch.setattr(live_session, "find_unlinked_files", lambda _pids: [])
    return FakeCell()


def session_of(cell: FakeCell, **changes: Any) -> Any:
    return LiveSession(workspace=cell, uncharged=cell, **changes)  # type: ignore[arg-type]  # a fake


def checks(session: Any, cell: Any, times: int = 3) -> tuple[int, int]:
    before = cell.counts, cell.searches
    for _ in range(times):
        assert exceeded_limit(session, cell) is None
    return cell.counts - before[0], cell.searches - before[1]


@pytest.mark.requirement("LIM-1", "LIM-6")
def test_a_cell_without_processor_time_is_checked_once(cell: FakeCell) -> None:
    session = session_of(cell)
    assert checks(session, cell) == (1, 1)
    cell.cpu_s_now = 1.000000001
    assert checks(session, cell) == (1, 1)


@pytest.mark.requirement("LIM-1", "LIM-6")
@pytest.mark.parametrize("cpu_s", [None, 1.0])
def test_a_cell_whose_processor_time_is_not_measured_is_always_checked(
    cell: FakeCell, cpu_s: float | None
) -> None:
    cell.cpu_s_now, cell.meter = cpu_s, cell.meter if cpu_s is None else object()
    assert checks(session_of(cell), cell) == (3, 3)


@pytest.mark.requirement("LIM-6")
def test_kernel_memory_is_always_counted_where_data_comes_from_outside(cell: FakeCell) -> None:
    assert checks(session_of(cell, has_egress=True), cell) == (3, 1)
    session = session_of(cell)
    assert checks(session, cell) == (1, 1)
    session.connections = 1
    assert checks(session, cell) == (3, 0)
    session.connections = 0  # what has come in is counted once more
    assert checks(session, cell) == (1, 0)


@pytest.mark.requirement("LIM-1", "LIM-6")
def test_a_limit_that_was_exceeded_is_checked_again(cell: FakeCell) -> None:
    session = session_of(cell)
    cell.is_over = True
    assert [exceeded_limit(session, cell) for _ in range(2)] == [LimitName.MEMORY] * 2  # type: ignore[arg-type]  # a fake
    session.uncharged = None
    assert [exceeded_limit(session, cell) for _ in range(2)] == [LimitName.DISK] * 2  # type: ignore[arg-type]  # a fake
    assert (cell.counts, cell.searches) == (2, 2)


@pytest.mark.requirement("LIM-1", "LIM-6")
def test_a_new_cell_of_the_session_is_checked_anew(cell: FakeCell) -> None:
    session = session_of(cell)
    assert checks(session, cell) == (1, 1)
    session.put_cell(cell)
    assert checks(session, cell) == (1, 1)

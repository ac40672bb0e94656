"""Suspending the processes of a cell by signals (FS-9)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from cellwall.core.errors import SandboxFailed
from cellwall.sandbox.linux.frozen_cells import _state_of, frozen


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(["sleep", "600"])  # of the host
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def cell_of(*answers: list[int]) -> SimpleNamespace:
    """A cell whose group names these processes, one list per reading; then always the last."""
    left = list(answers)
    parts = SimpleNamespace(meter=None)
    return SimpleNamespace(parts=parts, pids=lambda: left.pop(0) if len(left) > 1 else left[0])


@pytest.mark.requirement("ISO-6")
def test_a_number_that_left_the_group_stops_no_process_of_the_host(process):
    """Attack: a process of the cell ends, and its number is used again outside of the cell."""
    with pytest.raises(SandboxFailed), frozen(cell_of([process.pid], [])):
        pass
    assert _state_of(process.pid) in "SR"


def test_a_process_of_the_group_is_stopped_and_goes_on_behind_the_block(process):
    with frozen(cell_of([process.pid])):
        assert _state_of(process.pid) == "T"
    assert _state_of(process.pid) in "SR"

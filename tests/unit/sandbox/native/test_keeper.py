"""Keepers: found alive, handed over whole, whatever descriptors the supervisor has."""

from __future__ import annotations

import os

import pytest

import holdfast
from holdfast.sandbox.native.keeper import SpareKeeper


@pytest.mark.requirement("ISO-9")
@pytest.mark.parametrize("held", [0, 40, 61, 70, 90, 300])
def test_a_supervisor_with_any_number_of_open_descriptors_can_run(held):
    # The numbers that are sent to the keeper must not meet the one its own line has.
    kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(held)]
    try:
        assert [holdfast.run_command(["echo", "hi"]).stdout for _ in range(3)] == ["hi\n"] * 3
    finally:
        for descriptor in kept:
            os.close(descriptor)


def test_a_spare_is_used_once_and_only_by_the_process_that_made_it():
    spare = SpareKeeper()
    spare.renew()
    first = spare.take()
    second = spare.take()
    assert first.pid != second.pid
    first.close()
    second.close()
    spare.close()  # nothing is left to close


def test_a_keeper_that_died_while_it_waited_is_replaced():
    spare = SpareKeeper()
    spare.renew()
    dead = spare.take()
    dead.abandon()
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    spare._kept = os.getpid(), dead
    fresh = spare.take()
    assert fresh.pid != dead.pid
    fresh.close()

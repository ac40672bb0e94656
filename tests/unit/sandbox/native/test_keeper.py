"""Keepers: found alive, handed over whole, whatever descriptors the supervisor has."""

from __future__ import annotations

import os

import pytest

import cellwall


@pytest.mark.requirement("ISO-9")
@pytest.mark.parametrize("held", [0, 40, 61, 70, 90, 300])
def test_a_supervisor_with_any_number_of_open_descriptors_can_run(held):
    # The numbers that are sent to the keeper must not meet the one its own line has.
    kept = [os.open(os.devnull, os.O_RDONLY) for _ in range(held)]
    try:
        assert [cellwall.run_command(["echo", "hi"]).stdout for _ in range(3)] == ["hi\n"] * 3
    finally:
        for descriptor in kept:
            os.close(descriptor)

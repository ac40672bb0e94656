"""When the end of a killed run counts as one that does not come (ISO-8)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from cellwall.sandbox.linux.run_ending import STUCK_S, EndingPatience, LifeSigns, life_signs

pytestmark = pytest.mark.requirement("ISO-8")
STILL = LifeSigns(cpu_s=1.0, pids=frozenset({7, 8}))
PAUSE_S = 0.05


def waited_s(signs: list[LifeSigns], *, at_most_s: float = 300.0) -> float:
    """How long the end is waited for; `signs` are shown one after the other, then the last one."""
    now_s, patience, looks = 0.0, EndingPatience(0.0), iter(signs)
    shown = signs[0]
    while now_s < at_most_s:
        now_s += PAUSE_S
        shown = next(looks, shown) if patience.wants_signs else shown
        if patience.is_over(now_s, shown if patience.wants_signs else None):
            return now_s
    return now_s


def test_a_process_that_shows_no_sign_of_life_is_waited_for_twenty_seconds():
    assert waited_s([STILL]) == pytest.approx(STUCK_S, abs=0.1)


@pytest.mark.parametrize(
    "moving",
    [
        LifeSigns(cpu_s=1.001, pids=STILL.pids),
        LifeSigns(cpu_s=1.0, pids=frozenset({8})),
        LifeSigns(cpu_s=1.0, pids=STILL.pids, is_runnable=True),
    ],
    ids=["it used a processor", "one has ended", "one waits for a processor"],
)
def test_a_sign_of_life_begins_the_wait_again(moving: LifeSigns):
    still_first = [STILL] * 10
    expected = STUCK_S + 11  # the last sign is that of the second eleven
    if moving.is_runnable:
        signs = [*still_first, moving, LifeSigns(moving.cpu_s, moving.pids)]
        expected += 1
    else:
        signs = [*still_first, moving]
    assert waited_s(signs) == pytest.approx(expected, abs=1.0)


def test_a_process_that_loops_in_the_kernel_is_not_waited_for_for_ever():
    assert waited_s([LifeSigns(is_runnable=True)]) == pytest.approx(120, abs=0.2)


def test_time_in_which_the_supervisor_does_not_run_does_not_count():
    patience = EndingPatience(0.0)
    assert not patience.is_over(3600.0, STILL)  # the machine was suspended for an hour
    assert not patience.is_over(3600.0 + PAUSE_S, STILL)


def test_signs_are_those_of_the_kernel():
    program = [sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(program) as busy, subprocess.Popen(["sleep", "600"]) as idle:
        try:
            for _ in range(1000):  # on a busy host it waits for its memory now and then
                found = life_signs([0, busy.pid], 2.0)
                if found.is_runnable:
                    break
            assert found == LifeSigns(2.0, frozenset({busy.pid}), True)
            os.kill(busy.pid, signal.SIGSTOP)
            os.waitpid(busy.pid, os.WUNTRACED)
            both = frozenset({busy.pid, idle.pid})
            for _ in range(1000):
                found = life_signs(both, None)
                if not found.is_runnable:
                    break
            assert found == LifeSigns(None, both)
        finally:
            busy.kill()
            idle.kill()
    assert not life_signs([busy.pid], None).is_runnable

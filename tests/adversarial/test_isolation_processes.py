"""Processes, signals, memory, keyrings and IPC of the host and of the cell's own init (ISO-5)."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import cellwall
from adversarial.conftest import (
    WHO,
    Verdicts,
    attack_names,
    inside,
    judge,
    outside,
)

Remember = Callable[[object, Callable[[], Verdicts]], Verdicts]


@pytest.mark.requirement("ISO-5")
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("name", attack_names("processes"))
@pytest.mark.table("name")
def test_no_process_outside_is_seen_or_reached_and_init_is_closed(
    name: str, who: str, path: str, host_things: dict[str, object], remember: Remember
) -> None:
    def without_walls() -> Verdicts:
        return outside("processes", target=host_things["victim"], **host_things)

    def within() -> Verdicts:
        return inside("processes", who=who, options={}, target=1, **host_things)

    judge(name, remember("processes", without_walls), remember(("processes", who, path), within))


@pytest.mark.requirement("ISO-5")
def test_every_signal_to_init_and_to_all_is_harmless() -> None:
    ran = cellwall.run_code(
        "import os, signal\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.pause()\n"
        "sent = 0\n"
        "for number in range(1, 65):\n"
        "    for target in (1, -1):\n"
        "        if target == -1 and number in (9, 15): continue\n"
        "        try: os.kill(target, number)\n"
        "        except OSError: continue\n"
        "        sent += target == 1\n"
        "os.kill(child, 9)\n"
        "os.waitpid(child, 0)\n"  # the control: signals are delivered here
        "print('alive', sent)\n"
        "raise SystemExit(7)\n"
    )
    assert (ran.status.value, ran.exit_code, ran.stdout) == ("failed", 7, "alive 64\n")


@pytest.mark.requirement("ISO-5")
@pytest.mark.parametrize(
    "deed",
    [
        "os.killpg(0, signal.SIGKILL)",
        "os.kill(-1, signal.SIGSTOP); os.kill(os.getpid(), signal.SIGKILL)",
        "os.closerange(0, 4096); os.kill(os.getpid(), signal.SIGKILL)",
    ],
)
def test_a_run_that_ruins_itself_ends_with_its_own_signal(deed: str) -> None:
    ran = cellwall.run_code(f"import os, signal\nif os.fork() == 0: signal.pause()\n{deed}\n")
    assert (ran.status.value, ran.exit_code, ran.limit) == ("failed", 128 + 9, None)


@pytest.mark.requirement("ISO-5")
def test_a_run_that_stops_everything_ends_at_its_wall_time() -> None:
    ran = cellwall.run_code("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n", timeout=1)
    assert (ran.status.value, ran.exit_code, ran.limit) == ("limit", 124, "wall")


@pytest.mark.requirement("ISO-5")
def test_init_that_was_made_least_important_still_reports_the_truth() -> None:
    """Scheduling of PID 1 is open to its uid; busy orphans must not keep it from its word."""
    ran = cellwall.run_code(
        "import os\n"
        "for act in (\n"
        "    lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)),\n"
        "    lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),\n"
        "    lambda: os.sched_setaffinity(1, {min(os.sched_getaffinity(0))}),\n"
        "):\n"
        "    try: act()\n"
        "    except OSError: pass\n"
        "for _ in range(40):\n"
        "    if os.fork() == 0:\n"
        "        while True: pass\n"
        "raise SystemExit(7)\n",
        timeout=60,
        limits={"cpu_s": 300},
    )
    assert (ran.status.value, ran.exit_code, ran.limit) == ("failed", 7, None)


@pytest.mark.requirement("ISO-5")
def test_pid_numbers_run_out_without_harm_to_the_next_run() -> None:
    code = (
        "import os, signal\n"
        "made = 0\n"
        "while made < 2000:\n"
        "    try:\n"
        "        if os.fork() == 0: signal.pause()\n"
        "    except OSError: break\n"
        "    made += 1\n"
        "signal.pause()\n"
    )
    bomb = cellwall.run_code(code, limits={"processes": 16}, timeout=60)
    after = cellwall.run_code("1 + 1", limits={"processes": 16})
    assert bomb.limit == "processes"
    assert (after.status.value, after.value) == ("ok", 2)


@pytest.mark.requirement("ISO-5")
def test_an_orphan_of_the_program_does_not_outlive_it(tmp_path: Path) -> None:
    mark = f"cellwall-orphan-{os.getpid()}"
    ran = cellwall.run_code(
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; print(1, flush=True);"
        f" signal.pause()', {mark!r}], stdout=subprocess.PIPE, start_new_session=True)\n"
        "child.stdout.readline()\n"  # the control: it runs
        "child.pid\n"
    )
    assert ran.status.value == "ok"
    assert isinstance(ran.value, int)
    left = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "cmdline").read_bytes():
                left.append(entry.name)
    assert left == []

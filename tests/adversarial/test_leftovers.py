"""Whatever ends a run, nothing of it remains: no process, cgroup, mount, file or name (ISO-8)."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

import cellwall
from adversarial.conftest import end_what_waits, enter_home
from adversarial.leftovers import (
    UID_BASE,
    alive,
    children,
    children_of,
    groups,
    holders_of,
    left,
    nothing,
    own_children,
    own_state,
    own_things,
    recorded,
    resident_kib,
    until_ended,
)
from cellwall.runtime import wiring
from cellwall.sandbox.linux import cgroups
from cellwall.sandbox.linux.prepared_cell import spare_cells
from conftest import audit_records, need, new_home
from interfaces import prepared_program

ROUNDS = 20
# A round starts a Python process of its own, and each start takes most of a second.
KILLS = (6, pytest.param(20, marks=pytest.mark.long))
RUNS = (60, pytest.param(1000, marks=pytest.mark.long))
ALARMS = 60
LONG_S = 60


@pytest.fixture(scope="module", autouse=True)
def host_can_run() -> None:
    need(shutil.which("bwrap"), "bubblewrap")
    need(cgroups.choose(cgroups.gather()).way != "none", "cgroups with memory, pids and cpu")


@pytest.fixture(autouse=True)
def state_home(
    path: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """One for each test on both paths: what is found in it was left by this test."""
    home = new_home(tmp_path_factory)
    yield enter_home(home, path, monkeypatch)
    end_what_waits()
    wiring.close_shared(str(home))


@pytest.fixture
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("config") / "cellwall.toml"
    path.write_text(f"[sandbox]\nuid_base = {UID_BASE}\n")
    return str(path)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    (place / "README").write_text("mine")
    return place


ENDS = {
    "a normal end": ("true", {}),
    "a failure": ("exit 3", {}),
    "a signal": ("kill -SEGV $$", {}),
    "the wall limit": ("sleep 60 & sleep 60", {"wall_s": 0.4}),
    "the cpu limit": ("while :; do :; done", {"cpu_s": 0.3}),
    "the memory limit": ("head -c 200m /dev/zero | tail", {"memory_bytes": 32 << 20}),
    "the processes limit": ("for n in $(seq 99); do sleep 60 & done; wait", {"processes": 20}),
    "a program that is not there": ("exec /no/such/program", {}),
}


@pytest.mark.requirement("ISO-8")
@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_left_after(end: str, config: str, project: Path, state_home: str) -> None:
    command, limits = ENDS[end]
    done = cellwall.run_command(
        ["/bin/sh", "-c", command], workspace=f"{project}:rw", config=config, limits=limits
    )
    assert done.error is None
    assert left(state_home, project) == nothing(project)
    assert groups({done.outcome.action_id}) == []


@pytest.mark.requirement("ISO-8")
def test_nothing_is_left_when_the_walls_cannot_be_built(
    config: str, project: Path, state_home: str
) -> None:
    with open(config, "a", encoding="utf-8") as file:
        file.write(f"extra_read_only_paths = ['/opt/{project.name}-missing']\n")
    done = cellwall.run_code("print(1)", workspace=f"{project}:rw", config=config)
    assert (done.status, done.stdout) == ("error", "")
    assert left(state_home, project) == nothing(project)
    assert groups({done.outcome.action_id}) == []


_REAPER = """
import ctypes, os, sys, cellwall
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER: orphans come to us
done = cellwall.run_command(["sleep", "60"], timeout=0.4, config=sys.argv[1])
from cellwall.sandbox.linux import pool
from cellwall.sandbox.linux.prepared_cell import spare_cells
spare_cells.close()  # they wait for the next run and are alive
pool.close_all()
try:
    print(done.limit, os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT))
except ChildProcessError:
    print(done.limit, "no child")
"""


@pytest.mark.requirement("ISO-8")
def test_no_zombie_is_left_to_whoever_reaps_orphans(config: str) -> None:
    # In a container PID 1 is often a program that reaps nobody: zombies would stay for ever.
    said = subprocess.run(
        [sys.executable, "-c", _REAPER, config], capture_output=True, text=True, check=True
    )
    assert said.stdout == "wall no child\n"


@pytest.mark.requirement("ISO-8")
def test_nothing_is_left_after_cancellation(config: str, project: Path, state_home: str) -> None:
    """Seeded delays from the first moment to well inside the run; the last waits for output."""
    chance = random.Random(8)
    seen: set[str] = set()
    ended: list[bool] = []

    async def one(delay_s: float) -> None:
        with anyio.CancelScope() as scope:
            async with cellwall.AsyncSandbox.create(
                workspace=f"{project}:rw", config=config
            ) as sandbox:
                seen.add(sandbox.id)
                if delay_s:
                    scope.deadline = anyio.current_time() + delay_s
                await sandbox.commands.run(
                    "echo ready; sleep 60", on_stdout=lambda _: scope.cancel()
                )
        ended.append(scope.cancelled_caught)

    async def all_of_them() -> None:
        for _ in range(ROUNDS):
            await one(chance.uniform(0.0001, 0.03))
        await one(0)

    anyio.run(all_of_them)
    assert ended == [True] * (ROUNDS + 1)
    assert left(state_home, project) == nothing(project)
    assert groups(seen) == []


# --- the supervisor itself is ended

_SUPERVISOR = """
import sys, cellwall
project, config = sys.argv[1:]
cellwall.run_command(["echo", "loads what a first run has to load"], config=config)
with cellwall.Sandbox.create(workspace=project + ":rw", config=config) as sandbox:
    print("ready", flush=True)
    while True:
        sandbox.commands.run("echo started; sleep 60 & sleep {sleep_s}",
                             on_stdout=lambda text: print(text, end="", flush=True))
"""


@contextlib.contextmanager
def _supervisor(project: Path, config: str, *, sleep_s: float) -> Iterator[subprocess.Popen[str]]:
    process = prepared_program.Popen(
        [str(project), config],
        code=_SUPERVISOR.format(sleep_s=sleep_s),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def _wait_for(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == word:
            return
    pytest.fail(f"the supervisor ended before it said {word!r}")


@pytest.mark.requirement("ISO-8")
@pytest.mark.slow
@pytest.mark.parametrize("rounds", KILLS)
def test_nothing_is_left_after_kill_9_of_the_supervisor_at_any_moment(
    config: str, project: Path, state_home: str, rounds: int
) -> None:
    chance = random.Random(9)
    done = caught_running = 0
    # The control: many kills hit a run. On a busy machine that takes some rounds more.
    while done < rounds or caught_running <= rounds // 4:
        assert done < 4 * rounds
        done += 1
        with _supervisor(project, config, sleep_s=0.01) as process:
            # Every other moment is one after a run has begun, however busy the machine is.
            _wait_for(process, "started" if done % 2 else "ready")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0, 0.3))  # the moment; nothing is awaited
            os.kill(process.pid, signal.SIGSTOP)  # so that no shim is born unseen
            shims = children(process.pid)
            holders = holders_of(project)
            caught_running += bool(shims or holders)
            seen = recorded(state_home)
            process.kill()
            until_ended([*shims, *holders])
        assert alive() == []
        assert os.listdir(project) == ["README"]  # with no further start
        wiring.open_app(config=config)  # the next start
        assert left(state_home, project) == nothing(project)
        assert groups(seen) == []


@pytest.mark.requirement("ISO-8")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_supervisor_ends_the_run_at_once(
    number: signal.Signals, config: str, project: Path, state_home: str
) -> None:
    with _supervisor(project, config, sleep_s=LONG_S) as process:
        _wait_for(process, "started")
        assert alive() != []  # the control: there is something to end
        shims = [*children(process.pid), *holders_of(project)]
        process.send_signal(number)
        try:
            process.wait(LONG_S / 2)
        except subprocess.TimeoutExpired:
            _until_killed(process, shims)
            pytest.fail(f"{number.name} did not end the supervisor while its run sleeps")
        until_ended(shims)
    assert alive() == []
    assert os.listdir(project) == ["README"]  # with no further start
    wiring.open_app(config=config)
    assert left(state_home, project) == nothing(project)


def _until_killed(process: subprocess.Popen[str], shims: list[int]) -> None:
    process.kill()
    until_ended(shims)


@pytest.mark.requirement("ISO-8")
def test_a_keyboard_interrupt_in_the_main_thread_ends_the_run_before_its_sandbox_is_left(
    config: str, state_home: str
) -> None:
    main = threading.main_thread().ident
    assert main is not None
    seen: dict[str, list[str]] = {}

    def look(when: str) -> None:
        seen[when] = [words for words in alive() if words.startswith("sleep\0")]

    def interrupt(_text: str) -> None:
        look("before")
        signal.pthread_kill(main, signal.SIGINT)

    with (
        pytest.raises(KeyboardInterrupt),
        cellwall.Sandbox.create(config=config, timeout=10) as sandbox,
    ):
        try:
            sandbox.commands.run(
                "sleep 60 & until grep -q sleep /proc/$!/comm; do :; done; echo started; wait",
                on_stdout=interrupt,
            )
        finally:
            look("after")  # the sandbox itself, a live cell, ends when it is left
    assert seen == {"before": ["sleep\x0060\0"], "after": []}
    assert left(state_home) == nothing()


class _Alarm(TimeoutError):
    """What a caller's handler of SIGALRM raises to bound a run."""


def _ring(*_: object) -> None:
    raise _Alarm


@pytest.mark.requirement("ISO-8", "AUD-1", "ERR-2")
def test_alarms_of_the_caller_at_any_moment_of_a_run_leave_nothing(
    config: str, state_home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLWALL_SUPERVISOR", "off")
    assert cellwall.run_command(["true"], config=config).status == "ok"
    end_what_waits()
    gc.collect()
    before, things, others = own_state(), own_things(), own_children()
    first = len(audit_records())
    moments, rung = random.Random(20), 0
    handler = signal.signal(signal.SIGALRM, _ring)
    try:
        for _ in range(ALARMS):
            signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.001, 0.05))
            try:
                done = cellwall.run_command(["sleep", "0.02"], config=config)
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert (done.status, done.error) == ("ok", None)
            except _Alarm:
                rung += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
    assert rung > ALARMS // 4, "the alarms came after the runs"
    written = audit_records()[first:]
    kinds = Counter(each["kind"] for each in written)
    assert kinds == {"intent": kinds["intent"], "outcome": kinds["intent"]}
    ends = Counter(each["body"]["status"] for each in written if each["kind"] == "outcome")
    assert set(ends) <= {"ok", "interrupted"}
    assert ends["interrupted"]
    end_what_waits()
    gc.collect()
    assert all(now <= then for now, then in zip(own_state(), before, strict=True)), "\n".join(
        (own_things() - things).elements()
    )
    assert own_children() - others == Counter()
    assert left(state_home) == nothing()


# --- many runs


@pytest.mark.requirement("ISO-8")
@pytest.mark.slow
@pytest.mark.parametrize("runs", RUNS)
def test_many_runs_leave_nothing_in_the_supervisor(config: str, state_home: str, runs: int) -> None:
    house = wiring.shared_app(config)
    for _ in range(20):  # caches, threads and pools are made by the first ones
        assert cellwall.run_command(["true"], config=config).status == "ok"
    end_what_waits()  # how many cells are kept ready follows demand; they hold descriptors
    gc.collect()
    before, before_kib, things = own_state(), resident_kib(), own_things()
    others = own_children()  # of other tests; they fork programs
    for _ in range(runs):
        assert cellwall.run_command(["true"], config=config).status == "ok"
    end_what_waits()
    gc.collect()
    assert all(now <= then for now, then in zip(own_state(), before, strict=True)), "\n".join(
        (own_things() - things).elements()
    )
    assert resident_kib() - before_kib < 8 * 1024
    assert left(state_home) == nothing()
    assert len(os.listdir(f"{house.store.home}/governor")) < 5
    assert own_children() - others == Counter()  # no zombie, no shim


@pytest.mark.requirement("ISO-8", "ISO-7")
def test_fifty_runs_at_once_all_end_with_their_own_output(config: str, state_home: str) -> None:
    answers: dict[int, tuple[str, str]] = {}

    async def one(number: int) -> None:
        async with cellwall.AsyncSandbox.create(config=config, memory="64m", timeout=60) as sandbox:
            done = await sandbox.run_code(
                f"import os; print(os.listdir()); open('mine', 'w').write('x'); print('token', {number})"
            )
            answers[number] = (done.status, done.stdout)

    async def all_at_once() -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(50):
                tasks.start_soon(one, number)

    anyio.run(all_at_once)
    assert answers == {number: ("ok", f"[]\ntoken {number}\n") for number in range(50)}
    assert left(state_home) == nothing()


@pytest.mark.requirement("ISO-8")
def test_nothing_is_left_after_kill_9_of_the_shim(config: str, state_home: str) -> None:
    seen: set[str] = set()
    others = set(children_of(os.getpid()))  # servers of other tests, which have children too

    def kill_it(_text: str) -> None:
        spare_cells.close()  # the shim that is left is this run's, or its template's
        seen.update(recorded(state_home))
        started = set(children_of(os.getpid())) - others
        (shim,) = [child for child in started if children_of(child)]
        os.kill(int(shim), signal.SIGKILL)

    done = cellwall.run_command("echo on; sleep 60", config=config, on_stdout=kill_it, timeout=30)
    assert done.status.value == "error"
    assert len(seen) == 1  # the control: there was a run to be left behind
    # Once (warm): `Group.discard` of a template never removes the group of its zygote, so the
    # template's own stays as well, and the entry by which the next start would sweep it is gone.
    assert left(state_home) == nothing()
    assert groups(seen) == []

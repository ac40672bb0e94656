"""The governor bounds sandboxes over all processes of a user (LIM-4)."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.errors import BadInput, Busy, ConfigError, SandboxFailed
from cellwall.core.sandbox_ports import Slot
from cellwall.sandbox.governor import Governor, HostMemory

CALM = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
PRESSED = CALM.replace("some avg10=0.00", "some avg10=61.25")
MEMINFO = "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    8000000 kB\n"

HOLDER = """
import sys, anyio
from cellwall.sandbox.governor import Governor
async def main():
    governor = Governor(sys.argv[1], max_concurrent=int(sys.argv[2]), max_promised_memory_bytes=1000,
                        queue_timeout_s=0, min_available_memory_bytes=0, max_memory_pressure_percent=100)
    async with governor.lease(memory_bytes=int(sys.argv[3])) as slot:
        print(slot.number, flush=True)
        sys.stdin.read()
anyio.run(main)
"""

# Each holder of a place makes a file of its own and removes it again: a place given twice fails.
COMPETITOR = """
import os, sys, anyio
from cellwall.sandbox.governor import Governor
async def task(governor, folder):
    for _ in range(15):
        async with governor.lease(memory_bytes=100) as slot:
            mark = f"{folder}/{slot.number}"
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            assert len(os.listdir(folder)) <= 3, "more than promised memory allows"
            await anyio.sleep(0)
            os.unlink(mark)
async def main():
    governor = Governor(sys.argv[1], max_concurrent=4, max_promised_memory_bytes=300, queue_timeout_s=60,
                        min_available_memory_bytes=0, max_memory_pressure_percent=100)
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(task, governor, sys.argv[2])
anyio.run(main)
"""


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def host(tmp_path):
    (tmp_path / "psi").write_text(CALM)
    (tmp_path / "meminfo").write_text(MEMINFO)
    return HostMemory(pressure_file=str(tmp_path / "psi"), meminfo_file=str(tmp_path / "meminfo"))


@pytest.fixture
def places(tmp_path):
    return tmp_path / "places"


@pytest.fixture
def make(places, host):
    made = []

    def make_governor(**changes) -> Governor:
        settings = {
            "max_concurrent": 4,
            "max_promised_memory_bytes": 1000,
            "queue_timeout_s": 0.0,
            "min_available_memory_bytes": 1024**3,
            "max_memory_pressure_percent": 40.0,
            "host": host,
        }
        governor = Governor(str(places), **(settings | changes))
        made.append(governor)
        return governor

    yield make_governor
    for governor in made:
        governor.close()


@contextmanager
def holder(places: Path, *, memory_bytes: int = 100, max_concurrent: int = 4):
    """Another process that holds one place until its input ends."""
    argv = [sys.executable, "-c", HOLDER, str(places), str(max_concurrent), str(memory_bytes)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdigit()
        try:
            yield process
        finally:
            process.kill()


async def refusal(governor: Governor, memory_bytes: int = 100) -> tuple[type, str, str]:
    with pytest.raises((Busy, BadInput, SandboxFailed)) as caught:
        async with governor.lease(memory_bytes=memory_bytes):
            pass
    error = caught.value
    assert error.hint
    return type(error), error.code, error.message


NO_PLACE = (
    Busy,
    "CW-BUSY",
    "no place was free for one more sandbox within the time allowed to wait",
)
NO_MEMORY = (
    Busy,
    "CW-BUSY",
    "the memory that may be promised to sandboxes is taken by those that run",
)
PRESSURE = (Busy, "CW-MEMORY-PRESSURE", "the host is short of memory")
BROKEN = (
    SandboxFailed,
    "CW-GOVERNOR-FAILED",
    "the files that count running sandboxes cannot be used, so nothing was started",
)


@pytest.mark.anyio
async def test_lowest_free_place_is_given_and_used_again(make):
    governor = make()
    async with AsyncExitStack() as outer:
        first = await outer.enter_async_context(governor.lease(memory_bytes=1))
        async with governor.lease(memory_bytes=2) as second:
            third = await outer.enter_async_context(governor.lease(memory_bytes=3))
        again = await outer.enter_async_context(governor.lease(memory_bytes=4))
    assert [first, second, third, again] == [Slot(0, 1), Slot(1, 2), Slot(2, 3), Slot(1, 4)]


@pytest.mark.anyio
@pytest.mark.requirement("LIM-4")
async def test_no_more_than_max_concurrent_over_processes_and_tasks(make, places):
    governor = make(max_concurrent=2)
    with holder(places):
        async with governor.lease(memory_bytes=100) as slot:
            assert slot == Slot(1, 100)
            assert await refusal(governor) == NO_PLACE
        async with governor.lease(memory_bytes=100) as slot:
            assert slot == Slot(1, 100)


@pytest.mark.anyio
@pytest.mark.slow
async def test_places_of_a_process_configured_for_more_count(make, places):
    governor = make(max_concurrent=1)
    with holder(places, max_concurrent=64), holder(places, max_concurrent=64) as second:
        assert await refusal(governor) == NO_PLACE
        second.kill()
        second.wait()
        assert await refusal(governor) == NO_PLACE


@pytest.mark.anyio
@pytest.mark.requirement("LIM-4")
async def test_promised_memory_is_summed_over_processes(make, places):
    governor = make()
    with holder(places, memory_bytes=600):
        async with governor.lease(memory_bytes=300):
            assert await refusal(governor, 101) == NO_MEMORY
            async with governor.lease(memory_bytes=100) as slot:
                assert slot == Slot(2, 100)


@pytest.mark.anyio
@pytest.mark.requirement("LIM-4")
async def test_killed_holder_frees_place_and_memory(make, places):
    governor = make(max_concurrent=1)
    with holder(places, memory_bytes=1000) as process:
        assert await refusal(governor) == NO_PLACE
        process.send_signal(signal.SIGKILL)
        process.wait()
        async with governor.lease(memory_bytes=1000) as slot:
            assert slot == Slot(0, 1000)


@pytest.mark.requirement("LIM-4")
@pytest.mark.slow
def test_competing_processes_never_share_a_place_nor_exceed_the_memory(places, tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()
    argv = [sys.executable, "-c", COMPETITOR, str(places), str(marks)]
    processes = [subprocess.Popen(argv, stderr=subprocess.PIPE) for _ in range(3)]
    ended = [(process.communicate()[1], process.returncode) for process in processes]
    assert ended == [(b"", 0)] * 3


def test_threads_of_one_process_exclude_each_other(make):
    governor = make(max_concurrent=1, queue_timeout_s=60.0)
    inside, overlaps = [], []

    async def work():
        for _ in range(30):
            async with governor.lease(memory_bytes=1):
                inside.append(1)
                overlaps.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=anyio.run, args=(work,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert overlaps == [1] * 90


@pytest.mark.anyio
@pytest.mark.requirement("LIM-4")
async def test_waiter_gets_the_place_when_it_becomes_free(make):
    governor = make(max_concurrent=1, queue_timeout_s=60.0)
    waiting, got = anyio.Event(), []

    async def wait():
        waiting.set()
        async with governor.lease(memory_bytes=5) as slot:
            got.append(slot)

    async with anyio.create_task_group() as group, governor.lease(memory_bytes=1):
        group.start_soon(wait)
        await waiting.wait()
        assert got == []
    assert got == [Slot(0, 5)]


@pytest.mark.anyio
@pytest.mark.requirement("LIM-4")
async def test_waiters_and_taken_places_are_counted_until_they_end(make):
    governor = make(max_concurrent=1, queue_timeout_s=60.0)
    waits, has_place = anyio.Event(), anyio.Event()

    async def second() -> None:
        waits.set()
        async with governor.lease(memory_bytes=100):
            has_place.set()

    assert governor.counts() == (0, 0, 1)
    async with anyio.create_task_group() as tasks:
        async with governor.lease(memory_bytes=100):
            tasks.start_soon(second)
            await waits.wait()
            assert governor.counts() == (1, 1, 1)
        await has_place.wait()
    assert governor.counts() == (0, 0, 1)
    with pytest.raises(BadInput):
        async with governor.lease(memory_bytes=100_000):
            pass
    assert governor.counts() == (0, 0, 1)


@pytest.mark.anyio
@pytest.mark.requirement("LIM-4")
async def test_waiting_ends_with_the_time_allowed(make):
    governor = make(max_concurrent=1, queue_timeout_s=0.1)
    async with governor.lease(memory_bytes=1):
        began_s = anyio.current_time()
        assert await refusal(governor) == NO_PLACE
        assert 0.1 <= anyio.current_time() - began_s < 5


@pytest.mark.anyio
@pytest.mark.requirement("LIM-4")
async def test_who_does_not_wait_is_refused_at_once(make):
    governor = make(max_concurrent=1, queue_timeout_s=600.0)
    async with governor.lease(memory_bytes=1, waits=False) as slot:
        assert slot == Slot(0, 1)
        with anyio.fail_after(30), pytest.raises(Busy):
            async with governor.lease(memory_bytes=1, waits=False):
                pass


@pytest.mark.anyio
@pytest.mark.requirement("LIM-4")
async def test_who_does_not_wait_takes_no_place_from_those_that_cannot_wait_either(make):
    governor = make(max_concurrent=1, queue_timeout_s=0.0)
    with pytest.raises(Busy):
        async with governor.lease(memory_bytes=1, waits=False):
            pass
    async with governor.lease(memory_bytes=1) as slot:  # the control
        assert slot == Slot(0, 1)


@pytest.mark.anyio
async def test_cancelled_waiter_and_failing_holder_leave_nothing_held(make):
    governor = make(max_concurrent=1, queue_timeout_s=60.0)
    with pytest.raises(LookupError):
        async with governor.lease(memory_bytes=1):
            with anyio.move_on_after(0.01) as scope:
                async with governor.lease(memory_bytes=1):
                    pass
            assert scope.cancelled_caught
            raise LookupError
    async with governor.lease(memory_bytes=1) as slot:
        assert slot == Slot(0, 1)


@pytest.mark.anyio
@pytest.mark.requirement("LIM-4")
async def test_request_larger_than_everything_is_refused_at_once(make):
    governor = make(queue_timeout_s=60.0)
    with anyio.fail_after(30):
        assert await refusal(governor, 1001) == (
            BadInput,
            "CW-TOO-LARGE",
            "1001 bytes of memory are more than all sandboxes together may have",
        )


@pytest.mark.anyio
async def test_promise_of_nothing_is_refused(make):
    with pytest.raises(BadInput):
        async with make().lease(memory_bytes=0):
            pass


@pytest.mark.anyio
@pytest.mark.requirement("LIM-4")
async def test_pressure_refuses_and_its_end_admits(make, tmp_path):
    governor = make()
    (tmp_path / "psi").write_text(PRESSED)
    assert await refusal(governor) == PRESSURE
    (tmp_path / "psi").write_text(CALM)
    async with governor.lease(memory_bytes=1) as slot:
        assert slot == Slot(0, 1)


@pytest.mark.anyio
@pytest.mark.requirement("LIM-4")
async def test_a_sample_without_pressure_lasts_for_its_time_and_pressure_for_none(make, tmp_path):
    governor = make(sample_every_s=3600.0)
    (tmp_path / "psi").write_text(PRESSED)
    assert await refusal(governor) == PRESSURE
    (tmp_path / "psi").write_text(CALM)
    async with governor.lease(memory_bytes=1):
        (tmp_path / "psi").write_text(PRESSED)
        async with governor.lease(memory_bytes=1):
            pass
    assert await refusal(make()) == PRESSURE


@pytest.mark.anyio
@pytest.mark.requirement("LIM-4")
@pytest.mark.parametrize("psi", [None, "", "garbage", "some avg10=x "])
async def test_without_psi_available_memory_decides(make, tmp_path, psi):
    governor = make()
    if psi is None:
        (tmp_path / "psi").unlink()
    else:
        (tmp_path / "psi").write_text(psi)
    async with governor.lease(memory_bytes=1):
        pass
    (tmp_path / "meminfo").write_text("MemAvailable: 1048575 kB\n")
    assert await refusal(governor) == PRESSURE


@pytest.mark.anyio
@pytest.mark.requirement("LIM-4")
async def test_little_available_memory_refuses_though_psi_is_calm(make, tmp_path):
    (tmp_path / "meminfo").write_text("MemAvailable: 1048575 kB\n")
    assert await refusal(make()) == PRESSURE


@pytest.mark.anyio
@pytest.mark.requirement("LIM-4")
async def test_unknown_memory_refuses(make, tmp_path):
    (tmp_path / "psi").unlink()
    (tmp_path / "meminfo").write_text("MemTotal: 1 kB\n")
    assert await refusal(make(queue_timeout_s=60.0)) == (
        SandboxFailed,
        "CW-MEMORY-UNKNOWN",
        "the state of the host's memory cannot be read, so nothing more is started",
    )


@given(pressure=st.integers(0, 10000), available_kib=st.integers(0, 2**40))
def test_host_memory_reads_what_the_kernel_writes(tmp_path_factory, pressure, available_kib):
    folder = tmp_path_factory.mktemp("proc")
    percent = f"{pressure // 100}.{pressure % 100:02}"
    (folder / "psi").write_text(CALM.replace("some avg10=0.00", f"some avg10={percent}"))
    (folder / "meminfo").write_text(MEMINFO.replace("8000000", str(available_kib)))
    host = HostMemory(pressure_file=str(folder / "psi"), meminfo_file=str(folder / "meminfo"))
    assert (host.pressure_percent(), host.available_bytes()) == (
        pressure / 100,
        available_kib * 1024,
    )


@pytest.mark.anyio
@pytest.mark.parametrize(
    "content", [b"", b"7\n", b"-0000000000000000001\n", b"\xff" * 21, b"0" * 22]
)
async def test_unreadable_promise_of_a_held_slot_counts_as_everything(make, places, content):
    governor = make()
    async with governor.lease(memory_bytes=1):
        (places / "slot-0000").write_bytes(content)
        assert await refusal(governor, 1) == NO_MEMORY
    async with governor.lease(memory_bytes=1000) as slot:
        assert slot == Slot(0, 1000)


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["slot-0000", "slot-0007", "governor.lock"])
@pytest.mark.parametrize("plant", ["symlink", "dangling", "hardlink", "fifo", "folder"])
async def test_planted_file_is_refused_and_its_target_unharmed(make, places, tmp_path, name, plant):
    governor = make()
    target = tmp_path / "precious"
    target.write_text("precious")
    match plant:
        case "symlink":
            (places / name).symlink_to(target)
        case "dangling":
            (places / name).symlink_to(tmp_path / "not-there")
        case "hardlink":
            (places / name).hardlink_to(target)
        case "fifo":
            os.mkfifo(places / name)
        case "folder":
            (places / name).mkdir()
    assert await refusal(governor) == BROKEN
    assert target.read_text() == "precious"
    assert not (tmp_path / "not-there").exists()


@pytest.mark.anyio
async def test_other_files_in_the_folder_are_left_alone(make, places):
    governor = make()
    (places / "slot-0001.bak").write_text("x")
    async with governor.lease(memory_bytes=1) as slot:
        assert slot == Slot(0, 1)
    assert (places / "slot-0001.bak").read_text() == "x"


@pytest.mark.anyio
async def test_slot_files_of_a_past_burst_are_removed(make, places):
    governor = make()
    async with AsyncExitStack() as stack:
        for _ in range(4):
            await stack.enter_async_context(governor.lease(memory_bytes=1))
    async with governor.lease(memory_bytes=1):
        assert sorted(os.listdir(places)) == ["governor.lock", "slot-0000"]


@pytest.mark.anyio
async def test_files_are_private_and_descriptors_are_not_inherited(make, places):
    governor = make()
    before = set(os.listdir("/proc/self/fd"))
    async with governor.lease(memory_bytes=1):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in places.iterdir()}
        held = set(os.listdir("/proc/self/fd")) - before
        open_now = [int(name) for name in held if Path(f"/proc/self/fd/{name}").exists()]
        assert [os.get_inheritable(descriptor) for descriptor in open_now] == [False]
    assert modes == {"governor.lock": 0o600, "slot-0000": 0o600}
    assert stat.S_IMODE(places.stat().st_mode) == 0o700


@pytest.mark.anyio
async def test_refusals_leak_no_descriptor(make, places):
    governor = make(max_concurrent=1)
    async with governor.lease(memory_bytes=1):
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            await refusal(governor)
        (places / "slot-0003").symlink_to("nowhere")
        for _ in range(5):
            await refusal(governor)
        assert len(os.listdir("/proc/self/fd")) == before


def test_folder_open_to_others_is_refused(make, places):
    places.mkdir(mode=0o700)
    places.chmod(0o750)
    with pytest.raises(SandboxFailed) as caught:
        make()
    assert (caught.value.code, str(places) in str(caught.value)) == ("CW-GOVERNOR-FAILED", False)


def test_symlink_as_folder_is_refused(make, places, tmp_path):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    places.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SandboxFailed):
        make()


@pytest.mark.parametrize(
    "changes",
    [
        {"max_concurrent": 0},
        {"max_concurrent": 10_001},
        {"max_promised_memory_bytes": 0},
        {"queue_timeout_s": -1.0},
        {"queue_timeout_s": float("nan")},
        {"queue_timeout_s": float("inf")},
    ],
)
def test_senseless_settings_are_refused(make, changes):
    with pytest.raises(ConfigError):
        make(**changes)

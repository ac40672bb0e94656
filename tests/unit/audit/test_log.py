"""Every acknowledged event is in the record: threads, tasks, processes, forks, kills (AUD-1, AUD-3)."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import anyio
import pytest

from cellwall.audit import files, growing_segment
from cellwall.audit import log as log_module
from cellwall.audit import writer as writer_module
from cellwall.audit.files import LogSettings
from cellwall.audit.log import AuditLog
from cellwall.audit.retention import maintain_segments
from cellwall.audit.segments import PREALLOCATION_BYTES
from cellwall.audit.verify import verify
from cellwall.audit.write_queue import PendingDraft
from cellwall.core.errors import AuditFailed, CellwallError, ConfigError
from cellwall.core.outcomes import Event, EventKind
from unit.audit.audit_logs import (
    NEVER,
    all_records,
    event,
    forked,
    records_path,
    sign,
    trusted,
    without_preallocation,
)

forks = pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")

WRITER = """
import sys
from cellwall.audit.log import AuditLog
from cellwall.audit.files import LogSettings
from cellwall.core.outcomes import Event, EventKind
sys.stdin.readline()
settings = LogSettings(segment_bytes=int(sys.argv[3]), checkpoint_events=20, checkpoint_s=0.01)
log = AuditLog.open(sys.argv[1], settings=settings)
for number in range(int(sys.argv[2])):
    print(log.write(Event(EventKind.OUTCOME, "act_w", "ann", "cli", {"n": number})), flush=True)
log.close()
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "audit"


@pytest.fixture
def log(folder):
    with AuditLog.open(str(folder), settings=NEVER) as opened:
        yield opened


def refused(work) -> tuple[str, str]:
    with pytest.raises(AuditFailed) as caught:
        work()
    return caught.value.code, caught.value.detail


def ids_in(folder: Path) -> list[str]:
    return [each["id"] for each in all_records(folder)]


def run_threads(work, count: int) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class Flushes:
    """Counts them, and makes each of them slow enough for others to gather behind it."""

    def __init__(self, monkeypatch, delay_s: float = 0.005) -> None:
        self.sizes: list[int] = []
        real = os.fdatasync

        def flush(file):
            time.sleep(delay_s)
            real(file)
            self.sizes.append(os.fstat(file).st_size)

        monkeypatch.setattr(writer_module.os, "fdatasync", flush)


# --- threads and tasks


@pytest.mark.requirement("AUD-1")
def test_threads_share_flushes_and_every_id_is_there_when_it_is_told(log, folder, monkeypatch):
    flushes = Flushes(monkeypatch)
    path, ids, missing = records_path(folder), [], []

    def work(number):
        for turn in range(4):
            event_id = log.write(event(number, turn=turn))
            flushed = flushes.sizes[-1]
            if event_id.encode() not in path.read_bytes()[:flushed]:
                missing.append(event_id)
            ids.append(event_id)

    run_threads(work, 64)
    assert missing == []
    assert sorted(ids) == sorted(ids_in(folder)[1:])
    assert len(flushes.sizes) < 64, "256 events"
    assert log.verify().ok


@pytest.mark.requirement("AUD-1")
def test_tasks_share_flushes_and_every_id_is_there_when_it_is_told(log, folder, monkeypatch):
    flushes = Flushes(monkeypatch)
    path, ids, missing = records_path(folder), [], []

    async def work(number):
        for turn in range(4):
            event_id = await log.record(event(number, turn=turn))
            if event_id.encode() not in path.read_bytes()[: flushes.sizes[-1]]:
                missing.append(event_id)
            ids.append(event_id)

    async def main():
        async with anyio.create_task_group() as group:
            for number in range(64):
                group.start_soon(work, number)

    anyio.run(main)
    assert missing == []
    assert sorted(ids) == sorted(ids_in(folder)[1:])
    assert len(flushes.sizes) <= 12, "256 events"
    assert log.verify().ok


def test_tasks_and_threads_and_loops_write_one_log(log, folder):
    ids = []

    async def main():
        async def work(number):
            ids.append(await log.record(event(number)))

        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(work, number)

    def one(number):
        if number % 2:
            anyio.run(main)
        else:
            ids.extend(log.write(event(n)) for n in range(20))

    run_threads(one, 6)
    assert sorted(ids) == sorted(ids_in(folder)[1:])
    assert log.verify().ok


def test_order_of_one_writer_is_kept(log, folder):
    ids = {}

    def work(number):
        ids[number] = [log.write(event(number)) for _ in range(20)]

    run_threads(work, 4)
    written = ids_in(folder)
    for mine in ids.values():
        places = [written.index(each) for each in mine]
        assert places == sorted(places)


@pytest.mark.requirement("AUD-1")
def test_failed_flush_is_told_to_everybody_who_waited_for_it(log, folder, monkeypatch):
    before, told = records_path(folder).read_bytes(), []

    def fail(file):
        time.sleep(0.02)
        raise OSError(errno.EIO, "broken disk")

    def work(number):
        told.append(refused(lambda: log.write(event(number))))

    with monkeypatch.context() as patch:
        patch.setattr(writer_module.os, "fdatasync", fail)
        run_threads(work, 16)
    assert told == [("CW-AUDIT-FAILED", "EIO")] * 16
    assert records_path(folder).read_bytes() == before
    log.write(event(99))
    assert log.verify().ok


def test_task_that_is_cancelled_takes_nobody_with_it(log, folder, monkeypatch):
    Flushes(monkeypatch, delay_s=0.05)
    ids = []

    async def work(number):
        ids.append(await log.record(event(number)))

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(work, 0)
            with anyio.move_on_after(0.01):
                async with anyio.create_task_group() as doomed:
                    doomed.start_soon(work, 1)
                    doomed.start_soon(work, 2)
            for number in range(3, 8):
                group.start_soon(work, number)

    anyio.run(main)
    assert set(ids) <= set(ids_in(folder))
    assert len(ids) >= 6
    assert log.verify().ok


class Interrupt(BaseException):
    """As a signal handler raises one."""


def test_interrupt_in_the_flush_leaves_a_good_log(log, monkeypatch):
    log.write(event(0))

    def interrupt(file):
        monkeypatch.undo()
        raise Interrupt

    monkeypatch.setattr(writer_module.os, "fdatasync", interrupt)
    with pytest.raises(Interrupt):
        log.write(event(1))
    log.write(event(2))
    assert log.verify().ok


def test_interrupt_while_waiting_does_not_stop_the_others(log, folder, monkeypatch):
    """Ctrl-C in the main thread, while another one writes: the turn must go on to the next."""
    in_flush, go_on = threading.Event(), threading.Event()
    real = os.fdatasync

    def flush(file):
        in_flush.set()
        go_on.wait(60)
        real(file)

    monkeypatch.setattr(writer_module.os, "fdatasync", flush)
    first = threading.Thread(target=log.write, args=(event(0),))
    first.start()
    assert in_flush.wait(60)
    ids: list[str] = []
    late = threading.Thread(target=lambda: ids.append(log.write(event(2))))

    def interrupt(number, frame):
        late.start()
        while not any(each.encoded[0] == '"act_2"' for each in log._threads.waiting):
            time.sleep(0.001)
        raise Interrupt

    def ring():
        """When the main thread waits for the file, and holds no lock that the other thread needs."""
        is_writing = False
        while not is_writing:
            time.sleep(0.001)
            with log._queue_lock:
                is_writing = log._threads._has_writer and not log._threads.has_next_writer
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    alarm = threading.Thread(target=ring)
    alarm.start()
    try:
        with pytest.raises(Interrupt):
            log.write(event(1))
    finally:
        alarm.join()
        signal.signal(signal.SIGUSR1, before)
    go_on.set()
    first.join(60)
    late.join(60)
    assert ids == ids_in(folder)[-1:]
    log.write(event(3))
    assert log.verify().ok


@pytest.mark.parametrize("is_next", [False, True])
def test_whoever_leaves_the_line_hands_the_turn_on(log, is_next):
    line = log._threads
    drafts = [PendingDraft(event(number), 4096) for number in range(3)]
    for draft in drafts:
        draft.wakeup.acquire()
        line.join(draft)
    line.batch()  # somebody writes; these come meanwhile
    line.waiting = drafts[1:]
    if is_next:
        line.wake_next()
        assert drafts[1].is_next
    log._abandon(drafts[1])
    assert (line.waiting, drafts[2].is_next, drafts[2].wakeup.locked()) == (
        drafts[2:],
        is_next,
        not is_next,
    )
    log._reset()


def test_line_that_does_not_move_is_refused_after_a_while(log, folder, monkeypatch):
    monkeypatch.setattr(log_module, "_WRITE_TIMEOUT_S", 0.05)
    assert log._write_lock.acquire()
    told = []
    run_threads(lambda number: told.append(refused(lambda: log.write(event(number)))), 4)
    log._write_lock.release()
    assert told == [("CW-AUDIT-FAILED", "ETIMEDOUT")] * 4
    log.write(event(9))
    assert log.verify().records == 2


# --- processes


def start(folder: Path, count: int, segment_bytes: int = 64 * 1024 * 1024) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), str(count), str(segment_bytes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.requirement("AUD-1")
@pytest.mark.parametrize("segment_bytes", [4000, 64 * 1024 * 1024])
@pytest.mark.slow
def test_processes_that_begin_at_once_write_one_log(folder, segment_bytes):
    writers = [start(folder, 40, segment_bytes) for _ in range(4)]
    for writer in writers:
        writer.stdin.write(b"go\n")
        writer.stdin.flush()
    ids: list[str] = []
    for writer in writers:
        out, err = writer.communicate(timeout=60)
        assert (writer.returncode, err) == (0, b"")
        ids += out.decode().split()
    report = verify(str(folder), trusted(folder))
    records = all_records(folder)
    assert (report.ok, report.records, report.reason) == (True, len(records), "")
    assert sorted(ids) == sorted(each["id"] for each in records if each["kind"] == "outcome")
    assert [each["kind"] for each in records].count("begin") == 1
    assert [each["seq"] for each in records] == list(range(1, len(records) + 1))


def test_several_logs_of_one_process_write_one_log(log, folder):
    with AuditLog.open(str(folder), settings=NEVER) as other:
        ids = [(log, other)[number % 2].write(event(number)) for number in range(10)]
    assert (ids_in(folder)[1:], log.verify().ok) == (ids, True)


@pytest.mark.slow
def test_checking_while_others_write_raises_no_false_alarm(folder):
    settings = LogSettings(segment_bytes=20_000, checkpoint_events=10, checkpoint_s=0.005)
    with AuditLog.open(str(folder), settings=settings) as log:

        def work():
            for number in range(300):
                log.write(event(number, text="x" * 500))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            while thread.is_alive():
                report = verify(str(folder), trusted(folder))
                assert (report.ok, report.reason) == (True, "")
        finally:
            thread.join()


@pytest.mark.requirement("AUD-1")
@forks
@pytest.mark.slow
def test_fork_in_the_middle_lets_both_go_on(log, folder):
    log.write(event(0))
    stop, ids = threading.Event(), []

    def work():
        while not stop.is_set():
            ids.append(log.write(event(1)))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    children = []
    for _ in range(6):
        out, into = os.pipe()

        def child(into=into):
            for number in range(5):
                os.write(into, log.write(event(number)).encode() + b"\n")

        children.append((forked(child), out))
        os.close(into)
        time.sleep(0.01)
    for pid, out in children:
        assert os.waitpid(pid, 0)[1] == 0
        with os.fdopen(out) as file:
            told = file.read().split()
        assert len(told) == 5
        ids += told
    stop.set()
    for thread in threads:
        thread.join()
    written = ids_in(folder)
    assert set(ids) <= set(written)
    assert len(set(written)) == len(written)
    assert log.verify().ok


@forks
def test_forked_child_does_not_share_the_locks(log, folder):
    log.write(event())
    with log._write_lock, log._queue_lock, log.notary._mutex, files.locked(log._writer._lock_file):

        def work():
            assert log._write_lock.acquire(blocking=False)
            log._write_lock.release()
            assert log._queue_lock.acquire(blocking=False)
            log._queue_lock.release()
            assert log.notary._mutex.acquire(blocking=False)
            try:
                fcntl.flock(log._writer._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # as another process should find it
            os._exit(3)

        assert os.waitpid(forked(work), 0)[1] == 0


@forks
def test_child_forked_while_the_log_is_signed_keeps_nobody_from_signing(log, monkeypatch):
    log.write(event(0))
    out, into = os.pipe()
    children = []

    def publish(*_):
        children.append(forked(lambda: os.read(out, 1)))

    monkeypatch.setattr(log.notary._witness, "publish", publish)
    sign(log)
    monkeypatch.undo()
    log.write(event(1))
    try:
        assert log.notary.sign_now(timeout_s=60).size == 3
    finally:
        os.write(into, b"x")
        assert os.waitpid(children[0], 0)[1] == 0
        os.close(out)
        os.close(into)


def test_fork_with_a_folder_that_is_gone_is_quiet_until_something_is_written(log, folder, capfd):
    log.write(event(0))
    moved = folder.with_name("moved")
    folder.rename(moved)
    (moved / "lock").rename(moved / "no-lock")

    def work():
        assert refused(lambda: log.write(event(1)))[0] == "CW-AUDIT-FAILED"

    assert os.waitpid(forked(work), 0)[1] == 0
    (moved / "no-lock").rename(moved / "lock")
    moved.rename(folder)
    assert capfd.readouterr().err == ""


# --- kill -9


def hammer(log: AuditLog, into: int, threads: int) -> None:
    """Write as fast as it can and tell each id once it is acknowledged; never comes back."""

    def work(number):
        turn = 0
        while True:
            size = (turn * 37 + number) % 900
            event_id = log.write(event(number, text="x" * size))
            os.write(into, event_id.encode() + b"\n")
            turn += 1

    for number in range(threads):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    signal.pause()


_ROUNDS_OF_A_LOG = 12


def kill_rounds(folder: Path, rounds: int, seed: int, segment_bytes: int = 60_000) -> Counter[str]:
    """Children of a warm parent, each killed after some milliseconds; then all is looked at."""
    chance = random.Random(seed)
    settings = LogSettings(segment_bytes=segment_bytes, checkpoint_events=40, checkpoint_s=0.002)
    seen: Counter[str] = Counter()
    for begun in range(0, rounds, _ROUNDS_OF_A_LOG):
        # All of a log is checked after each round.
        log = folder / str(begun) / "audit"  # its keys are kept beside it
        log.mkdir(parents=True, mode=0o700)
        seen += kill_rounds_of(log, min(_ROUNDS_OF_A_LOG, rounds - begun), chance, settings)
    return seen


def kill_rounds_of(
    folder: Path, rounds: int, chance: random.Random, settings: LogSettings
) -> Counter[str]:
    AuditLog.open(str(folder), settings=settings).close()  # the key, and all that is imported
    seen: Counter[str] = Counter()
    for _ in range(rounds):
        writers = chance.choice((1, 1, 2))
        out, into = os.pipe()
        children = []
        for _ in range(writers):

            def child(into=into):
                hammer(AuditLog.open(str(folder), settings=settings), into, 3)

            children.append(forked(child))
        os.close(into)
        os.set_blocking(out, False)
        enough, latest = chance.randint(1, 60), time.monotonic() + 5
        told = b""
        while told.count(b"\n") < enough and time.monotonic() < latest:  # alive and writing
            try:
                told += os.read(out, 65536)
            except BlockingIOError:
                time.sleep(0.0005)
        time.sleep(chance.uniform(0.0, 0.02))
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)
        os.set_blocking(out, True)
        with os.fdopen(out, "rb") as file:
            told += file.read()
        ids = [line.decode() for line in told.split(b"\n")[:-1] if line]
        growing = max(folder.glob("*.jsonl"))
        data = without_preallocation(growing.read_bytes())
        seen["rooms"] += len(data) < growing.stat().st_size
        is_torn = bool(data) and not data.endswith(b"\n")
        before = {each["id"] for each in all_records_but_torn(folder)}
        assert set(ids) <= before, "acknowledged, and not on the disk"
        with AuditLog.open(str(folder), settings=NEVER) as log:
            log.write(event(7))
            report = log.verify()
            assert (report.ok, report.reason) == (True, "")
        after = all_records(folder)
        assert before <= {each["id"] for each in after}, "recovery lost a record"
        assert [each["seq"] for each in after] == list(range(1, len(after) + 1))
        recovered = sum(each["kind"] == "recovery" for each in after)
        assert recovered == seen["torn"] + is_torn
        seen["torn"] += is_torn
        seen["acknowledged"] += len(ids)
        seen["rounds"] += 1
    return seen


def all_records_but_torn(folder: Path) -> list[dict]:
    growing = max(folder.glob("*.jsonl"))
    data = growing.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    growing.write_bytes(whole)
    try:
        return all_records(folder)
    finally:
        growing.write_bytes(data)


@pytest.mark.requirement("AUD-1", "AUD-3")
@forks
@pytest.mark.slow
def test_killed_writers_lose_no_acknowledged_event(folder):
    seen = kill_rounds(folder, 15, seed=1)
    assert seen["acknowledged"] > 15


@pytest.mark.requirement("AUD-1", "AUD-3")
@forks
@pytest.mark.slow
def test_killed_writers_lose_no_acknowledged_event_from_their_rooms(folder, monkeypatch):
    monkeypatch.setattr(growing_segment, "_SMALL_BATCHES_BEFORE_PREALLOCATION", 0)
    seen = kill_rounds(folder, 15, seed=6, segment_bytes=3 * PREALLOCATION_BYTES)
    assert seen["acknowledged"] > 15
    assert seen["rooms"] > 0


@pytest.mark.long
@pytest.mark.requirement("AUD-1", "AUD-3")
@forks
def test_killed_writers_lose_no_acknowledged_event_from_rooms_in_many_rounds(folder, monkeypatch):
    monkeypatch.setattr(growing_segment, "_SMALL_BATCHES_BEFORE_PREALLOCATION", 0)
    seen = kill_rounds(folder, 40, seed=12, segment_bytes=3 * PREALLOCATION_BYTES)
    assert seen["rounds"] == 40
    assert seen["rooms"] > 20


@pytest.mark.long
@pytest.mark.requirement("AUD-1", "AUD-3")
@forks
@pytest.mark.parametrize("seed", [2, 3, 4, 5])
def test_killed_writers_lose_no_acknowledged_event_in_many_rounds(folder, seed):
    seen = kill_rounds(folder, 50, seed=seed)
    assert seen["rounds"] == 50
    assert seen["acknowledged"] > 1000


@pytest.mark.requirement("AUD-3")
@forks
@pytest.mark.parametrize("step", range(14))
def test_kill_at_every_step_of_a_new_log_is_mended(folder, step):
    """Each call that reaches the disk is the last one of a child once."""

    def work():
        left = step

        def dying(real):
            def call(*arguments, **named):
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **named)

            return call

        for name in ("write", "fdatasync", "fsync", "rename", "pwrite", "link"):
            setattr(os, name, dying(getattr(os, name)))
        AuditLog.open(str(folder), settings=NEVER).seal()
        os.kill(os.getpid(), signal.SIGKILL)

    assert os.waitpid(forked(work), 0)[1] == signal.SIGKILL
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(event(0))
        assert log.verify().ok
        assert log.verify().reason == ""


@pytest.mark.requirement("AUD-3")
@forks
@pytest.mark.parametrize("step", range(24))
def test_kill_at_every_step_of_sealing_signing_and_packing_is_mended(folder, step):
    rule = replace(NEVER, keep_days=0)
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(event(0))

    def work():
        left = step
        log = AuditLog.open(str(folder), settings=NEVER)
        log.write(event(1))

        def dying(real):
            def call(*arguments, **named):
                nonlocal left
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(*arguments, **named)

            return call

        for name in ("write", "fdatasync", "fsync", "rename", "pwrite", "unlink"):
            setattr(os, name, dying(getattr(os, name)))
        log.seal()
        log.write(event(2))
        maintain_segments(str(folder), rule, log.write, log.notary)
        os.kill(os.getpid(), signal.SIGKILL)

    assert os.waitpid(forked(work), 0)[1] == signal.SIGKILL
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(event(3))
        sign(log)
        maintain_segments(str(folder), NEVER, log.write, log.notary)
        report = log.verify()
        assert (report.ok, report.reason) == (True, "")
    assert {0, 1} <= {each["body"].get("n") for each in all_records(folder)} or report.deleted


# --- the rest


def test_closed_log_is_refused(log):
    log.close()
    assert refused(lambda: log.write(event(1))) == ("CW-AUDIT-FAILED", "EBADF")
    assert refused(log._writer.seal) == ("CW-AUDIT-FAILED", "EBADF")
    with pytest.raises(AuditFailed):
        anyio.run(log.record, event(1))
    log.close()


def test_log_opened_and_closed_leaks_no_descriptor(folder):
    AuditLog.open(str(folder), settings=NEVER).close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with AuditLog.open(str(folder), settings=NEVER) as log:
            log.write(event(0))
            log.seal()
            maintain_segments(str(folder), NEVER, log.write, log.notary)
    assert len(os.listdir("/proc/self/fd")) == before


def test_long_fields_are_cut_in_the_record(folder):
    with AuditLog.open(str(folder), max_field_bytes=64) as log:
        log.write(Event(EventKind.DENIAL, "a", "p" * 1000, "sdk", {"text": "x" * 100}))
        assert log.verify().ok
    record = all_records(folder)[1]
    assert (record["principal"], record["body"]) == (
        "p" * 256 + f"[cut: 1000 bytes, sha256 {sha256(b'p' * 1000).hexdigest()}]",
        {"text": "x" * 64 + f"[cut: 100 bytes, sha256 {sha256(b'x' * 100).hexdigest()}]"},
    )


@pytest.mark.parametrize("max_field_bytes", [0, 63, 8193])
def test_senseless_bound_is_refused(folder, max_field_bytes):
    with pytest.raises(ConfigError):
        AuditLog.open(str(folder), max_field_bytes=max_field_bytes)


def test_opening_while_another_signs_for_too_long_is_an_error_of_ours(folder, monkeypatch):
    folder.mkdir(mode=0o700)
    (folder / "notary.lock").touch(mode=0o600)
    monkeypatch.setattr(log_module.files, "LOCK_TIMEOUT_S", 0.05)
    with (folder / "notary.lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(CellwallError) as caught:
            AuditLog.open(str(folder))
    assert caught.value.detail == "ETIMEDOUT"


def slowed(log, monkeypatch, seconds):
    commit = log._writer.commit

    def slow(batch):
        time.sleep(seconds)
        return commit(batch)

    monkeypatch.setattr(log._writer, "commit", slow)


@pytest.mark.requirement("AUD-1", "AUD-3")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_task_that_is_cancelled_takes_no_other_along(log, folder, monkeypatch, victim):
    slowed(log, monkeypatch, 0.1)

    async def main():
        first = asyncio.create_task(log.record(event(0)))
        await asyncio.sleep(0.02)
        others = [asyncio.create_task(log.record(event(number))) for number in (1, 2)]
        await asyncio.sleep(0.02)
        [first, others[0]][victim].cancel()  # natively: no shield of anyio's stops that
        done = await asyncio.wait_for(asyncio.gather(first, *others, return_exceptions=True), 5)
        kept = [each for each in done if isinstance(each, str)]
        assert len(kept) == 2
        assert set(kept) <= set(ids_in(folder))  # the acknowledged ones are there
        assert await asyncio.wait_for(log.record(event(3)), 5) in ids_in(folder)

    asyncio.run(main())
    asyncio.run(main())  # and in another loop


@pytest.mark.requirement("AUD-1")
def test_without_a_thread_nothing_is_acknowledged(log, folder, monkeypatch):
    def no_thread():
        raise RuntimeError("can't start new thread")

    before = ids_in(folder)
    monkeypatch.setattr(log, "executor", no_thread)

    async def main():
        return await asyncio.gather(
            *(log.record(event(n)) for n in range(3)), return_exceptions=True
        )

    assert all(isinstance(each, AuditFailed) for each in asyncio.run(main()))
    assert ids_in(folder) == before


# --- what may not be written


@pytest.mark.requirement("AUD-4")
@pytest.mark.parametrize("transport", ["write", "write among others", "record"])
def test_neither_values_nor_credentials_reach_the_disk(tmp_path, transport):
    token, value = "ghp_" + "a1B2" * 9, "correct horse"
    body = {"command": ["echo", token, value], "kept": "a plain word"}
    with AuditLog.open(str(tmp_path)) as log:
        log.redact_with(
            lambda told: {
                key: [str(each).replace(value, "[secret]") for each in entry]
                if isinstance(entry, list)
                else entry
                for key, entry in told.items()
            }
        )
        if transport == "write":
            log.write(Event(EventKind.INTENT, "a", "ann", "cli", body))
        elif transport == "record":
            anyio.run(log.record, Event(EventKind.INTENT, "a", "ann", "cli", body))
        else:
            with log._write_lock:
                waiting = threading.Thread(
                    target=log.write, args=[Event(EventKind.INTENT, "a", "ann", "cli", body)]
                )
                waiting.start()
            waiting.join()
    written = records_path(tmp_path).read_bytes()
    assert b"a plain word" in written
    assert token.encode() not in written
    assert value.encode() not in written

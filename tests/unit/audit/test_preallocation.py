"""A segment that a busy writer has prepared: what is in its room, what a crash or a power cut leaves
there, and who reads it meanwhile (AUD-1, AUD-3)."""

from __future__ import annotations

import errno
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from hashlib import sha256
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.audit import following, growing_segment
from cellwall.audit import segments as segments_module
from cellwall.audit import writer as writer_module
from cellwall.audit.encoding import RecordDraft
from cellwall.audit.export.delivery import records_after
from cellwall.audit.following import follow
from cellwall.audit.log import AuditLog
from cellwall.audit.proofs import check_proof, prove, verifier_source
from cellwall.audit.retention import maintain_segments
from cellwall.audit.search import Query, search
from cellwall.audit.segments import PREALLOCATION_BYTES, end_of_bytes, end_of_records, read_lines
from cellwall.audit.tree_builder import WrittenBatch
from cellwall.audit.verify import verify
from cellwall.core.errors import AuditFailed
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
SECTOR = 512


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "audit"


@pytest.fixture
def path(folder):
    return records_path(folder)


@pytest.fixture
def busy(monkeypatch):
    """Whoever writes counts as busy from the first record on."""
    monkeypatch.setattr(growing_segment, "_SMALL_BATCHES_BEFORE_PREALLOCATION", 0)


@pytest.fixture
def log(folder, busy):
    with AuditLog.open(str(folder), settings=NEVER) as opened:
        yield opened


def room_of(path: Path) -> int:
    """How many bytes of room; the control of each test that needs one."""
    data = path.read_bytes()
    return len(data) - len(without_preallocation(data))


def killed(folder: Path, count: int) -> list[str]:
    """The ids that a process has acknowledged before it was killed."""
    out, into = os.pipe()

    def work():
        log = AuditLog.open(str(folder), settings=NEVER)
        ids = [log.write(event(number)) for number in range(count)]
        os.write(into, "\n".join(ids).encode())
        os.kill(os.getpid(), signal.SIGKILL)

    child = forked(work)
    os.close(into)
    with os.fdopen(out) as file:
        ids = file.read().split()
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    return ids


def kinds(folder: Path) -> list[str]:
    return [each["kind"] for each in all_records(folder)]


# --- when there is one


def test_only_a_busy_writer_prepares(folder, path):
    with AuditLog.open(str(folder), settings=NEVER) as log:
        for number in range(growing_segment._SMALL_BATCHES_BEFORE_PREALLOCATION - 1):
            log.write(event(number))
        assert room_of(path) == 0
        for number in range(3):
            log.write(event(number))
        assert path.stat().st_size == PREALLOCATION_BYTES
        assert 0 < room_of(path) < PREALLOCATION_BYTES
        assert log.verify().ok


def test_closed_log_has_no_preallocation(folder, path, busy):
    with AuditLog.open(str(folder), settings=NEVER) as log:
        ids = [log.write(event(number)) for number in range(20)]
        assert room_of(path) > 0
    assert b"\0" not in path.read_bytes()
    assert [each["id"] for each in all_records(folder)][1:] == ids
    assert verify(str(folder), trusted(folder)).ok


@pytest.mark.slow
def test_process_that_ends_without_closing_leaves_no_preallocation(folder, path):
    program = (
        "import sys\n"
        "from cellwall.audit import growing_segment\n"
        "from cellwall.audit.log import AuditLog\n"
        "from cellwall.core.outcomes import Event, EventKind\n"
        "growing_segment._SMALL_BATCHES_BEFORE_PREALLOCATION = 0\n"
        "log = AuditLog.open(sys.argv[1])\n"
        "log.write(Event(EventKind.INTENT, 'act_0', 'ann', 'sdk', {}))\n"
        "log.write(Event(EventKind.INTENT, 'act_1', 'ann', 'sdk', {}))\n"
        "import os\n"
        f"print(os.stat(sys.argv[1] + '/{path.name}').st_size)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, check=False
    )
    assert (done.stdout.split(), done.stderr) == ([str(PREALLOCATION_BYTES)], "")
    assert b"\0" not in path.read_bytes()
    assert verify(str(folder), trusted(folder)).ok


def test_records_go_on_from_preallocation_to_preallocation(log, folder, path):
    ids, sizes = [], set()
    for number in range(120):
        ids.append(log.write(event(number, text="x" * 3000)))
        sizes.add(path.stat().st_size)
    assert {count * PREALLOCATION_BYTES for count in (1, 2, 3)} <= sizes
    assert [each["id"] for each in all_records(folder)][1:] == ids
    assert log.verify().ok


def test_large_batch_is_written_without_preallocation(log, path):
    log.write(event(0))
    assert room_of(path) > 0
    log.notary.note_written(
        log._writer.commit([RecordDraft(event(n, text="x" * 900)) for n in range(40)])
    )
    assert room_of(path) == 0
    assert (log.verify().ok, log.verify().records) == (True, 42)


def test_preallocation_is_not_larger_than_the_segment_may_be(folder, path, busy):
    with AuditLog.open(
        str(folder), settings=replace(NEVER, segment_bytes=PREALLOCATION_BYTES - 1)
    ) as log:
        for number in range(5):
            log.write(event(number))
        assert room_of(path) == 0


def test_sealed_segment_has_no_preallocation(log, folder, path):
    log.write(event(0))
    assert room_of(path) > 0
    log.seal()
    assert b"\0" not in path.read_bytes()
    log.write(event(1))
    maintain_segments(str(folder), NEVER, log.write, log.notary)
    assert not path.exists()
    assert log.verify().ok
    assert kinds(folder) == ["begin", "intent", "seal", "intent"]


# --- what is on the disk, and when


def told_steps(monkeypatch) -> list[str]:
    steps: list[str] = []

    def telling(name, real):
        def call(file, *given):
            what = name
            if name == "pwrite":
                what = "record" if any(given[0]) else "room"
            if not steps or steps[-1] != what:
                steps.append(what)
            return real(file, *given)

        return call

    for name in ("pwrite", "fdatasync", "ftruncate"):
        monkeypatch.setattr(writer_module.os, name, telling(name, getattr(os, name)))
    return steps


@pytest.mark.requirement("AUD-1", "AUD-3")
def test_all_before_a_preallocation_is_flushed_when_it_begins_and_when_it_ends(
    log, path, monkeypatch
):
    """Else a power cut could leave a gap further back than anybody looks for one."""
    with monkeypatch.context() as patch:
        steps = told_steps(patch)
        log.write(event(0))
        assert steps == ["fdatasync", "ftruncate", "room", "record", "fdatasync"]
        steps.clear()
        log.write(event(1))
        assert steps == ["record", "fdatasync"]
        steps.clear()
        log._writer.commit([RecordDraft(event(n, text="x" * 900)) for n in range(40)])
        assert steps == ["fdatasync", "ftruncate", "fdatasync", "record", "fdatasync"]
    assert log.verify().ok


@pytest.mark.requirement("AUD-3")
def test_cut_is_on_the_disk_before_a_record_takes_its_place(log, path, monkeypatch):
    """Else a power cut could leave a part of that, and behind it what was cut."""
    log.write(event(0))
    with path.open("r+b") as file:
        file.seek(len(without_preallocation(path.read_bytes())))
        file.write(b"torn")
    with monkeypatch.context() as patch:
        steps = told_steps(patch)
        log.write(event(1))
    assert steps[:5] == ["fdatasync", "ftruncate", "fdatasync", "record", "fdatasync"]
    assert log.verify().ok


@pytest.mark.requirement("AUD-1")
@pytest.mark.parametrize("step", ["pwrite", "fdatasync"])
def test_failed_step_takes_the_record_back_from_a_preallocation(
    log, folder, path, monkeypatch, step
):
    log.write(event(0))
    assert room_of(path) > 0
    before = without_preallocation(path.read_bytes())

    def fail(*arguments):
        raise OSError(errno.EIO, "broken disk")

    with monkeypatch.context() as patch:
        patch.setattr(writer_module.os, step, fail)
        with pytest.raises(AuditFailed) as caught:
            log.write(event(1))
    assert caught.value.detail == "EIO"
    assert path.read_bytes() == before
    log.write(event(2))
    assert [each["action_id"] for each in all_records(folder)] == ["", "act_0", "act_2"]
    assert log.verify().ok


@pytest.mark.requirement("AUD-1")
def test_flush_that_fails_under_records_of_others_in_a_preallocation_ends_the_writer(
    log, folder, path, monkeypatch
):
    log.write(event(0))
    with AuditLog.open(str(folder), settings=NEVER) as other:
        real = os.fdatasync

        def fail(file):
            monkeypatch.setattr(writer_module.os, "fdatasync", real)
            other.write(event(1))
            raise OSError(errno.EIO, "broken disk")

        monkeypatch.setattr(writer_module.os, "fdatasync", fail)
        assert room_of(path) > 0
        for number, code in ((2, "CW-AUDIT-FAILED"), (3, "CW-AUDIT-ALTERED")):
            with pytest.raises(AuditFailed) as caught:
                log.write(event(number))
            assert caught.value.code == code
        assert [each["action_id"] for each in all_records(folder)][-1] == "act_1"


@pytest.mark.requirement("AUD-1")
@pytest.mark.parametrize("step", ["ftruncate", "pwrite", "short"])
def test_disk_without_space_for_a_preallocation_still_takes_records(
    log, folder, path, monkeypatch, step
):
    real_write, real_truncate = os.pwrite, os.ftruncate

    def write(file, data, at):
        if any(data):
            return real_write(file, data, at)
        if step == "pwrite" and at > PREALLOCATION_BYTES // 2:
            raise OSError(errno.ENOSPC, "full")
        return real_write(file, data[:100] if step == "short" else data, at)

    def truncate(file, size_bytes):
        if step == "ftruncate" and size_bytes == PREALLOCATION_BYTES:
            raise OSError(errno.EFBIG, "too large")
        real_truncate(file, size_bytes)

    with monkeypatch.context() as patch:
        patch.setattr(writer_module.os, "pwrite", write)
        patch.setattr(writer_module.os, "ftruncate", truncate)
        ids = [log.write(event(number)) for number in range(3)]
        assert b"\0" not in path.read_bytes()
    ids.append(log.write(event(3)))
    assert room_of(path) == 0, "not tried again at once"
    assert [each["id"] for each in all_records(folder)][1:] == ids
    assert log.verify().ok


# --- kills and power cuts


@pytest.mark.requirement("AUD-1", "AUD-3")
@forks
def test_preallocation_of_a_killed_writer_is_no_torn_record(folder, path, busy):
    ids = killed(folder, 5)
    assert room_of(path) > 0
    assert verify(str(folder), trusted(folder)).records == 6
    with AuditLog.open(str(folder), settings=NEVER) as log:
        ids.append(log.write(event(9)))
        assert log.verify().ok
    assert [each["id"] for each in all_records(folder)][1:] == ids
    assert "recovery" not in kinds(folder)


@pytest.mark.requirement("AUD-3")
@forks
@pytest.mark.parametrize(
    "torn", [b"{", b'{"action_id":"act', b"x" * 5000, b"x\ny", b"{}\n", b"\n", b"x\0y"]
)
def test_torn_record_in_a_preallocation_is_cut_and_the_cut_is_recorded(folder, path, busy, torn):
    ids = killed(folder, 3)
    end = len(without_preallocation(path.read_bytes()))
    with path.open("r+b") as file:
        file.seek(end)
        file.write(torn)
    assert path.stat().st_size == PREALLOCATION_BYTES
    assert not verify(str(folder), trusted(folder)).ok
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(event(9))
        assert log.verify().ok
    records = all_records(folder)
    assert [each["id"] for each in records][1:4] == ids
    assert [each["kind"] for each in records][4:] == ["recovery", "intent"]
    assert records[4]["body"] == {
        "cut_bytes": len(torn),
        "cut_sha256": sha256(torn).hexdigest(),
    }


def put_hole(path: Path, start: int, end: int) -> bytes:
    """What was there without it, from its start on."""
    data = path.read_bytes()
    path.write_bytes(data[:start] + bytes(end - start) + data[end:])
    return without_preallocation(path.read_bytes())


@pytest.mark.requirement("AUD-3")
@forks
@pytest.mark.parametrize("before", [0, 1, 3])
def test_sectors_that_a_power_cut_left_out_are_cut_with_all_behind_them(folder, path, busy, before):
    ids = killed(folder, 12)
    lines = without_preallocation(path.read_bytes()).splitlines(keepends=True)
    kept = b"".join(lines[: 2 + before])
    end = (len(kept) // SECTOR + 2) * SECTOR
    left = put_hole(path, len(kept), end)
    assert len(left) > end, "there are whole records behind it"
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(event(9))
        assert log.verify().ok
    records = all_records(folder)
    assert path.read_bytes().startswith(kept)
    assert [each["id"] for each in records][1 : 2 + before] == ids[: 1 + before]
    assert [each["kind"] for each in records][2 + before :] == ["recovery", "intent"]
    torn = left[len(kept) :]
    assert records[2 + before]["body"] == {
        "cut_bytes": len(torn),
        "cut_sha256": sha256(torn).hexdigest(),
    }


@pytest.mark.requirement("AUD-3")
@forks
def test_gap_in_an_earlier_preallocation_is_kept_as_evidence(folder, path, busy):
    """It was flushed before the last room began: no power cut has made it."""
    killed(folder, 500)
    assert path.stat().st_size == 2 * PREALLOCATION_BYTES
    end = len(without_preallocation(path.read_bytes()))
    start = end - PREALLOCATION_BYTES + SECTOR - (end - PREALLOCATION_BYTES) % SECTOR
    assert start < PREALLOCATION_BYTES - SECTOR, "as near to the end as a look goes"
    bad = path.read_bytes()[:start].count(b"\n") + 1
    spoilt = put_hole(path, start, start + SECTOR)
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(event(9))
        assert log.verify().first_bad == bad
        with pytest.raises(AuditFailed) as caught:
            sign(log)
        assert caught.value.code == "CW-AUDIT-ALTERED"
    assert path.read_bytes().startswith(spoilt)
    assert b'"kind":"recovery"' not in path.read_bytes()


@pytest.mark.requirement("AUD-1", "AUD-3")
@forks
def test_writer_killed_when_it_had_prepared_a_new_segment_stops_nobody(folder, busy, monkeypatch):
    def work():
        log = AuditLog.open(str(folder), settings=NEVER)
        log.write(event(0))
        log.seal()
        real = os.pwrite

        def die_at_a_record(file, data, at):
            if any(data):
                os.kill(os.getpid(), signal.SIGKILL)
            return real(file, data, at)

        monkeypatch.setattr(writer_module.os, "pwrite", die_at_a_record)
        log.write(event(1))

    assert os.waitpid(forked(work), 0)[1] == signal.SIGKILL
    assert records_path(folder, 4).read_bytes() == bytes(PREALLOCATION_BYTES)
    with (
        AuditLog.open(str(folder), settings=NEVER) as log,
        AuditLog.open(str(folder), settings=NEVER) as other,
    ):
        ids = [log.write(event(2)), other.write(event(3)), log.write(event(4))]
        assert log.verify().ok
    assert [each["id"] for each in all_records(folder)][3:] == ids
    assert "recovery" not in kinds(folder)


@pytest.mark.requirement("AUD-1")
@forks
def test_idle_writer_of_a_new_segment_finds_what_another_has_put_into_its_preallocation(
    folder, busy
):
    with AuditLog.open(str(folder), settings=NEVER) as idle:
        idle.write(event(0))
        idle.seal()
        ids = killed(folder, 40)
        assert records_path(folder, 4).stat().st_size == PREALLOCATION_BYTES
        ids.append(idle.write(event(1)))
        assert idle.verify().ok
    assert [each["id"] for each in all_records(folder)][3:] == ids


@pytest.mark.requirement("AUD-1", "AUD-3")
def test_power_cut_while_another_leaves_the_preallocation_costs_no_good_record(
    log, folder, path, tmp_path, monkeypatch
):
    """Its records are written and not flushed yet when the room is given back."""
    ids = [log.write(event(number)) for number in range(4)]
    end, images, real = len(without_preallocation(path.read_bytes())), [], os.fdatasync

    def flush(file):
        if not images:
            images.append(b"")
            other._writer.release_preallocation()
        else:
            images.append(path.read_bytes())  # what may be on the disk when the power fails now
        real(file)

    with AuditLog.open(str(folder), settings=NEVER) as other:
        with monkeypatch.context() as patch:
            patch.setattr(writer_module.os, "fdatasync", flush)
            log._writer.commit([RecordDraft(event(n, text="x" * 900)) for n in range(2)])
        assert len(images) > 1
    gap = (end // SECTOR + 1) * SECTOR
    image = tmp_path / "image" / "audit"
    shutil.copytree(folder, image)
    shutil.copytree(tmp_path / "keys", tmp_path / "image" / "keys")
    # Only until the first of these flushes is anything missing.
    left = images[1][:gap] + bytes(SECTOR) + images[1][gap + SECTOR :]
    records_path(image).write_bytes(left)
    with AuditLog.open(str(image), settings=NEVER) as mended:
        mended.write(event(9))
        sign(mended)
        assert mended.verify().ok
    assert [each["id"] for each in all_records(image)][1:5] == ids
    assert kinds(image)[5:] == ["recovery", "intent"]


@forks
def test_gap_that_no_disk_leaves_is_kept_as_evidence(folder, path, busy):
    killed(folder, 12)
    lines = without_preallocation(path.read_bytes()).splitlines(keepends=True)
    start = len(b"".join(lines[:4])) + 10
    end = start + 2 if (start + 2) % SECTOR else start + 3
    spoilt = put_hole(path, start, end)
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(event(9))
        assert log.verify().first_bad == 5
    assert path.read_bytes().startswith(spoilt)


@forks
def test_signed_records_lost_in_a_preallocation_are_not_built_upon(folder, path, busy):
    def work():
        log = AuditLog.open(str(folder), settings=NEVER)
        for number in range(12):
            log.write(event(number))
        sign(log)
        os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(forked(work), 0)
    lines = without_preallocation(path.read_bytes()).splitlines(keepends=True)
    start = len(b"".join(lines[:3]))
    put_hole(path, start, (start // SECTOR + 1) * SECTOR)
    spoilt = path.read_bytes()
    with pytest.raises(AuditFailed) as caught:
        AuditLog.open(str(folder), settings=NEVER)
    assert caught.value.code == "CW-AUDIT-ALTERED"
    assert path.read_bytes() == spoilt


# --- several processes


@pytest.mark.requirement("AUD-1")
def test_writers_take_turns_in_one_preallocation(log, folder, path):
    with AuditLog.open(str(folder), settings=NEVER) as other:
        ids = []
        for number in range(10):
            ids += [log.write(event(number)), other.write(event(number))]
        assert room_of(path) > 0
        assert other.verify().ok
    assert room_of(path) == 0, "given back by whoever goes first"
    ids += [log.write(event(number)) for number in range(3)]
    assert room_of(path) > 0
    assert [each["id"] for each in all_records(folder)][1:] == ids
    assert (log.verify().ok, "recovery" in kinds(folder)) == (True, False)


def test_records_cut_off_behind_a_writer_with_preallocation_are_noticed(log, path):
    log.write(event(0))
    kept = len(without_preallocation(path.read_bytes()))
    log.write(event(1))
    assert room_of(path) > 0
    data = path.read_bytes()
    path.write_bytes(data[:kept] + bytes(PREALLOCATION_BYTES - kept))
    with pytest.raises(AuditFailed) as caught:
        log.write(event(2))
    assert caught.value.code == "CW-AUDIT-ALTERED"


def test_log_without_rooms_is_gone_on_with(folder, path, monkeypatch):
    """As every version before this one has left it."""
    monkeypatch.setattr(growing_segment, "_SMALL_BATCHES_BEFORE_PREALLOCATION", 1 << 40)
    with AuditLog.open(str(folder), settings=NEVER) as log:
        ids = [log.write(event(number)) for number in range(50)]
    monkeypatch.setattr(growing_segment, "_SMALL_BATCHES_BEFORE_PREALLOCATION", 0)
    old = path.read_bytes()
    with AuditLog.open(str(folder), settings=NEVER) as log:
        ids += [log.write(event(number)) for number in range(50)]
        assert room_of(path) > 0
        assert log.verify().ok
    assert path.read_bytes().startswith(old)
    assert [each["id"] for each in all_records(folder)][1:] == ids


@forks
def test_child_gives_no_event_the_id_of_a_parents_one(log, folder):
    ids = [log.write(event(0))]  # and many more are at hand

    def work():
        for number in range(10):
            log.write(event(number))

    child = forked(work)
    ids += [log.write(event(number)) for number in range(10)]
    assert os.waitpid(child, 0)[1] == 0
    found = [each["id"] for each in all_records(folder)]
    assert (len(found), len(set(found))) == (22, 22)
    assert set(ids) <= set(found)


# --- files that somebody took away or opened to others


class Clock:
    """The writer's; it stands still unless a test turns it on."""

    def __init__(self) -> None:
        self.now_s = time.time()

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def relying(log, folder, path, monkeypatch):
    """A writer that does not ask for its segment now; the clock with which it counts how long."""
    clock = Clock()
    monkeypatch.setattr(writer_module.time, "time", clock)
    log.write(event(0))
    clock.now_s = folder.stat().st_ctime + 1.0  # when that was changed only the kernel says
    log.write(event(1))
    asked, real = [], os.stat
    with monkeypatch.context() as patch:
        patch.setattr(
            writer_module.os, "stat", lambda *a, **named: asked.append(a) or real(*a, **named)
        )
        log.write(event(2))
    assert (asked, room_of(path) > 0) == ([], True)
    return clock


def rename(path: Path) -> None:
    path.rename(path.parent.parent / "old.jsonl")


def copy_over(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    path.chmod(0o600)


def move_over(path: Path) -> None:
    other = path.parent.parent / "other"
    other.write_bytes(path.read_bytes())
    other.chmod(0o600)
    other.rename(path)


def remove_lock(path: Path) -> None:
    (path.parent / "lock").unlink()


def rename_and_set_the_time_back(path: Path) -> None:
    before = path.parent.stat()
    rename(path)
    os.utime(path.parent, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.parent.stat().st_mtime_ns == before.st_mtime_ns


@pytest.mark.requirement("AUD-1")
@pytest.mark.parametrize(
    "take",
    [rename, rename_and_set_the_time_back, Path.unlink, copy_over, move_over, remove_lock],
)
def test_log_taken_away_from_a_busy_writer_is_refused_at_once(log, path, relying, take):
    take(path)
    for number in range(2):
        with pytest.raises(AuditFailed) as caught:
            log.write(event(number))
        assert caught.value.code == "CW-AUDIT-ALTERED"


def link(path: Path) -> None:
    (path.parent.parent / "second").hardlink_to(path)


def open_up(path: Path) -> None:
    path.chmod(0o644)


@pytest.mark.requirement("AUD-1")
@pytest.mark.parametrize("turn_s", [0.006, 3600.0, -3600.0])
@pytest.mark.parametrize("reach", [link, open_up])
def test_log_that_others_can_reach_is_refused_by_a_busy_writer_soon(
    log, path, relying, reach, turn_s
):
    reach(path)
    relying.now_s += turn_s
    for _ in range(2):
        with pytest.raises(AuditFailed) as caught:
            log.write(event(3))
        assert (caught.value.code, caught.value.detail) == ("CW-AUDIT-FAILED", "EPERM")


def test_busy_writer_asks_again_while_its_folder_changes(log, folder, path, relying, monkeypatch):
    """Two changes within a tick of the clock may look like one."""
    (folder / "new").touch()
    relying.now_s = folder.stat().st_ctime
    asked, real = [], os.stat
    monkeypatch.setattr(
        writer_module.os, "stat", lambda *a, **named: asked.append(a) or real(*a, **named)
    )
    for number in range(3):
        log.write(event(number))
    assert len(asked) == 3


# --- who reads it meanwhile


def test_notary_signs_only_what_stands_in_the_preallocation(log, folder, path):
    log.write(event(0))
    log.notary._unread.clear()  # it must read the file
    assert sign(log).size == 2
    log.write(event(1))
    assert room_of(path) > 0
    assert sign(log).size == 3
    assert log.verify().signed == 3


def test_record_half_written_into_a_preallocation_is_not_signed(log, path):
    log.write(event(0))
    data = path.read_bytes()
    end = len(without_preallocation(data))
    path.write_bytes(data[:end] + b'{"action_id":' + data[end + 13 :])
    log.notary._unread = [WrittenBatch(1, 99, 0, 0, [])]
    assert sign(log).size == 2


@pytest.mark.requirement("AUD-2")
@pytest.mark.parametrize("end", [SECTOR, 7])
def test_gap_in_a_preallocation_stops_the_notary_and_so_the_writer(log, folder, path, end):
    """Else nothing behind it was ever signed, and the next start took it for a power cut."""
    for number in range(4):
        log.write(event(number))
    assert sign(log).size == 5, "the control"
    with AuditLog.open(str(folder), settings=NEVER) as other:
        start = len(without_preallocation(path.read_bytes()))
        for number in range(4):
            other.write(event(number))
        log.write(event(4))
        put_hole(path, start, (start // SECTOR + 1) * SECTOR if end == SECTOR else start + end)
        with path.open("rb") as file:
            assert end_of_records(file.fileno()) == start
        log.write(event(5))
        log.notary._sign_or_warn(timeout_s=10.0)
        with pytest.raises(AuditFailed) as caught:
            log.write(event(6))
        assert caught.value.code == "CW-AUDIT-ALTERED"
        other.notary._unsigned = 0


def test_what_is_written_into_a_preallocation_is_followed(log, folder, path, monkeypatch):
    monkeypatch.setattr(following, "_POLL_INTERVAL_S", 0.001)
    log.write(event(0))
    found = follow(str(folder), Query())
    assert next(found) is None
    for number in range(1, 4):
        event_id = log.write(event(number))
        assert room_of(path) > 0
        assert next(each for each in found if each is not None).record["id"] == event_id
        assert next(found) is None
    found.close()


def test_prepared_log_is_searched_indexed_exported_and_proved(log, folder, path):
    ids = [log.write(event(number)) for number in range(10)]
    sign(log)
    for indexed in (False, True):
        if indexed:
            maintain_segments(str(folder), NEVER, log.write, log.notary)
        assert room_of(path) > 0
        newest = islice(search(str(folder), Query()), 10)
        assert [each.record["id"] for each in newest] == ids[::-1]
        by_name = search(str(folder), Query(action_id="act_3"))
        assert [each.record["id"] for each in by_name] == [ids[3]]
        told = [each.record["id"] for each in records_after(str(folder), after_seq=1)]
        assert told == ids
        proof = prove(str(folder), ids[4], trusted(folder))
        assert check_proof(proof, trusted(folder)).record["id"] == ids[4]


@pytest.mark.parametrize("missing", [1, 100, 200])
def test_record_that_shows_its_end_first_is_still_being_written(
    log, folder, path, monkeypatch, missing
):
    """The kernel copies it page by page, and readers hold no lock."""
    monkeypatch.setattr(following, "_POLL_INTERVAL_S", 0.001)
    ids = [log.write(event(number)) for number in range(3)]
    found = follow(str(folder), Query())
    assert next(found) is None
    ids.append(log.write(event(3)))
    data = path.read_bytes()
    start = without_preallocation(data)[:-1].rfind(b"\n") + 1
    path.write_bytes(data[:start] + bytes(missing) + data[start + missing :])
    assert next(found) is None
    newest = islice(search(str(folder), Query(kind=EventKind.INTENT)), 5)
    assert [each.record["id"] for each in newest] == ids[2::-1]
    assert [each.record["id"] for each in records_after(str(folder), after_seq=1)] == ids[:3]
    assert log.verify().reason == "record 5: it is not complete"
    path.write_bytes(data)
    assert next(each for each in found if each is not None).record["id"] == ids[3]
    assert log.verify().ok
    found.close()


def test_gap_that_stays_is_told_to_whoever_follows(log, folder, path, monkeypatch):
    monkeypatch.setattr(following, "_POLL_INTERVAL_S", 0.001)
    log.write(event(0))
    found = follow(str(folder), Query())
    assert next(found) is None
    log.write(event(1))
    data = path.read_bytes()
    start = without_preallocation(data)[:-1].rfind(b"\n") + 1
    path.write_bytes(data[:start] + bytes(5) + data[start + 5 :])
    with pytest.raises(AuditFailed) as caught:
        list(islice(found, 5))
    assert caught.value.code == "CW-AUDIT-ALTERED"


@pytest.mark.requirement("AUD-2")
def test_preallocation_given_back_while_a_check_reads_is_no_false_alarm(log, path, monkeypatch):
    for number in range(3):
        log.write(event(number))
    assert room_of(path) > 0
    real, asked = segments_module._find_preallocation, []

    def give_back(data, file):
        if not asked:
            log._writer.release_preallocation()
        asked.append(real(data, file))
        return asked[-1]

    monkeypatch.setattr(segments_module, "_find_preallocation", give_back)
    report = log.verify()
    assert (report.ok, report.records) == (True, 4)
    assert asked == [None], "the first look was at bytes that are gone"


@pytest.mark.requirement("AUD-2")
def test_stranger_checks_a_prepared_log_with_one_file(log, folder, path, tmp_path):
    for number in range(5):
        log.write(event(number))
    sign(log)
    assert room_of(path) > 0
    program = tmp_path / "verify.py"
    program.write_text(verifier_source())

    def check() -> str:
        command = [sys.executable, "-I", str(program), str(folder), "--key"]
        key = str(trusted(folder)[0])
        return subprocess.run(
            [*command, key], capture_output=True, text=True, check=False
        ).stdout.strip()

    assert check() == "ok: 6 records, 6 of them signed"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + b"x")
    assert check() == "NOT OK after 6 sound records: record 7: it is not complete"


@pytest.mark.requirement("AUD-2")
@pytest.mark.parametrize("extra", [1, 700, PREALLOCATION_BYTES, 3 * PREALLOCATION_BYTES])
def test_nul_bytes_that_are_no_preallocation_are_found(log, folder, path, extra):
    log.write(event(0))
    size_bytes = path.stat().st_size
    assert size_bytes == PREALLOCATION_BYTES
    os.truncate(path, size_bytes + extra)
    assert (log.verify().ok, log.verify().first_bad) == (False, 3)


@pytest.mark.requirement("AUD-2")
def test_preallocation_in_a_sealed_segment_is_found(log, folder, path):
    log.write(event(0))
    log.seal()
    log.write(event(1))
    assert log.verify().ok
    os.truncate(path, PREALLOCATION_BYTES)
    assert (log.verify().ok, log.verify().first_bad) == (False, 4)


lines = st.lists(st.binary(max_size=60).map(lambda data: data.replace(b"\n", b"x")), max_size=8)


@given(lines, st.booleans(), st.binary(max_size=20).map(lambda data: data.strip(b"\0\n")))
def test_preallocation_is_no_line_and_hides_none(tmp_path_factory, whole, is_prepared, torn):
    whole = [line.replace(b"\0", b"y") for line in whole]
    data = b"".join(line + b"\n" for line in whole) + torn.replace(b"\n", b"z")
    end = len(data)
    if is_prepared:
        data += bytes(PREALLOCATION_BYTES - len(data))
    path = tmp_path_factory.getbasetemp() / "lines"
    path.write_bytes(data)
    with path.open("rb") as file:
        assert end_of_records(file.fileno()) == (data.rfind(b"\n") + 1 if is_prepared else end)
        assert end_of_bytes(file.fileno()) == end
        found = list(read_lines(file))
    assert [line for line, is_whole in found if is_whole] == whole
    rest = [line for line, is_whole in found if not is_whole]
    assert [each.rstrip(b"\0") for each in rest] == ([data[:end].split(b"\n")[-1]] if torn else [])
    with path.open("rb") as file:
        strict = list(read_lines(file, may_grow=False))
    assert len(strict) == len(whole) + bool(torn or is_prepared)


def test_packed_bytes_have_no_preallocation():
    class Stream(io.BytesIO):
        def seekable(self) -> bool:
            return False

    assert list(read_lines(Stream(b"a\n" + bytes(PREALLOCATION_BYTES - 2)))) == [
        (b"a", True),
        (bytes(PREALLOCATION_BYTES - 2), False),
    ]


# --- what an event becomes


@pytest.mark.requirement("GRD-5")
@pytest.mark.parametrize("field", ["action_id", "principal", "interface", "session_id"])
@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("ann", "ann"),
        ('a"\\\n', 'a"\\\n'),
        ("anné", "anné"),
        ("sk-" + "a1" * 20, "[redacted: 43 characters]"),
        ("x" * 256, "x" * 256),
        ("x" * 257, "x" * 256 + f"[cut: 257 bytes, sha256 {sha256(b'x' * 257).hexdigest()}]"),
        ("\udc80", "\\udc80"),
    ],
)
def test_names_are_written_bounded_and_without_secrets(folder, field, name, kept):
    fields = {"action_id": "act_1", "principal": "ann", "interface": "sdk", "session_id": "sbx_1"}
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(Event(EventKind.INTENT, body={"n": 1}, **(fields | {field: name})))
        assert log.verify().ok
    record = all_records(folder)[1]
    assert {key: record[key] for key in fields} == fields | {field: kept}
    assert (record["kind"], record["body"]) == ("intent", {"n": 1})

"""Where records end, what a crash leaves there, and files that somebody planted (AUD-1, AUD-3)."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pytest

from cellwall.audit import files, growing_segment
from cellwall.audit import writer as writer_module
from cellwall.audit.log import AuditLog
from cellwall.audit.merkle import leaf_hash
from cellwall.audit.retention import maintain_segments
from cellwall.audit.verify import verify
from cellwall.core.errors import AuditFailed
from cellwall.core.ids import check_id
from cellwall.core.outcomes import Event, EventKind
from conftest import need
from unit.audit.audit_logs import (
    NEVER,
    all_records,
    event,
    forked,
    lines_of,
    notes_path,
    records_path,
    sign,
    trusted,
)

# Fills the disk, shows that the log is whole, then that it goes on once there is room again.
FILLER = """
import os, sys
from cellwall.audit.log import AuditLog
from cellwall.audit.verify import verify
from cellwall.core.errors import AuditFailed
from cellwall.core.outcomes import Event, EventKind
folder = sys.argv[1]
event = Event(EventKind.INTENT, "act_f", "ann", "cli", {"text": "x" * 3000})
ballast = os.open(folder + "/ballast", os.O_CREAT | os.O_RDWR)
os.pwrite(ballast, b"x" * 32768, 0)
log = AuditLog.open(folder + "/audit")
written = []
try:
    while True:
        written.append(log.write(event))
except AuditFailed as error:
    print(error.code, error.detail)
report = log.verify()
there = open(folder + "/audit/0000000000000001.jsonl").read()
print(report.ok, report.records == len(written) + 1 > 1, all(each in there for each in written))
os.ftruncate(ballast, 0)
log.write(event)
print(log.verify().records - len(written) - 1)
log.close()
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "audit"


@pytest.fixture
def path(folder):
    return records_path(folder)


@pytest.fixture
def log(folder):
    with AuditLog.open(str(folder), settings=NEVER) as opened:
        yield opened


def reopened(folder) -> AuditLog:
    return AuditLog.open(str(folder), settings=NEVER)


def refused(work) -> tuple[str, str]:
    with pytest.raises(AuditFailed) as caught:
        work()
    assert caught.value.hint
    assert "/" not in caught.value.message
    return caught.value.code, caught.value.detail


def written(folder: Path, count: int) -> None:
    with reopened(folder) as log:
        for number in range(count):
            log.write(event(number))


@pytest.mark.requirement("AUD-1")
def test_record_holds_the_event_and_its_place(log, path, folder):
    event_id = log.write(
        Event(EventKind.INTENT, "act_7", "ann", "sdk", {"text": "hi"}, session_id="sbx_1")
    )
    first, second = path.read_bytes().splitlines()
    record = json.loads(second)
    assert check_id(event_id).startswith("evt_")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", record.pop("time"))
    assert record == {
        "v": 2,
        "seq": 2,
        "id": event_id,
        "kind": "intent",
        "action_id": "act_7",
        "principal": "ann",
        "interface": "sdk",
        "session_id": "sbx_1",
        "body": {"text": "hi"},
        "prev": leaf_hash(first).hex(),
    }
    begin = json.loads(first)
    assert (begin["kind"], begin["seq"], begin["prev"]) == ("begin", 1, "0" * 64)
    assert begin["body"] == {
        "origin": (folder / "origin").read_text().strip(),
        "key": str(trusted(folder)[0]),
        "version": 2,
    }


def test_files_are_private_and_not_inherited(log, folder):
    log.write(event())
    log.seal()
    maintain_segments(str(folder), NEVER, log.write, log.notary)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()} == {0o600}
    writer = log._writer
    held = (writer._file, writer._lock_file, writer._folder)
    assert [os.get_inheritable(number) for number in held] == [False] * 3


def test_umask_opens_nothing(tmp_path):
    before = os.umask(0)
    try:
        written(tmp_path / "audit", 1)
    finally:
        os.umask(before)
    assert {stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "audit").iterdir()} == {0o600}


def test_reopened_log_goes_on_where_it_ended(folder):
    for _ in range(3):
        written(folder, 1)
    report = verify(str(folder), trusted(folder))
    assert (report.ok, report.records, report.signed) == (True, 4, 4)


@pytest.mark.requirement("AUD-1")
def test_event_is_flushed_before_it_is_acknowledged(log, path, monkeypatch):
    log.write(event(0))
    flushed = []
    real = os.fdatasync

    def record_size(file):
        real(file)
        flushed.append((os.fstat(file).st_ino, os.fstat(file).st_size))

    monkeypatch.setattr(writer_module.os, "fdatasync", record_size)
    event_id = log.write(event(1))
    assert flushed == [(path.stat().st_ino, path.stat().st_size)]
    assert event_id.encode() in path.read_bytes()


@pytest.mark.requirement("AUD-1")
def test_name_of_a_new_segment_is_durable_before_anything_in_it(log, folder, monkeypatch):
    steps = []
    monkeypatch.setattr(
        writer_module.os, "fsync", lambda file: steps.append(("fsync", os.fstat(file).st_ino))
    )
    monkeypatch.setattr(
        writer_module.os, "fdatasync", lambda file: steps.append(("data", os.fstat(file).st_ino))
    )
    log._writer.seal()
    log.write(event(1))
    old, new = records_path(folder), records_path(folder, 3)
    assert steps == [
        ("data", old.stat().st_ino),
        ("fsync", folder.stat().st_ino),
        ("data", new.stat().st_ino),
    ]


@pytest.mark.requirement("AUD-1")
def test_name_that_a_killed_process_gave_a_new_segment_is_made_durable(log, folder, monkeypatch):
    log._writer.seal()  # as if killed before the name was on the disk
    steps, real = [], os.fsync
    with monkeypatch.context() as patch:
        patch.setattr(
            writer_module.os, "fsync", lambda file: steps.append(os.fstat(file)) or real(file)
        )
        with reopened(folder) as other:
            assert [each.st_ino for each in steps] == [folder.stat().st_ino]
            other.write(event(0))
        steps.clear()
        with reopened(folder):
            assert steps == []


# --- what a crash tore

TORN = [b'{"action_id":"act', b"{", b"\0" * 700, b"\0" * 700 + b"\n", b"\n", b"x" * 200_000]


@pytest.mark.requirement("AUD-3")
@pytest.mark.parametrize("torn", [*TORN, b"x\ny\n", b"x\ny", b"{}\n", b"\xff" * 5000 + b"\n\n{}\n"])
@pytest.mark.parametrize("before", [0, 2])
def test_torn_end_is_cut_and_the_cut_is_recorded(folder, path, torn, before):
    written(folder, before)
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    with reopened(folder) as log:
        log.write(event(9))
        report = log.verify()
    assert (report.ok, report.records) == (True, before + 3)
    assert path.read_bytes().startswith(whole)
    recovery = all_records(folder)[before + 1]
    assert (recovery["kind"], recovery["body"]) == (
        "recovery",
        {"cut_bytes": len(torn), "cut_sha256": sha256(torn).hexdigest()},
    )


@pytest.mark.requirement("AUD-3")
@pytest.mark.parametrize("unit", [b"x", b"\n"])
@pytest.mark.slow
def test_more_than_a_crash_tears_is_kept_as_evidence(folder, path, unit):
    """Nor is the log locked for minutes while it is looked at."""
    written(folder, 2)
    most = growing_segment._MAX_TORN_BYTES if unit == b"x" else growing_segment._MAX_TORN_LINES - 1
    whole = path.read_bytes()
    path.write_bytes(whole + most * unit)
    with reopened(folder) as log:  # the control
        assert log.verify().ok
    assert all_records(folder)[-1]["body"]["cut_bytes"] == most
    whole = path.read_bytes()
    for count in (most + 1, 20 * 1024 * 1024):
        path.write_bytes(whole + count * unit)
        began_s = time.process_time()
        assert refused(lambda: reopened(folder)) == ("CW-AUDIT-ALTERED", "")
        assert time.process_time() - began_s < 5.0
        assert path.stat().st_size == len(whole) + count


@pytest.mark.requirement("AUD-3")
@pytest.mark.slow
def test_record_cut_at_every_byte_is_recovered(folder, path):
    with reopened(folder) as log:
        log.write(event(0))
        sign(log)
        log.write(event(1))
        log.notary._unsigned = 0
    whole, notes = path.read_bytes(), notes_path(folder).read_bytes()
    start = whole[:-1].rindex(b"\n") + 1
    keys = trusted(folder)
    for end in range(start, len(whole)):
        path.write_bytes(whole[:end])
        log = reopened(folder)
        log.notary._unsigned = 0
        log.close()
        kinds = [json.loads(line)["kind"] for line in path.read_bytes().splitlines()]
        assert kinds == ["begin", "intent", *(["recovery"] if end > start else [])]
        if end % 16 == 0:
            assert verify(str(folder), keys).ok
        assert notes_path(folder).read_bytes() == notes


@pytest.mark.requirement("AUD-3")
def test_end_torn_by_another_process_is_mended_by_the_next_write(log, path):
    log.write(event(0))
    with path.open("ab") as file:
        file.write(b'{"half')
    log.write(event(1))
    kinds = [each["kind"] for each in all_records(path.parent)]
    assert (kinds, log.verify().ok) == (["begin", "intent", "recovery", "intent"], True)


@pytest.mark.requirement("AUD-3")
@pytest.mark.parametrize("torn", TORN)
def test_torn_beginning_of_a_log_is_mended(folder, path, torn):
    written(folder, 0)
    notes_path(folder).unlink()
    (folder / "tip.json").unlink()
    (folder.parent / "keys" / "audit.signed").unlink(missing_ok=True)
    path.write_bytes(torn)
    with reopened(folder) as log:
        log.write(event(0))
        assert (log.verify().ok, log.verify().records) == (True, 2)
    assert [each["kind"] for each in all_records(folder)] == ["recovery", "intent"]


@pytest.mark.requirement("AUD-3")
def test_torn_beginning_of_a_later_segment_is_mended(folder):
    with reopened(folder) as log:
        log.write(event(0))
        log.seal()
        first = log._writer._first
    path = records_path(folder, first)
    assert path.read_bytes() == b""
    path.write_bytes(b'{"action_id":')
    with reopened(folder) as log:
        log.write(event(1))
        assert log.verify().ok
    assert [each["kind"] for each in all_records(folder)][-2:] == ["recovery", "intent"]


@pytest.mark.requirement("AUD-3")
def test_crash_between_a_seal_and_the_next_segment_is_mended(folder):
    with reopened(folder) as log:
        log.write(event(0))
        log._writer.seal()
        records_path(folder, log._writer._first).unlink()
        log.notary._unsigned = 0
    # The next to come may also find it signed and looked after.
    with reopened(folder) as log:
        log.write(event(1))
        assert log.verify().ok


@pytest.mark.requirement("AUD-3")
def test_sealed_end_of_a_log_is_not_packed_away(folder):
    """Else a crash in that moment would leave a log that looks cut off."""
    with reopened(folder) as log:
        log.write(event(0))
        log.seal()
        following = records_path(folder, log._writer._first)
        following.unlink()
        maintain_segments(str(folder), NEVER, log.write, log.notary)
        log.notary._unsigned = 0
    with reopened(folder) as log:
        log.write(event(1))
        maintain_segments(str(folder), NEVER, log.write, log.notary)
        assert log.verify().ok
    assert not records_path(folder).exists()


@pytest.mark.requirement("AUD-3")
def test_crash_before_the_first_signature_is_mended(folder):
    with reopened(folder):
        pass
    notes_path(folder).unlink()
    (folder / "tip.json").unlink()
    (folder.parent / "keys" / "audit.signed").unlink(missing_ok=True)
    with reopened(folder) as log:
        assert log.verify().ok


def test_altered_record_at_the_end_is_kept_as_evidence(folder, path):
    written(folder, 2)
    spoilt = path.read_bytes().replace(b'"n":1', b'"n":2')
    path.write_bytes(spoilt)
    with reopened(folder) as log:
        log.write(event(9))
        sign(log)  # the tree that was signed before: it goes on over what was there then
        assert log.verify().first_bad == 2
    assert path.read_bytes().startswith(spoilt)


def test_signed_records_that_are_gone_are_not_built_upon(folder, path):
    written(folder, 3)
    whole = path.read_bytes()
    for cut in (whole[: -len(lines_of(folder)[-1]) - 1], whole[:-10], b""):
        path.write_bytes(cut)
        assert refused(lambda: reopened(folder)) == ("CW-AUDIT-ALTERED", "")
        assert path.read_bytes() == cut


def test_records_cut_off_behind_a_running_writer_are_noticed(log, path):
    log.write(event(0))
    kept = path.read_bytes()
    log.write(event(1))
    os.truncate(path, len(kept))
    assert refused(lambda: log.write(event(2))) == ("CW-AUDIT-ALTERED", "")
    assert path.read_bytes() == kept


# --- failures of the disk


@pytest.mark.requirement("AUD-1")
@pytest.mark.parametrize("step", ["pwrite", "fdatasync"])
def test_failed_step_takes_the_record_back(log, path, monkeypatch, step):
    log.write(event(0))
    before = path.read_bytes()

    def fail(*arguments):
        raise OSError(errno.EIO, "broken disk")

    with monkeypatch.context() as patch:
        patch.setattr(writer_module.os, step, fail)
        assert refused(lambda: log.write(event(1))) == ("CW-AUDIT-FAILED", "EIO")
    assert path.read_bytes() == before
    log.write(event(2))
    assert [each["action_id"] for each in all_records(path.parent)] == ["", "act_0", "act_2"]
    assert log.verify().ok


class Disk:
    """Refuses so many steps, after so many that it lets through."""

    def __init__(self, monkeypatch, **failing: range) -> None:
        self._left = {}
        for name, numbers in failing.items():
            self._left[name] = iter([number in numbers for number in range(numbers.stop)])
            monkeypatch.setattr(writer_module.os, name, self._step(name, getattr(os, name)))

    def _step(self, name, real):
        def step(*given):
            if next(self._left[name], False):
                raise OSError(errno.EIO, "broken disk")
            return real(*given)

        return step


@pytest.mark.requirement("AUD-1")
def test_seal_that_the_disk_did_not_take_is_taken_back(log, folder, path, monkeypatch):
    """It would never be flushed again: what follows is in another file."""
    log.write(event(0))
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        Disk(patch, fdatasync=range(1))
        assert refused(log.seal) == ("CW-AUDIT-FAILED", "EIO")
    assert path.read_bytes() == before
    log.write(event(1))
    log.seal()
    log.write(event(2))
    assert [each["kind"] for each in all_records(folder)][1:] == ["intent"] * 2 + ["seal", "intent"]
    assert log.verify().ok


@pytest.mark.requirement("AUD-1")
def test_seal_that_cannot_be_taken_back_ends_the_writer(log, path, monkeypatch):
    log.write(event(0))
    with monkeypatch.context() as patch:
        Disk(patch, fdatasync=range(1), ftruncate=range(1))
        assert refused(log.seal) == ("CW-AUDIT-FAILED", "EIO")
    assert refused(lambda: log.write(event(1)))[0] == "CW-AUDIT-ALTERED"


@pytest.mark.requirement("AUD-3")
@pytest.mark.parametrize("number", [0, 1, 2])
def test_cut_is_told_also_if_the_disk_refused_at_first(log, folder, path, monkeypatch, number):
    """It is flushed before it is cut, when it is cut, and when a record says so."""
    log.write(event(0))
    with path.open("ab") as file:
        file.write(b"torn")
    with monkeypatch.context() as patch:
        Disk(patch, fdatasync=range(number, number + 1))
        assert refused(lambda: log.write(event(1))) == ("CW-AUDIT-FAILED", "EIO")
    log.write(event(2))
    kinds = [each["kind"] for each in all_records(folder)]
    assert (kinds, log.verify().ok) == (["begin", "intent", "recovery", "intent"], True)
    assert all_records(folder)[2]["body"]["cut_bytes"] == 4
    with reopened(folder) as other:
        other.write(event(3))
    log.write(event(4))
    assert [each["kind"] for each in all_records(folder)][4:] == ["intent"] * 2, "told once"


def test_short_write_takes_the_record_back(log, path, monkeypatch):
    log.write(event(0))
    before, real = path.read_bytes(), os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(writer_module.os, "pwrite", lambda file, data, at: real(file, data[:10], at))
        assert refused(lambda: log.write(event(1))) == ("CW-AUDIT-FAILED", "ENOSPC")
    assert path.read_bytes() == before


def test_flush_that_fails_under_records_of_others_ends_the_writer(log, folder, monkeypatch):
    """What the disk lost lies below what another process has built upon it."""
    log.write(event(0))
    with reopened(folder) as other:
        real = os.fdatasync

        def fail(file):
            monkeypatch.setattr(writer_module.os, "fdatasync", real)
            other.write(event(1))
            raise OSError(errno.EIO, "broken disk")

        monkeypatch.setattr(writer_module.os, "fdatasync", fail)
        assert refused(lambda: log.write(event(2))) == ("CW-AUDIT-FAILED", "EIO")
        assert refused(lambda: log.write(event(3)))[0] == "CW-AUDIT-ALTERED"
        assert [each["action_id"] for each in all_records(folder)][-1] == "act_1"


def test_an_error_of_a_signal_handler_in_a_flush_is_no_failure_of_the_disk(
    log, folder, monkeypatch
):
    """A `TimeoutError` that a caller's handler of SIGALRM raises is an OSError without a number."""
    log.write(event(0))
    with reopened(folder) as other:
        real = os.fdatasync

        def interrupted(file):
            monkeypatch.setattr(writer_module.os, "fdatasync", real)
            other.write(event(1))
            raise TimeoutError("the caller's")

        monkeypatch.setattr(writer_module.os, "fdatasync", interrupted)
        with pytest.raises(TimeoutError, match="the caller's"):
            log.write(event(2))
        log.write(event(3))  # the control is the test before: after a failure it is refused
    assert [each["action_id"] for each in all_records(folder)][-2:] == ["act_1", "act_3"]
    assert log.verify().ok


@pytest.mark.requirement("AUD-1")
@pytest.mark.slow
def test_full_disk_loses_nothing_and_leaves_nothing_half_made(tmp_path):
    need(shutil.which("unshare") and shutil.which("mount"), "unshare and mount")
    flags = ["--mount"] if os.geteuid() == 0 else ["--mount", "--user", "--map-root-user"]
    disk = 'mount -t tmpfs -o size=160k,mode=0700 none "$1"'
    shell = ["unshare", *flags, "sh", "-c"]
    probe = subprocess.call([*shell, disk, "sh", str(tmp_path)], stderr=subprocess.DEVNULL)
    need(probe == 0, "a small disk of one's own")
    script = disk + ' && exec "$2" -c "$3" "$1"'
    ended = subprocess.run(
        [*shell, script, "sh", str(tmp_path), sys.executable, FILLER],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.stdout.split(), ended.stderr) == (
        ["CW-AUDIT-FAILED", "ENOSPC", "True", "True", "True", "1"],
        "",
    )


@pytest.mark.requirement("AUD-1")
@pytest.mark.slow
def test_file_size_limit_refuses_and_leaves_nothing_half_made(tmp_path):
    def limit_file_size():
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 80_000))

    # The ballast gives no room back under this limit, so the last step fails again.
    ended = subprocess.run(
        [sys.executable, "-c", FILLER, str(tmp_path)],
        preexec_fn=limit_file_size,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout.split() == ["CW-AUDIT-FAILED", "ENOSPC", "True", "True", "True"]
    assert "AuditFailed" in ended.stderr
    assert verify(str(tmp_path / "audit"), trusted(tmp_path / "audit")).ok


# --- files that somebody planted


def plant_symlink(path: Path, other: Path) -> None:
    path.symlink_to(other)


def plant_hard_link(path: Path, other: Path) -> None:
    path.hardlink_to(other)


def plant_fifo(path: Path, other: Path) -> None:
    os.mkfifo(path, 0o600)


def plant_folder(path: Path, other: Path) -> None:
    path.mkdir()


def plant_readable(path: Path, other: Path) -> None:
    path.touch()
    path.chmod(0o644)


plants = pytest.mark.parametrize(
    "plant", [plant_symlink, plant_hard_link, plant_fifo, plant_folder, plant_readable]
)


@pytest.fixture
def precious(tmp_path):
    other = tmp_path / "precious"
    other.write_text("precious")
    other.chmod(0o600)
    yield other
    assert other.read_text() == "precious"


@pytest.mark.requirement("AUD-1")
@plants
@pytest.mark.parametrize("name", ["0000000000000001.jsonl", "lock", "notary.lock"])
def test_planted_file_is_refused_when_opened(folder, precious, plant, name):
    folder.mkdir(mode=0o700)
    plant(folder / name, precious)
    assert refused(lambda: AuditLog.open(str(folder)))[0] == "CW-AUDIT-FAILED"


@pytest.mark.requirement("AUD-1")
@plants
def test_log_replaced_by_a_plant_is_refused_when_written(log, path, precious, plant):
    log.write(event(0))
    path.unlink()
    plant(path, precious)
    assert refused(lambda: log.write(event(1)))[0] in ("CW-AUDIT-FAILED", "CW-AUDIT-ALTERED")


@plants
def test_planted_checkpoints_are_not_written_to(log, folder, precious, plant):
    log.write(event(0))
    path = notes_path(folder)
    path.unlink()
    plant(path, precious)
    refused(lambda: sign(log))


def test_log_with_a_second_name_is_refused(log, path, tmp_path):
    log.write(event(0))
    (tmp_path / "second").hardlink_to(path)
    assert refused(lambda: log.write(event(1))) == ("CW-AUDIT-FAILED", "EPERM")


def test_copy_in_the_place_of_the_log_is_refused(log, path):
    log.write(event(0))
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    path.chmod(0o600)
    assert refused(lambda: log.write(event(1))) == ("CW-AUDIT-ALTERED", "")


@pytest.mark.parametrize("transport", ["rename", "unlink"])
def test_log_taken_away_is_refused(log, path, tmp_path, transport):
    log.write(event(0))
    if transport == "rename":
        path.rename(tmp_path / "old.jsonl")
    else:
        path.unlink()
    assert refused(lambda: log.write(event(1))) == ("CW-AUDIT-ALTERED", "")


def test_removed_folder_is_refused(log, folder):
    log.write(event(0))
    shutil.rmtree(folder)
    assert refused(lambda: log.write(event(1)))[0] == "CW-AUDIT-ALTERED"


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o777])
def test_folder_open_to_others_is_refused(folder, mode):
    folder.mkdir()
    folder.chmod(mode)
    assert refused(lambda: AuditLog.open(str(folder))) == ("CW-AUDIT-FAILED", "EPERM")


def test_symlink_as_folder_is_refused(folder, tmp_path):
    folder.symlink_to(tmp_path)
    assert refused(lambda: AuditLog.open(str(folder)))[0] == "CW-AUDIT-FAILED"


def test_log_of_another_user_is_refused(log, path):
    need(os.geteuid() == 0, "root, who alone can give a file to somebody else")
    log.write(event(0))
    os.chown(path, 65534, 65534)
    assert refused(lambda: log.write(event(1))) == ("CW-AUDIT-FAILED", "EPERM")


def test_folder_that_cannot_be_written_to_is_refused(tmp_path):
    folder = tmp_path / "audit"
    folder.mkdir(mode=0o500)

    def work():
        if os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
            os.setuid(65534)
        assert refused(lambda: AuditLog.open(str(folder)))[0] == "CW-AUDIT-FAILED"

    for each in (tmp_path, *tmp_path.parents):
        if each.stat().st_uid == os.geteuid() and str(each) != "/":
            each.chmod(each.stat().st_mode | 0o011)
    assert os.waitpid(forked(work), 0)[1] == 0
    assert list(folder.iterdir()) == []


def test_refusals_leak_no_descriptor(folder, path):
    folder.mkdir(mode=0o700)
    path.symlink_to("nowhere")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        refused(lambda: AuditLog.open(str(folder)))
    assert len(os.listdir("/proc/self/fd")) == before


def test_log_locked_for_too_long_is_refused(log, folder, monkeypatch):
    monkeypatch.setattr(files.wait_for_lock, "__kwdefaults__", {"timeout_s": 0.05})
    with (folder / "lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert refused(lambda: log.write(event(1))) == ("CW-AUDIT-FAILED", "ETIMEDOUT")
    log.write(event(2))
    assert (log.verify().ok, log.verify().records) == (True, 2)


# --- segments


@pytest.mark.requirement("AUD-4")
def test_full_segment_is_sealed_and_the_next_begun(folder):
    with AuditLog.open(str(folder), settings=replace(NEVER, segment_bytes=1500)) as log:
        ids = [log.write(event(number)) for number in range(20)]
        assert log.verify().ok
    records = all_records(folder)
    assert [each["seq"] for each in records] == list(range(1, len(records) + 1))
    assert set(ids) <= {each["id"] for each in records}
    seals = [each for each in records if each["kind"] == "seal"]
    assert len(seals) == 3
    assert [records_path(folder, each["body"]["next"]).exists() for each in seals] == [True] * len(
        seals
    )
    assert [each["body"]["next"] for each in seals] == [each["seq"] + 1 for each in seals]
    assert max(each.stat().st_size for each in folder.glob("*.jsonl")) < 1500 + 1200


@pytest.mark.requirement("AUD-4")
def test_old_segment_is_sealed_and_the_next_begun(folder, monkeypatch):
    week = replace(NEVER, segment_age_s=7 * 86400.0)
    with AuditLog.open(str(folder), settings=week) as log:
        log.write(event(0))
        now = time.time()
        monkeypatch.setattr(writer_module.time, "time", lambda: now + 8 * 86400)
        log.write(event(1))
        assert [each["kind"] for each in all_records(folder)] == [
            "begin",
            "intent",
            "seal",
            "intent",
        ]
    monkeypatch.undo()
    # Also by a process that opens it only then: the first record says when it began.
    other = folder.with_name("other")
    with AuditLog.open(str(other), settings=week) as log:
        log.write(event(0))
    monkeypatch.setattr(writer_module.time, "time", lambda: now + 8 * 86400)
    with AuditLog.open(str(other), settings=week) as log:
        log.write(event(1))
        assert log.verify().ok
    assert [each["kind"] for each in all_records(other)][2] == "seal"


@pytest.mark.parametrize("hours", [-1, -24 * 365, 24 * 365])
def test_clock_that_jumps_harms_nothing(folder, monkeypatch, hours):
    with AuditLog.open(str(folder), settings=NEVER) as log:
        log.write(event(0))
        now_ns, now = time.time_ns(), time.time()
        monkeypatch.setattr(
            writer_module.time, "time_ns", lambda: now_ns + hours * 3600 * 1_000_000_000
        )
        monkeypatch.setattr(writer_module.time, "time", lambda: now + hours * 3600)
        log.write(event(1))
        log.write(event(2))
        monkeypatch.undo()
        log.write(event(3))
        maintain_segments(str(folder), NEVER, log.write, log.notary)
        assert log.verify().ok
    assert [each["body"]["n"] for each in all_records(folder) if each["kind"] == "intent"] == [
        0,
        1,
        2,
        3,
    ]


def test_segment_that_another_process_sealed_is_left_behind(log, folder):
    log.write(event(0))
    with reopened(folder) as other:
        other.seal()
        other.write(event(1))
        maintain_segments(str(folder), NEVER, other.write, other.notary)
    assert not records_path(folder).exists(), "packed under the first one's feet"
    log.write(event(2))
    assert [each["action_id"] for each in all_records(folder)] == [
        "",
        "act_0",
        "",
        "act_1",
        "act_2",
    ]
    assert log.verify().ok


def test_last_segment_that_is_gone_is_not_begun_anew(folder):
    with reopened(folder) as log:
        log.write(event(0))
        log.seal()
        log.write(event(1))
        maintain_segments(str(folder), NEVER, log.write, log.notary)
        first = log._writer._first
    for each in folder.glob(f"{first:016d}.*"):
        each.unlink()
    assert refused(lambda: reopened(folder)) == ("CW-AUDIT-ALTERED", "")

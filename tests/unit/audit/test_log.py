"""Every acknowledged event is in the record, whatever dies, fills up or was planted (AUD-1)."""

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
import threading
from hashlib import sha256
from pathlib import Path

import pytest

from holdfast.audit import log as log_module
from holdfast.audit import verify as verify_module
from holdfast.audit.log import AuditLog
from holdfast.audit.verify import VerifyReport, read, verify
from holdfast.core.errors import AuditFailed, ConfigError
from holdfast.core.events import Event, EventKind
from holdfast.core.types import check_id

MUST_WORK = os.environ.get("HOLDFAST_MUST_WORK") == "1"

WRITER = """
import sys
from holdfast.audit.log import AuditLog
from holdfast.core.events import Event, EventKind
log = AuditLog.open(sys.argv[1])
for number in range(int(sys.argv[2])):
    print(log.write(Event(EventKind.OUTCOME, "act_w", "ann", "cli", {"n": number})), flush=True)
"""

# Fills the disk, shows that the log is whole, then that it goes on once there is room again.
FILLER = """
import os, sys
from holdfast.audit.log import AuditLog
from holdfast.audit.verify import verify
from holdfast.core.errors import AuditFailed
from holdfast.core.events import Event, EventKind
folder = sys.argv[1]
event = Event(EventKind.INTENT, "act_f", "ann", "cli", {"text": "x" * 3000})
log = AuditLog.open(folder + "/audit")
ballast = os.open(folder + "/ballast", os.O_CREAT | os.O_RDWR)
os.pwrite(ballast, b"x" * 32768, 0)
written = 0
try:
    while True:
        log.write(event)
        written += 1
except AuditFailed as error:
    print(error.code, error.detail)
report = verify(folder + "/audit")
print(report.ok, report.records == written > 0)
os.ftruncate(ballast, 0)
log.write(event)
print(log.verify().records - written)
"""


def event(number: int = 0, **body) -> Event:
    return Event(EventKind.INTENT, f"act_{number}", "ann", "sdk", {"n": number, **body})


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "audit"


@pytest.fixture
def path(folder):
    return folder / "audit.jsonl"


@pytest.fixture
def log(folder):
    with AuditLog.open(str(folder)) as opened:
        yield opened


def sound(records: int) -> VerifyReport:
    return VerifyReport(True, records, None, "")


def refused(work) -> tuple[str, str]:
    with pytest.raises(AuditFailed) as caught:
        work()
    assert caught.value.mend
    assert "/" not in caught.value.message
    return caught.value.code, caught.value.detail


@pytest.mark.requirement("AUD-1")
def test_record_holds_the_event_and_its_place(log, path, folder):
    event_id = log.write(event(7, text="hi"))
    line = path.read_bytes()
    record = json.loads(line)
    assert check_id(event_id).startswith("evt_")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", record.pop("time"))
    assert re.fullmatch(r"[0-9a-f]{64}", record.pop("hash"))
    assert record == {
        "v": 1,
        "seq": 1,
        "id": event_id,
        "kind": "intent",
        "action_id": "act_7",
        "principal": "ann",
        "interface": "sdk",
        "body": {"n": 7, "text": "hi"},
        "prev": "0" * 64,
    }
    log.write(event(8))
    second = path.read_bytes().splitlines()[1]
    assert json.loads(second)["prev"] == sha256(line[:-1]).hexdigest()
    assert (json.loads(second)["seq"], log.verify()) == (2, sound(2))


def test_files_are_private_and_not_inherited(log, path, folder):
    log.write(event())
    modes = [stat.S_IMODE(item.stat().st_mode) for item in (folder, path)]
    assert modes == [0o700, 0o600]
    assert [os.get_inheritable(number) for number in (log._file, log._descriptor)] == [False, False]


def test_reopened_log_goes_on_where_it_ended(folder):
    for number in range(3):
        with AuditLog.open(str(folder)) as log:
            log.write(event(number))
    assert verify(str(folder)) == sound(3)


@pytest.mark.requirement("AUD-1")
def test_event_is_flushed_before_it_is_acknowledged(log, path, monkeypatch):
    log.write(event(0))
    flushed = []
    real = os.fdatasync

    def record_size(file):
        real(file)
        flushed.append(os.fstat(file).st_size)

    monkeypatch.setattr(log_module.os, "fdatasync", record_size)
    log.write(event(1))
    assert flushed == [path.stat().st_size]


@pytest.mark.requirement("AUD-1")
def test_threads_and_processes_write_one_chain(log, folder):
    argv = [sys.executable, "-c", WRITER, str(folder), "40"]
    writers = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(3)]
    ids: list[str] = []
    threads = [
        threading.Thread(target=lambda: ids.extend([log.write(event(n)) for n in range(40)]))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for writer in writers:
        ids += writer.communicate()[0].decode().split()
        assert writer.returncode == 0
    assert log.verify() == sound(240)
    assert sorted(record["id"] for record in read(str(folder))) == sorted(ids)


def test_several_logs_of_one_process_write_one_chain(log, folder):
    with AuditLog.open(str(folder)) as other:
        for number in range(10):
            (log, other)[number % 2].write(event(number))
    assert log.verify() == sound(10)


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_forked_child_does_not_share_the_lock(log, folder):
    log.write(event())
    inside, go_on = threading.Event(), threading.Event()

    def hold():
        with log._turn():
            inside.set()
            go_on.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        exit_code = 1
        try:
            log.write(event(1))
            exit_code = 0
        finally:
            os._exit(exit_code)  # never back into the test run
    go_on.set()
    holder.join()
    log.write(event(2))
    assert os.waitpid(child, 0)[1] == 0
    assert log.verify() == sound(3)


@pytest.mark.requirement("AUD-1", "AUD-3")
def test_killed_writer_loses_no_acknowledged_event(folder):
    acknowledged: list[str] = []
    for round_number in range(6):
        argv = [sys.executable, "-c", WRITER, str(folder), "1000000"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as writer:
            count = 3 + 7 * round_number
            acknowledged += [writer.stdout.readline().decode().strip() for _ in range(count)]
            writer.kill()
            acknowledged += writer.stdout.read().decode().split("\n")[:-1]
    with AuditLog.open(str(folder)) as log:
        assert log.verify().ok
    written = {record["id"] for record in read(str(folder))}
    assert (len(acknowledged) >= 123, set(acknowledged) - written) == (True, set())


@pytest.mark.requirement("AUD-3")
@pytest.mark.parametrize(
    "torn", [b'{"action_id":"act', b"{", b"\0" * 700, b"\0" * 700 + b"\n", b"\n", b"x" * 200_000]
)
@pytest.mark.parametrize("before", [0, 1, 3])
def test_torn_end_is_cut_and_the_cut_is_recorded(folder, path, torn, before):
    with AuditLog.open(str(folder)) as log:
        for number in range(before):
            log.write(event(number))
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    with AuditLog.open(str(folder)) as log:
        log.write(event(9))
        assert log.verify() == sound(before + 2)
    assert path.read_bytes().startswith(whole)
    recovery = list(read(str(folder)))[before]
    assert (recovery["kind"], recovery["body"]) == (
        "recovery",
        {"cut_bytes": len(torn), "cut_sha256": sha256(torn).hexdigest()},
    )


@pytest.mark.requirement("AUD-3")
def test_end_torn_by_another_process_is_mended_by_the_next_write(log, path):
    log.write(event(0))
    with path.open("ab") as file:
        file.write(b'{"half')
    log.write(event(1))
    kinds = [record["kind"] for record in read(str(path.parent))]
    assert (kinds, log.verify()) == (["intent", "recovery", "intent"], sound(3))


@pytest.mark.requirement("AUD-3")
def test_record_cut_anywhere_is_recovered(folder, path):
    with AuditLog.open(str(folder)) as log:
        log.write(event(0))
        log.write(event(1))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole), 37):
        path.write_bytes(whole[:end])
        with AuditLog.open(str(folder)) as log:
            assert log.verify() == sound(1 if end == first else 2)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: data.replace(b'"n":1', b'"n":2'),
        lambda data: data + b"x\ny\n",
        lambda data: data + b"x\ny",
        lambda data: data + b"{}\n",
        lambda data: data + b"x" * 300_000,
    ],
)
def test_altered_end_is_refused_and_kept_as_evidence(folder, path, spoil):
    with AuditLog.open(str(folder)) as log:
        log.write(event(0))
        log.write(event(1))
    spoilt = spoil(path.read_bytes())
    path.write_bytes(spoilt)
    assert refused(lambda: AuditLog.open(str(folder))) == ("HF-AUDIT-ALTERED", "")
    assert path.read_bytes() == spoilt


def test_running_writer_does_not_build_upon_a_foreign_record(log, path):
    log.write(event(0))
    with path.open("ab") as file:
        file.write(b"{}\n")
    assert refused(lambda: log.write(event(1))) == ("HF-AUDIT-ALTERED", "")


def test_records_cut_off_behind_a_running_writer_are_noticed(log, path):
    log.write(event(0))
    kept = path.read_bytes()
    log.write(event(1))
    os.truncate(path, len(kept))
    assert refused(lambda: log.write(event(2))) == ("HF-AUDIT-ALTERED", "")
    assert path.read_bytes() == kept


@pytest.mark.parametrize("way", ["rename", "unlink"])
def test_log_moved_away_is_begun_anew(log, path, tmp_path, way):
    log.write(event(0))
    if way == "rename":
        path.rename(tmp_path / "old.jsonl")
    else:
        path.unlink()
    log.write(event(1))
    log.write(event(2))
    assert log.verify() == sound(2)


@pytest.mark.requirement("AUD-1")
def test_file_size_limit_refuses_and_leaves_nothing_half_made(folder):
    def limit_file_size():
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 80_000))

    # The ballast gives no room back under this limit, so the last step fails again.
    argv = [sys.executable, "-c", FILLER, str(folder)]
    folder.mkdir(mode=0o700)
    ended = subprocess.run(
        argv, preexec_fn=limit_file_size, capture_output=True, text=True, check=False
    )
    assert ended.stdout.split() == ["HF-AUDIT-FAILED", "ENOSPC", "True", "True"], ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("holdfast.core.errors.AuditFailed")
    assert verify(str(folder / "audit")).ok


@pytest.mark.requirement("AUD-1")
def test_full_disk_refuses_then_goes_on_when_there_is_room(tmp_path):
    mount = 'mount -t tmpfs -o size=128k,mode=700 none "$1" && exec "$2" -c "$3" "$1"'
    flags = ["--mount"] if os.geteuid() == 0 else ["--mount", "--map-root-user"]
    inner = ["sh", "-c", mount, "sh", str(tmp_path), sys.executable, FILLER]
    can = shutil.which("unshare") and not subprocess.call(
        ["unshare", *flags, "sh", "-c", 'mount -t tmpfs none "$1"', "sh", str(tmp_path)],
        stderr=subprocess.DEVNULL,
    )
    if not can and not MUST_WORK:
        pytest.skip("this host lets nobody mount a small disk")
    ended = subprocess.run(["unshare", *flags, *inner], capture_output=True, text=True, check=False)
    assert (ended.stdout.split(), ended.stderr) == (
        ["HF-AUDIT-FAILED", "ENOSPC", "True", "True", "1"],
        "",
    )


@pytest.mark.requirement("AUD-1")
@pytest.mark.parametrize("step", ["write", "fdatasync"])
def test_failed_step_takes_the_record_back(log, path, monkeypatch, step):
    log.write(event(0))
    before = path.read_bytes()

    def fail(*arguments):
        raise OSError(errno.EIO, "broken disk")

    with monkeypatch.context() as patch:
        patch.setattr(log_module.os, step, fail)
        assert refused(lambda: log.write(event(1))) == ("HF-AUDIT-FAILED", "EIO")
    assert path.read_bytes() == before
    log.write(event(2))
    assert [record["action_id"] for record in read(str(path.parent))] == ["act_0", "act_2"]
    assert log.verify() == sound(2)


def test_short_write_takes_the_record_back(log, path, monkeypatch):
    log.write(event(0))
    before, real = path.read_bytes(), os.write
    with monkeypatch.context() as patch:
        patch.setattr(log_module.os, "write", lambda file, data: real(file, data[:10]))
        assert refused(lambda: log.write(event(1))) == ("HF-AUDIT-FAILED", "ENOSPC")
    assert path.read_bytes() == before


def test_interrupt_before_the_flush_takes_the_record_back(log, path, monkeypatch):
    log.write(event(0))
    before = path.read_bytes()

    def interrupt(file):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(log_module.os, "fdatasync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        log.write(event(1))
    assert path.read_bytes() == before
    log.write(event(2))
    assert log.verify() == sound(2)


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


PLANTS = [plant_symlink, plant_hard_link, plant_fifo, plant_folder, plant_readable]


@pytest.mark.requirement("AUD-1")
@pytest.mark.parametrize("plant", PLANTS)
def test_planted_log_is_refused_when_opened(folder, path, tmp_path, plant):
    other = tmp_path / "precious"
    other.write_text("precious")
    folder.mkdir(mode=0o700)
    plant(path, other)
    assert refused(lambda: AuditLog.open(str(folder)))[0] == "HF-AUDIT-FAILED"
    assert other.read_text() == "precious"


@pytest.mark.requirement("AUD-1")
@pytest.mark.parametrize("plant", PLANTS)
def test_log_replaced_by_a_plant_is_refused_when_written(log, path, tmp_path, plant):
    other = tmp_path / "precious"
    other.write_text("precious")
    log.write(event(0))
    path.unlink()
    plant(path, other)
    assert refused(lambda: log.write(event(1)))[0] == "HF-AUDIT-FAILED"
    assert other.read_text() == "precious"


def test_folder_open_to_others_is_refused(folder):
    folder.mkdir()
    folder.chmod(0o755)
    assert refused(lambda: AuditLog.open(str(folder))) == ("HF-AUDIT-FAILED", "EPERM")


def test_symlink_as_folder_is_refused(folder, tmp_path):
    folder.symlink_to(tmp_path)
    assert refused(lambda: AuditLog.open(str(folder)))[0] == "HF-AUDIT-FAILED"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_log_of_another_user_is_refused(log, path):
    log.write(event(0))
    os.chown(path, 65534, 65534)
    assert refused(lambda: log.write(event(1))) == ("HF-AUDIT-FAILED", "EPERM")


def test_removed_folder_is_refused(log, folder):
    log.write(event(0))
    shutil.rmtree(folder)
    assert refused(lambda: log.write(event(1))) == ("HF-AUDIT-FAILED", "ENOENT")


def test_closed_log_is_refused(log):
    log.close()
    assert refused(lambda: log.write(event(1))) == ("HF-AUDIT-FAILED", "EBADF")


def test_log_locked_for_too_long_is_refused(log, path, monkeypatch):
    monkeypatch.setattr(verify_module, "LOCK_TIMEOUT_S", 0.05)
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert refused(lambda: log.write(event(1))) == ("HF-AUDIT-FAILED", "ETIMEDOUT")
        assert refused(log.verify) == ("HF-AUDIT-FAILED", "ETIMEDOUT")
    log.write(event(2))
    assert log.verify() == sound(1)


def test_refusals_leak_no_descriptor(folder, path):
    folder.mkdir(mode=0o700)
    path.symlink_to("nowhere")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        refused(lambda: AuditLog.open(str(folder)))
    assert len(os.listdir("/proc/self/fd")) == before


def test_long_fields_are_cut_in_the_record(folder):
    with AuditLog.open(str(folder), max_field_bytes=64) as log:
        log.write(Event(EventKind.DENIAL, "a", "p" * 1000, "sdk", {"text": "x" * 100}))
        assert log.verify() == sound(1)
    (record,) = read(str(folder))
    assert (record["principal"], record["body"]) == (
        "p" * 256 + f"[cut: 1000 bytes, sha256 {sha256(b'p' * 1000).hexdigest()}]",
        {"text": "x" * 64 + f"[cut: 100 bytes, sha256 {sha256(b'x' * 100).hexdigest()}]"},
    )


@pytest.mark.parametrize("max_field_bytes", [0, 63, 8193])
def test_senseless_bound_is_refused(folder, max_field_bytes):
    with pytest.raises(ConfigError):
        AuditLog.open(str(folder), max_field_bytes=max_field_bytes)

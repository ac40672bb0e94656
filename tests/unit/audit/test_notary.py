"""Who signs when, from where the tree is built, and what is noticed on the way (AUD-2)."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cellwall.audit import notary as notary_module
from cellwall.audit.log import AuditLog
from cellwall.audit.merkle import leaf_hash, unproven_checkpoint
from cellwall.audit.retention import maintain_segments
from cellwall.audit.segments import find_notes
from cellwall.audit.verify import verify
from cellwall.core.errors import AuditFailed
from unit.audit.audit_logs import (
    NEVER,
    event,
    lines_of,
    note_over,
    notes_path,
    private_key,
    put_lines,
    records_path,
    relinked,
    sign,
    tree_hash,
    trusted,
)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "audit"


@pytest.fixture
def log(folder):
    with AuditLog.open(str(folder), settings=NEVER) as opened:
        yield opened


def reopened(folder) -> AuditLog:
    return AuditLog.open(str(folder), settings=NEVER)


def sizes(folder: Path, first: int = 1) -> list[int]:
    return [
        unproven_checkpoint(note).size
        for note in find_notes(notes_path(folder, first).read_bytes())
    ]


def log_altered(work) -> str:
    with pytest.raises(AuditFailed) as caught:
        work()
    assert caught.value.code == "CW-AUDIT-ALTERED"
    return caught.value.message


def wait_for(condition) -> None:
    """Another thread makes it true; where none does, the time limit of every test ends this."""
    while not condition():
        time.sleep(0.005)


@pytest.mark.requirement("AUD-2")
def test_checkpoint_is_the_root_over_the_records(log, folder):
    for number in range(5):
        log.write(event(number))
    checkpoint = sign(log)
    assert (checkpoint.size, checkpoint.root) == (6, tree_hash(map(leaf_hash, lines_of(folder))))
    assert checkpoint.origin == (folder / "origin").read_text().strip()
    assert find_notes(notes_path(folder).read_bytes())[-1] == note_over(
        folder, lines_of(folder), private_key(folder)
    )
    assert sign(log) is None, "nothing is new"


@pytest.mark.requirement("AUD-2")
def test_what_is_signed_is_what_was_written_not_what_was_made_of_it(log, folder):
    for number in range(5):
        log.write(event(number))
    written = lines_of(folder)
    put_lines(folder, relinked([line.replace(b"ann", b"bob") for line in written]))
    assert sign(log).root == tree_hash(map(leaf_hash, written))
    assert not log.verify().ok


@pytest.mark.requirement("AUD-2")
def test_records_of_two_writers_are_signed_in_their_order(log, folder):
    with reopened(folder) as other:
        for number in range(6):
            (log, other)[number % 2].write(event(number))
            if number % 3 == 2:
                sign((log, other)[number // 3])
        assert sign(log) is None
    assert log.verify().ok
    assert sizes(folder) == [1, 4, 7]


@pytest.mark.requirement("AUD-2")
def test_log_is_signed_after_so_many_events(folder):
    settings = replace(NEVER, checkpoint_events=10)
    with AuditLog.open(str(folder), settings=settings) as log:
        for number in range(9):
            log.write(event(number))
        assert sizes(folder) == [1]
        log.write(event(9))
        wait_for(lambda: sizes(folder)[-1] >= 11)


@pytest.mark.requirement("AUD-2")
def test_log_is_signed_after_so_many_seconds(folder):
    with AuditLog.open(str(folder), settings=replace(NEVER, checkpoint_s=0.05)) as log:
        log.write(event(0))
        wait_for(lambda: sizes(folder)[-1] >= 2)


def test_log_is_signed_when_it_is_closed(folder):
    with reopened(folder) as log:
        log.write(event(0))
        assert sizes(folder) == [1]
    assert sizes(folder) == [1, 2]


def test_nothing_is_signed_that_is_not_on_the_disk(log, folder, monkeypatch):
    """Else a power cut would leave a checkpoint over records that are gone."""
    log.write(event(0))
    flushed = []
    real = os.fdatasync
    monkeypatch.setattr(
        os, "fdatasync", lambda file: (real(file), flushed.append(os.fstat(file).st_ino))
    )
    sign(log)
    assert flushed == [records_path(folder).stat().st_ino, notes_path(folder).stat().st_ino]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_thread_that_died_is_followed_by_another(folder, monkeypatch):
    with AuditLog.open(str(folder), settings=replace(NEVER, checkpoint_s=0.02)) as log:
        died = threading.Event()

        def die(**_):
            monkeypatch.undo()
            died.set()
            raise SystemExit  # what no handler of ours expects

        monkeypatch.setattr(log.notary, "_sign_or_warn", die)
        log.write(event(0))
        died.wait(60)
        wait_for(lambda: not log.notary._thread.is_alive())
        log.write(event(1))
        wait_for(lambda: sizes(folder)[-1] >= 3)


# --- from where it goes on

LOSSES = {
    "nothing": lambda folder: None,
    "tip": lambda folder: (folder / "tip.json").unlink(),
    "tip empty": lambda folder: (folder / "tip.json").write_text(""),
    "tip nonsense": lambda folder: (folder / "tip.json").write_text('{"size":1}'),
    "tip float": lambda folder: change(folder / "tip.json", size=3.0),
    "tip list": lambda folder: (folder / "tip.json").write_text("[]"),
    "tip offset": lambda folder: change(folder / "tip.json", offset=7),
    "tip offset zero": lambda folder: change(folder / "tip.json", offset=0),
    "tip offset far": lambda folder: change(folder / "tip.json", offset=10**9),
    "tip offset negative": lambda folder: change(folder / "tip.json", offset=-5),
    "tip offset text": lambda folder: change(folder / "tip.json", offset="7"),
    "tip segment": lambda folder: change(folder / "tip.json", segment=99),
    "tip segment text": lambda folder: change(folder / "tip.json", segment="1"),
    "tip subtrees": lambda folder: change(folder / "tip.json", subtrees=[]),
    "tip symlink": lambda folder: planted(folder / "tip.json"),
}


def change(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def planted(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


@pytest.mark.requirement("AUD-2")
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("is_sealed", [False, True])
def test_lost_or_wrong_tip_costs_only_time(folder, loss, is_sealed):
    with reopened(folder) as log:
        log.write(event(0))
        log.write(event(1))
        if is_sealed:
            log.seal()
            log.write(event(2))
    loss(folder)
    with reopened(folder) as log:
        log.write(event(3))
        sign(log)
        report = log.verify()
        assert (report.ok, report.signed, report.reason) == (True, report.records, "")


@pytest.mark.requirement("AUD-2")
@pytest.mark.slow
def test_torn_checkpoint_is_passed_over_and_the_next_one_is_good(folder):
    with reopened(folder) as log:
        log.write(event(0))
    whole = notes_path(folder).read_bytes()
    start = whole.index(b"\n\n", whole.index(b"\n\n") + 2) + 2
    keys = trusted(folder)
    lines = lines_of(folder)
    for end in range(start, len(whole)):
        notes_path(folder).write_bytes(whole[:end])
        (folder / "tip.json").unlink(missing_ok=True)
        (folder.parent / "keys" / "audit.signed").unlink(missing_ok=True)
        put_lines(folder, lines)
        with reopened(folder) as log:
            log.write(event(1))
        report = verify(str(folder), keys)
        assert (report.ok, report.signed) == (True, 3), whole[start:end]


def test_lost_seal_of_a_segment_that_is_there_stops_nothing(folder):
    with reopened(folder) as log:
        log.write(event(0))
        log.seal()
        log.write(event(1))
    (folder / "0000000000000001.seal").unlink()
    with reopened(folder) as log:
        log.write(event(2))
        log.seal()
        assert log.verify().ok


def test_seal_that_a_crash_prevented_is_made_later(folder, monkeypatch):
    real = notary_module.files.replace_file

    def die(name, *rest, **named):
        if name.endswith(".seal"):
            raise OSError(28, "No space left on device")
        return real(name, *rest, **named)

    with reopened(folder) as log:
        log.write(event(0))
        with monkeypatch.context() as patch:
            patch.setattr(notary_module.files, "replace_file", die)
            with pytest.raises(AuditFailed):
                log.seal()
        assert not (folder / "0000000000000001.seal").exists()
        log.write(event(1))
        sign(log)
        assert (folder / "0000000000000001.seal").exists()
        assert log.verify().ok


# --- what it notices


@pytest.mark.requirement("AUD-2")
def test_history_written_anew_is_not_signed(folder):
    with reopened(folder) as log:
        for number in range(4):
            log.write(event(number))
    put_lines(folder, relinked([line.replace(b"ann", b"bob") for line in lines_of(folder)]))
    (folder / "tip.json").unlink()
    before = notes_path(folder).read_bytes()
    with reopened(folder) as log:
        log.write(event(9))
        assert log_altered(lambda: sign(log)) == "the audit log is not the one that was signed"
    assert notes_path(folder).read_bytes() == before


@pytest.mark.requirement("AUD-2")
def test_changed_seal_is_not_built_upon(folder):
    with reopened(folder) as log:
        log.write(event(0))
        log.seal()
    change(folder / "0000000000000001.seal", subtrees=["00" * 32, "11" * 32])
    (folder / "tip.json").unlink()
    before = notes_path(folder).read_bytes()
    with reopened(folder) as log:
        log.write(event(1))
        assert log_altered(lambda: sign(log)) == "the audit log is not the one that was signed"
    assert notes_path(folder).read_bytes() == before


@pytest.mark.requirement("AUD-2")
@pytest.mark.parametrize("left", [0, 1])
def test_removed_checkpoints_are_noticed_by_who_made_them(log, folder, left):
    log.write(event(0))
    sign(log)
    notes = find_notes(notes_path(folder).read_bytes())
    notes_path(folder).write_bytes(b"".join(note + b"\n" for note in notes[:left]))
    log.write(event(1))
    assert log_altered(lambda: sign(log)) == "checkpoints are gone from the audit log"


@pytest.mark.requirement("AUD-2")
def test_signed_records_that_are_gone_are_noticed(log, folder):
    log.write(event(0))
    sign(log)
    put_lines(folder, lines_of(folder)[:1])
    assert log_altered(lambda: sign(log)) == "records that were signed are gone from the audit log"


@pytest.mark.requirement("AUD-1")
def test_nothing_is_written_to_a_log_that_was_found_altered(folder, caplog):
    with AuditLog.open(str(folder), settings=replace(NEVER, checkpoint_s=0.02)) as log:
        log.write(event(0))
        sign(log)
        notes_path(folder).write_bytes(b"")
        log.write(event(1))
        wait_for(lambda: log.notary.failure is not None)
        with pytest.raises(AuditFailed) as caught:
            log.write(event(2))
    assert caught.value.code == "CW-AUDIT-ALTERED"
    assert "the audit log was not signed" in caplog.text


def test_disk_full_while_signing_leaves_no_half_checkpoint(log, folder, monkeypatch):
    log.write(event(0))
    before, real = notes_path(folder).read_bytes(), os.pwrite
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda file, data, at: real(file, data[:20], at))
        with pytest.raises(AuditFailed) as caught:
            sign(log)
    assert caught.value.detail == "ENOSPC"
    assert notes_path(folder).read_bytes() == before
    assert sign(log).size == 2
    assert log.verify().ok


def test_several_processes_sign_one_log(log, folder):
    with reopened(folder) as other:
        for number in range(6):
            (log, other)[number % 2].write(event(number))
            sign((other, log)[number % 2])
        assert sizes(folder) == [1, 2, 3, 4, 5, 6, 7]
        assert other.verify().ok


def test_sealed_segments_are_signed_at_their_end(log, folder):
    log.write(event(0))
    log.seal()
    log.write(event(1))
    log.write(event(2))
    log.seal()
    assert (sizes(folder, 1), sizes(folder, 4)) == ([1, 3], [6])
    maintain_segments(str(folder), NEVER, log.write, log.notary)
    assert log.verify().ok

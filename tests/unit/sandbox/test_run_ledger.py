"""The ledger of runs: held by the living, swept after the dead (ISO-8, FS-6)."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cellwall.core.errors import BadInput, SandboxFailed, WorkspaceError
from cellwall.core.ids import new_id
from cellwall.sandbox.run_ledger import RunLedger, cell_tag


def test_an_entry_lasts_exactly_as_long_as_its_run(tmp_path: Path) -> None:
    ledger, run_id = RunLedger(str(tmp_path)), new_id("act")
    with ledger.open(run_id) as entry:
        entry.note_groups(["/g/1"])
        assert json.loads((tmp_path / run_id).read_text()) == {"groups": ["/g/1"]}
        assert (tmp_path / run_id).stat().st_mode & 0o777 == 0o600
        assert ledger.sweep() == ()
    assert os.listdir(tmp_path) == []


def test_a_failed_run_leaves_no_entry(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), RunLedger(str(tmp_path)).open(new_id("act")):
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == []


@pytest.mark.requirement("FS-6")
@pytest.mark.parametrize("run_id", ["../x", "", "a\0", "/etc/passwd"])
def test_an_id_that_is_none_makes_no_file(run_id: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput), RunLedger(str(tmp_path / "runs")).open(run_id):
        pass
    assert sorted(os.listdir(tmp_path)) == ["runs", "runs.lock"]


def test_what_a_run_left_is_held_only_after_its_end(tmp_path: Path) -> None:
    ledger, run_id = RunLedger(str(tmp_path)), new_id("act")
    with ledger.open(run_id), pytest.raises(WorkspaceError) as refused, ledger.hold_ended(run_id):
        pass
    assert refused.value.code == "CW-WORKSPACE-BUSY"
    with ledger.hold_ended(run_id), pytest.raises(SandboxFailed), ledger.open(run_id):
        pass


def test_the_same_run_cannot_be_held_twice(tmp_path: Path) -> None:
    ledger, run_id = RunLedger(str(tmp_path)), new_id("act")
    with ledger.open(run_id), pytest.raises(SandboxFailed), ledger.open(run_id):
        pass


@pytest.mark.requirement("ISO-8")
@pytest.mark.parametrize(
    "text", ["", "{}", '{"groups": [', '{"groups": ["/sys/fs/cgroup/cellwall-gone"]}']
)
def test_what_the_dead_left_is_swept_even_if_it_was_cut_short(text: str, tmp_path: Path) -> None:
    run_id = new_id("act")
    (tmp_path / run_id).write_text(text)
    (tmp_path / "not-an-id").touch()
    assert RunLedger(str(tmp_path)).sweep() == (run_id,)
    assert os.listdir(tmp_path) == ["not-an-id"]


@pytest.mark.parametrize("text", ["[]", "5", "null", '{"groups": 5}', '"x"'])
def test_an_entry_of_another_shape_does_not_stop_the_next_start(text: str, tmp_path: Path) -> None:
    (tmp_path / new_id("act")).write_text(text)
    RunLedger(str(tmp_path)).sweep()


def test_a_symlink_in_the_ledger_is_not_followed(tmp_path: Path) -> None:
    runs, target = tmp_path / "runs", tmp_path / "target"
    runs.mkdir()
    target.write_text('{"groups": []}')
    (runs / new_id("act")).symlink_to(target)
    assert RunLedger(str(runs)).sweep() == ()
    assert target.exists()


@pytest.mark.requirement("OBS-3")
def test_a_tag_lasts_with_its_folder_and_belongs_to_no_other(tmp_path: Path) -> None:
    ledger = str(tmp_path / "runs")
    with ThreadPoolExecutor() as pool:
        tags = set(pool.map(cell_tag, [ledger] * 32))
    assert tags == {RunLedger(ledger).tag}
    lock = tmp_path / "runs.lock"
    (tmp_path / "copy.lock").write_bytes(lock.read_bytes())
    assert cell_tag(str(tmp_path / "copy")) not in tags
    number, inode = lock.read_bytes(), lock.stat().st_ino
    os.truncate(lock, 7)  # as a power cut leaves it
    assert cell_tag(ledger) not in tags  # also the case of a reused inode number
    assert lock.stat().st_ino == inode
    lock.write_bytes(number)
    assert cell_tag(ledger) in tags  # the control

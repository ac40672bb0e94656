"""What uv knows about the Pythons of a cell: only entries of its cache, only from this user."""

from __future__ import annotations

import base64
import json
import os
import threading

import pytest

from cellwall.sandbox.templates import uv_answers
from cellwall.sandbox.templates.uv_answers import UvAnswers

ENTRY = "interpreter-v4/f69b9b348fb23375/7cc157ed415aa3b1.msgpack"


def printed(**changes):
    return json.dumps({ENTRY: base64.b64encode(b"answer").decode(), **changes}).encode()


@pytest.fixture(autouse=True)
def _uv(monkeypatch):
    monkeypatch.setattr(uv_answers.uv_program, "folder", lambda home: f"{home}/programs/uv-1")


def written(tmp_path):
    (found,) = (tmp_path / "programs").glob("python-*.json")
    return found


def test_entries_are_kept_for_the_next_process(tmp_path):
    answers = UvAnswers(str(tmp_path))
    assert answers.entries() == {}
    answers.write(printed())
    assert answers.entries() == UvAnswers(str(tmp_path)).entries() == {ENTRY: b"answer"}
    assert written(tmp_path).stat().st_mode & 0o777 == 0o600


@pytest.mark.requirement("PKG-3")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b"not json",
        printed(**{"../../.profile": "eA=="}),
        printed(**{"wheels-v5/pypi/zebra/zebra.msgpack": "eA=="}),
        printed(**{f"{ENTRY}\n": "eA=="}),
        printed(**{ENTRY: "not base64!"}),
        printed(**{ENTRY: 1}),
        printed(**{ENTRY: "A" * (1 << 17)}),
        json.dumps({ENTRY.replace("7c", f"{n:02x}"): "eA==" for n in range(9)}).encode(),
    ],
)
def test_a_cell_that_prints_anything_else_is_not_believed(tmp_path, data):
    UvAnswers(str(tmp_path)).write(data)
    assert not (tmp_path / "programs").exists()
    # A file that was changed later is read in the same way.
    UvAnswers(str(tmp_path)).write(printed())
    written(tmp_path).write_bytes(data)
    assert UvAnswers(str(tmp_path)).entries() == {}


@pytest.mark.requirement("PKG-3")
def test_a_file_that_others_can_write_and_a_link_are_not_read(tmp_path):
    UvAnswers(str(tmp_path)).write(printed())
    path = written(tmp_path)
    path.chmod(0o666)
    assert UvAnswers(str(tmp_path)).entries() == {}
    path.chmod(0o600)
    assert UvAnswers(str(tmp_path)).entries() == {ENTRY: b"answer"}  # the control
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert UvAnswers(str(tmp_path)).entries() == {}


def test_another_uv_or_python_has_other_answers_and_remains_are_removed(tmp_path, monkeypatch):
    UvAnswers(str(tmp_path)).write(printed())
    (tmp_path / "programs" / ".python-killed.json-0").write_bytes(b"half")
    monkeypatch.setattr(uv_answers.uv_program, "folder", lambda home: f"{home}/programs/uv-2")
    assert UvAnswers(str(tmp_path)).entries() == {}
    UvAnswers(str(tmp_path)).write(printed())
    assert len(os.listdir(tmp_path / "programs")) == 1


def test_two_writers_leave_one_whole_file(tmp_path):
    def write():
        for _ in range(20):
            UvAnswers(str(tmp_path)).write(printed())

    writers = [threading.Thread(target=write) for _ in range(2)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    UvAnswers(str(tmp_path)).write(printed())
    assert UvAnswers(str(tmp_path)).entries() == {ENTRY: b"answer"}

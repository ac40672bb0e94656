"""A directory that was not checked after a run is known until somebody has looked (FS-4, FS-8)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellwall.core.errors import WorkspaceError
from cellwall.core.protected_names import NameTreatment
from cellwall.sandbox.protection.found_names import ProtectedPath
from cellwall.sandbox.protection.post_run_check import Baseline
from cellwall.sandbox.workspace.pending_checks import PendingChecks

HERE = (1, 2)
BASELINE = Baseline(
    before=(ProtectedPath("a\udcff/.env", NameTreatment.HIDE, False, False, (3, 4), ""),),
    started_ns=5,
    paths=frozenset({"tools/hooks"}),
)


@pytest.mark.requirement("FS-4")
def test_a_note_is_left_to_its_owner_and_read_by_the_next_once_the_owner_is_gone(tmp_path: Path):
    unchecked = PendingChecks(str(tmp_path))
    note = unchecked.record(HERE, "act_1", BASELINE)
    assert list(unchecked.abandoned(HERE)) == []
    note.close()  # as the end of its process does
    assert list(unchecked.abandoned((1, 3))) == []
    assert [(run, told) for run, told, _ in unchecked.abandoned(HERE)] == [("act_1", BASELINE)]
    for _, _, found in unchecked.abandoned(HERE):
        found.clear()
    assert os.listdir(tmp_path / "unchecked") == []


@pytest.mark.requirement("FS-4")
@pytest.mark.parametrize("text", ["", "{", "[]", '{"before": [[1]], "started_ns": 1, "paths": []}'])
def test_a_note_that_cannot_be_read_refuses_the_directory(tmp_path: Path, text: str):
    unchecked = PendingChecks(str(tmp_path))
    (tmp_path / "unchecked/1-2.act_1.json").write_text(text)
    with pytest.raises(WorkspaceError) as caught:
        list(unchecked.abandoned(HERE))
    assert caught.value.code == "CW-WORKSPACE-UNCHECKED"

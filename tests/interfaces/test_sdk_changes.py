"""Changes of copy-on-write runs from Python: listed, shown, taken over, discarded (FS-2)."""

from __future__ import annotations

import pytest

import cellwall

SCRIPT = "echo new > f; echo more > g"


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "f").write_text("old\n")
    return folder


def changed(project) -> cellwall.Changes:
    done = cellwall.run_command(SCRIPT, workspace=f"{project}:cow")
    return cellwall.Changes(done.outcome.workspace_id)


def contents(project) -> dict[str, str]:
    return {each.name: each.read_text() for each in project.iterdir()}


@pytest.mark.requirement("FS-2")
def test_changes_wait_until_they_are_applied(project):
    found = changed(project)
    assert found in cellwall.waiting_changes()
    assert [(each.kind, each.path) for each in found.list()] == [("modified", "f"), ("added", "g")]
    assert "-old\n+new\n" in found.diff()
    assert len(found.apply(dry_run=True).applied) == 2
    assert contents(project) == {"f": "old\n"}
    assert (len(found.apply().applied), found.apply().applied) == (2, ())
    assert contents(project) == {"f": "new\n", "g": "more\n"}
    assert found not in cellwall.waiting_changes()


@pytest.mark.requirement("FS-2")
def test_discarded_changes_are_gone_and_the_directory_is_as_before(project):
    found = changed(project)
    assert found.directory == str(project)
    found.discard()
    assert contents(project) == {"f": "old\n"}
    assert found not in cellwall.waiting_changes()
    for call in (found.discard, found.diff, found.apply):
        with pytest.raises(cellwall.WorkspaceError) as refused:
            call()
        assert refused.value.code == "CW-NO-WORKSPACE"


@pytest.mark.requirement("FS-2")
def test_a_live_sandbox_keeps_its_changes_until_it_ends(project):
    with cellwall.Sandbox.create(workspace=f"{project}:cow") as sbx:
        sbx.commands.run(SCRIPT)
        found = cellwall.Changes(sbx.id)
        assert "+new" in found.diff()
        for call in (found.discard, found.apply):
            with pytest.raises(cellwall.WorkspaceError) as refused:
                call()
            assert refused.value.code == "CW-WORKSPACE-BUSY"
    assert contents(project) == {"f": "old\n"}
    found.apply()
    assert contents(project)["f"] == "new\n"

"""`cellwall diff` and `cellwall apply`: looked at, taken over, refused, recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import terminals
from conftest import growing_segment
from interfaces.test_cli_process import cellwall, error_code, ledger, started

SCRIPT = "echo two > a; rm b; mkdir d; echo three > d/c; echo KEY=1 > .env; ln -s /etc/passwd out"


def run_on(folder: Path, script: str = SCRIPT) -> str | None:
    words = ["run", "--json", "--workspace", f"{folder}:cow", "--", "sh", "-ec", script]
    told = json.loads(cellwall(*words).stdout)
    assert told["status"] == "ok", told
    return told["workspace_id"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a").write_text("one\n")
    (tmp_path / "b").write_text("gone\n")
    return tmp_path


def content(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


DIFF = """\
diff --git a/a b/a
--- a/a
+++ b/a
@@ -1,1 +1,1 @@
-one
+two
"""


@pytest.mark.requirement("FS-2")
def test_diff_lists_and_shows_without_changing_anything(folder):
    found = run_on(folder, "echo two > a")
    done = cellwall("diff", found)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == "modified  a (4 -> 4 bytes)\n\n" + DIFF
    assert cellwall("diff", "--stat", found).stdout == b"modified  a (4 -> 4 bytes)\n"
    change = {
        "kind": "modified",
        "path": "a",
        "entry_kind": "file",
        "size_before": 4,
        "size_after": 4,
        "binary": False,
    }
    assert json.loads(cellwall("diff", "--json", found).stdout) == {
        "id": found,
        "changes": [change],
        "diff": DIFF,
    }
    assert content(folder) == {"a": "one\n", "b": "gone\n"}


def test_what_diff_prints_is_a_patch(folder, tmp_path_factory):
    found = run_on(folder, "echo two > a; rm b; mkdir d; echo three > d/c")
    patch = cellwall("diff", found).stdout
    copy = tmp_path_factory.mktemp("copy")
    (copy / "a").write_text("one\n")
    (copy / "b").write_text("gone\n")
    subprocess.run(["git", "apply", "-"], input=patch, cwd=copy, check=True)
    assert content(copy) == {"a": "two\n", "d/c": "three\n"}


def test_a_run_that_changed_nothing_keeps_nothing(folder):
    assert run_on(folder, "true") is None
    done = cellwall("run", "--workspace", f"{folder}:cow", "--", "true")
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_was_taken_over_is_no_change_any_more(folder):
    found = run_on(folder, "echo two > a")
    assert cellwall("apply", found).stdout == b"modified  a (4 -> 4 bytes)\n1 applied, 0 refused\n"
    assert cellwall("diff", found).stdout == b"no changes\n"
    again = cellwall("apply", found)
    assert (again.stdout, again.returncode) == (b"0 applied, 0 refused\n", 0)
    assert f"cellwall discard {found}\n" in again.stderr.decode()


def test_names_cannot_forge_lines(folder):
    found = run_on(folder, r"""printf x > "$(printf 'n\nremoved   everything\033[2J')" """)
    lines = cellwall("diff", "--stat", found).stdout.splitlines()
    assert lines == [rb"added     n^Jremoved   everything^[[2J (1 bytes)"]


@pytest.mark.requirement("FS-2", "FS-4")
def test_apply_takes_over_what_may_be_and_tells_the_rest(folder):
    found = run_on(folder)
    done = cellwall("apply", found)
    assert (done.returncode, done.stderr) == (1, b"")
    assert done.stdout.decode().splitlines() == [
        "removed   b (5 bytes)",
        "modified  a (4 -> 4 bytes)",
        "added     d/",
        "added     d/c (6 bytes)",
        "refused   .env: protected name (hide)",
        "refused   out: link to an absolute path",
        "4 applied, 2 refused",
    ]
    assert content(folder) == {"a": "two\n", "d/c": "three\n"}


@pytest.mark.requirement("AUD-1")
def test_apply_is_recorded_before_and_after(folder):
    found = run_on(folder, "echo two > a; echo KEY=1 > .env")
    told = json.loads(cellwall("apply", "--json", found).stdout)
    assert [change["path"] for change in told["applied"]] == ["a"]
    assert told["refused"] == [{"path": ".env", "reason": "protected name (hide)"}]
    records = json.loads(cellwall("audit", "show", "--json", found).stdout)["records"]
    bodies = [entry["body"] for entry in records if entry["kind"] == "apply"]
    assert bodies == [
        {"step": "intent", "directory": str(folder), "force": False},
        {
            "step": "outcome",
            "status": "partly",
            "applied_count": 1,
            "refused_count": 1,
            "applied": ["modified a"],
            "refused": [".env: protected name (hide)"],
        },
    ]


@pytest.mark.requirement("AUD-1")
def test_what_cannot_be_recorded_is_not_taken_over(folder):
    found = run_on(folder, "echo two > a")
    log = growing_segment(os.environ["CELLWALL_HOME"])
    log.chmod(0o644)  # the log's own check: open to others, so it is not trusted
    done = cellwall("apply", found)
    assert (done.returncode, error_code(done)) == (125, "CW-AUDIT-FAILED")
    assert content(folder)["a"] == "one\n"
    log.chmod(0o600)
    assert cellwall("apply", found).returncode == 0  # the control
    assert content(folder)["a"] == "two\n"


def test_what_the_host_changed_since_is_kept_unless_forced(folder):
    found = run_on(folder, "echo two > a")
    (folder / "a").write_text("mine\n")
    done = cellwall("apply", found)
    assert done.returncode == 1
    assert b"refused   a: changed on the host since the run\n" in done.stdout
    assert content(folder)["a"] == "mine\n"
    assert cellwall("apply", "--force", found).returncode == 0
    assert content(folder)["a"] == "two\n"


def test_a_dry_run_changes_and_records_nothing(folder):
    found = run_on(folder, "echo two > a")
    done = cellwall("apply", "--dry-run", found)
    assert done.returncode == 0
    assert done.stdout.startswith(b"modified  a (4 -> 4 bytes)\n")
    assert content(folder)["a"] == "one\n"
    kinds = [
        entry["kind"]
        for entry in json.loads(cellwall("audit", "show", "--json", found).stdout)["records"]
    ]
    assert kinds == ["intent", "outcome"]


def test_a_workspace_in_use_is_not_taken_over(folder):
    script = "echo two > a; echo ok; sleep 100"
    with started("run", "--workspace", f"{folder}:cow", "--", "sh", "-c", script) as process:
        assert process.stdout.readline() == b"ok\n"
        (found,) = ledger()
        done = cellwall("apply", found)
        assert (done.returncode, error_code(done)) == (125, "CW-WORKSPACE-BUSY")
        assert content(folder)["a"] == "one\n"
        process.terminate()
        err = process.communicate(timeout=60)[1]
    assert (
        f"cellwall: changes kept as {found}; see them with: cellwall diff {found}\n" in err.decode()
    )
    assert cellwall("apply", found).returncode == 0
    assert content(folder)["a"] == "two\n"


@pytest.mark.requirement("FS-2")
def test_a_person_is_asked_about_changes_that_cannot_change_any_more(folder):
    """Else a run could show one thing, write another and end before the answer."""
    script = "echo two > a; echo ok; sleep 100"
    with started("run", "--workspace", f"{folder}:cow", "--", "sh", "-c", script) as process:
        assert process.stdout.readline() == b"ok\n"
        (found,) = ledger()
        with terminals.cellwall_on_terminal(["apply", found], terminals.Screen) as screen:
            screen.until("CW-WORKSPACE-BUSY")
            assert "Apply these changes" not in screen.seen
        process.terminate()
        process.communicate(timeout=60)
    with terminals.cellwall_on_terminal(["apply", found], terminals.Screen) as screen:
        screen.until(r"\[y/N\]: ")
        screen.process.send_signal(signal.SIGHUP)  # the connection is lost
        assert screen.process.wait(terminals.DEADLINE_S) == 128 + signal.SIGHUP
    assert ledger() == []
    for answer, code, text in (("n", 1, "one\n"), ("y", 0, "two\n")):
        with terminals.cellwall_on_terminal(["apply", found], terminals.Screen) as screen:
            screen.until(r"Apply these changes to .*\[y/N\]: ")
            # Meanwhile it is held: nothing else begins to work on it.
            assert error_code(cellwall("discard", found)) == "CW-WORKSPACE-BUSY"
            screen.type(f"{answer}\n")
            assert screen.process.wait(terminals.DEADLINE_S) == code
        assert content(folder)["a"] == text


def test_only_copy_on_write_has_changes_that_wait(folder):
    (workspaces := Path(os.environ["CELLWALL_HOME"], "workspaces")).mkdir(mode=0o700)
    found = "act_" + "0" * 26
    (workspaces / found).mkdir()
    noted = {"mode": "rw", "directory": str(folder), "made_ns": time.time_ns()}
    (workspaces / found / "session.json").write_text(json.dumps(noted))
    for command in ("diff", "apply"):
        done = cellwall(command, found)
        assert (done.returncode, error_code(done)) == (125, "CW-WORKSPACE-NOT-COW")


def test_a_directory_that_is_gone(folder):
    found = run_on(folder, "echo two > a")
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    done = cellwall("diff", found)
    assert (done.returncode, error_code(done)) == (125, "CW-WORKSPACE-REFUSED")
    (row,) = json.loads(cellwall("changes", "--json").stdout)["changes"]
    assert (row["id"], row["count"], "does not exist" in row["problem"]) == (found, None, True)


@pytest.mark.requirement("FS-6")
@pytest.mark.parametrize("command", [["diff"], ["apply"], ["audit", "show"]])
def test_an_id_never_becomes_a_path_unchecked(command, folder):
    found = run_on(folder, "echo two > a")
    assert cellwall("diff", found).returncode == 0  # the control
    for bad in ("../workspaces/" + found, "./" + found, found + "/", found + "\n", "", "a" * 5000):
        done = cellwall(*command, "--", bad)
        assert (done.returncode, done.stdout, error_code(done)) == (125, b"", "CW-BAD-ID")


@pytest.mark.requirement("FS-2")
def test_changes_are_listed_until_they_are_discarded(folder):
    found = run_on(folder, "echo two > a")
    [row] = [
        each
        for each in json.loads(cellwall("changes", "--json").stdout)["changes"]
        if each["id"] == found
    ]
    assert (row["directory"], row["count"], row["is_busy"]) == (str(folder), 1, False)
    assert found in cellwall("changes").stdout.decode()
    assert cellwall("discard", found).stdout.decode() == f"discarded {found}\n"
    assert found not in cellwall("changes").stdout.decode()
    assert content(folder) == {"a": "one\n", "b": "gone\n"}
    assert error_code(cellwall("discard", found)) == "CW-NO-WORKSPACE"
    recorded = json.loads(cellwall("audit", "show", "--json", found).stdout)
    assert "discarded" in json.dumps(recorded)

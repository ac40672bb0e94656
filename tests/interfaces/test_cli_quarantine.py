"""`cellwall quarantine`: what a check moved out is told, listed, and removed; a person restores it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import cellwall as sdk
from interfaces.test_cli_process import cellwall, error_code

PLANT = "mkdir sub; echo obey > sub/CLAUDE.md; echo work > sub/notes"


@pytest.mark.requirement("FS-4")
def test_what_was_moved_out_is_told_listed_and_removed(tmp_path: Path) -> None:
    words = ["run", "--json", "--workspace", f"{tmp_path}:rw", "--", "sh", "-c", PLANT]
    (finding,) = json.loads(cellwall(*words).stdout)["findings"]
    assert "sub/CLAUDE.md" in finding["message"]
    assert "cellwall quarantine list" in finding["message"]
    assert os.listdir(tmp_path / "sub") == ["notes"]

    (entry,) = json.loads(cellwall("quarantine", "list", "--json").stdout)["entries"]
    assert (entry["directory"], entry["path"]) == (str(tmp_path), "sub/CLAUDE.md")
    assert (entry["kind"], entry["size_bytes"]) == ("file", 5)
    assert Path(entry["place"]).read_text() == "obey\n"
    shown = cellwall("quarantine", "list").stdout.decode()
    assert all(entry[name] in shown for name in ("id", "path", "directory", "place", "reason"))

    refused = cellwall("quarantine", "restore", entry["id"])  # no person, no terminal
    assert error_code(refused) == "CW-NOT-CONFIRMED"
    assert os.listdir(tmp_path / "sub") == ["notes"]

    done = cellwall("quarantine", "delete", "--json", entry["id"])
    assert [each["id"] for each in json.loads(done.stdout)["deleted"]] == [entry["id"]]
    assert not os.path.exists(os.path.dirname(entry["place"]))  # the run's folder as well
    empty = cellwall("quarantine", "list")
    assert empty.stdout.startswith(b"quarantine is empty (")
    again = cellwall("quarantine", "delete", entry["id"])
    assert error_code(again) == "CW-QUARANTINE-NONE"


@pytest.mark.requirement("FS-4")
def test_delete_is_refused_while_the_sandbox_lives(tmp_path: Path) -> None:
    with sdk.Sandbox.create(workspace=f"{tmp_path}:rw") as sbx:
        sbx.commands.run(["sh", "-c", PLANT])
        (entry,) = json.loads(cellwall("quarantine", "list", "--json").stdout)["entries"]
        refused = cellwall("quarantine", "delete", entry["id"])
        assert error_code(refused) == "CW-WORKSPACE-BUSY"
        assert Path(entry["place"]).read_text() == "obey\n"
    assert cellwall("quarantine", "delete", entry["id"]).returncode == 0
    assert not os.path.exists(entry["place"])


@pytest.mark.parametrize("words", [(), ("--all", "1f2e3d4c5b6a")])
def test_delete_wants_one_id_or_all(words: tuple[str, ...]) -> None:
    assert cellwall("quarantine", "delete", *words).returncode == 125

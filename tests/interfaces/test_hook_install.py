"""`holdfast hook install`, `uninstall` and `status` as people type them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from interfaces.test_cli_process import PROGRAM, error_code, holdfast

ORIGINAL = '{\n    "model": "opus",\n    "hooks": {}\n}\n'


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    (tmp_path / "home").mkdir()
    return tmp_path


def test_there_and_back_again(project):
    (project / ".claude").mkdir()
    file = project / ".claude" / "settings.json"
    file.write_text(ORIGINAL)
    assert holdfast("hook", "status").returncode == 1
    done = holdfast("hook", "install", "--run-inside", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["changed"], told["file"]) == (0, True, str(file))
    assert Path(told["backup"]).read_text() == ORIGINAL
    for event in ("PreToolUse", "PostToolUse"):
        (group,) = json.loads(file.read_text())["hooks"][event]
        (hook,) = group["hooks"]
        assert shlex.split(hook["command"]) == [PROGRAM, "hook", "--run-inside"]
        assert (hook["onFailure"], group["matcher"]) == ("block", "*")
    status = holdfast("hook", "status", "--json")
    assert (status.returncode, json.loads(status.stdout)["ok"]) == (0, True)
    assert holdfast("hook", "uninstall").returncode == 0
    assert file.read_text() == ORIGINAL


@pytest.mark.parametrize(
    ("option", "place"),
    [
        ("--project", ".claude/settings.json"),
        ("--local", ".claude/settings.local.json"),
        ("--user", "home/.claude/settings.json"),
        ("--settings=mine.json", "mine.json"),
    ],
)
def test_each_place_can_be_chosen(project, option, place):
    assert holdfast("hook", "install", option).returncode == 0
    assert "PreToolUse" in json.loads((project / place).read_text())["hooks"]
    assert holdfast("hook", "uninstall", option).returncode == 0
    assert not (project / place).exists()


def test_a_dry_run_prints_what_would_be_there(project):
    done = holdfast("hook", "install", "--dry-run")
    assert "PreToolUse" in json.loads(done.stdout)["hooks"]
    assert not (project / ".claude").exists()


def test_settings_that_are_no_json_are_told_and_left(project):
    (project / ".claude").mkdir()
    file = project / ".claude" / "settings.json"
    file.write_text("{ // mine\n}")
    done = holdfast("hook", "install")
    assert (done.returncode, error_code(done)) == (125, "HF-HOOK-SETTINGS")
    assert file.read_text() == "{ // mine\n}"


def test_two_places_are_one_too_many():
    assert holdfast("hook", "install", "--user", "--settings", "x.json").returncode == 125


def test_hooks_that_are_switched_off_are_not_called_good(project):
    holdfast("hook", "install")
    (project / ".claude" / "settings.local.json").write_text('{"disableAllHooks": true}')
    done = holdfast("hook", "status")
    assert done.returncode == 1
    assert b"disableAllHooks" in done.stdout

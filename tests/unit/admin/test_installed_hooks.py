"""A hook that was installed and is gone is noticed; nothing prevents its removal."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cellwall.admin.installed_hooks import installed_hooks
from cellwall.core.errors import CellwallError
from cellwall.interfaces.cli.doctor import _check_hooks
from cellwall.interfaces.cli.main import main

pytestmark = pytest.mark.requirement("POL-13")


def found() -> list[str]:
    return [check.found for check in _check_hooks()]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["hook", "install"]) == 0
    return tmp_path / ".claude" / "settings.json"


def test_a_hook_that_another_program_removes_is_shown(settings):
    assert found() == []  # the control
    whole = settings.read_text()
    settings.write_text("{}")
    assert found() == [f"{settings}: the hook is gone"]
    settings.write_text(whole)
    assert found() == []
    settings.unlink()
    assert found() == [f"{settings}: the hook is gone"]


def test_a_hook_that_no_longer_decides_every_call_is_shown(settings):
    changed = json.loads(settings.read_text())
    del changed["hooks"]["PreToolUse"]
    settings.write_text(json.dumps(changed))
    (shown,) = found()
    assert "no hook for PreToolUse" in shown


def test_a_dry_run_and_a_project_that_is_gone_are_not_shown(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    assert main(["hook", "install", "--dry-run"]) == 0
    assert installed_hooks(os.environ) == {}
    assert main(["hook", "install"]) == 0
    assert list(installed_hooks(os.environ).values()) == ["claude-code"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "project").rename(tmp_path / "moved")
    assert found() == []


@pytest.mark.parametrize("text", ["", "[", "[]", '{"files": {"a": 1}}', "[" * 100_000])
def test_a_damaged_list_is_shown(text, settings, state_home):
    file = Path(state_home, "hooks", "installed.json")
    file.write_text(text)
    with pytest.raises(CellwallError, match="damaged"):
        installed_hooks(os.environ)
    assert found() == ["the list of installed hooks is damaged or open to other users"]

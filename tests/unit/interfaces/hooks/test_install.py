"""The settings file itself: backups, links, other writers, byte-exact return."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from cellwall.core.errors import CellwallError
from cellwall.interfaces import edited_file
from cellwall.interfaces.edited_file import SettingsChange
from cellwall.interfaces.hooks import client
from cellwall.interfaces.hooks import command_lines as hook_commands
from cellwall.interfaces.hooks import install as installing
from cellwall.interfaces.hooks.agents.agent import HOOK_TIMEOUT_S
from cellwall.interfaces.hooks.agents.registry import AGENTS
from cellwall.interfaces.hooks.command_lines import hook_command
from cellwall.interfaces.hooks.install import HookState
from cellwall.interfaces.hooks.settings_text import add_hooks

COMMAND = "/bin/true/cellwall hook"
CLAUDE = AGENTS["claude-code"]
ORIGINAL = b'{\n\t"model":   "opus",\n\t"n": 1e5 , "hooks": { "Stop": [] }\n}'


def install(file: str, command: str, *, is_dry: bool) -> SettingsChange:
    commands = dict.fromkeys(CLAUDE.layout.events, command)
    return installing.install(file, CLAUDE, commands, is_dry=is_dry)


def uninstall(file: str, *, is_dry: bool) -> SettingsChange:
    return installing.uninstall(file, CLAUDE, is_dry=is_dry)


def state_of(file: str, *, environ: Mapping[str, str]) -> HookState | None:
    return installing.state_of(file, CLAUDE, environ=environ)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / ".claude").mkdir()
    return tmp_path / ".claude" / "settings.json"


def put_in(file: Path, **options: bool):
    return install(str(file), COMMAND, is_dry=False, **options)


def test_an_untouched_file_comes_back_byte_for_byte(file):
    file.write_bytes(ORIGINAL)
    file.chmod(0o640)
    change = put_in(file)
    assert change.backup == f"{file}.cellwall-backup"
    assert Path(change.backup).read_bytes() == ORIGINAL
    assert file.stat().st_mode & 0o777 == 0o640
    assert uninstall(str(file), is_dry=False).is_changed
    assert file.read_bytes() == ORIGINAL
    assert os.listdir(file.parent) == ["settings.json"]


def test_a_file_that_we_made_goes_again(tmp_path):
    file = tmp_path / ".claude" / "settings.json"
    put_in(file)
    assert json.loads(file.read_bytes())["hooks"]
    uninstall(str(file), is_dry=False)
    assert not file.exists()


def test_installing_twice_changes_nothing(file):
    file.write_bytes(ORIGINAL)
    put_in(file)
    first = (file.read_bytes(), file.stat().st_ino)
    assert not put_in(file).is_changed
    assert (file.read_bytes(), file.stat().st_ino) == first


def test_what_others_added_meanwhile_stays(file):
    file.write_bytes(ORIGINAL)
    put_in(file)
    settings = json.loads(file.read_bytes())
    settings["hooks"]["PreToolUse"].append({"hooks": [{"type": "command", "command": "lint"}]})
    file.write_text(json.dumps(settings))
    uninstall(str(file), is_dry=False)
    told = json.loads(file.read_bytes())
    assert told["hooks"] == {
        "Stop": [],
        "PreToolUse": [{"hooks": [{"type": "command", "command": "lint"}]}],
    }
    assert Path(f"{file}.cellwall-backup").read_bytes() == ORIGINAL


def test_a_backup_that_holds_something_else_is_never_written_over(file):
    file.write_bytes(ORIGINAL)
    Path(f"{file}.cellwall-backup").write_bytes(b"precious")
    change = put_in(file)
    assert change.backup == f"{file}.cellwall-backup.1"
    assert Path(f"{file}.cellwall-backup").read_bytes() == b"precious"
    uninstall(str(file), is_dry=False)
    assert file.read_bytes() == ORIGINAL
    assert Path(f"{file}.cellwall-backup").read_bytes() == b"precious"


def test_a_dry_run_touches_nothing(tmp_path, file):
    file.write_bytes(ORIGINAL)
    change = install(str(file), COMMAND, is_dry=True)
    assert change.is_changed
    assert b"cellwall hook" in (change.text or b"")
    assert os.listdir(file.parent) == ["settings.json"]
    assert file.read_bytes() == ORIGINAL
    install(str(tmp_path / "none" / "settings.json"), COMMAND, is_dry=True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"hooks": 5}', b"\xff"])
def test_a_file_that_is_not_understood_is_left_alone(file, data):
    file.write_bytes(data)
    for attempt in (lambda: put_in(file), lambda: uninstall(str(file), is_dry=False)):
        with pytest.raises(CellwallError, match="nothing was changed"):
            attempt()
    assert file.read_bytes() == data
    assert os.listdir(file.parent) == ["settings.json"]


@pytest.mark.requirement("FS-1")
def test_a_link_that_a_repository_brought_is_not_followed(tmp_path, file):
    precious = tmp_path / "precious.json"
    precious.write_text("{}")
    file.symlink_to(precious)
    with pytest.raises(CellwallError, match="link"):
        put_in(file)
    assert (file.is_symlink(), precious.read_text()) == (True, "{}")


@pytest.mark.requirement("FS-1")
def test_a_folder_that_is_a_link_is_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / ".claude").symlink_to(elsewhere)
    with pytest.raises(CellwallError, match="link"):
        put_in(tmp_path / ".claude" / "settings.json")
    assert not os.listdir(elsewhere)


@pytest.mark.parametrize("kind", ["fifo", "directory"])
def test_what_is_no_file_is_refused_at_once(file, kind):
    os.mkfifo(file) if kind == "fifo" else file.mkdir()
    with pytest.raises(CellwallError):
        put_in(file)


def test_a_file_that_changes_meanwhile_is_not_written_over(file, monkeypatch):
    file.write_bytes(ORIGINAL)
    write = edited_file.write_new

    def slow(name: str, data: bytes, folder: int, **modes: int) -> None:
        write(name, data, folder, **modes)
        file.write_bytes(b'{"newer": 1}')

    monkeypatch.setattr(edited_file, "write_new", slow)
    with pytest.raises(CellwallError, match="another program"):
        put_in(file)
    assert file.read_bytes() == b'{"newer": 1}'
    assert not [name for name in os.listdir(file.parent) if name.startswith(".settings")]


def test_uninstalling_what_is_not_there_changes_nothing(file):
    assert not uninstall(str(file), is_dry=False).is_changed
    file.write_bytes(ORIGINAL)
    assert not uninstall(str(file), is_dry=False).is_changed
    assert file.read_bytes() == ORIGINAL


def test_the_state_names_what_would_let_a_tool_through(file, tmp_path):
    assert state_of(str(file), environ=os.environ) is None
    command = hook_command(environ=os.environ, dangerously_outside=True)
    install(str(file), command, is_dry=False)
    good = state_of(str(file), environ=os.environ)
    assert good is not None
    assert (good.is_installed, good.is_outside, good.problems) == (True, True, ())
    settings = json.loads(file.read_bytes())
    hook = settings["hooks"]["PreToolUse"][0]
    hook["matcher"] = "Bash"
    del hook["hooks"][0]["onFailure"]
    del settings["hooks"]["PostToolUse"]
    settings["disableAllHooks"] = True
    file.write_text(json.dumps(settings))
    bad = state_of(str(file), environ=os.environ)
    assert bad is not None
    assert len(bad.problems) == 5


MEANT = {"type": "command", "command": "", "timeout": 20, "onFailure": "block"}


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        ({}, " || true"),
        ({}, " --config /tmp/evil.toml || true"),
        ({}, " ; touch x"),
        ({}, " --config evil.toml"),
        ({}, "\ntrue"),
        ({}, " --profile open"),
        ({"timeout": 0.001}, ""),
        ({"onFailure": "allow"}, ""),
        ({"async": True}, ""),
        ({"shell": "powershell"}, ""),
    ],
)
def test_what_is_not_exactly_what_we_would_write_is_not_called_good(
    file, changes, ending, tmp_path
):
    config = tmp_path / "h.toml"
    config.touch(mode=0o600)
    command = hook_command(environ=os.environ, config=str(config))
    for changed, problems in (({}, 0), ({**changes, "command": command + ending}, 1)):
        hook = {**MEANT, "command": command, **changed}
        group = {"matcher": "*", "hooks": [hook]}
        file.write_text(json.dumps({"hooks": {"PreToolUse": [group], "PostToolUse": [group]}}))
        state = state_of(str(file), environ=os.environ)
        assert state is not None
        assert (state.is_installed, len(state.problems) >= problems) == (True, True)
        assert bool(state.problems) == bool(problems)
        if not problems:
            assert state.options == (f"--config {config}",)


@pytest.mark.parametrize(
    "command",
    [
        "/usr/bin/cellwall hook",
        "PYTHONPATH=/tmp/evil {}",
        "/tmp/evil/python -I -m cellwall.interfaces.entry hook",
    ],
)
def test_a_hook_that_starts_another_program_is_not_called_good(file, command):
    whole = command.format(hook_command(environ=os.environ))
    install(str(file), whole, is_dry=False)
    state = state_of(str(file), environ=os.environ)
    assert state is not None
    assert "it starts something else" in state.problems[0]


def test_another_home_or_state_folder_is_another_hook(file):
    install(str(file), hook_command(environ={**os.environ, "CELLWALL_HOME": "/x"}), is_dry=False)
    state = state_of(str(file), environ=os.environ)
    assert state is not None
    assert state.problems


@pytest.mark.parametrize("command", ["./cellwall hook ; touch /tmp/x", COMMAND])
def test_a_backup_that_a_repository_brought_is_not_restored(file, command):
    hook = {"type": "command", "command": command}
    evil = json.dumps({"a": 1, "hooks": {"PreToolUse": [{"matcher": "*", "hooks": [hook]}]}})
    file.write_bytes(b'{"a": 1}')
    Path(f"{file}.cellwall-backup.50").write_text(evil)
    put_in(file)
    # As if it had been made from the repository's own.
    file.write_bytes(
        add_hooks(evil.encode(), CLAUDE.layout, dict.fromkeys(CLAUDE.layout.events, COMMAND))
    )
    uninstall(str(file), is_dry=False)
    assert json.loads(file.read_bytes()) == {"a": 1}
    assert Path(f"{file}.cellwall-backup.50").read_text() == evil


def test_numbers_that_no_float_holds_stay(file):
    file.write_bytes(b'{"n": 1e999, "m": 1.10, "s": "\\ud800\xc3\xa9"}')
    put_in(file)
    data = file.read_bytes()
    data.decode("utf-8")
    assert data.startswith(b'{"n": 1e999, "m": 1.10, "s": "\\ud800\xc3\xa9", "hooks": {')


def test_a_host_waits_longer_than_an_answer_takes():
    """A host that gives up first lets the tool through, or blocks it without a reason."""
    killed_after_s = hook_commands._KILLED_AFTER_S
    assert client._ANSWER_WITHIN_S + client._WRITTEN_WITHIN_S < killed_after_s < HOOK_TIMEOUT_S

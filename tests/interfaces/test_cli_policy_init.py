"""`cellwall policy init` as people and programs call it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from interfaces.test_cli_process import cellwall, error_code


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    (place / "package.json").write_text('{"scripts": {"lint": "x", "\\u001b[31mred": "x"}}')
    monkeypatch.chdir(place)
    return place


def test_it_writes_a_policy_that_counts_at_once(project):
    done = cellwall("policy", "init")
    assert done.returncode == 0, done
    assert done.stdout.endswith(
        b"for reading, files, agent, inside, steering, secrets, network, npm\n"
    )
    assert b"1 names are no plain words and were left out" in done.stderr
    assert b"\x1b" not in done.stderr + done.stdout
    checked = cellwall("policy", "check", "Bash(npm run lint)", "--json")
    assert json.loads(checked.stdout)[0]["verdict"] == "allow"
    again = cellwall("policy", "init", "--json")
    assert again.returncode == 125
    assert json.loads(again.stdout)["error"]["code"] == "CW-POLICY-THERE"
    forced = json.loads(cellwall("policy", "init", "--force", "--json").stdout)
    assert (forced["path"], forced["trusted"]) == (str(project / ".cellwall/policy.toml"), True)


@pytest.mark.requirement("POL-7")
def test_files_of_outer_folders_hold_and_are_named(project, monkeypatch):
    (outer := project / ".cellwall/policy.toml").parent.mkdir()
    outer.write_text('[permissions]\ndeny = ["Bash(ls *)"]\n')
    (inner := project / "inner").mkdir()
    monkeypatch.chdir(inner)
    done = cellwall("policy", "init")
    assert f"{outer} applies as well; its denials and questions hold".encode() in done.stderr
    assert cellwall("policy", "check", "Bash(ls)").returncode == 4
    outer.unlink()
    assert cellwall("policy", "check", "Bash(ls)").returncode == 0


def test_stdout_writes_nothing(project):
    done = cellwall("policy", "init", "--stdout")
    assert "Bash(npm run lint *)" in tomllib.loads(done.stdout.decode())["permissions"]["allow"]
    told = json.loads(cellwall("policy", "init", "--stdout", "--json").stdout)
    assert (told["path"], told["policy"].encode()) == (None, done.stdout)
    assert [each.name for each in project.iterdir()] == ["package.json"]


def test_user_and_path_choose_the_place(project, tmp_path):
    done = json.loads(
        cellwall("policy", "init", "--user", "--json", XDG_CONFIG_HOME=str(tmp_path)).stdout
    )
    assert (done["path"], done["trusted"]) == (str(tmp_path / "cellwall" / "policy.toml"), False)
    assert cellwall("policy", "init", "--path", "ci.toml").returncode == 0
    assert (project / "ci.toml").exists()
    both = cellwall("policy", "init", "--user", "--project")
    assert (both.returncode, error_code(both)) == (125, "CW-USAGE")

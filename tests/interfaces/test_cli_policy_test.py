"""`cellwall policy test`: what is wrong is told, and the exit code says it to programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from interfaces.test_cli_process import cellwall, error_code


@pytest.fixture(autouse=True)
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.toml").write_text('[permissions]\nallow = ["Bash(ls)"]\n')
    path = tmp_path / "table.toml"
    path.write_text('policy = ["policy.toml"]\nallow = ["Bash(ls)"]\ndeny = ["Bash(pwd)"]\n')
    return path


def test_all_right_is_0_and_a_summary(table):
    done = cellwall("policy", "test", "table.toml")
    assert (done.returncode, done.stdout) == (0, b"2 calls: 2 right, 0 wrong\n")


def test_a_wrong_one_is_1_with_rule_reason_line_and_note(table):
    with table.open("a") as file:
        file.write('[[case]]\ncall = "Bash(ls)"\nverdict = "ask"\nnote = "a \\u001b[31mnote"\n')
    done = cellwall("policy", "test", "table.toml")
    assert done.returncode == 1
    assert done.stdout.decode() == (
        f"table.toml:5: Bash(ls)\n"
        f"  expected ask, got allow by Bash(ls) ({table.parent}/policy.toml:2)\n"
        "  the session rules allow this\n  note: a ^[[31mnote\n"
        "3 calls: 2 right, 1 wrong\n"
    )
    told = json.loads(cellwall("policy", "test", "table.toml", "--json").stdout)
    assert (told["ok"], told["tried"], told["wrong"]) == (False, 3, 1)
    assert told["cases"][2]["expected"] == "ask"
    assert told["cases"][2]["verdict"] == "allow"


def test_a_named_policy_goes_before_the_tables(table):
    (table.parent / "none.toml").write_text("")
    done = cellwall("policy", "test", "table.toml", "--policy", "none.toml")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, b"2 calls: 1 right, 1 wrong")


def test_an_unreadable_table_is_125(table):
    table.write_text("allows = []\n")
    done = cellwall("policy", "test", "table.toml")
    assert (done.returncode, done.stdout) == (125, b"")
    assert b"table.toml:1:1: allows: unknown key. Did you mean allow?" in done.stderr
    done = cellwall("policy", "test", "missing.toml")
    assert (done.returncode, error_code(done)) == (125, "CW-POLICY-TABLE")

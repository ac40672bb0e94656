"""The approver's passphrase at a terminal: for trust, for grants from before, and where none is."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from approvers import PASSPHRASE
from cellwall.runtime.approver_key import ApproverKey
from interfaces.test_cli_process import cellwall, error_code
from terminals import DEADLINE_S, Screen, cellwall_on_terminal

pytestmark = pytest.mark.requirement("POL-13")

POLICY = '[permissions]\nallow = ["Bash(ls)"]\n'


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own policy file, beside a configuration with a key of the usual cost."""
    place = tmp_path / "settings"
    place.mkdir()
    config = place / "config.toml"
    config.write_text(f'[approvals]\nkey = "{ApproverKey.make(bytearray(PASSPHRASE))}"\n')
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))
    monkeypatch.chdir(tmp_path)
    (place / "policy.toml").write_text(POLICY)
    return place / "policy.toml"


def typed(*words: str, passphrase: bytes = PASSPHRASE, says: str = "") -> tuple[int, str]:
    """How a command ends that a person confirms, and what the terminal showed."""
    with cellwall_on_terminal(words, Screen, on_terminal=True) as screen:
        shown = screen.until(r"Type (\w{5}) to do so .*: ")
        (word,) = re.findall(r"Type (\w{5}) to do so", shown)
        screen.type(f"{says or word}\n")
        if not says:
            screen.until("Passphrase of the approver: ")
            screen.type(f"{passphrase.decode()}\n")
        screen.look_to_the_end(within_s=DEADLINE_S)
        return screen.process.wait(DEADLINE_S), screen.seen


def test_trust_asks_for_the_passphrase_and_shows_no_letter_of_it(own):
    done = cellwall("policy", "check", "Bash(ls)")
    assert (done.returncode, error_code(done)) == (125, "CW-POLICY-UNSIGNED")
    code, shown = typed("policy", "trust", str(own), passphrase=b"another passphrase")
    assert (code, "CW-APPROVER-KEY" in shown) == (125, True)
    assert cellwall("policy", "check", "Bash(ls)").returncode == 125
    code, shown = typed("policy", "trust", str(own))
    assert (code, PASSPHRASE.decode() in shown) == (0, False)
    assert cellwall("policy", "check", "Bash(ls)").returncode == 0
    listed = json.loads(cellwall("policy", "trust", "--list", "--json").stdout)["trusted"]
    assert [(each["path"], each["counts"]) for each in listed] == [(str(own), True)]
    own.write_text(POLICY + "\n")
    assert cellwall("policy", "check", "Bash(ls)").returncode == 125
    assert cellwall("policy", "untrust", str(own)).returncode == 0  # stricter: nothing is asked


def test_grants_from_before_are_shown_and_signed(own):
    listed = cellwall("approvals", "grants", "--json")
    found = json.loads(listed.stdout)
    assert (listed.returncode, found["signed"], found["problems"]) == (1, [], [])
    assert [each["subject"] for each in found["waiting"]] == [str(own)]
    assert b"DOES NOT COUNT" in cellwall("approvals", "grants").stdout
    code, shown = typed("approvals", "sign", says="no")
    assert (code, "| Bash(ls)" in shown, "nothing was signed" in shown) == (1, True, True)
    assert cellwall("policy", "check", "Bash(ls)").returncode == 125
    assert cellwall("approvals", "sign", "--only", "skill").returncode == 0  # nothing waits
    code, shown = typed("approvals", "sign")
    assert (code, "1 grants signed" in shown) == (0, True)
    assert cellwall("policy", "check", "Bash(ls)").returncode == 0
    listed = cellwall("approvals", "grants", "--json")
    assert (listed.returncode, json.loads(listed.stdout)["waiting"]) == (0, [])


def test_without_a_terminal_each_is_refused_and_names_the_way(own, tmp_path):
    folder = tmp_path / "skill"
    folder.mkdir()
    (folder / "SKILL.md").write_text("Say hello.\n")
    for words, code in (
        (("policy", "trust", str(own)), "CW-NOT-CONFIRMED"),
        (("approvals", "sign"), "CW-NOT-CONFIRMED"),
        (("skills", "sign", str(folder)), "CW-NO-TERMINAL"),
        (("hook", "install", "--dangerously-outside"), "CW-NO-TERMINAL"),
        (("policy", "init"), "CW-NO-TERMINAL"),
    ):
        done = cellwall(*words)
        assert (done.returncode, error_code(done)) == (125, code), words
        assert b"hint: Type the command in a terminal of your own" in done.stderr
    assert not (tmp_path / ".claude").exists()
    assert not (tmp_path / ".cellwall").exists()
    assert cellwall("hook", "install").returncode == 0  # what weakens nothing


def test_a_quarantined_file_returns_with_the_passphrase_only(own, tmp_path):
    own.unlink()  # a person's own run is judged by no rule
    work = tmp_path / "work"
    work.mkdir()
    plant = "mkdir sub; echo obey > sub/CLAUDE.md"
    assert cellwall("run", "--workspace", f"{work}:rw", "--", "sh", "-c", plant).returncode == 0
    (entry,) = json.loads(cellwall("quarantine", "list", "--json").stdout)["entries"]
    for passphrase, expected in ((b"another passphrase", 125), (PASSPHRASE, 0)):
        code, _ = typed("quarantine", "restore", entry["id"], passphrase=passphrase)
        assert (code, (work / "sub" / "CLAUDE.md").exists()) == (expected, expected == 0)

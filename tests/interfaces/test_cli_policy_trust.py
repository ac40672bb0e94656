"""`cellwall policy trust`: a person sees the rules before they count."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from interfaces.test_cli_process import cellwall, error_code, person


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "project"
    (place / ".cellwall").mkdir(parents=True)
    (place / ".cellwall" / "policy.toml").write_text('[permissions]\nallow = ["Bash(ls)"]\n')
    monkeypatch.chdir(place)
    return place


def verdict() -> str:
    return json.loads(cellwall("policy", "check", "Bash(ls)", "--json").stdout)[0]["verdict"]


@pytest.mark.requirement("POL-7")
@pytest.mark.parametrize(("says", "code"), [(None, 0), ("y", 1), ("", 1)])
def test_a_person_at_a_terminal_sees_the_rules_and_is_asked(says, code):
    done = person("policy", "trust", says=says)
    assert done.returncode == code
    assert b"It allows, without a question:\n| Bash(ls)\n" in done.stderr
    assert verdict() == ("deny" if code else "allow")


@pytest.mark.requirement("POL-7", "POL-13")
def test_without_a_terminal_nothing_is_trusted_and_untrust_takes_it_back(project):
    done = cellwall("policy", "trust", stdin=b"y\ny\n")
    assert (done.returncode, error_code(done)) == (125, "CW-NOT-CONFIRMED")
    assert error_code(cellwall("policy", "trust", "--yes")) == "CW-USAGE"  # no such option
    assert verdict() == "deny"
    told = json.loads(person("policy", "trust", "--json").stdout)["trusted"]
    rule = {"verdict": "allow", "rule": "Bash(ls)", "reason": "", "answers": ""}
    rule |= {"unless": [], "lifts": [], "until": None, "stop": False}
    assert [(each["new"], each["rules"]) for each in told] == [(True, [rule])]
    assert verdict() == "allow"
    listed = json.loads(cellwall("policy", "trust", "--list", "--json").stdout)["trusted"]
    assert [each["path"] for each in listed] == [str(project / ".cellwall" / "policy.toml")]
    assert b"already trusted: " in cellwall("policy", "trust").stdout
    assert cellwall("policy", "untrust").returncode == 0
    assert verdict() == "deny"
    assert cellwall("policy", "trust", "--list").stdout == b"nothing is trusted\n"


def test_a_broken_list_is_told(state_home):
    assert person("policy", "trust").returncode == 0
    Path(state_home, "policy", "trusted.json").write_text("{")
    done = cellwall("policy", "trust", "--list")
    assert (done.returncode, error_code(done)) == (125, "CW-POLICY-TRUST")
    assert verdict() == "deny"

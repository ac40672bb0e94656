"""`cellwall policy check` and `explain`, as people and programs call them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cellwall.core.ids import new_id
from interfaces.test_cli_process import cellwall

RULES = """
[permissions]
allow = ["Bash(git *)", "Bash(ls *)", "Read(./**)"]
ask = ["Bash(git push *)"]
deny = ["Read(.env)"]

[[rule]]
verdict = "deny"
rule = "Bash(curl *)"
reason = "no downloads here"
match = ["curl x", "ls && curl x"]
not_match = ["ls curl"]
"""


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(RULES)
    return str(path)


def check(*words: str, stdin: bytes = b""):
    done = cellwall("policy", "check", *words, "--json", stdin=stdin)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.requirement("POL-1", "POL-5")
def test_the_exit_code_is_that_of_the_strictest(rules):
    for calls, code in (
        (["Bash(git status)"], 0),
        (["Bash(git status)", "Bash(git push)"], 3),
        (["Bash(git push)", "Bash(curl x)", "Bash(ls)"], 4),
        (["Read(.env)"], 4),
        (["Read(a.txt)"], 0),
    ):
        assert check("--policy", rules, *calls)[0] == code, calls


@pytest.mark.requirement("POL-5")
def test_a_decision_names_its_rule_place_and_reason(rules):
    code, (decision,) = check("--policy", rules, "Bash(ls; curl x)")
    assert code == 4
    assert decision["verdict"] == "deny"
    assert decision["rule"] == "Bash(curl *)"
    assert decision["source"].endswith("policy.toml:9")
    assert decision["reason"] == "no downloads here"
    assert [(each["command"], each["verdict"]) for each in decision["commands"]] == [
        ("ls", "allow"),
        ("curl x", "deny"),
    ]


def test_calls_come_as_json_on_standard_input(rules):
    calls = [
        {"tool": "Bash", "input": {"command": "ls"}},
        {"tool": "Bash", "input": {"command": "curl x"}},
        {"tool": "Read", "input": {"file_path": ".env"}},
    ]
    code, decisions = check("--policy", rules, "--stdin", stdin=json.dumps(calls).encode())
    assert (code, [each["verdict"] for each in decisions]) == (4, ["allow", "deny", "deny"])
    assert check("--policy", rules, "--stdin", stdin=b"[]") == (0, [])


@pytest.mark.parametrize(
    "data", [b"", b"{", b"{}", b"[1]", b'[{"tool": 1}]', b"\xff", b"[" * 100_000, b'[{"tool": ""}]']
)
def test_bad_input_is_refused_with_a_reason(rules, data):
    done = cellwall("policy", "check", "--policy", rules, "--stdin", stdin=data)
    assert done.returncode == 125
    assert b"CW-" in done.stderr
    assert b"Traceback" not in done.stderr


def test_without_a_call_or_with_a_broken_policy_it_is_refused(rules, tmp_path):
    assert cellwall("policy", "check", "--policy", rules).returncode == 125
    broken = tmp_path / "broken.toml"
    broken.write_text('[permissions]\nallow = ["Bash(git"]\nalow = []\n')
    done = cellwall("policy", "check", "--policy", str(broken), "Bash(ls)")
    assert done.returncode == 125
    assert b"broken.toml:2:" in done.stderr
    assert b"broken.toml:3:" in done.stderr


@pytest.mark.requirement("POL-6")
def test_a_policy_whose_examples_fail_is_refused(tmp_path):
    wrong = tmp_path / "wrong.toml"
    wrong.write_text('[[rule]]\nverdict = "deny"\nrule = "Bash(rm *)"\nmatch = ["ls"]\n')
    done = cellwall("policy", "check", "--policy", str(wrong), "Bash(ls)")
    assert done.returncode == 125
    assert b"does not match 'ls'" in done.stderr


@pytest.mark.requirement("POL-5")
def test_explain_draws_each_part(rules):
    done = cellwall("policy", "explain", "--policy", rules, "Bash(ls $(git log | curl x))")
    text = done.stdout.decode()
    assert done.returncode == 4
    assert text.splitlines()[0].startswith("DENY")
    assert "- curl x" in text
    assert "+ git log" in text
    assert "Bash(curl *)" in text


def test_what_is_shown_of_a_command_cannot_steer_a_terminal(rules):
    done = cellwall("policy", "explain", "--policy", rules, "Bash(ls \x1b[2J\u202e)")
    assert done.returncode == 4
    for stream in (done.stdout, done.stderr):
        assert b"\x1b" not in stream
        assert "\u202e" not in stream.decode()


@pytest.mark.requirement("POL-1")
def test_a_policy_judges_what_a_person_runs_when_they_name_it(rules):
    denied = cellwall("run", "--policy", rules, "--json", "--", "curl", "x")
    assert denied.returncode == 125
    assert json.loads(denied.stdout)["decision"] == {
        "verdict": "deny",
        "rule": "Bash(curl *)",
        "reason": "no downloads here",
        "source": json.loads(denied.stdout)["decision"]["source"],
    }
    allowed = cellwall("run", "--policy", rules, "--", "ls", "/")
    assert allowed.returncode == 0


@pytest.mark.requirement("POL-9", "POL-5")
def test_explain_names_the_labels_of_a_call_and_what_they_would_meet(rules, tmp_path, state_home):
    session = new_id("sbx")
    folder = Path(state_home, "workspaces", session)
    folder.mkdir(parents=True)
    kept = [{"label": "private", "source": "secret KEY", "action": "act_1", "admitted": True}]
    (folder / "labels.json").write_text(json.dumps({"sources": kept}))
    call = ("policy", "explain", "WebFetch(https://a.example/)", "--policy", rules, "--json")
    alone = json.loads(cellwall(*call).stdout)
    assert alone["labels"]["egress"][0]["source"] == "a.example"
    assert alone["rule_of_two"] is None
    met = json.loads(cellwall(*call, "--session", session).stdout)["rule_of_two"]
    assert (met["verdict"], met["rule"]) == ("ask", "rule-of-two")
    assert "secret KEY by act_1" in met["reason"]
    shown = cellwall("policy", "labels", "--session", session).stdout
    assert shown == b"  private data: secret KEY (act_1)\n"
    for words in (("labels",), ("explain", "WebFetch(https://a.example/)")):
        unknown = cellwall("policy", *words, "--session", new_id("sbx"))
        assert (unknown.returncode, b"[CW-NO-SESSION]" in unknown.stderr) == (125, True)
    done = cellwall("policy", "labels", "--clear", str(tmp_path))
    assert (done.returncode, b"has no label" in done.stderr) == (125, True)

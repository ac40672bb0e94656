"""Tables are tried by the rules they name; the record is learnt from as it was written."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cellwall.admin import policy_learning
from cellwall.config.load import load_settings
from cellwall.core.errors import CellwallError
from cellwall.core.files import FileOperation
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.types import Action, CallTool, FetchUrl, Principal, RunCode, RunCommand, UseTool
from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.lessons import RuleFile
from cellwall.policy.rules import Layer
from cellwall.runtime.event_bodies import denial_body, intent_body
from cellwall.runtime.recording import open_record

AGENT = Principal("ann", "hook")
DENIED = Decision(Verdict.DENY, "default", "no rule allows this", "built-in")
OBSERVED = Decision(Verdict.ALLOW, "observe", "would be denied: no rule allows this", "built-in")
ALLOWED = Decision(Verdict.ALLOW, "Bash(ls)", "the user rules allow this", "policy.toml:1")
SANDBOX = "sbx_" + "0" * 26


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def record(state_home: str, *entries: tuple[Action, Decision]) -> None:
    settings = load_settings(file=None, profile=None, environ=os.environ)
    with open_record(state_home, settings) as audit:
        for action, decision in entries:
            is_denied = decision.verdict is Verdict.DENY
            body = denial_body(action, decision) if is_denied else intent_body(action, decision, ())
            kind = EventKind.DENIAL if is_denied else EventKind.INTENT
            who = action.principal
            audit.write(
                Event(kind, action.id, who.name, who.interface, body, action.session_id or "")
            )


def used(tool: str, agent_session: str = "", **given: str) -> Action:
    return Action(principal=AGENT, operation=UseTool(tool, given, os.getcwd(), agent_session))


def bash(command: str, agent_session: str = "") -> Action:
    return used("Bash", agent_session, command=command)


def learnt(**given: object) -> policy_learning.Lesson:
    wanted = {"session": None, "since": None, "policies": (), **given}
    return policy_learning.learn(environ=os.environ, **wanted)


def rules(lesson: policy_learning.Lesson) -> list[str]:
    return [each.rule for each in lesson.proposed]


# Learning


@pytest.mark.requirement("POL-10")
def test_attack_wishes_in_another_project_become_no_rules_of_this_one(state_home, project):
    elsewhere = UseTool("Bash", {"command": "make deploy"}, str(project.parent / "other"))
    record(
        state_home,
        (bash("make test"), DENIED),
        (Action(principal=AGENT, operation=elsewhere), DENIED),
    )
    lesson = learnt(place=RuleFile(Layer.PROJECT, str(project)))
    assert rules(lesson) == ["Bash(make test)"]
    (refused,) = lesson.refused
    assert "make deploy" in refused.call
    assert "another folder" in refused.reason
    assert set(rules(learnt(place=RuleFile(Layer.USER)))) == {
        "Bash(make test)",
        "Bash(make deploy)",
    }


@pytest.mark.requirement("POL-10")
def test_denials_and_what_was_only_observed_are_learnt_from(state_home):
    record(
        state_home,
        (bash("git status"), DENIED),
        (bash("git diff"), OBSERVED),
        (bash("ls"), ALLOWED),
        (used("Read", file_path=f"{os.getcwd()}/src/a.py"), OBSERVED),
        (Action(principal=AGENT, operation=RunCommand(("echo", "a b"))), OBSERVED),
        (Action(principal=AGENT, operation=CallTool("lookup", [1], {"a": 1})), OBSERVED),
        (bash("git status"), DENIED),
    )
    lesson = learnt()
    assert rules(lesson) == [
        *("Bash(git status)", "Bash(git diff)", "Bash(echo a' 'b)", "lookup", "Read(./src/a.py)")
    ]
    assert (lesson.seen, lesson.allowed_now, lesson.refused) == (5, 0, ())


@pytest.mark.requirement("POL-10")
def test_what_agents_were_denied_through_mcp_is_learnt_from(state_home):
    operations = (
        RunCode("python", b"print(1)"),
        RunCommand(("make", "all"), "/workspace"),
        FileOperation("write", "src/a.py", b"x"),
        FileOperation("list", "docs/x"),
        FetchUrl("https://docs.example.com/x"),
        CallTool("lookup", [], {"a": 1}),
    )
    agent = Principal("ann", "mcp")
    record(
        state_home,
        *((Action(principal=agent, operation=operation), DENIED) for operation in operations),
    )
    lesson = learnt()
    assert (lesson.refused, lesson.seen) == ((), len(operations))
    assert set(rules(lesson)) == {
        *("Code(python)", "Bash(make all)", "Edit(./src/a.py)", "Read(./docs/x)"),
        *("WebFetch(domain:docs.example.com)", "lookup"),
    }


@pytest.mark.requirement("POL-10")
def test_what_a_built_in_rule_refused_is_not_proposed(state_home):
    record(state_home, (bash("sudo ls"), OBSERVED), (bash("$X"), DENIED))
    lesson = learnt()
    assert (lesson.proposed, len(lesson.refused)) == ((), 2)


def test_a_call_that_the_record_holds_in_part_is_told_and_not_guessed(state_home):
    key = "AKIA" + "IOSFODNN7EXAMPLE"
    record(
        state_home,
        (bash("echo " + "x" * 100_000), DENIED),
        (bash(f"echo {key}"), DENIED),
        (Action(principal=AGENT, operation=RunCommand(("echo", "y" * 100_000))), OBSERVED),
    )
    lesson = learnt()
    assert (lesson.proposed, lesson.seen) == ((), 0)
    assert {each.reason for each in lesson.refused} == {
        "the record is truncated or redacted",
        "the record is truncated",
    }


def test_one_session_is_learnt_from_alone(state_home):
    inside = Action(principal=AGENT, operation=RunCommand(("id",)), session_id=SANDBOX)
    record(
        state_home, (bash("pwd", "one"), DENIED), (bash("ls", "two"), DENIED), (inside, OBSERVED)
    )
    assert rules(learnt(session="one")) == ["Bash(pwd)"]
    assert rules(learnt(session=SANDBOX)) == ["Bash(id)"]
    assert rules(learnt(session="none")) == []
    assert rules(learnt(since=datetime.now(UTC) + timedelta(hours=1))) == []
    assert len(rules(learnt(since=datetime.now(UTC) - timedelta(hours=1)))) == 3


def test_what_the_rules_allow_by_now_is_left_out(state_home, project):
    record(state_home, (bash("pwd"), DENIED), (bash("id"), DENIED))
    (project / "mine.toml").write_text('[permissions]\nallow = ["Bash(pwd)"]\n')
    lesson = learnt(policies=["mine.toml"])
    assert (rules(lesson), lesson.allowed_now) == (["Bash(id)"], 1)


def test_too_many_different_calls_are_refused(state_home, monkeypatch):
    monkeypatch.setattr(policy_learning, "_MAX_CALLS", 2)
    record(state_home, *((bash(f"echo {number}"), DENIED) for number in range(3)))
    with pytest.raises(CellwallError) as raised:
        learnt()
    assert raised.value.code == "CW-TOO-MUCH"


def test_an_empty_record_teaches_nothing():
    assert learnt() == policy_learning.Lesson()


# Tables


def tried(path: Path, *policies: str) -> list[tuple[str, bool]]:
    found = policy_learning.test(str(path), policies=policies, environ=os.environ)
    return [(each.case.text, each.is_right) for each in found]


def test_the_table_names_its_policy_and_folder(project):
    tests = project / "tests"
    tests.mkdir()
    (tests / "policy.toml").write_text('[permissions]\nallow = ["Read(./a/**)", "Bash(ls)"]\n')
    (tests / "other.toml").write_text('[permissions]\nask = ["Bash(ls)"]\n')
    table = tests / "table.toml"
    table.write_text(
        'policy = ["policy.toml"]\ncwd = "../work"\n'
        f'allow = ["Bash(ls)", "Read({project}/work/a/b)"]\ndeny = ["Read({project}/a/b)"]\n'
    )
    assert [is_right for _, is_right in tried(table)] == [True, True, True]
    assert tried(table, "tests/other.toml")[0] == ("Bash(ls)", False)


def test_without_one_the_rules_that_count_there_judge(project):
    (project / ".cellwall").mkdir()
    (project / ".cellwall" / "policy.toml").write_text('[permissions]\nask = ["Bash(ls)"]\n')
    (project / "t.toml").write_text('ask = ["Bash(ls)"]\ndeny = ["Bash(pwd)"]\n')
    assert tried(project / "t.toml") == [("Bash(ls)", True), ("Bash(pwd)", True)]


@pytest.mark.parametrize("kind", ["none", "folder", "fifo", "huge", "binary", "wrong", "policy"])
def test_what_cannot_be_read_is_an_error_with_a_hint(kind, project, monkeypatch):
    table = project / "t.toml"
    match kind:
        case "folder":
            table.mkdir()
        case "fifo":
            os.mkfifo(table)
        case "huge":
            monkeypatch.setattr(policy_learning, "_MAX_TABLE_BYTES", 10)
            table.write_text('allow = ["Bash(ls)"]')
        case "binary":
            table.write_bytes(b"\xff")
        case "wrong":
            table.write_text("allows = []")
        case "policy":
            table.write_text('policy = ["missing.toml"]\nallow = ["Bash(ls)"]')
    with pytest.raises(CellwallError) as raised:
        tried(table)
    assert raised.value.code in {"CW-POLICY-TABLE", "CW-POLICY-FILE"}
    assert raised.value.hint

"""Calls from the command line and from other programs: understood, or refused with a hint."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellwall.core.errors import BadInput
from cellwall.core.verdict import Verdict
from cellwall.policy.calls import MAX_CALL_CHARACTERS, ToolCall, covers, from_json, parse_call


@pytest.mark.parametrize(
    ("text", "tool", "given"),
    [
        ("Bash(git push)", "Bash", {"command": "git push"}),
        ("Bash(echo $(date))", "Bash", {"command": "echo $(date)"}),
        ("Bash()", "Bash", {"command": ""}),
        ("Bash(echo \n hi)", "Bash", {"command": "echo \n hi"}),
        ("Read(a b)", "Read", {"file_path": "a b"}),
        ("Write({x})", "Write", {"file_path": "{x}"}),
        ("NotebookEdit(n.ipynb)", "NotebookEdit", {"notebook_path": "n.ipynb"}),
        ("Glob(*.py)", "Glob", {"pattern": "*.py"}),
        ("Grep(src)", "Grep", {"path": "src"}),
        ("WebFetch(https://x.org/(a))", "WebFetch", {"url": "https://x.org/(a)"}),
        ("WebSearch(cats)", "WebSearch", {"query": "cats"}),
        ("Code(python)", "Code", {"language": "python"}),
        ("mcp__git__push", "mcp__git__push", {}),
        ("mcp__git__push()", "mcp__git__push", {}),
        ('mcp__git__push({"force": true})', "mcp__git__push", {"force": True}),
        ("Task", "Task", {}),
    ],
)
def test_a_call_is_read_as_people_write_it(text: str, tool: str, given: object) -> None:
    assert parse_call(text, cwd="/x", home="/h") == ToolCall(tool, given, "/x", "/h")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Bash",
        "Bash(ls",
        "Bash(ls) x",
        "(ls)",
        "Ba sh(ls)",
        "Read",
        "Read(a\0b)",
        "Bash(a\0b)",
        "Task(explore)",
        "Task([1])",
        'Task({"a": 1, "a": 2})',
        'Task({"a": NaN})',
        "Task(" + "[" * 100_000 + "])",
        'Task({"a": ' + "[" * 50 + "]" * 50 + "})",
        "Read(\ud800)",
        "Bash(" + "x" * MAX_CALL_CHARACTERS + ")",
        "x" * 300,
    ],
)
def test_a_call_that_cannot_be_understood_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse_call(text)
    assert caught.value.hint
    assert caught.value.message.isprintable()


def test_a_tool_in_other_letters_is_refused_with_its_name() -> None:
    with pytest.raises(BadInput, match=r"there is no tool bash\. Did you mean Bash\?"):
        parse_call("bash(git push)")
    for text in ('bash({"command": "ls"})', "bash()", "bash"):
        assert parse_call(text).tool == "bash"  # an agent's own tool


def test_both_spellings_of_programs_are_read() -> None:
    ours = from_json({"tool": "Bash", "input": {"command": "ls"}})
    theirs = from_json(
        {"tool_name": "Bash", "tool_input": {"command": "ls"}, "session_id": "x", "cwd": "/evil"}
    )
    assert ours == theirs == ToolCall("Bash", {"command": "ls"})
    assert from_json({"tool": "Task"}) == ToolCall("Task", {})


def loop() -> dict[str, object]:
    found: dict[str, object] = {}
    found["x"] = found
    return found


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        "Bash(ls)",
        {},
        {"input": {}},
        {"tool": ""},
        {"tool": 5},
        {"tool": ["Bash"]},
        {"tool": "Bash\n"},
        {"tool": "Bash", "input": []},
        {"tool": "Bash", "input": "ls"},
        {"tool": "Bash", "input": {"command": 5}},
        {"tool": "Bash", "input": {"command": None}},
        {"tool": "Bash", "input": {"command": ["ls"]}},
        {"tool": "Bash", "tool_name": "Read", "input": {}},
        {"tool": "Bash", "input": {"command": "ls"}, "tool_input": {"command": "rm"}},
        {"tool": "Read", "input": {"file_path": "a\0"}},
        {"tool": "Task", "input": {1: 2}},
        {"tool": "Task", "input": {"a": float("inf")}},
        {"tool": "Task", "input": {"a": object()}},
        {"tool": "Task", "input": {"a": {"b": "\udfff"}}},
        {"tool": "Task", "input": loop()},
        {"tool": "Task", "input": {"a": [0] * 200_000}},
    ],
)
def test_what_is_no_call_is_refused(found: object) -> None:
    with pytest.raises(BadInput):
        from_json(found)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10)),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(max_size=5), inner)),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(["tool", "input", "tool_name", "tool_input", "x"]), JSON))
def test_whatever_a_program_sends_it_is_a_call_or_refused(found: dict[str, object]) -> None:
    try:
        call = from_json(found)
    except BadInput:
        return
    json.dumps(dict(call.input), allow_nan=False).encode()


@given(st.text(max_size=60))
def test_whatever_a_person_types_it_is_a_call_or_refused(text: str) -> None:
    for each in (text, f"Bash({text})", f"Task({text})"):
        try:
            parse_call(each)
        except BadInput as error:
            message = error.message
        else:
            message = ""
        assert message.isprintable()


ALLOW, DENY = Verdict.ALLOW, Verdict.DENY


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize("verdict", list(Verdict))
@pytest.mark.parametrize(
    ("rule", "tool", "is_covered"),
    [
        ("Edit", "Write", True),
        ("Write", "NotebookEdit", True),
        ("MultiEdit", "Edit", True),
        ("Read", "Grep", True),
        ("Glob", "LS", True),
        ("Read", "Write", False),
        ("Bash", "Code", False),
        ("Task", "Task", True),
        ("Task", "Agent", False),
        ("Bash", "bash", False),
        ("mcp__git", "mcp__git__push", True),
        ("mcp__git", "mcp__github__push", False),
        ("mcp__git", "mcp__git", True),
        ("mcp__git__*", "mcp__git__push", True),
        ("mcp__git__push", "mcp__git__push", True),
        ("mcp__git__push", "mcp__git__push_all", False),
        ("mcp__git__get_*", "mcp__git__get_x", True),
        ("mcp__git__get_*", "mcp__git__set_x", False),
        ("mcp__a__b__c", "mcp__a__b__c", True),
        ("Read", "mcp__git__push", False),
    ],
)
def test_a_rule_covers_its_group(rule: str, tool: str, is_covered: bool, verdict: Verdict) -> None:
    assert covers(rule, tool, verdict) is is_covered


@pytest.mark.parametrize("tool", ["mcp__git__hub__x", "mcp__git___x", "mcp__git____"])
@pytest.mark.parametrize("rule", ["mcp__git", "mcp__git__*"])
def test_a_name_with_two_readings_is_denied_but_not_allowed(rule: str, tool: str) -> None:
    """A server may call itself `git__hub` or `git_`."""
    assert not covers(rule, tool, ALLOW)
    assert covers(rule, tool, DENY)
    assert covers(tool, tool, ALLOW)

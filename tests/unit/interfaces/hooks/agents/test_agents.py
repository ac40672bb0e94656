"""Each agent's protocol: requests as the agents write them, answers as they read them, rubbish."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellwall.core.errors import BadInput
from cellwall.core.outcomes import Finding
from cellwall.interfaces.hooks.agents.agent import ScannedResult
from cellwall.interfaces.hooks.agents.registry import AGENTS, ALIASES, agent_named
from cellwall.interfaces.hooks.protocol import (
    MAX_BYTES,
    Malformed,
    OtherEvent,
    Reply,
    Ruling,
    ToolReport,
    ToolRequest,
)
from cellwall.interfaces.hooks.withheld_results import NOTE

OTHERS = ("codex", "cursor", "gemini-cli", "copilot")
FOLDER = Path(__file__).with_name("payloads")


def recorded(kind: str) -> list[Any]:
    found = []
    for name in OTHERS:
        told = tomllib.loads((FOLDER / f"{name.replace('-', '_')}.toml").read_text("utf-8"))
        found += [
            pytest.param(name, each, id=f"{name}: {each.get('name', '')}")
            for each in told.get(kind, [])
        ]
    return found


def asked_of(name: str) -> ToolRequest:
    """The first request of an agent, which is about a shell command."""
    each = next(param.values[1] for param in recorded("payload") if param.values[0] == name)
    told = agent_named(name).parse(each["raw"].encode(), False)
    assert isinstance(told, ToolRequest)
    return told


def answered(reply: Reply) -> dict[str, Any]:
    assert (reply.exit_code, reply.stderr) == (0, b"")
    found: dict[str, Any] = json.loads(reply.stdout)
    return found


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize(("name", "payload"), recorded("payload"))
def test_a_request_becomes_calls_in_the_words_of_rules(name, payload):
    told = agent_named(name).parse(payload["raw"].encode(), False)
    assert isinstance(told, ToolRequest)
    assert [[use.tool, dict(use.input)] for use in told.uses] == payload["uses"]
    assert told.cwd == payload.get("cwd", "/home/u/project")
    assert told.project == payload.get("project", "/home/u/project")


@pytest.mark.parametrize(("name", "result"), recorded("result"))
def test_a_result_is_read_and_what_is_cleaned_takes_its_place(name, result):
    agent = agent_named(name)
    told = agent.parse(result["raw"].encode(), result.get("after", False))
    assert isinstance(told, ToolReport)
    assert told.tool == result["tool"]
    cleaned = json.loads(json.dumps(told.response).replace("SECRET", "[redacted]"))
    reply = agent.report(told, ScannedResult((), cleaned, is_changed=True))
    assert answered(reply) == json.loads(result["cleaned"].replace("\n", "\\n"))
    assert answered(agent.report(told, ScannedResult((), told.response, is_changed=False))) == {}
    seen = (Finding("injection", "high", "a bad sentence"),)
    warned = agent.report(told, ScannedResult(seen, told.response, is_changed=False))
    assert "a bad sentence" in json.dumps(answered(warned))


@pytest.mark.parametrize(("name", "passing"), recorded("passing"))
def test_other_events_are_not_judged(name, passing):
    assert isinstance(agent_named(name).parse(passing["raw"].encode(), False), OtherEvent)


UPDATED = {"command": "inside"}
ALLOWS = {
    "codex": {},
    "cursor": {"permission": "allow"},
    "gemini-cli": {"decision": "allow"},
    "copilot": {"permissionDecision": "allow", "permissionDecisionReason": "why"},
}
REWRITES = {
    "codex": {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow", "updatedInput": UPDATED}},
    "cursor": {"permission": "allow", "updated_input": UPDATED},
    "gemini-cli": {"decision": "allow", "hookSpecificOutput": {"hookEventName": "BeforeTool", "tool_input": UPDATED}},
    "copilot": {"permissionDecision": "allow", "permissionDecisionReason": "why", "modifiedArgs": UPDATED},
}  # fmt: skip
DENIES = {
    "codex": {"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": "why"}},
    "cursor": {"permission": "deny", "user_message": "why", "agent_message": "why"},
    "gemini-cli": {"decision": "deny", "reason": "why"},
    "copilot": {"permissionDecision": "deny", "permissionDecisionReason": "why"},
}  # fmt: skip
STOPS = {
    "codex": {**DENIES["codex"], "systemMessage": "Cellwall asks to stop here: why"},
    "cursor": {**DENIES["cursor"], "agent_message": "Stop here and tell the user. why"},
    "gemini-cli": {**DENIES["gemini-cli"], "continue": False, "stopReason": "why"},
    "copilot": DENIES["copilot"],
}


@pytest.mark.requirement("INT-1")
@pytest.mark.parametrize("name", OTHERS)
def test_answers_have_exactly_the_form_of_the_protocol(name):
    agent, asked = agent_named(name), asked_of(name)
    assert answered(agent.permit(asked, Ruling("allow", "why"))) == ALLOWS[name]
    assert answered(agent.permit(asked, Ruling("allow", "why", UPDATED))) == REWRITES[name]
    assert answered(agent.permit(asked, Ruling("deny", "why", UPDATED))) == DENIES[name]
    assert answered(agent.permit(asked, Ruling("deny", "why", stops=True))) == STOPS[name]


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize("name", OTHERS)
def test_a_question_is_a_denial_where_the_host_may_not_put_it_to_a_person(name):
    agent, asked = agent_named(name), asked_of(name)
    assert not agent.can_ask(asked)
    assert answered(agent.permit(asked, Ruling("ask", "why", UPDATED))) == DENIES[name]


# Codex takes an output with a field that it does not know for a failed hook, and runs the tool.
CODEX_BEFORE = {"continue", "stopReason", "suppressOutput", "systemMessage", "decision", "reason", "hookSpecificOutput"}  # fmt: skip


@pytest.mark.requirement("POL-4")
@pytest.mark.parametrize("ruling", [Ruling("deny", "why"), Ruling("deny", "why", stops=True), Ruling("ask", "why"), Ruling("allow", "why"), Ruling("allow", "why", UPDATED), Ruling("deny", " ")])  # fmt: skip
def test_codex_gets_no_field_and_no_value_that_it_would_take_for_a_failure(ruling):
    told = answered(AGENTS["codex"].permit(asked_of("codex"), ruling))
    assert told.keys() <= CODEX_BEFORE - {"continue", "stopReason", "suppressOutput"}
    specific = told.get("hookSpecificOutput", {})
    assert specific.keys() <= {"hookEventName", "permissionDecision", "permissionDecisionReason", "updatedInput"}  # fmt: skip
    assert specific.get("permissionDecision") in {None, "allow", "deny"}
    assert (specific.get("permissionDecision") == "allow") == ("updatedInput" in specific)
    if specific.get("permissionDecision") == "deny":
        assert specific["permissionDecisionReason"].strip()


VALID = {name: asked_of(name) for name in OTHERS}
FIRST = {
    param.values[0]: param.values[1]["raw"].encode() for param in reversed(recorded("payload"))
}
RUBBISH: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n",
    "binary": bytes(range(256)) * 16,
    "half": b'{"hook_event_name": "PreToolUse", "tool_name": "Ba',
    "list": b"[1, 2]",
    "text": b'"ls"',
    "number": b"1e999",
    "NaN": b'{"a": NaN}',
    "nested": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "huge": b'{"a": "' + b"x" * MAX_BYTES + b'"}',
    "no fields": b"{}",
    "UTF-16": '{"hook_event_name": "PreToolUse"}'.encode("utf-16"),
}


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("rubbish", RUBBISH)
@pytest.mark.parametrize("name", OTHERS)
def test_rubbish_is_blocked_in_the_agent_s_own_way(name, rubbish, after):
    agent, raw = agent_named(name), RUBBISH[rubbish]
    with pytest.raises(Malformed) as caught:
        agent.parse(raw, after)
    reply = agent.refuse(raw, caught.value.event, str(caught.value))
    assert reply.stderr.startswith(b"cellwall: ")
    if name == "copilot" and after:  # there exit code 2 is a warning, and an answer withholds
        told = json.loads(reply.stdout)["modifiedResult"]
        assert (reply.exit_code, NOTE in told["textResultForLlm"]) == (0, True)
    else:
        assert (reply.exit_code, reply.stdout) == (2, b"")


USED = {"tool_name", "tool_input", "cwd", "hook_event_name", "toolName", "toolArgs", "workspace_roots"}  # fmt: skip
RIGHT = {"toolArgs": (dict,), "tool_input": (dict,), "workspace_roots": (list,)}


def changed_fields(raw: bytes) -> list[tuple[str, bytes]]:
    """The request once for each field that counts: with values of wrong types, and twice."""
    told = json.loads(raw)
    wrong = [
        (key, value)
        for key in sorted(USED & told.keys())
        for value in (None, 5, True, [], [5], {"a": 1}, "text")
        if value == [5] or not isinstance(value, RIGHT.get(key, (str,)))
    ]
    found = [(f"{k}={v!r}", json.dumps({**told, k: v}).encode()) for k, v in wrong]
    keys = sorted(USED & told.keys())
    return found + [(k, raw.strip()[:-1] + f', "{k}": "Read"}}'.encode()) for k in keys]


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize("name", OTHERS)
def test_fields_of_a_wrong_type_and_keys_twice_are_refused(name):
    agent = agent_named(name)
    assert isinstance(agent.parse(FIRST[name], False), ToolRequest)  # the control
    for what, raw in changed_fields(FIRST[name]):
        with pytest.raises(Malformed):
            agent.parse(raw, False)
            pytest.fail(what)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@pytest.mark.requirement("RED-2")
@settings(max_examples=60)
@given(st.data())
def test_nothing_that_is_sent_does_anything_but_parse_or_be_refused(data):
    name = data.draw(st.sampled_from(OTHERS))
    told = json.loads(FIRST[name])
    for key in data.draw(st.lists(st.sampled_from(sorted(told)), max_size=2)):
        told[key] = data.draw(JSON)
    raw = data.draw(st.binary(max_size=40) | st.just(json.dumps(told).encode()))
    agent = agent_named(name)
    for after in (False, True):
        try:
            agent.parse(raw, after)
        except Malformed as error:
            reply = agent.refuse(raw, error.event, str(error))
            assert reply.exit_code == 2 or NOTE.encode() in reply.stdout


PATCHES = {
    "no text": 5,
    "empty": "",
    "no file": "*** Begin Patch\n*** End Patch",
    "no name": "*** Begin Patch\n*** Add File: \n+x\n*** End Patch",
    "unknown header": "*** Begin Patch\n*** Copy File: a\n*** Add File: b\n*** End Patch",
    "control character": "*** Begin Patch\n*** Add File: a\x1b[2J\n+x\n*** End Patch",
    "too many": "".join(f"*** Add File: {n}\n" for n in range(1001)),
}


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize("name", PATCHES)
def test_a_patch_whose_files_are_not_known_is_refused(name):
    told = json.loads(FIRST["codex"])
    told |= {"tool_name": "apply_patch", "tool_input": {"command": PATCHES[name]}}
    with pytest.raises(Malformed):
        AGENTS["codex"].parse(json.dumps(told).encode(), False)


@pytest.mark.parametrize("name", ["cursor", "gemini-cli", "copilot"])
def test_a_call_with_two_paths_is_refused(name):
    tools = {"cursor": "Write", "gemini-cli": "write_file", "copilot": "create"}
    keys = ("toolName", "toolArgs") if name == "copilot" else ("tool_name", "tool_input")
    told = json.loads(FIRST[name])
    for second, is_good in (("a", True), ("b", False), (5, False)):
        told |= {keys[0]: tools[name], keys[1]: {"file_path": "a", "path": second}}
        raw = json.dumps(told).encode()
        if is_good:
            parsed = agent_named(name).parse(raw, False)
            assert isinstance(parsed, ToolRequest)
            assert parsed.input == {"file_path": "a"}
        else:
            with pytest.raises(Malformed):
                agent_named(name).parse(raw, False)


def test_a_copilot_request_must_be_about_what_the_command_line_says():
    agent = AGENTS["copilot"]
    (param,) = [p for p in recorded("result") if p.values[0] == "copilot"]
    raw = param.values[1]["raw"].encode()
    assert isinstance(agent.parse(raw, True), ToolReport)
    for data, after in ((raw, False), (FIRST["copilot"], True)):
        with pytest.raises(Malformed, match="another event"):
            agent.parse(data, after)


def test_agents_are_known_by_their_names_and_never_guessed():
    assert agent_named(None).name == "claude-code"
    assert {agent_named(alias).name for alias in ALIASES} < set(AGENTS)
    for name in ("", "Claude", "codex ", "x" * 100):
        if name:
            with pytest.raises(BadInput):
                agent_named(name)

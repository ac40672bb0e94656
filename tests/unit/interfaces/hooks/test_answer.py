"""A question goes through all steps of the runtime; what becomes of it is what the agent is told."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from cellwall.core.errors import AuditFailed, LayerMissing
from cellwall.interfaces.hooks import answer
from cellwall.interfaces.hooks.answer import HookOptions, answer_alone, reply_to
from cellwall.interfaces.hooks.protocol import Reply
from cellwall.interfaces.hooks.withheld_results import NOTE
from cellwall.runtime.app import App
from cellwall.runtime.wiring import open_app
from conftest import audit_records
from interfaces.hook_double import doubled


@pytest.fixture
def house(state_home: str) -> Iterator[App]:
    found = doubled(open_app())
    yield found
    found.close()


def said(house: App, question: dict[str, Any] | bytes, **options: Any) -> Reply:
    @asynccontextmanager
    async def houses(_: HookOptions) -> AsyncIterator[App]:
        yield house

    data = question if isinstance(question, bytes) else json.dumps(question).encode()
    # Most of these are about verdicts, and /tmp is no directory that can be given.
    chosen = {"dangerously_outside": True, "environ": dict(os.environ), **options}
    return anyio.run(reply_to, data, HookOptions(**chosen), houses)


def asking(command: str = "ls #allow", **changes: Any) -> dict[str, Any]:
    return {
        "session_id": "abc",
        "transcript_path": "/t",
        "cwd": "/tmp",
        "permission_mode": "default",
        "hook_event_name": "PreToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": command},
        "tool_use_id": "toolu_1",
        **changes,
    }


def telling(response: Any, **changes: Any) -> dict[str, Any]:
    event = {"hook_event_name": "PostToolUse", "tool_response": response}
    return {**asking(), **event, **changes}


def permission(reply: Reply) -> dict[str, Any]:
    assert (reply.exit_code, reply.stderr) == (0, b"")
    return json.loads(reply.stdout)["hookSpecificOutput"]


def assert_withheld(reply: Reply) -> None:
    """Exit code 2 would leave the result as it is: the tool has run."""
    assert reply.exit_code == 0
    told = json.loads(reply.stdout)
    assert told["decision"] == "block"
    assert told["hookSpecificOutput"]["updatedToolOutput"]["stdout"] == NOTE


def with_hook(house: App, **changes: Any) -> App:
    hook = house.settings.hook.model_copy(update=changes)
    return replace(house, settings=house.settings.model_copy(update={"hook": hook}))


@pytest.mark.parametrize("verdict", ["allow", "deny", "ask"])
def test_the_verdict_and_its_reason_are_told(house, verdict):
    told = permission(said(house, asking(f"ls #{verdict}")))
    assert told["permissionDecision"] == verdict
    assert "the test says so" in told["permissionDecisionReason"]
    assert "updatedInput" not in told


@pytest.mark.requirement("POL-1")
def test_what_no_rule_allows_is_denied(house):
    assert permission(said(house, asking("ls")))["permissionDecision"] == "deny"


@pytest.mark.requirement("AUD-1")
def test_each_answer_is_on_record_with_what_was_asked(house):
    for verdict in ("allow", "deny", "ask"):
        said(house, asking(f"ls #{verdict}"))
    records = [r for r in audit_records() if r["interface"] == "hook"]
    assert [(r["kind"], r["body"]["tool"], r["body"]["call"]) for r in records] == [
        ("intent", "Bash", "toolu_1"),
        ("denial", "Bash", "toolu_1"),
        ("intent", "Bash", "toolu_1"),
    ]
    assert json.loads(records[1]["body"]["arguments"]) == {"command": "ls #deny"}
    assert records[2]["body"]["decision"]["verdict"] == "ask"
    assert all(r["body"]["agent_session"] == "abc" for r in records)


@pytest.mark.requirement("AUD-1")
def test_what_cannot_be_recorded_is_denied(house, monkeypatch):
    def fails(*_: object) -> str:
        raise AuditFailed("the disk is full")

    monkeypatch.setattr(type(house.audit), "write", fails)
    for verdict in ("allow", "ask"):
        told = permission(said(house, asking(f"ls #{verdict}")))
        assert told["permissionDecision"] == "deny"
        assert "the disk is full" in told["permissionDecisionReason"]
    assert_withheld(said(house, telling("x")))


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize("mode", ["bypassPermissions", "dontAsk", "auto", "", "made-up"])
def test_where_the_host_would_ask_nobody_a_question_is_a_denial(house, mode):
    told = permission(said(house, asking("ls #ask", permission_mode=mode)))
    assert told["permissionDecision"] == "deny"
    assert "no person can be asked" in told["permissionDecisionReason"]


STOPPING = """
[[rule]]
verdict = "deny"
rule = "Bash(curl evil.example*)"
reason = "a known bad place"
stop = true
"""


@pytest.mark.requirement("POL-5")
@pytest.mark.parametrize(("host", "stops"), [("evil.example", True), ("other.example", False)])
def test_a_denial_stops_the_agent_where_the_rule_says_so(state_home, tmp_path, host, stops):
    rules = tmp_path / "policy.toml"
    rules.write_text(STOPPING)
    real = open_app()
    try:
        reply = said(real, asking(f"ls; curl {host}"), policy=str(rules))
    finally:
        real.close()
    told = json.loads(reply.stdout)
    assert told["hookSpecificOutput"]["permissionDecision"] == "deny"
    if stops:
        assert told["continue"] is False
        assert "a known bad place" in told["stopReason"]
    else:
        assert told.keys() == {"hookSpecificOutput"}


@pytest.mark.requirement("POL-5", "ERR-1")
def test_a_denial_names_the_rule_the_file_and_what_a_person_can_type(state_home, tmp_path):
    (tmp_path / ".cellwall").mkdir()
    (tmp_path / ".cellwall/policy.toml").write_text('[permissions]\ndeny = ["Bash(make *)"]\n')
    real = open_app()
    try:
        told = permission(said(real, asking("make x", cwd=str(tmp_path))))
        unruled = permission(said(real, asking("other x", cwd=str(tmp_path))))
    finally:
        real.close()
    assert told["permissionDecisionReason"].startswith(
        "Cellwall: the project rules deny this (rule Bash(make *), .cellwall/policy.toml:2): make x."
        " A person can change that rule in .cellwall/policy.toml:2; "
    )
    assert "`cellwall policy learn --write`" in unruled["permissionDecisionReason"]
    assert str(tmp_path) not in told["permissionDecisionReason"]


def test_questions_can_be_switched_off(house):
    told = permission(said(with_hook(house, questions="nobody"), asking("ls #ask")))
    assert told["permissionDecision"] == "deny"


BOUNDS = {
    "surrogate": asking(tool_input={"command": "ls \ud800 #allow"}),
    "surrogate key": asking(tool_input={"\udcff": "#allow"}),
    "deep": asking(tool_input={"a": json.loads("[" * 200 + '"#allow"' + "]" * 200)}),
    "wide": asking(tool_input={"a": [0] * 250_000, "b": "#allow"}),
    "relative": asking(cwd="tmp"),
    "long directory": asking(cwd="/" + "a" * 5000),
    "NUL directory": asking(cwd="/tmp\0"),
    "empty tool": asking(tool_name=""),
    "control in tool": asking(tool_name="Ba\x1bsh"),
    "long tool": asking(tool_name="B" * 300),
}


@pytest.mark.requirement("POL-1")
@pytest.mark.parametrize("name", BOUNDS)
def test_what_is_out_of_bounds_is_denied_before_it_is_judged(house, name):
    told = permission(said(house, BOUNDS[name]))
    assert told["permissionDecision"] == "deny"
    assert "[CW-" in told["permissionDecisionReason"]


def test_other_events_are_not_judged(house):
    assert said(house, {"hook_event_name": "Stop"}) == Reply(0, b"{}\n")
    assert not [r for r in audit_records() if r["interface"] == "hook"]


INSIDE = {"dangerously_outside": False}


@pytest.mark.requirement("ISO-4")
@pytest.mark.parametrize("verdict", ["allow", "ask"])
def test_a_command_is_rewritten_to_run_inside_unless_it_is_denied(house, tmp_path, verdict):
    """With `ask` the person sees the command that runs inside, and a yes is a yes to that one."""
    given = {"command": f"ls 'a b' #{verdict}", "description": "Look", "timeout": 9000}
    question = asking(cwd=str(tmp_path), tool_input=given)
    told = permission(said(house, question, config="/etc/h.toml", **INSIDE))
    assert told["permissionDecision"] == verdict
    updated = told["updatedInput"]
    words = shlex.split(updated["command"])
    at = words.index(sys.executable)
    assert [word.partition("=")[0] for word in words[:at]] == [
        "HOME", "CELLWALL_HOME", "CELLWALL_CONFIG", "XDG_CONFIG_HOME",
    ]  # fmt: skip
    assert words[at + 1 : at + 3] == ["-I", "-c"]
    assert words[at + 4 :] == [
        "run", "--config", "/etc/h.toml", "--workspace", f"{tmp_path}:rw", "--own-path", "--cwd",
        str(tmp_path), "--timeout", "9", "--", "bash", "-c", f"ls 'a b' #{verdict}",
    ]  # fmt: skip
    assert {k: v for k, v in updated.items() if k != "command"} == {
        "description": "Look",
        "timeout": 9000,
    }


@pytest.mark.requirement("PKG-2")
@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("npm i left-pad", ["--packages", "npm"]),
        (
            "cd a; sudo bash -c 'venv/bin/python -m pip install x'",
            ["--packages", "pypi", "--env", "PYTHONUSERBASE=/workspace/.cellwall-packages"],
        ),
        ("echo pip install x", []),
    ],
)
def test_a_command_that_installs_packages_gets_their_registry_alone(
    house, tmp_path, command, options
):
    question = asking(f"{command} #allow", cwd=str(tmp_path))
    words = shlex.split(permission(said(house, question, **INSIDE))["updatedInput"]["command"])
    assert words[words.index("run") + 1 : words.index("--workspace")] == options


@pytest.mark.requirement("RBAC-2")
def test_an_agent_whose_role_may_not_install_gets_no_registry(house, tmp_path):
    roles = replace(house.runtime.roles, interfaces={"hook": "user"})
    limited = replace(house, runtime=replace(house.runtime, roles=roles))
    question = asking("npm i left-pad #allow", cwd=str(tmp_path))
    told = permission(said(limited, question, **INSIDE))
    assert "--packages" not in told["updatedInput"]["command"]


@pytest.mark.parametrize("way", ["option", "configuration"])
def test_outside_is_an_explicit_setting(house, tmp_path, way):
    chosen = house if way == "option" else with_hook(house, dangerously_outside=True)
    question = asking(cwd=str(tmp_path))
    told = permission(said(chosen, question, dangerously_outside=way == "option"))
    assert (told["permissionDecision"], "updatedInput" in told) == ("allow", False)
    inside = permission(said(house, question, **INSIDE))  # the control
    assert "updatedInput" in inside


def test_a_denial_and_a_tool_that_starts_nothing_are_not_rewritten(house, tmp_path):
    told = permission(said(house, asking("ls #deny", cwd=str(tmp_path)), **INSIDE))
    assert (told["permissionDecision"], "updatedInput" in told) == ("deny", False)
    read = asking(tool_name="Read", tool_input={"file_path": "/a #allow"})
    assert "updatedInput" not in permission(said(house, read, **INSIDE))


@pytest.mark.requirement("FS-1")
@pytest.mark.parametrize("cwd", ["/", "/tmp", "/usr/share", "/etc"])
def test_a_directory_that_no_sandbox_may_be_given_is_refused_with_a_reason(house, cwd):
    told = permission(said(house, asking(cwd=cwd), **INSIDE))
    assert told["permissionDecision"] == "deny"
    assert "CW-WORKSPACE" in told["permissionDecisionReason"] or "workspace" in str(told)


@pytest.mark.requirement("ISO-4")
def test_where_no_sandbox_can_be_had_nothing_is_allowed_to_run_outside_instead(
    house, monkeypatch, tmp_path
):
    def missing(_: App) -> None:
        raise LayerMissing("bubblewrap is not installed", hint="Install it.")

    monkeypatch.setattr(answer, "check_walls", missing)
    told = permission(said(house, asking(cwd=str(tmp_path)), **INSIDE))
    assert told["permissionDecision"] == "deny"
    assert "Install it." in told["permissionDecisionReason"]


@pytest.mark.parametrize(
    "changes",
    [
        {"cwd": "/nowhere/at/all"},
        {"tool_input": {"command": "", "x": "#allow"}},
        {"tool_input": {"command": "#allow" + "x" * 200_000}},
        {"tool_name": "PowerShell"},
        {"tool_name": "Monitor"},
    ],
)
def test_what_cannot_be_rewritten_is_denied(house, changes, tmp_path):
    told = permission(said(house, asking(**{"cwd": str(tmp_path), **changes}), **INSIDE))
    assert told["permissionDecision"] == "deny"


def test_allowing_a_command_does_not_switch_the_hosts_own_sandbox_off(house):
    given = {"command": "ls #allow", "dangerouslyDisableSandbox": True}
    told = permission(said(house, asking(tool_input=given)))
    assert told["updatedInput"] == {"command": "ls #allow"}


def test_a_result_without_findings_passes_and_is_on_record(house):
    assert said(house, telling({"stdout": "hello"})) == Reply(0, b"{}\n")
    (record,) = [r for r in audit_records() if r["interface"] == "hook"]
    assert record["kind"] == "outcome"
    assert record["body"]["call"] == "toolu_1"
    assert "hello" not in json.dumps(record)


def test_a_secret_in_a_result_is_redacted_in_the_shape_it_had(house):
    reply = said(house, telling({"stdout": "a SECRET", "interrupted": False, "n": [1, "SECRET"]}))
    assert permission(reply)["updatedToolOutput"] == {
        "stdout": "a [redacted]",
        "interrupted": False,
        "n": [1, "[redacted]"],
    }
    (record,) = [r for r in audit_records() if r["interface"] == "hook"]
    assert record["body"]["cleaned"] is True


def test_something_severe_in_a_result_blocks(house):
    told = json.loads(said(house, telling("VIRUS")).stdout)
    assert told["decision"] == "block"
    assert "a virus" in told["reason"]


@pytest.mark.parametrize("response", [None, 1.5, True, [], {}, "\ud800 text", "x" * 1_000_000])
def test_any_json_can_be_a_result(house, response):
    assert said(house, telling(response)) == Reply(0, b"{}\n")


UNSEEN = {
    "deep": "[" * 90 + '"VIRUS"' + "]" * 90,
    "deeper": "[" * 600 + '"VIRUS"' + "]" * 600,
    "deeper than can be read": "[" * 50_000 + '"VIRUS"' + "]" * 50_000,
    "wide": "[" + '"VIRUS",' * 250_000 + "0]",
    "large": '"' + "VIRUS" * 1_700_000 + '"',
    "twice": '{"a": "VIRUS", "a": 1}',
}


@pytest.mark.requirement("GRD-4")
@pytest.mark.parametrize("name", UNSEEN)
def test_a_result_that_is_not_looked_at_is_withheld(house, name):
    question = json.dumps(telling("here")).replace('"here"', UNSEEN[name])
    reply = said(house, question.encode())
    assert_withheld(reply)
    assert b"VIRUS" not in reply.stdout
    seen = said(house, telling(["fine"]))  # the control: what is looked at stands
    assert seen == Reply(0, b"{}\n")


def test_rules_that_cannot_be_enforced_are_not_ignored(house):
    """Through the real way to a house: a policy file that is not there denies."""
    told = {
        "config": None,
        "profile": None,
        "policy": "/nowhere.toml",
        "agent": None,
        "after": False,
        "dangerously_outside": False,
        "project": None,
    }
    code, out, _err = answer_alone(told, json.dumps(asking()).encode(), starts_supervisor=False)
    assert code == 0
    assert json.loads(out)["hookSpecificOutput"]["permissionDecision"] == "deny"

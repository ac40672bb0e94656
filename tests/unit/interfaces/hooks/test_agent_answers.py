"""Each agent's request through all steps of the runtime, and the answer in its own protocol."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from cellwall.core.errors import LayerMissing
from cellwall.interfaces.hooks import answer
from cellwall.interfaces.hooks.answer import HookOptions, reply_to
from cellwall.interfaces.hooks.protocol import Reply
from cellwall.runtime.app import App
from cellwall.runtime.wiring import open_app
from conftest import audit_records
from interfaces.hook_double import doubled

Request = Callable[[str, str], dict[str, Any]]


@pytest.fixture
def house(state_home: str) -> Iterator[App]:
    found = doubled(open_app())
    yield found
    found.close()


def said(house: App, agent: str, told: dict[str, Any] | bytes, **options: Any) -> Reply:
    @asynccontextmanager
    async def houses(_: HookOptions) -> AsyncIterator[App]:
        yield house

    data = told if isinstance(told, bytes) else json.dumps(told).encode()
    chosen = HookOptions(agent=agent, environ=dict(os.environ), **options)
    return anyio.run(reply_to, data, chosen, houses)


def codex(command: str, cwd: str) -> dict[str, Any]:
    told = {"hook_event_name": "PreToolUse", "session_id": "s", "cwd": cwd}
    return {**told, "tool_name": "Bash", "tool_input": {"command": command}, "tool_use_id": "c"}


def gemini(command: str, cwd: str) -> dict[str, Any]:
    told = {"hook_event_name": "BeforeTool", "session_id": "s", "cwd": cwd}
    given = {"command": command, "dir_path": "sub", "is_background": False}
    return {**told, "tool_name": "run_shell_command", "tool_input": given}


def copilot(command: str, cwd: str) -> dict[str, Any]:
    given = json.dumps({"command": command, "description": "d", "mode": "detached"})
    return {"sessionId": "s", "cwd": cwd, "toolName": "bash", "toolArgs": given}


def cursor(command: str, cwd: str) -> dict[str, Any]:
    told = {"hook_event_name": "preToolUse", "conversation_id": "s", "workspace_roots": [cwd]}
    given = {"command": command, "working_directory": f"{cwd}/sub", "timeout": 5000}
    return {**told, "cwd": cwd, "tool_name": "Shell", "tool_input": given}


def cursor_shell(command: str, cwd: str) -> dict[str, Any]:
    told = {"hook_event_name": "beforeShellExecution", "conversation_id": "s", "cwd": cwd}
    return {**told, "workspace_roots": [cwd], "command": command}


REQUESTS: dict[str, Request] = {
    "codex": codex,
    "gemini-cli": gemini,
    "copilot": copilot,
    "cursor": cursor,
}


def updated(agent: str, reply: Reply) -> dict[str, Any]:
    assert (reply.exit_code, reply.stderr) == (0, b"")
    told = json.loads(reply.stdout)
    match agent:
        case "codex":
            assert told["hookSpecificOutput"]["permissionDecision"] == "allow"
            found = told["hookSpecificOutput"]["updatedInput"]
        case "gemini-cli":
            assert told["decision"] == "allow"
            found = told["hookSpecificOutput"]["tool_input"]
        case "copilot":
            assert told["permissionDecision"] == "allow"
            found = told["modifiedArgs"]
        case _:
            assert told["permission"] == "allow"
            found = told["updated_input"]
    result: dict[str, Any] = found
    return result


def is_denied(agent: str, reply: Reply) -> bool:
    told = json.loads(reply.stdout)
    if agent == "codex":
        return told["hookSpecificOutput"]["permissionDecision"] == "deny"
    key = {"gemini-cli": "decision", "copilot": "permissionDecision", "cursor": "permission"}[agent]
    return (reply.exit_code, told[key]) == (0, "deny")


@pytest.mark.requirement("ISO-4")
@pytest.mark.parametrize("agent", REQUESTS)
def test_an_allowed_command_becomes_one_that_runs_inside(house, tmp_path, agent):
    (tmp_path / "sub").mkdir()
    begins = tmp_path / "sub" if agent in {"gemini-cli", "cursor"} else tmp_path
    found = updated(agent, said(house, agent, REQUESTS[agent]("ls #allow", str(tmp_path))))
    words = shlex.split(found["command"])
    assert words[words.index("--workspace") + 1] == f"{tmp_path}:rw"
    assert words[words.index("--cwd") + 1] == str(begins)
    assert "--own-path" in words
    assert words[-3:] == ["bash", "-c", "ls #allow"]
    # Nothing that could change how the host runs it is handed on.
    kept = {"description": "d"} if agent == "copilot" else {}
    if agent == "cursor":
        kept = {"working_directory": str(begins), "timeout": 5000}
    assert {k: v for k, v in found.items() if k != "command"} == kept


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize("verdict", ["deny", "ask", "nothing"])
@pytest.mark.parametrize("agent", REQUESTS)
def test_what_is_not_allowed_is_denied_in_the_agent_s_protocol(house, tmp_path, agent, verdict):
    (tmp_path / "sub").mkdir()
    told = REQUESTS[agent](f"ls #{verdict}", str(tmp_path))
    assert is_denied(agent, said(house, agent, told))
    assert is_denied(agent, said(house, agent, told, dangerously_outside=True))


@pytest.mark.requirement("ISO-4")
@pytest.mark.parametrize("agent", REQUESTS)
def test_where_no_sandbox_can_be_had_nothing_runs_outside(house, tmp_path, agent, monkeypatch):
    def missing(_: App) -> None:
        raise LayerMissing("bubblewrap is not installed", hint="Install it.")

    (tmp_path / "sub").mkdir()
    monkeypatch.setattr(answer, "check_walls", missing)
    reply = said(house, agent, REQUESTS[agent]("ls #allow", str(tmp_path)))
    assert is_denied(agent, reply)
    assert b"Install it." in reply.stdout


@pytest.mark.parametrize("agent", REQUESTS)
def test_outside_a_command_stays_as_it_is(house, tmp_path, agent):
    told = REQUESTS[agent]("ls #allow", str(tmp_path))
    reply = said(house, agent, told, dangerously_outside=True)
    assert not is_denied(agent, reply) if agent != "codex" else reply == Reply(0, b"{}\n")
    assert b"own-path" not in reply.stdout


@pytest.mark.requirement("FS-1")
@pytest.mark.parametrize("agent", ["gemini-cli", "cursor"])
def test_a_command_that_begins_outside_of_the_project_is_denied(house, tmp_path, agent):
    told = REQUESTS[agent]("ls #allow", str(tmp_path))
    told["tool_input"] |= {"dir_path": "/", "working_directory": "/"}
    assert is_denied(agent, said(house, agent, told))


@pytest.mark.requirement("POL-2", "AUD-1")
@pytest.mark.parametrize(
    ("second", "denied"), [("b #allow", False), ("b #deny", True), ("b", True)]
)
def test_every_file_of_a_patch_is_judged_and_on_record(house, tmp_path, second, denied):
    patch = f"*** Begin Patch\n*** Add File: a #allow\n+x\n*** Add File: {second}\n*** End Patch"
    told = codex("", str(tmp_path))
    told |= {"tool_name": "apply_patch", "tool_input": {"command": patch}}
    reply = said(house, "codex", told)
    assert reply == Reply(0, b"{}\n") if not denied else is_denied("codex", reply)
    records = [r for r in audit_records() if r["interface"] == "hook"]
    assert [r["body"]["tool"] for r in records] == ["Write", "Write"]


@pytest.mark.requirement("ISO-4")
def test_in_cursor_only_a_command_that_was_rewritten_may_start(house, tmp_path):
    """A version that ignores `updated_input` would start the one that was asked about."""
    (tmp_path / "sub").mkdir()
    project = str(tmp_path)
    found = updated("cursor", said(house, "cursor", cursor("ls #allow", project)))["command"]
    assert json.loads(said(house, "cursor", cursor_shell(found, project)).stdout) == {
        "permission": "allow"
    }
    for command in (
        "ls #allow",
        f"{found}; id",
        found.replace(":rw", ":cow"),
        "cellwall run -- ls #allow",
    ):
        reply = said(house, "cursor", cursor_shell(command, project))
        assert is_denied("cursor", reply)
        assert b"dangerously_outside" in reply.stdout
    # The one inside is judged again: another one in the same form is no way past the rules.
    other = found.replace("ls #allow", "ls #deny")
    assert is_denied("cursor", said(house, "cursor", cursor_shell(other, project)))
    plain = said(house, "cursor", cursor_shell("ls #allow", project), dangerously_outside=True)
    assert json.loads(plain.stdout) == {"permission": "allow"}


@pytest.mark.requirement("PKG-2")
def test_in_cursor_a_command_that_installs_nothing_cannot_claim_a_registry(house, tmp_path):
    (tmp_path / "sub").mkdir()
    project = str(tmp_path)
    found = updated("cursor", said(house, "cursor", cursor("npm i a #allow", project)))["command"]
    assert " --packages npm " in found
    assert not is_denied("cursor", said(house, "cursor", cursor_shell(found, project)))
    for other in (
        found.replace("npm i a", "ls"),
        found.replace("--packages npm", "--packages pypi"),
        found.replace("--packages npm", "--packages npm --packages pypi"),
        found.replace(" --packages npm", ""),
    ):
        assert is_denied("cursor", said(house, "cursor", cursor_shell(other, project)))


@pytest.mark.parametrize("agent", ["aider", ""])
def test_an_agent_that_is_not_known_is_blocked(house, agent):
    reply = said(house, agent, b"{}")
    assert (reply.exit_code, reply.stdout) == (2, b"")
    assert b"claude-code" in reply.stderr
    assert reply.stderr.count(b"Write one of") == 1


@pytest.mark.requirement("GRD-4")
@pytest.mark.parametrize("agent", ["codex", "gemini-cli", "copilot"])
def test_a_secret_in_a_result_does_not_reach_the_model(house, agent):
    told = {
        "codex": {"hook_event_name": "PostToolUse", "session_id": "s", "tool_name": "Bash", "tool_response": "a SECRET"},
        "gemini-cli": {"hook_event_name": "AfterTool", "session_id": "s", "cwd": "/", "tool_name": "glob", "tool_input": {}, "tool_response": {"llmContent": "a SECRET"}},
        "copilot": {"sessionId": "s", "cwd": "/", "toolName": "bash", "toolResult": {"resultType": "success", "textResultForLlm": "a SECRET"}},
    }[agent]  # fmt: skip
    reply = said(house, agent, told, after=agent == "copilot")
    assert reply.exit_code == 0
    assert b"a [redacted]" in reply.stdout
    assert b"SECRET" not in reply.stdout

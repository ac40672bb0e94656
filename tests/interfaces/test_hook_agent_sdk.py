"""Cellwall as callbacks of claude-agent-sdk: by themselves, and in the real SDK with a real agent."""

from __future__ import annotations

import importlib.util
import shlex
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from cellwall.core.errors import CellwallError
from cellwall.interfaces import agent_sdk
from cellwall.runtime import wiring
from cellwall.runtime.app import App
from conftest import audit_records, need
from interfaces.claude_code import claude, environment
from interfaces.fake_model import FakeModel, fake_model
from interfaces.hook_double import ASKED, doubled


@pytest.fixture(autouse=True)
def house(state_home: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    found = doubled(wiring.open_app())
    monkeypatch.setattr(agent_sdk, "shared_app", lambda *_: found)
    yield found
    found.close()


def said(callback: agent_sdk.HookCallback, told: Any) -> dict[str, Any]:
    return anyio.run(callback, told, "toolu_1", {"signal": None})


def decision(told: dict[str, Any], **options: Any) -> str:
    # About verdicts: /tmp is no directory that a sandbox can be given.
    chosen = {"dangerously_outside": True, **options}
    answer = said(agent_sdk.pre_tool_use(**chosen), told)
    return answer["hookSpecificOutput"]["permissionDecision"]


@pytest.mark.parametrize("word", ["allow", "deny", "ask"])
def test_the_callback_says_what_the_hook_says(word):
    assert decision({**ASKED, "tool_input": {"command": f"ls #{word}"}}) == word


@pytest.mark.requirement("POL-1", "INT-1")
@pytest.mark.parametrize(
    "told",
    [
        {},
        None,
        {**ASKED, "tool_input": "ls #allow"},
        {**ASKED, "tool_input": {"command": {1, 2}}},
        {**ASKED, "tool_input": {"command": "ls \ud800 #allow"}},
        {**ASKED, "tool_input": {"a": float("nan"), "command": "#allow"}},
        {**ASKED, "hook_event_name": "Before"},
        {**ASKED, "tool_input": {"command": "#bug #allow"}},
    ],
)
def test_whatever_cannot_be_judged_is_denied(told):
    assert decision(told) == "deny"


def test_a_callback_for_one_event_does_not_pass_another_for_it():
    """`{}` would let the tool through."""
    assert decision({**ASKED, "hook_event_name": "Stop"}) == "deny"


def test_a_callback_that_takes_too_long_denies(monkeypatch):
    monkeypatch.setattr(agent_sdk, "_ANSWER_WITHIN_S", 0.05)

    async def sleeps(*_: object) -> None:
        await anyio.sleep(30)

    monkeypatch.setattr(agent_sdk, "reply_to", sleeps)
    assert decision(ASKED) == "deny"


def test_results_are_redacted_and_refusals_block():
    told = {**ASKED, "hook_event_name": "PostToolUse", "tool_response": {"stdout": "a SECRET"}}
    answer = said(agent_sdk.post_tool_use(), told)
    assert answer["hookSpecificOutput"]["updatedToolOutput"] == {"stdout": "a [redacted]"}
    assert said(agent_sdk.post_tool_use(), ASKED | {"hook_event_name": "x"})["decision"] == "block"


def test_without_the_sdk_it_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", None)
    with pytest.raises(CellwallError, match="not installed"):
        agent_sdk.hooks()
    with pytest.raises(CellwallError, match="not installed"):
        agent_sdk.can_use_tool()


def test_an_sdk_that_cannot_block_on_failure_is_refused(monkeypatch):
    def matcher(matcher: object, hooks: object, timeout: object) -> None:
        pass

    old = types.SimpleNamespace(HookMatcher=matcher)
    monkeypatch.setitem(sys.modules, "claude_agent_sdk", old)  # type: ignore[arg-type]
    with pytest.raises(CellwallError, match="cannot stop"):
        agent_sdk.hooks()


# With the real package


@pytest.fixture
def sdk() -> Any:
    need(importlib.util.find_spec("claude_agent_sdk"), "claude-agent-sdk (uv sync --group agents)")
    return importlib.import_module("claude_agent_sdk")


def test_every_tool_is_matched_and_failures_block(sdk):
    found = agent_sdk.hooks()
    assert sorted(found) == ["PostToolUse", "PreToolUse"]
    for (matcher,) in found.values():
        assert isinstance(matcher, sdk.HookMatcher)
        assert (matcher.matcher, matcher.on_failure) == (None, "block")
        assert matcher.timeout > agent_sdk._ANSWER_WITHIN_S


@pytest.mark.parametrize(("word", "kind"), [("allow", "allow"), ("deny", "deny"), ("ask", "deny")])
def test_can_use_tool_answers_in_the_types_of_the_sdk(sdk, word, kind):
    decide = agent_sdk.can_use_tool(dangerously_outside=True)
    context = sdk.ToolPermissionContext(tool_use_id="toolu_9")
    found = anyio.run(decide, "Bash", {"command": f"ls #{word}"}, context)
    assert found.behavior == kind
    assert isinstance(found, sdk.PermissionResultAllow | sdk.PermissionResultDeny)
    calls = [r["body"]["call"] for r in audit_records() if r["interface"] == "hook"]
    assert calls == ["toolu_9"]


async def _drive(sdk: Any, model: FakeModel, project: Path, **options: Any) -> None:
    async for _ in sdk.query(
        prompt="go on",
        options=sdk.ClaudeAgentOptions(
            cwd=str(project),
            cli_path=claude(),
            env=environment(model, project),
            setting_sources=[],
            **options,
        ),
    ):
        pass


@pytest.mark.slow
@pytest.mark.xdist_group("claude-code")
@pytest.mark.parametrize(
    "mode", [pytest.param("default", marks=pytest.mark.long), "bypassPermissions"]
)
def test_in_a_real_agent_the_callbacks_decide(sdk, tmp_path, monkeypatch, mode):
    monkeypatch.setenv("IS_SANDBOX", "1")
    tools = [
        ("Bash", {"command": "touch denied '#deny'"}),
        ("Bash", {"command": "touch allowed; echo SECRET '#allow'"}),
        ("Bash", {"command": "touch broken '#bug'"}),
    ]
    with fake_model(*tools) as model:
        options = {"hooks": agent_sdk.hooks(), "permission_mode": mode}
        anyio.run(lambda: _drive(sdk, model, tmp_path, **options))
        assert "[redacted]" in model.text
        assert "SECRET" not in model.text
    there = sorted(path.name for path in tmp_path.iterdir() if path.is_file() and path.suffix == "")
    assert [name for name in there if name in {"denied", "allowed", "broken"}] == ["allowed"]


@pytest.mark.slow
@pytest.mark.requirement("ISO-4", "POL-8")
@pytest.mark.xdist_group("claude-code")
def test_what_a_person_says_yes_to_is_the_command_that_runs_inside(sdk, tmp_path, monkeypatch):
    monkeypatch.setenv("IS_SANDBOX", "1")
    project = tmp_path / "project"
    project.mkdir()
    shown: list[str] = []

    async def yes(_tool: str, given: dict[str, Any], _context: Any) -> Any:
        shown.append(given["command"])
        return sdk.PermissionResultAllow(updated_input=given)

    async def talk(model: FakeModel) -> None:
        options = sdk.ClaudeAgentOptions(
            cwd=str(project),
            cli_path=claude(),
            env=environment(model, tmp_path),
            setting_sources=[],
            hooks=agent_sdk.hooks(project=str(project)),
            can_use_tool=yes,
        )
        async with sdk.ClaudeSDKClient(options=options) as client:
            await client.query("go on")
            async for _ in client.receive_response():
                pass

    command = "echo \"inside=$CELLWALL\" '#ask' > where"
    with fake_model(("Bash", {"command": command})) as model:
        anyio.run(talk, model)
    (line,) = shown
    assert shlex.split(line)[-3:] == ["bash", "-c", command]
    assert (project / "where").read_text() == "inside=1 #ask\n"

"""The callbacks over the control protocol of the real claude-agent-sdk, with Claude Code's side scripted."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import pytest

from cellwall.interfaces import agent_sdk
from cellwall.runtime import wiring
from cellwall.runtime.app import App
from conftest import need
from interfaces.hook_double import ASKED, doubled


@pytest.fixture(autouse=True)
def house(state_home: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    found = doubled(wiring.open_app())
    monkeypatch.setattr(agent_sdk, "shared_app", lambda *_: found)
    yield found
    found.close()


@pytest.fixture
def sdk() -> Any:
    need(importlib.util.find_spec("claude_agent_sdk"), "claude-agent-sdk (uv sync --group agents)")
    return importlib.import_module("claude_agent_sdk")


class ClaudeCode:
    """What Claude Code sends and reads, as a transport of the SDK: all requests at once."""

    def __init__(self, *requests: dict[str, Any], knows_failures: bool = True) -> None:
        self.requests = requests
        self.knows_failures = knows_failures
        self.matchers: dict[str, Any] = {}
        self.answers: dict[str, dict[str, Any]] = {}
        self._send, self._receive = anyio.create_memory_object_stream[dict[str, Any]](64)

    async def connect(self) -> None:
        pass

    async def write(self, data: str) -> None:
        message = json.loads(data)
        if message["type"] == "control_request":
            assert message["request"]["subtype"] == "initialize"
            self.matchers = message["request"]["hooks"]
            answer = {"hook_on_failure_supported": self.knows_failures}
            response = {"subtype": "success", "request_id": message["request_id"]}
            await self._send.send(
                {"type": "control_response", "response": {**response, "response": answer}}
            )
            for number, request in enumerate(self.requests):
                given = {**request}
                if "event" in given:
                    (matcher,) = self.matchers[given.pop("event")]
                    (given["callback_id"],) = matcher["hookCallbackIds"]
                await self._send.send(
                    {"type": "control_request", "request_id": str(number), "request": given}
                )
        elif message["type"] == "control_response":
            self.answers[message["response"]["request_id"]] = message["response"]
            if len(self.answers) == len(self.requests):
                self._send.close()

    async def read_messages(self) -> AsyncIterator[dict[str, Any]]:
        async for message in self._receive:
            yield message

    async def close(self) -> None:
        self._send.close()
        self._receive.close()

    def is_ready(self) -> bool:
        return True

    async def end_input(self) -> None:
        pass


def drive(sdk: Any, code: ClaudeCode, **options: Any) -> dict[str, dict[str, Any]]:
    """The answers by the numbers of the requests."""

    async def talk() -> None:
        with anyio.fail_after(60):
            client = sdk.ClaudeSDKClient(
                options=sdk.ClaudeAgentOptions(
                    hooks=agent_sdk.hooks(dangerously_outside=True), **options
                ),
                transport=code,
            )
            async with client:
                async for _ in client.receive_messages():
                    pass

    anyio.run(talk)
    return code.answers


def hook(command: str, event: str = "PreToolUse", **changes: Any) -> dict[str, Any]:
    told = {**ASKED, "tool_input": {"command": command}, "hook_event_name": event, **changes}
    return {"subtype": "hook_callback", "event": event, "input": told, "tool_use_id": "toolu_1"}


@pytest.mark.requirement("INT-1")
def test_each_call_is_answered_with_its_own_verdict(sdk: Any) -> None:
    words = ["allow", "deny", "ask", "bug", "allow"]
    code = ClaudeCode(*(hook(f"ls #{word}") for word in words))
    answers = drive(sdk, code)
    assert {each["subtype"] for each in answers.values()} == {"success"}
    said = [answers[str(number)]["response"]["hookSpecificOutput"] for number in range(len(words))]
    assert [each["permissionDecision"] for each in said] == [
        "allow",
        "deny",
        "ask",
        "deny",
        "allow",
    ]
    assert {each["hookEventName"] for each in said} == {"PreToolUse"}
    for (matcher,) in code.matchers.values():
        assert (matcher.get("matcher"), matcher["onFailure"]) == (None, "block")


@pytest.mark.requirement("INT-1")
def test_results_come_back_redacted_and_a_swapped_event_is_refused(sdk: Any) -> None:
    shown = {"tool_response": {"stdout": "a SECRET"}}
    swapped = hook("ls #allow", "PreToolUse") | {"event": "PostToolUse"}
    answers = drive(sdk, ClaudeCode(hook("ls", "PostToolUse", **shown), swapped))
    output = answers["0"]["response"]["hookSpecificOutput"]
    assert output["updatedToolOutput"] == {"stdout": "a [redacted]"}
    assert answers["1"]["response"]["decision"] == "block"


@pytest.mark.requirement("INT-1")
def test_permission_requests_are_denied_where_a_person_would_be_asked(sdk: Any) -> None:
    requests = [
        {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": f"ls #{word}"}}
        for word in ("allow", "deny", "ask", "bug")
    ]
    decide = agent_sdk.can_use_tool(dangerously_outside=True)
    answers = drive(sdk, ClaudeCode(*requests), can_use_tool=decide)
    said = [answers[str(number)]["response"]["behavior"] for number in range(4)]
    assert said == ["allow", "deny", "deny", "deny"]


@pytest.mark.requirement("INT-1")
def test_an_agent_that_would_go_on_after_a_failed_callback_is_not_driven(sdk: Any) -> None:
    with pytest.raises(Exception, match="on_failure"):
        drive(sdk, ClaudeCode(hook("ls #allow"), knows_failures=False))

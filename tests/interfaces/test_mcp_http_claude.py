"""Claude Code and claude-agent-sdk as clients of `/mcp`, with a bearer token and a scripted model.

The model asks for tools one after the other; what is asserted is what it was told, and what was recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from interfaces.claude_code import claude, drive, environment
from interfaces.fake_model import FakeModel, fake_model
from interfaces.mcp_service import BOSS, McpService, serving

pytestmark = [
    pytest.mark.slow,
    pytest.mark.only_on("warm", reason="the service makes its own cells"),
    pytest.mark.xdist_group("claude-code"),
    pytest.mark.requirement("INT-1"),
]
POLICY = """[permissions]
allow = ["Bash(echo *)", "Code", "Read"]
ask = ["Bash(touch *)"]
deny = ["Bash(cp *)"]
"""
CALLS = (
    ("run_code", {"code": "print(20 + 1)"}),
    ("run_command", {"command": "echo h''i"}),
    ("run_command", {"command": "cp a b"}),
    ("run_command", {"command": "touch asked"}),
    ("list_files", {}),
)
ALLOWED = sorted({f"mcp__cellwall__{name}" for name, _ in CALLS})


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpService]:
    home = tmp_path_factory.mktemp("mcp-claude")
    (home / "policy.toml").write_text(POLICY)
    with serving(home, f'[policy]\nfiles = ["{home / "policy.toml"}"]\n') as found:
        yield found


def server(service: McpService, token: str) -> dict[str, dict[str, Any]]:
    """The entry of a configuration, as the guide has it."""
    headers = {"Authorization": f"Bearer {token}"}
    return {"cellwall": {"type": "http", "url": service.url, "headers": headers}}


def scripted() -> Any:
    return fake_model(*((f"mcp__cellwall__{name}", given) for name, given in CALLS))


def told(model: FakeModel) -> list[str]:
    assert len(model.results) == len(CALLS), model.text
    return [json.dumps(each) for each in model.results]


def check_results(texts: list[str], *, has_asked: bool) -> None:
    code, echo, denied, asked, files = texts
    assert "21" in code
    assert "hi" in echo
    assert "Bash(cp *)" in denied
    assert ("[CW-DENIED]" in asked) is not has_asked, asked
    assert ("asked" in files) is has_asked, files


def answering(place: Path, action: str) -> str:
    """Settings with a hook that keeps the question and answers it for the person."""
    answer: dict[str, Any] = {"hookEventName": "Elicitation", "action": action}
    if action == "accept":
        answer["content"] = {"answer": "allow once"}
    (place / "answer.json").write_text(json.dumps({"hookSpecificOutput": answer}))
    command = f"cat > {place}/question.json; cat {place}/answer.json"
    hook = {"hooks": [{"type": "command", "command": command}]}
    return json.dumps({"hooks": {"Elicitation": [hook]}})


def test_claude_code_uses_the_tools_and_a_question_that_nobody_answers_denies(
    service: McpService, tmp_path: Path
) -> None:
    config = json.dumps({"mcpServers": server(service, service.token("ann")[0])})
    allowed = ",".join(ALLOWED)
    with scripted() as model:
        words = ("--mcp-config", config, "--strict-mcp-config", "--allowedTools", allowed)
        drive(model, tmp_path, tmp_path, *words)
        check_results(told(model), has_asked=False)


@pytest.mark.parametrize("action", ["accept", "decline"])
def test_the_agent_sdk_uses_the_tools_and_its_answer_to_a_question_counts(
    service: McpService, tmp_path: Path, action: str
) -> None:
    claude()
    import claude_agent_sdk as sdk  # noqa: PLC0415  # only where it is installed

    async def talk(model: FakeModel) -> None:
        options = sdk.ClaudeAgentOptions(
            cwd=str(tmp_path),
            cli_path=claude(),
            env=environment(model, tmp_path),
            setting_sources=[],
            settings=answering(tmp_path, action),
            mcp_servers=server(service, service.token("ann")[0]),  # type: ignore[arg-type]  # a plain dict
            allowed_tools=ALLOWED,
        )
        async for _ in sdk.query(prompt="go on", options=options):
            pass

    with scripted() as model:
        anyio.run(talk, model)
        check_results(told(model), has_asked=action == "accept")
    asked = json.loads((tmp_path / "question.json").read_text())
    assert "| touch asked" in asked["message"]


def test_with_a_token_that_has_ended_there_are_no_tools(
    service: McpService, tmp_path: Path
) -> None:
    token, token_id = service.token("gone")
    directory = service.accounts.directory
    service.run(lambda: directory.revoke_token(token_id, by=BOSS))
    config = json.dumps({"mcpServers": server(service, token)})
    with scripted() as model:
        drive(model, tmp_path, tmp_path, "--mcp-config", config, "--strict-mcp-config")
        assert "No such tool" in told(model)[0]

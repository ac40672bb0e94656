"""What coding agents type at work is understood: by the policy of `cellwall policy init`, and where
everything is allowed (agent_work.toml)."""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.calls import ToolCall
from cellwall.policy.engine import Policy
from cellwall.policy.policy_file import parse_policy
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import Layer, Source
from cellwall.policy.starter import ProjectFiles, start

WORK = tomllib.loads(Path(__file__).with_name("agent_work.toml").read_text("utf-8"))
FILES = {
    ".ssh/id_rsa": "", ".ssh/id_ed25519": "", "project/.env": "", "project/.env.example": "",
    "project/src/app.py": "", "project/src/client.py": "", "project/tests/test_app.py": "",
    "project/package.json": '{"scripts": {"build": "", "dev": "", "lint": "", "test": "", "start": ""}}',
    "project/package-lock.json": "{}", "project/tsconfig.json": "{}", "project/pyproject.toml": "",
    "project/uv.lock": "", "project/Makefile": "test:\n\tx\nbuild:\n\tx\nclean:\n\tx\n",
    "project/Dockerfile": "", "project/docker-compose.yml": "", "project/Cargo.toml": "",
    "project/go.mod": "", "project/README.md": "", "project/a.txt": "", "project/b.txt": "",
    "project/.git/config": "", "project/.github/workflows/ci.yml": "", "project/pom.xml": "",
    "project/CMakeLists.txt": "", "project/Gemfile": "", "project/build.gradle": "",
    "project/certs/a.pem": "", "project/config/a.yml": "", "project/data.json": "",
}  # fmt: skip
PERMISSIVE = ("Bash(*)", "Read(//**)", "Write(//**)", "WebFetch(*)")


@pytest.fixture(scope="module")
def home() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="cellwall-", dir="/var/tmp") as folder:
        for name, text in FILES.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        yield folder


def judge(policy: Policy, command: str, home: str) -> Decision:
    return policy.check(ToolCall("Bash", {"command": command}, f"{home}/project", home))


@pytest.fixture(scope="module")
def starter(home: str) -> Policy:
    project = Path(home, "project")
    names = frozenset(each.name for each in project.iterdir())
    texts = {name: (project / name).read_text() for name in ("package.json", "Makefile")}
    text, name = start(ProjectFiles(names, texts)).text, "policy.toml"
    rules = parse_policy(text, file=name, name=name, layer=Layer.PROJECT, folder=str(project)).rules
    return Policy.of(rules)


def permissive() -> Policy:
    source = Source("permissive", folder="/")
    return Policy(
        parse_rule(text, verdict=Verdict.ALLOW, source=source, layer=Layer.SESSION)
        for text in PERMISSIVE
    )


def test_the_set_is_large_and_no_command_stands_twice():
    commands = [command for group in WORK.values() for command in group]
    assert len(commands) >= 500
    assert len(set(commands)) == len(commands)


@pytest.mark.slow
@pytest.mark.requirement("POL-14")
def test_the_starter_policy_says_of_each_command_what_is_expected(home, starter):
    expected = {"allow": "allow", "ask": "ask", "refuse": "deny", "deny": "deny"}
    wrong = [
        (group, found.verdict.word, command, found.reason)
        for group, commands in WORK.items()
        for command in commands
        if (found := judge(starter, command, home)).verdict.word != expected[group]
    ]
    assert wrong == []


@pytest.mark.slow
@pytest.mark.requirement("POL-14")
def test_where_everything_is_allowed_no_ordinary_command_is_denied(home):
    policy = permissive()
    harmless = [*WORK["allow"], *WORK["ask"]]
    denied = [each for each in harmless if judge(policy, each, home).verdict is Verdict.DENY]
    assert denied == []
    passed = [each for each in WORK["deny"] if judge(policy, each, home).verdict is Verdict.ALLOW]
    assert passed == []


@pytest.mark.requirement("POL-5", "POL-14")
def test_each_refusal_says_what_to_write_instead(home, starter):
    for command in WORK["refuse"]:
        reason = judge(starter, command, home).reason
        assert any(word in reason for word in ("; write", "; leave", "; remove")), (command, reason)
        assert not reason.startswith("deletes"), (command, reason)

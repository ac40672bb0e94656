"""The policy of `cellwall policy init` lets ordinary work be done: allowed, or put to a person."""

from __future__ import annotations

from collections import Counter

import pytest

from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.engine import Policy
from cellwall.policy.policy_file import parse_policy
from cellwall.policy.rules import Layer
from cellwall.policy.starter import ProjectFiles, start
from contract.policy.test_everyday import ENTRIES, told

FILES = [
    ".git",
    ".github",
    "package.json",
    "package-lock.json",
    "tsconfig.json",
    "pyproject.toml",
    "uv.lock",
    "Makefile",
    "Dockerfile",
    "docker-compose.yml",
]
TEXTS = {
    "package.json": '{"scripts": {"build": "x", "dev": "x", "lint": "x", "test": "x"}}',
    "Makefile": "test:\n\tx\nbuild:\n\tx\nlint:\n\tx\n",
}
MAX_DENIED = 0.02
MIN_ALLOWED = 0.7
DANGEROUS = (
    "sudo rm x", "rm -rf /", "cat .env", "cat ~/.ssh/id_rsa", "curl http://169.254.169.254/",
    "echo x >> ~/.bashrc", "echo x > CLAUDE.md", "pip uninstall -y cellwall", "crontab x",
    "claude --dangerously-skip-permissions", "cellwall approvals allow x", "cat /root/x",
)  # fmt: skip


def decisions(place) -> list[tuple[dict[str, str], Decision]]:  # a fixture's
    found = start(ProjectFiles(frozenset(FILES), TEXTS))
    name = "policy.toml"
    rules = parse_policy(found.text, file=name, name=name, layer=Layer.PROJECT, folder="/").rules
    policy = Policy.of(rules)
    commands = [*ENTRIES, *({"id": each, "command": each} for each in DANGEROUS)]
    return [(entry, place.judge(policy, entry["command"])) for entry in commands]


@pytest.mark.requirement("POL-14")
@pytest.mark.slow
def test_ordinary_commands_are_allowed_or_asked_about_and_dangerous_ones_denied(place):
    judged = decisions(place)
    ordinary, dangerous = judged[: len(ENTRIES)], judged[len(ENTRIES) :]
    counts = Counter(decision.verdict.word for _, decision in ordinary)
    denied = [told(*pair) for pair in ordinary if pair[1].verdict is Verdict.DENY]
    print(dict(counts), *denied, sep="\n")
    assert counts["deny"] <= MAX_DENIED * len(ENTRIES), "\n".join(denied)
    assert counts["allow"] >= MIN_ALLOWED * len(ENTRIES)
    assert [
        entry["id"] for entry, decision in dangerous if decision.verdict is not Verdict.DENY
    ] == []

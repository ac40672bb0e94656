"""The project that the commands of the data are judged in."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cellwall.core.verdict import Decision
from cellwall.policy.calls import ToolCall
from cellwall.policy.engine import Policy

HERE = Path(__file__).parent
FILES = {
    ".ssh/id_rsa": "key",
    ".aws/credentials": "key",
    "project/.env": "TOKEN=secret",
    "project/secrets/key": "secret",
    "project/lib/secrets/token": "secret",
    "project/src/app.py": "print(1)\n",
    "project/src/client.py": "print(2)\n",
    "project/src/secret_santa.py": "print(3)\n",
    "project/tests/test_app.py": "def test_app(): pass\n",
    "project/package.json": '{"version": "1.0.0"}\n',
    "project/README.md": "# Project\n",
    "project/Makefile": "test:\n",
    "project/a.txt": "a\n",
    "project/--checkpoint-action=exec=id": "",
    "project/.git/hooks/pre-commit": "",
    "project/.git/config": "",
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the data says /home/dev, it means `home`."""

    home: str

    def judge(self, policy: Policy, command: str) -> Decision:
        text = command.replace("/home/dev", self.home)
        project = f"{self.home}/project"
        return policy.check(ToolCall("Bash", {"command": text}, cwd=project, home=self.home))


@pytest.fixture(autouse=True)
def state_home() -> None:
    """In place of the one that all tests share: a decision keeps nothing, and there are many."""


@pytest.fixture(scope="session")
def place() -> Iterator[Place]:
    """Not under /tmp, where the ordinary policy lets everything be written."""
    with tempfile.TemporaryDirectory(prefix="cellwall-", dir="/var/tmp") as folder:
        for name, text in FILES.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        yield Place(folder)


@pytest.fixture(scope="session")
def ordinary() -> Policy:
    return Policy.load(HERE / "ordinary.toml")

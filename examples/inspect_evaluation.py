"""Inspect evaluation: each sample of a task runs in a Cellwall sandbox of its own.

    pip install 'cellwall[inspect]'
    python examples/inspect_evaluation.py

The model is Inspect's own mock with scripted answers. What it shows:

- `sandbox=("cellwall", …)` is all that a task needs; tools of Inspect act in the sandbox;
- a policy file of the evaluation decides what agents may run. The last sample asks for a page of
  the web, and the agent gets the denial with its rule as the tool's result;
- files of one sample do not exist for the next.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash
from inspect_ai.util import SandboxEnvironmentSpec

from cellwall.integrations.inspect import CellwallSandboxConfig

POLICY = """[permissions]
allow = ["Bash(*)", "Read(*)", "Write(*)"]
deny = ["Bash(curl *)"]
"""

# What the scripted model runs for each question.
COMMANDS = {
    "How many prime numbers are below 100?": "touch seen; python3 -c "
    "'print(sum(all(n % d for d in range(2, n)) for n in range(2, 100)))'",
    "How many files did others leave here?": "ls | wc -l",
    "What does example.com say?": "curl -s https://example.com/",
}


def answer(messages: list[Any], *_: Any) -> ModelOutput:
    """A scripted model: one command, then its output is the answer."""
    if messages[-1].role == "tool":
        said = messages[-1].error.message if messages[-1].error else messages[-1].text
        output = ModelOutput.from_content("mockllm", f"The answer is {said.strip()}")
    else:
        command = COMMANDS[messages[-1].text]
        output = ModelOutput.for_tool_call("mockllm", "bash", {"command": command})
    output.usage = ModelUsage()  # else Inspect downloads a tokenizer to count
    return output


def main() -> None:
    """Evaluate, and print each sample with its score."""
    with tempfile.TemporaryDirectory() as folder:
        policy = Path(folder, "policy.toml")
        policy.write_text(POLICY)
        policy.chmod(0o600)  # a file that others can write is refused
        task = Task(
            dataset=[
                Sample(question, target=target)
                for question, target in zip(COMMANDS, ("25", "0", "CW-DENIED"), strict=True)
            ],
            solver=[use_tools(bash(timeout=10)), generate()],
            scorer=includes(),
            sandbox=SandboxEnvironmentSpec("cellwall", CellwallSandboxConfig(policy=str(policy))),
        )
        os.environ["INSPECT_DISPLAY"] = "none"
        model = get_model("mockllm/model", custom_outputs=answer)
        (log,) = evaluate(task, model=model, max_samples=1, log_dir=folder)
        for sample in log.samples:
            print(f"{sample.input}\n  {sample.output.completion.splitlines()[0]}")
            print(f"  score: {sample.scores['includes'].value}")
        print("accuracy:", log.results.scores[0].metrics["accuracy"].value)


if __name__ == "__main__":
    main()

"""CrewAI has no conformance suite for tools: an agent with a scripted model, packages and refusals."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from crewai import BaseLLM

from cellwall.integrations import crewai
from cellwall.integrations.crewai import CellwallCodeTool


class ScriptedModel(BaseLLM):
    """Uses the tool once, then answers with what the tool said."""

    def __init__(self, code):
        super().__init__(model="scripted")
        self.code = code
        self.seen = []

    def call(self, messages, *_, **__):
        text = str(messages[-1]["content"])
        self.seen.append(text)
        if "Observation:" in text:
            return f"Thought: done\nFinal Answer: {text.rpartition('Observation:')[2].strip()}"
        return f"Thought: count\nAction: run_python\nAction Input: {self.code}"

    def supports_function_calling(self):
        return False


def test_the_example_of_the_guide_works_in_a_sandbox(run_example, primes, monkeypatch):
    monkeypatch.setenv("CREWAI_DISABLE_TELEMETRY", "true")
    made = run_example("CrewAI", model=ScriptedModel(json.dumps({"code": primes})))
    assert made["answer"].raw.startswith("25")


def test_variables_stay_and_the_last_value_is_shown():
    with CellwallCodeTool() as tool:
        assert tool.run(code="x = 20\nprint('set')") == "set"
        assert tool.run(code="x + 1") == "21"
        assert "ZeroDivisionError" in tool.run(code="1/0")


@pytest.mark.usefixtures("index")
def test_packages_are_installed_by_cellwall():
    with CellwallCodeTool(sandbox={"timeout": 60}) as tool:
        assert tool.run(code="import tiny; tiny.ANSWER", libraries_used=["tiny"]) == "42"
        assert "no-such-package" in tool.run(code="1", libraries_used=["no-such-package"])
        assert "CW-BAD-PACKAGE" in tool.run(code="1", libraries_used=["--index-url=x"])


def test_a_refusal_and_a_limit_are_text_with_the_reason(tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text('[permissions]\ndeny = ["Code(python)"]\n', "utf-8")
    with CellwallCodeTool(sandbox={"policy": str(policy)}) as tool:
        assert "CW-DENIED" in tool.run(code="print(1)")
    with CellwallCodeTool(sandbox={"timeout": 1}) as tool:
        assert "wall limit" in tool.run(code="import time; time.sleep(60)")


def test_threads_that_share_a_tool_share_a_sandbox(watch_sandboxes, is_live):
    made = watch_sandboxes(crewai)
    with CellwallCodeTool() as tool, ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda n: tool.run(code=f"x{n} = {n}"), range(3)))
        assert tool.run(code="x0 + x1 + x2") == "3"
        assert [is_live(each) for each in made] == [True]
    assert not is_live(made[0])

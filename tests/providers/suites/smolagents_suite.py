"""smolagents has no conformance suite: a CodeAgent with a scripted model, tools and packages."""

from __future__ import annotations

import pytest
from smolagents import CodeAgent, Model, tool
from smolagents.models import ChatMessage, MessageRole
from smolagents.utils import AgentError

from cellwall.integrations import smolagents
from cellwall.integrations.smolagents import CellwallExecutor


class ScriptedModel(Model):
    """Answers with one block of code after the other, and keeps what it was shown."""

    def __init__(self, *blocks):
        super().__init__(model_id="scripted")
        self.blocks = list(blocks)
        self.seen = []

    def generate(self, messages, **_):
        self.seen.append(str(messages[-1].content))
        code = self.blocks.pop(0)
        return ChatMessage(
            role=MessageRole.ASSISTANT, content=f"Thought: next\n<code>\n{code}\n</code>"
        )


@pytest.fixture
def executor():
    executor = CellwallExecutor(timeout=60)
    yield executor
    executor.cleanup()


@tool
def double(number: int) -> int:
    """Twice a number.

    Args:
        number: the number
    """
    return 2 * number


def test_the_example_of_the_guide_works_in_a_sandbox(run_example, primes):
    model = ScriptedModel(primes, "final_answer(25)")
    assert run_example("smolagents", model=model)["answer"] == 25
    assert "25" in model.seen[1]


def test_variables_stay_and_tools_run_inside(executor):
    model = ScriptedModel("import os\nn = double(21)\nprint(os.getcwd())", "final_answer({'n': n})")
    with CodeAgent(tools=[double], model=model, executor=executor) as agent:
        assert agent.run("double it") == {"n": 42}
    assert "/workspace" in model.seen[1]


def test_a_variable_of_the_caller_is_known_inside(executor):
    executor.send_variables({"rows": [1, 2, (3, 4)]})
    assert executor("rows[2][1]").output == 4


def test_an_error_is_shown_to_the_model_and_nothing_of_the_host(executor):
    model = ScriptedModel("1/0", "final_answer('seen')")
    with CodeAgent(tools=[], model=model, executor=executor) as agent:
        assert agent.run("divide") == "seen"
    assert "ZeroDivisionError" in model.seen[1]
    assert "site-packages" not in model.seen[1]


def test_a_pickled_answer_is_refused(executor):
    executor("class FinalAnswerException(Exception): pass")
    with pytest.raises(Exception, match="allow_pickle=False"):
        executor("raise FinalAnswerException('pickle:gASVAAAA')")


@pytest.mark.usefixtures("index")
def test_pip_install_goes_through_cellwalls_own_installation():
    executor = CellwallExecutor(timeout=60)
    try:
        with pytest.raises(AgentError, match="No module named 'tiny'"):
            executor("import tiny")
        assert executor("!pip install tiny\nimport tiny\ntiny.ANSWER").output == 42
        with pytest.raises(AgentError):  # no option of pip leads to another index
            executor("!pip install --index-url https://example.com/simple tiny")
        with pytest.raises(AgentError, match="no-such-package"):
            executor("!pip install no-such-package")
    finally:
        executor.cleanup()


def test_denied_code_and_a_limit_are_errors_with_the_reason(tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text('[permissions]\nallow = ["Bash(*)"]\ndeny = ["Code(python)"]\n', "utf-8")
    denied = CellwallExecutor(policy=str(policy))
    short = CellwallExecutor(timeout=1)
    try:
        with pytest.raises(AgentError, match="CW-DENIED"):
            denied("print(1)")
        with pytest.raises(AgentError, match="wall limit"):
            short("import time; time.sleep(60)")
    finally:
        denied.cleanup()
        short.cleanup()


def test_an_executor_that_cannot_be_made_leaves_no_sandbox(watch_sandboxes, is_live):
    made = watch_sandboxes(smolagents)
    with pytest.raises(AgentError):
        CellwallExecutor(additional_imports=["--index-url=https://example.com"])
    assert [is_live(each) for each in made] == [False]


def test_code_reaches_the_sandbox_character_by_character(executor):
    text = "a\x0cb\u2028c\x85d"
    assert executor(f"len({text!r}), '{text}'").output == [len(text), text]

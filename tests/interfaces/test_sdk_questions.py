"""Questions of the policy that the embedding program answers (POL-8)."""

from __future__ import annotations

import pytest

import cellwall

POLICY = """
[permissions]
ask = ["Bash(echo asked)"]
allow = ["Bash(echo *)"]
"""


@pytest.fixture
def policy(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(POLICY)
    path.chmod(0o600)
    return str(path)


@pytest.fixture
def config(tmp_path):
    """Without the queue: a question that the function does not answer is denied at once."""
    path = tmp_path / "cellwall.toml"
    path.write_text('[approvals]\nchannels = ["callback"]\n')
    return str(path)


async def approve(question):
    return "once"


def fail(question):
    raise RuntimeError(question.shown)


@pytest.mark.requirement("POL-8")
def test_function_of_the_program_answers(policy, config):
    seen = []

    def deny(question):
        seen.append((question.tool, question.text))
        return "deny"

    answers = (approve, deny, "yes", True, None, fail)
    found = []
    for answer in answers:
        function = answer if callable(answer) else (lambda question, reply=answer: reply)
        run = cellwall.run_command(
            ["echo", "asked"], policy=policy, config=config, on_question=function
        )
        found.append(str(run.status))
    assert found == ["ok", *["denied"] * 5]
    assert seen == [("Bash", "echo asked")]
    unasked = cellwall.run_command(["echo", "asked"], policy=policy, config=config)
    assert str(unasked.status) == "denied"


@pytest.mark.requirement("POL-8")
def test_answer_for_a_session_holds_in_the_sandbox(policy):
    asked = []

    def approve_session(question):
        asked.append(question.id)
        return "session"

    with cellwall.Sandbox.create(policy=policy, on_question=approve_session) as sbx:
        outs = [sbx.commands.run(["echo", "asked"]).stdout for _ in range(2)]
    assert (outs, len(asked)) == (["asked\n"] * 2, 1)


def test_function_cannot_answer_in_the_supervisor():
    with pytest.raises(cellwall.BadInput) as caught:
        cellwall.Sandbox.create(keep_alive=10, on_question=approve)
    assert caught.value.code == "CW-NO-REMOTE-TOOLS"

"""ADK has no conformance suite for code executors: an LlmAgent with a scripted model, and the
contract of `BaseCodeExecutor`."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor

import pytest
from google.adk.code_executors.code_execution_utils import CodeExecutionInput, File
from google.adk.models import BaseLlm, LlmResponse
from google.genai import types

from cellwall.integrations import adk
from cellwall.integrations.adk import CellwallCodeExecutor

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class ScriptedModel(BaseLlm):
    """Answers with a block of code, then with the output of that block."""

    program: str

    async def generate_content_async(self, request, stream=False):
        last = request.contents[-1].parts[-1]
        said = last.text or (last.code_execution_result and last.code_execution_result.output) or ""
        text = f"```python\n{self.program}\n```"
        if "25" in said:
            text = "There are 25."
        content = types.Content(role="model", parts=[types.Part(text=text)])
        yield LlmResponse(content=content, partial=False)


def run(executor, code, session=None, *files):
    request = CodeExecutionInput(code=code, execution_id=session, input_files=list(files))
    return executor.execute_code(None, request)


async def test_the_example_of_the_guide_works_in_a_sandbox(run_example, primes):
    model = ScriptedModel(model="scripted", program=primes)
    made = run_example("Google ADK", model=model)
    assert (await made["main"]()).endswith("There are 25.")


def test_output_value_and_exit_code_are_reported():
    done = run(CellwallCodeExecutor(), "print('out'); 20 + 1")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n21\n", "", 0)
    failed = run(CellwallCodeExecutor(), "1/0")
    assert failed.exit_code == 1
    assert "ZeroDivisionError" in failed.stderr


def test_state_stays_in_one_session_alone():
    executor = CellwallCodeExecutor(stateful=True)
    try:
        run(executor, "x = 1", "a")
        assert run(executor, "x", "a").stdout == "1\n"
        assert "NameError" in run(executor, "x", "b").stderr
    finally:
        executor.close()
    assert "NameError" in run(CellwallCodeExecutor(), "x").stderr


def test_files_go_in_and_new_ones_come_out():
    table = File("t.csv", base64.b64encode(b"a,b\n1,2\n").decode(), "text/csv")
    code = "rows = open('t.csv').read()\nopen('out.txt', 'w').write(rows.upper())"
    assert run(CellwallCodeExecutor(), code, None, table).output_files == []
    done = run(CellwallCodeExecutor(collect_files=True), code, None, table)
    assert done.output_files == [File("out.txt", b"A,B\n1,2\n", "text/plain")]


def test_a_refusal_and_a_limit_have_the_reason(tmp_path):
    policy = tmp_path / "policy.toml"
    policy.write_text('[permissions]\ndeny = ["Code(python)"]\n', "utf-8")
    denied = run(CellwallCodeExecutor(sandbox={"policy": str(policy)}), "print(1)")
    assert denied.exit_code == 125
    assert "CW-DENIED" in denied.stderr
    ended = run(CellwallCodeExecutor(timeout_seconds=1), "import time; time.sleep(60)")
    assert ended.exit_code == 124
    assert "wall limit" in ended.stderr


def test_threads_of_one_session_share_a_sandbox_and_leave_none_behind(watch_sandboxes, is_live):
    made = watch_sandboxes(adk)
    executor = CellwallCodeExecutor(stateful=True)
    with ThreadPoolExecutor(3) as threads:  # ADK runs code in threads
        done = list(threads.map(lambda n: run(executor, f"x{n} = {n}", "a"), range(3)))
    assert [each.exit_code for each in done] == [0, 0, 0]
    assert run(executor, "x0 + x1 + x2", "a").stdout == "3\n"
    assert [is_live(each) for each in made].count(True) == 1
    executor.close()
    assert not any(is_live(each) for each in made)


def test_a_file_for_all_sessions_of_the_user_is_not_collected():
    code = "for name in ('user:profile.txt', 'mine.txt'): open(name, 'w').write('x')"
    done = run(CellwallCodeExecutor(collect_files=True), code)
    assert [each.name for each in done.output_files] == ["mine.txt"]

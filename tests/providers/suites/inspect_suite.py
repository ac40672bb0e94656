"""Inspect AI's own conformance suite for sandboxes, and an evaluation with a scripted model."""

from __future__ import annotations

import os

import pytest
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.tool._sandbox_tools_utils.sandbox import resolve_root_access
from inspect_ai.util import OutputLimitExceededError, SandboxUserUnsupportedError
from inspect_ai.util._sandbox.self_check import *  # noqa: F403  # how the suite is used

from cellwall.integrations.inspect import CellwallSandboxConfig, CellwallSandboxEnvironment

pytestmark = pytest.mark.anyio

EXCEPTIONS = {"test_exec_as_user": "adds a user, for which root inside has no capability"}
PRIMES = "print(sum(all(n % d for d in range(2, n)) for n in range(2, 100)))"


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def two_users(tmp_path):
    """A sandbox with `root`, where the host can have one."""
    if os.geteuid() != 0:
        pytest.skip("an ordinary user maps one uid into a sandbox")
    file = tmp_path / "cellwall.toml"
    file.write_text('[sandbox]\nsecond_user = "allow"\n')
    return CellwallSandboxConfig(config=str(file), second_user=True)


@pytest.fixture
def config(request):
    if request.node.originalname in EXCEPTIONS:
        return request.getfixturevalue("two_users")
    return None


@pytest.fixture
async def sandbox_env(request, config):
    if reason := EXCEPTIONS.get(request.node.originalname):
        request.applymarker(pytest.mark.xfail(reason=reason, raises=AssertionError))
    made = await CellwallSandboxEnvironment.sample_init("suite", config, {})
    yield made["default"]
    await CellwallSandboxEnvironment.sample_cleanup("suite", config, made, interrupted=False)


class TestUsers:
    @pytest.fixture
    def config(self, two_users):
        return two_users

    async def test_programs_run_as_root_as_the_default_user_and_as_no_other(self, sandbox_env):
        for user, name in (("root", "root"), ("sandbox", "sandbox"), (None, "sandbox")):
            done = await sandbox_env.exec(["whoami"], user=user)
            assert (done.success, done.stdout) == (True, f"{name}\n")
        with pytest.raises(SandboxUserUnsupportedError, match="no user 'bob'"):
            await sandbox_env.exec(["whoami"], user="bob")

    async def test_inspect_finds_that_its_tools_cannot_run_as_root(self, sandbox_env):
        found = await resolve_root_access(sandbox_env)
        assert found.state == "unusable", found.reason


async def test_in_a_sandbox_of_one_user_root_is_unsupported(sandbox_env):
    with pytest.raises(SandboxUserUnsupportedError, match="no user 'root'"):
        await sandbox_env.exec(["whoami"], user="root")


class TestRefusals:
    @pytest.fixture
    def config(self, policy):
        return CellwallSandboxConfig(policy=policy, limits={"output_bytes": 1000})

    async def test_a_denied_command_is_a_permission_error_with_the_reason(self, sandbox_env):
        assert (await sandbox_env.exec(["echo", "allowed"])).stdout == "allowed\n"
        with pytest.raises(PermissionError, match="CW-DENIED"):
            await sandbox_env.exec(["curl", "https://example.com"])

    async def test_too_much_output_is_an_output_limit_error(self, sandbox_env):
        with pytest.raises(OutputLimitExceededError):
            await sandbox_env.exec(["head", "-c", "2000", "/dev/zero"])

    async def test_a_missing_program_is_a_failed_command(self, sandbox_env):
        done = await sandbox_env.exec(["no-such-program"])
        assert (done.success, done.returncode) == (False, 127)


def test_the_example_of_the_guide_evaluates_in_a_sandbox(run_example, monkeypatch, tmp_path):
    monkeypatch.setenv("INSPECT_LOG_DIR", str(tmp_path))
    monkeypatch.setenv("INSPECT_DISPLAY", "none")
    command = f"python3 -c '{PRIMES}'"

    def answer(messages, *_):
        if messages[-1].role == "tool":
            output = ModelOutput.from_content("mockllm", f"There are {messages[-1].text}")
        else:
            output = ModelOutput.for_tool_call("mockllm", "bash", {"command": command})
        output.usage = ModelUsage()  # else Inspect downloads a tokenizer to count
        return output

    made = run_example("Inspect AI", model=get_model("mockllm/model", custom_outputs=answer))
    log = made["log"]
    assert log.status == "success"
    (sample,) = log.samples
    assert [message.text.strip() for message in sample.messages if message.role == "tool"] == ["25"]
    assert log.results.scores[0].metrics["accuracy"].value == 1


async def test_a_configuration_with_options_can_be_the_sandbox_of_a_task():
    """Inspect looks sandboxes up by their configuration, which must be hashable for that."""
    made = [CellwallSandboxConfig(envs={"A": value}, limits={"processes": 20}) for value in "aab"]
    assert len({hash(each) for each in made}) == len(set(made)) == 2


async def test_a_file_of_the_system_that_cannot_be_read_whole_is_an_error(sandbox_env):
    assert "root" in await sandbox_env.read_file("/etc/passwd")
    with pytest.raises(OSError, match="error"):
        await sandbox_env.read_file("/proc/self/mem")


def test_the_example_of_the_cookbook_evaluates_in_sandboxes_of_its_own(example):
    shown = example("inspect_evaluation.py")
    assert "The answer is 25\n" in shown
    assert "The answer is 0\n" in shown  # the file of the first sample is not there
    assert "rule Bash(curl *)" in shown
    assert "accuracy: 1.0" in shown

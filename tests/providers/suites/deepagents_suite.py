"""LangChain's integration tests for sandboxes of deepagents, and an agent with a scripted model."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import SandboxIntegrationTests

from cellwall import Sandbox
from cellwall.integrations.deepagents import CellwallBackend

OTHER_GLOB = (
    "the suite expects relative paths and directories, deepagents gives absolute paths of files"
)
EXCEPTIONS = {
    "test_write_existing_file_fails": "the suite expects a refusal, deepagents documents that `write` overwrites",
    "test_glob": OTHER_GLOB,
    "test_glob_basic_pattern": OTHER_GLOB,
    "test_glob_with_directories": OTHER_GLOB,
    "test_glob_hidden_files_explicitly": OTHER_GLOB,
    "test_glob_with_character_class": OTHER_GLOB,
    "test_glob_with_question_mark": OTHER_GLOB,
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


class _Suite(SandboxIntegrationTests):
    pytestmark = pytest.mark.anyio

    @pytest.fixture(autouse=True)
    def exceptions(self, request):
        if reason := EXCEPTIONS.get(request.node.originalname):
            request.applymarker(pytest.mark.xfail(reason=reason, raises=AssertionError))


class TestSandbox(_Suite):
    @pytest.fixture(scope="class")
    def sandbox(self):
        with Sandbox.create() as sandbox:
            yield CellwallBackend(sandbox)


class OnTheHost(BaseSandbox):
    """Without any sandbox: what fails here is no matter of Cellwall."""

    id = "host"

    def execute(self, command, *, timeout=None):
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
        return ExecuteResponse(done.stdout + done.stderr, done.returncode)

    def upload_files(self, files):
        for path, content in files:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_bytes(content)
        return [FileUploadResponse(path) for path, _ in files]

    def download_files(self, paths):
        return [FileDownloadResponse(path, Path(path).read_bytes()) for path in paths]


class TestTheSameExceptionsWithoutCellwall(_Suite):
    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory):
        return tmp_path_factory.mktemp("host")

    @pytest.fixture(scope="class")
    def sandbox(self):
        return OnTheHost()

    @pytest.fixture
    def sandbox_test_root(self, request, folder):
        return str(folder / request.node.name)


for _name in dir(TestTheSameExceptionsWithoutCellwall):
    if _name.startswith("test_") and _name not in EXCEPTIONS:
        setattr(TestTheSameExceptionsWithoutCellwall, _name, None)


class ScriptedModel(GenericFakeChatModel):
    def bind_tools(self, tools, **_):
        return self


def test_a_denied_command_is_a_result_with_the_reason(policy):
    with Sandbox.create(policy=policy) as sandbox:
        backend = CellwallBackend(sandbox)
        assert backend.execute("echo allowed") == ExecuteResponse("allowed", 0)
        refused = backend.execute("curl https://example.com")
    assert refused.exit_code == 125
    assert "CW-DENIED" in refused.output


def test_rules_for_files_judge_the_tools_for_files(tmp_path):
    """By their paths, and not as scripts whose arguments are encoded."""
    file = tmp_path / "policy.toml"
    rules = 'allow = ["Bash(echo *)", "Read(*)", "Write(*)"]\ndeny = ["Read(key.txt)", "Write(key.txt)"]\n'
    file.write_text(f"[permissions]\n{rules}", "utf-8")
    with Sandbox.create(policy=str(file)) as sandbox:
        backend = CellwallBackend(sandbox)
        assert backend.write("/workspace/a.txt", "one\r\ntwo\r\n").error is None
        assert backend.read("/workspace/a.txt", 1).file_data["content"] == "two"
        assert backend.edit("/workspace/a.txt", "two", "2").occurrences == 1
        assert sandbox.files.read_bytes("a.txt") == b"one\r\n2\r\n"
        for refused in (
            backend.write("/workspace/key.txt", "x"),
            backend.read("/workspace/key.txt"),
            backend.edit("/workspace/key.txt", "a", "b"),
        ):
            assert "CW-DENIED" in refused.error


@pytest.mark.anyio
async def test_the_asynchronous_tools_are_judged_alike(policy):
    with Sandbox.create(policy=policy) as sandbox:
        backend = CellwallBackend(sandbox)
        assert (await backend.awrite("/workspace/a.txt", "one")).error is None
        assert (await backend.aread("/workspace/a.txt")).file_data["content"] == "one"
        assert (await backend.aedit("/workspace/a.txt", "one", "two")).occurrences == 1


def test_a_command_beyond_its_time_ends_with_the_reason():
    with Sandbox.create() as sandbox:
        ended = CellwallBackend(sandbox).execute("echo begun; sleep 60", timeout=1)
    assert ended.exit_code == 124
    assert ended.output == "begun\ncellwall: the run was ended by its wall limit"


def test_the_example_of_the_guide_works_in_a_sandbox(run_example):
    program = "print(sum(all(n % d for d in range(2, n)) for n in range(2, 100)))"
    calls = [
        {
            "name": "write_file",
            "args": {"file_path": "/workspace/p.py", "content": program},
            "id": "1",
        },
        {"name": "execute", "args": {"command": "python3 p.py"}, "id": "2"},
    ]
    replies = [AIMessage("", tool_calls=[call]) for call in calls] + [AIMessage("There are 25.")]
    made = run_example("LangChain deepagents", model=ScriptedModel(messages=iter(replies)))
    *_, written, _, counted, answer = made["answer"]["messages"]
    assert "/workspace/p.py" in written.content
    assert counted.content.startswith("25")
    assert answer.content == "There are 25."


def test_the_example_of_the_cookbook_shows_results_and_denials(example):
    shown = example("langchain_agent.py")
    assert "-> write_file /workspace/primes.py\n   Updated file /workspace/primes.py\n" in shown
    assert "-> execute python3 primes.py\n   25\n" in shown
    assert "(rule Read(//etc/shadow), built-in) [CW-DENIED]" in shown
    assert "(rule Bash(curl *), policy.toml:3) [CW-DENIED]" in shown
    assert shown.endswith("There are 25 prime numbers.\n")

"""Pydantic AI's conformance suite for workspaces, and an agent with a scripted model."""

from __future__ import annotations

import pytest
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.workspaces import WorkspaceOutputLimitError
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from cellwall.integrations.pydantic_ai import CellwallWorkspace

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class TestWorkspace(WorkspaceBackendSuite):
    @pytest.fixture
    async def backend(self):
        workspace = CellwallWorkspace()
        yield workspace
        await workspace.kill()

    @pytest.fixture
    def fresh_backend(self):
        return CellwallWorkspace

    @pytest.fixture
    def attach_backend(self):
        return lambda ref: CellwallWorkspace(ref=ref)

    @pytest.fixture
    def destroy_environment(self):
        return CellwallWorkspace.kill


async def test_a_denied_command_is_a_permission_error_with_the_reason(policy):
    workspace = CellwallWorkspace(policy=policy)
    try:
        assert (await workspace.run(["echo", "allowed"])).stdout == "allowed\n"
        with pytest.raises(PermissionError, match="CW-DENIED"):
            await workspace.run("curl https://example.com", shell=True)
    finally:
        await workspace.kill()


async def test_too_much_output_is_an_output_limit_error():
    workspace = CellwallWorkspace(limits={"output_bytes": 1000})
    try:
        with pytest.raises(WorkspaceOutputLimitError) as caught:
            await workspace.run(["head", "-c", "2000", "/dev/zero"])
        assert caught.value.limit == 1000
    finally:
        await workspace.kill()


async def test_a_link_out_of_the_workspace_is_listed_and_not_followed():
    workspace = CellwallWorkspace()
    try:
        await workspace.run(["ln", "-s", "/etc/passwd", "/workspace/out"])
        (entry,) = await workspace.list_dir("/workspace")
        assert (entry.name, entry.is_dir, entry.size) == ("out", False, None)
        with pytest.raises(PermissionError):
            await workspace.read_bytes("/workspace/out")
    finally:
        await workspace.kill()


async def test_the_example_of_the_guide_works_in_a_sandbox(run_example):
    command = "python3 -c 'print(sum(all(n % d for d in range(2, n)) for n in range(2, 100)))'"

    def script(messages, _):
        last = messages[-1].parts[-1]
        if isinstance(last, ToolReturnPart):
            return ModelResponse(parts=[TextPart(f"There are {last.content.strip()}.")])
        return ModelResponse(parts=[ToolCallPart("shell", {"command": command})])

    made = run_example("Pydantic AI", model=FunctionModel(script))
    assert await made["main"]() == "There are 25."

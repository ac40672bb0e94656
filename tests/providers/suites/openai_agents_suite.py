"""The Agents SDK has no conformance suite for sandbox clients: a SandboxAgent with a scripted model,
and the contract of client and session."""

from __future__ import annotations

import io
import json
from pathlib import Path

import anyio
import pytest
from agents import Model, ModelResponse, Usage
from agents.sandbox import Manifest
from agents.sandbox.entries import File
from agents.sandbox.errors import ExecTimeoutError, WorkspaceReadNotFoundError
from agents.sandbox.snapshot import LocalSnapshotSpec
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)

from cellwall import AsyncSandbox, CellwallError
from cellwall.integrations.openai_agents import (
    CellwallSandboxClient,
    CellwallSandboxClientOptions,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class ScriptedModel(Model):
    """Runs one command, then repeats the last line of its output."""

    def __init__(self, command):
        self.command = command

    async def get_response(self, **arguments):
        last = arguments["input"][-1]
        if isinstance(last, dict) and last.get("type") == "function_call_output":
            text = ResponseOutputText(
                text=str(last["output"]).strip().splitlines()[-1],
                type="output_text",
                annotations=[],
            )
            item = ResponseOutputMessage(
                id="m", content=[text], role="assistant", status="completed", type="message"
            )
        else:
            arguments = json.dumps({"cmd": self.command})
            item = ResponseFunctionToolCall(
                arguments=arguments, call_id="c1", name="exec_command", type="function_call"
            )
        return ModelResponse(output=[item], usage=Usage(), response_id=None)

    def stream_response(self, *_, **__):
        raise NotImplementedError


@pytest.fixture
async def session():
    client = CellwallSandboxClient()
    session = await client.create(
        manifest=Manifest(entries={"a.txt": File(content=b"from the manifest")})
    )
    async with session:
        yield session
    await client.delete(session)


async def test_the_example_of_the_guide_works_in_a_sandbox(run_example, primes, monkeypatch):
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    made = run_example("OpenAI Agents SDK", model=ScriptedModel(f"python3 -c '{primes}'"))
    assert await made["main"]() == "25"


async def test_manifest_files_and_commands_share_one_workspace(session):
    assert (await session.read(Path("a.txt"))).read() == b"from the manifest"
    await session.write(Path("sub/b.bin"), io.BytesIO(b"\x00\xff"))
    done = await session.exec("cat a.txt; wc -c < sub/b.bin; exit 3")
    assert (done.stdout, done.exit_code) == (b"from the manifest2\n", 3)
    assert {Path(each.path).name for each in await session.ls("/workspace")} == {"a.txt", "sub"}
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read(Path("none"))


async def test_a_time_limit_is_a_timeout_error(session):
    with pytest.raises(ExecTimeoutError):
        await session.exec("sleep 60", timeout=1)


async def test_a_denied_command_is_a_result_with_the_reason(policy):
    client = CellwallSandboxClient()
    options = CellwallSandboxClientOptions(sandbox={"policy": policy})
    async with await client.create(options=options) as session:
        assert (await session.exec("echo", "allowed", shell=False)).stdout == b"allowed\n"
        refused = await session.exec("curl https://example.com")
        assert refused.exit_code == 125
        assert b"CW-DENIED" in refused.stderr
    await client.delete(session)


async def test_a_stored_session_is_resumed_in_its_own_sandbox_or_from_its_snapshot(tmp_path):
    client = CellwallSandboxClient()
    session = await client.create(snapshot=LocalSnapshotSpec(base_path=tmp_path))
    await session.start()
    await session.exec("echo kept > f")
    stored = json.loads(json.dumps(client.serialize_session_state(session.state)))
    again = await client.resume(client.deserialize_session_state(dict(stored)))
    await again.start()
    assert again.state.sandbox_id == session.state.sandbox_id
    assert (await again.exec("cat f")).stdout == b"kept\n"
    await again.aclose()  # writes the snapshot, and ends the sandbox
    assert not await again.running()
    stored = client.serialize_session_state(again.state)
    last = await client.resume(client.deserialize_session_state(stored))
    async with last:
        assert last.state.sandbox_id != session.state.sandbox_id
        assert (await last.exec("cat f")).stdout == b"kept\n"
    await client.delete(last)


async def test_another_user_or_root_directory_is_refused(session):
    with pytest.raises(ValueError, match="leave the user out"):
        await session.exec("id", user="root")
    with pytest.raises(ValueError, match="/workspace"):
        await CellwallSandboxClient().create(manifest=Manifest(root="/srv"))


async def test_a_cancelled_start_leaves_a_session_that_can_be_ended():
    """The sandbox lives in the supervisor: without its id, it would be left for an hour."""
    client = CellwallSandboxClient()
    session = await client.create()
    with anyio.move_on_after(0.001) as scope:
        await session.start()
    assert scope.cancelled_caught
    sandbox = await AsyncSandbox.connect(session.state.sandbox_id)
    assert (await sandbox.commands.run("echo alive")).stdout == "alive\n"
    await client.delete(session)
    with pytest.raises(CellwallError):
        await AsyncSandbox.connect(session.state.sandbox_id)

"""A sandbox client for the OpenAI Agents SDK: the extra `cellwall[openai-agents]`.

    run_config = RunConfig(sandbox=SandboxRunConfig(client=CellwallSandboxClient()))
    await Runner.run(SandboxAgent(…), "…", run_config=run_config)

The sandbox lives in the user's supervisor, so a later run can resume the session by its state.
"""

from __future__ import annotations

import io
import tempfile
import uuid
from pathlib import Path
from typing import Any, Literal, cast

import anyio
from agents.sandbox.errors import (
    ExecTimeoutError,
    ExecTransportError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import SandboxSession, SandboxSessionState
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, User
from pydantic import Field

from cellwall import AsyncSandbox, CellwallError, Status

_WORKSPACE = "/workspace"
_KEEP_ALIVE_S = 3600.0
_ARCHIVE_IN_MEMORY_BYTES = 8 * 1024 * 1024
REFUSED = 125


class CellwallSandboxClientOptions(BaseSandboxClientOptions):
    """`sandbox` holds the options of `AsyncSandbox.create`, such as `allow_domains`."""

    type: Literal["cellwall"] = "cellwall"
    sandbox: dict[str, Any] = Field(default_factory=dict)


class CellwallSandboxSessionState(SandboxSessionState):
    """What `resume` needs: the id of the sandbox, and the options of another one in its place."""

    type: Literal["cellwall"] = "cellwall"
    sandbox_id: str | None = None
    options: dict[str, Any] = Field(default_factory=dict)


class CellwallSandboxSession(BaseSandboxSession):
    """One live sandbox."""

    state: CellwallSandboxSessionState

    def __init__(self, state: CellwallSandboxSessionState) -> None:
        self.state = state
        self._sandbox: AsyncSandbox | None = None

    async def _ensure_backend_started(self) -> None:
        if self._sandbox is None and self.state.sandbox_id is not None:
            try:
                self._sandbox = await AsyncSandbox.connect(self.state.sandbox_id)
                self._set_start_state_preserved(True)
            except CellwallError:  # ended since: the snapshot of the session fills a new one
                self.state.workspace_root_ready = False
        if self._sandbox is None:
            options = {"keep_alive": _KEEP_ALIVE_S, **self.state.options}
            with anyio.CancelScope(shield=True):  # else it lives on, and nobody knows its id
                self._sandbox = await AsyncSandbox.create(**options)
                self.state.sandbox_id = self._sandbox.id

    async def _shutdown_backend(self) -> None:
        if self._sandbox is not None:
            await self._sandbox.kill()
            self._sandbox = None

    def _live(self) -> AsyncSandbox:
        if self._sandbox is None:
            raise ExecTransportError(command=(), message="the sandbox is not started")
        return self._sandbox

    async def running(self) -> bool:
        """Whether the sandbox lives."""
        try:
            await self._live().commands.list()
        except (CellwallError, ExecTransportError):
            return False
        return True

    def _prepare_exec_command(
        self, *command: str | Path, shell: bool | list[str], user: str | User | None
    ) -> list[str]:
        _refuse_user(user)
        prefix = ["sh", "-c"] if shell is True else shell
        return list(super()._prepare_exec_command(*command, shell=prefix, user=None))

    async def _exec_internal(
        self, *command: str | Path, timeout: float | None = None
    ) -> ExecResult:
        envs = await self.state.manifest.environment.resolve()
        done = await self._live().commands.run([*map(str, command)], timeout=timeout, envs=envs)
        if done.limit == "wall":
            raise ExecTimeoutError(command=command, timeout_s=timeout)
        stdout, stderr = done.outcome.stdout_bytes, done.outcome.stderr_bytes
        if done.status is Status.ERROR and done.shell_exit_code == REFUSED:
            raise ExecTransportError(command=command, message=str(done.refusal))
        if done.refusal is not None or done.limit is not None:
            stdout, stderr = b"", done.transcript.encode()  # the model reads the reason
        return ExecResult(stdout=stdout, stderr=stderr, exit_code=done.shell_exit_code)

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Read a file."""
        _refuse_user(user)
        try:
            content = await self._live().files.read_bytes(Path(_WORKSPACE, path).as_posix())
        except CellwallError as error:
            if error.code == "CW-NOT-FOUND":
                raise WorkspaceReadNotFoundError(path=Path(path)) from None
            raise WorkspaceArchiveReadError(path=Path(path), cause=error) from None
        return io.BytesIO(content)

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Write a file."""
        _refuse_user(user)
        try:
            content = cast("io.BytesIO", data).read()
            await self._live().files.write(Path(_WORKSPACE, path).as_posix(), content)
        except CellwallError as error:
            raise WorkspaceArchiveWriteError(path=Path(path), message=str(error)) from None

    async def persist_workspace(self) -> io.IOBase:
        """The workspace as a tar archive, without links."""
        archive: Any = tempfile.SpooledTemporaryFile(_ARCHIVE_IN_MEMORY_BYTES)  # noqa: SIM115  # the caller closes the file
        try:
            await self._live().files.download(".", to=archive, skip_links=True)
        except CellwallError as error:
            raise WorkspaceArchiveReadError(path=Path(_WORKSPACE), cause=error) from None
        archive.seek(0)
        return cast("io.IOBase", archive)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Fill the workspace from a tar archive, which the file API checks."""
        try:
            await self._live().files.upload(cast("Any", data))
        except CellwallError as error:
            raise WorkspaceArchiveWriteError(path=Path(_WORKSPACE), message=str(error)) from None


class CellwallSandboxClient(BaseSandboxClient[CellwallSandboxClientOptions | None]):
    """For `SandboxRunConfig(client=…)`."""

    backend_id = "cellwall"
    supports_default_options = True

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: CellwallSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """A session; its sandbox is made when the session starts."""
        manifest = self._validate_manifest_for_create(manifest or Manifest())
        if manifest.root != _WORKSPACE or manifest.users or manifest.groups:
            raise ValueError(f"the manifest has the root {_WORKSPACE}, and no users or groups")
        session_id = uuid.uuid4()
        state = CellwallSandboxSessionState(
            session_id=session_id,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            options=options.sandbox if options is not None else {},
        )
        return self._wrap_session(CellwallSandboxSession(state))

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """End the sandbox."""
        await session.shutdown()
        return session

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """The session of a stored state, in its own sandbox where that still lives."""
        state.assert_path_grants_rebound()
        own = cast("CellwallSandboxSessionState", state)
        return self._wrap_session(CellwallSandboxSession(own))

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """The state of a stored session."""
        return self._deserialize_session_state_payload(payload, CellwallSandboxSessionState)


def _refuse_user(user: str | User | None) -> None:
    if user is not None:
        raise ValueError("this client uses the sandbox as the user `sandbox`: leave the user out")

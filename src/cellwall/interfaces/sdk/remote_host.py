"""A sandbox in the user's supervisor."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any, Unpack

import anyio
import anyio.to_thread

import cellwall
from cellwall.core.errors import BadInput, CellwallError, SandboxFailed, WorkspaceError
from cellwall.core.files import FileOperation
from cellwall.core.frames import BadFrame, FrameReader, encode
from cellwall.core.home import SUPERVISOR_SOCKET, shaping
from cellwall.core.labels import LabelSet
from cellwall.core.outcomes import Outcome
from cellwall.core.snapshots import NotCarried
from cellwall.core.types import Json, OutputSink
from cellwall.interfaces.sdk.hosts import CallOptions, SandboxSpec, refuse_ended
from cellwall.interfaces.supervisor.client import raise_for_error
from cellwall.interfaces.supervisor.codec import Operation, encode_operation
from cellwall.interfaces.supervisor.outcome_frames import decode_outcome
from cellwall.runtime.home import start_supervisor, state_home
from cellwall.runtime.label_store import recorded_labels

_MAX_FRAME_BYTES = 256 * 1024 * 1024


class RemoteHost:
    """Implements `Host` over the supervisor's socket, with one connection for each call."""

    def __init__(self, sandbox_id: str, *, ends_with_block: bool) -> None:
        self.id = sandbox_id
        self.alive = True
        self.has_run_code = True  # perhaps by another process
        self.not_restored: tuple[NotCarried, ...] = ()
        self._ends_with_block = ends_with_block

    @classmethod
    async def create(
        cls, spec: SandboxSpec, *, config: str | None, profile: str | None, keep_alive_s: float
    ) -> RemoteHost:
        """Create a sandbox in the supervisor, which is started if none runs."""
        await anyio.to_thread.run_sync(start_supervisor, dict(os.environ))
        request: dict[str, Json] = {"do": "create", "keep_alive_s": keep_alive_s}
        request |= {"config": config, "profile": profile, "shaping": shaping(os.environ)}
        answer, _ = await _ask({**request, "spec": {**asdict(spec), "asked_in": _here()}})
        return cls(str(answer["id"]), ends_with_block=True)

    @classmethod
    async def connect(cls, sandbox_id: str) -> RemoteHost:
        """A sandbox that a process of this user created before."""
        await _ask({"do": "attach", "id": sandbox_id})
        return cls(sandbox_id, ends_with_block=False)

    @property
    def labels(self) -> LabelSet:
        return recorded_labels(state_home(os.environ), self.id)

    def waiting(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def perform(self, operation: Operation, **options: Unpack[CallOptions]) -> Outcome:
        if not self.alive:
            raise refuse_ended()
        if options.get("spills"):
            raise BadInput(
                "a sandbox in the supervisor writes no output to files",
                hint="Redirect the output inside: `make >build.log 2>&1`.",
                code="CW-NO-REMOTE-OUTPUT",
            )
        stdin, sink = options.get("stdin"), options.get("sink")
        encoded, data = await anyio.to_thread.run_sync(encode_operation, operation)
        message: dict[str, Json] = {
            "do": "perform",
            "id": self.id,
            "operation": encoded,
            "timeout": options.get("timeout"),
            "envs": dict(options.get("envs") or {}),
            "stdin": None if stdin is None else len(stdin),
            "streams": sink is not None,
        }
        answer, blob = await _ask(message, (stdin or b"") + data, sink=sink)
        outcome = answer["outcome"]
        assert isinstance(outcome, dict)  # noqa: S101  # the supervisor is our own process
        # In a thread: it may write a whole archive to a file of the caller.
        target = operation.sink if isinstance(operation, FileOperation) else None
        return await anyio.to_thread.run_sync(decode_outcome, outcome, blob, target)

    async def end(self) -> None:
        self.alive = False
        with anyio.CancelScope(shield=True):
            try:
                await _ask({"do": "kill", "id": self.id})
            except CellwallError as error:
                if error.code not in ("CW-NO-SANDBOX", "CW-SUPERVISOR-GONE"):
                    raise

    async def leave(self) -> None:
        if self._ends_with_block:
            await self.end()


async def _ask(
    message: Mapping[str, Json], blob: bytes = b"", *, sink: OutputSink | None = None
) -> tuple[Mapping[str, Any], bytes]:
    """Send one request; output goes to `sink` as it comes, the last frame is the answer."""
    home = await anyio.to_thread.run_sync(state_home, os.environ)
    folder = os.open(home, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        stream = await anyio.connect_unix(f"/proc/self/fd/{folder}/{SUPERVISOR_SOCKET}")
    except OSError as error:
        raise _gone() from error
    finally:
        os.close(folder)
    reader = FrameReader(max_frame_bytes=_MAX_FRAME_BYTES)
    async with stream:
        try:
            await stream.send(encode({**message, "version": cellwall.__version__}, blob))
            while True:
                for frame in reader.feed(await stream.receive(1 << 18)):
                    name = frame.message.get("out")
                    if name not in ("stdout", "stderr"):
                        raise_for_error(frame.message)
                        return frame.message, frame.blob
                    if sink is not None:
                        sink(name, frame.blob)
        except (anyio.EndOfStream, anyio.BrokenResourceError, BadFrame) as error:
            raise _gone() from error


def _here() -> str:
    try:
        return os.getcwd()
    except OSError as error:
        # Without it, the policies of the projects around it would be left out.
        raise WorkspaceError(
            "the working directory of this process cannot be read",
            hint="Change to a directory that exists.",
            code="CW-WORKSPACE-REFUSED",
        ) from error


def _gone() -> SandboxFailed:
    return SandboxFailed(
        "the supervisor has ended, and its sandboxes ended with it",
        hint="Create a new sandbox, which starts a new supervisor.",
        code="CW-SUPERVISOR-GONE",
    )

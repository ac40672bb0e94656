"""A code executor for Google's Agent Development Kit: the extra `cellwall[adk]`.

    agent = LlmAgent(model=…, code_executor=CellwallCodeExecutor(stateful=True))

Without `stateful`, each block of code has a sandbox of its own.
"""

from __future__ import annotations

import base64
import mimetypes
from typing import Any

from google.adk.agents.invocation_context import InvocationContext
from google.adk.code_executors.base_code_executor import BaseCodeExecutor
from google.adk.code_executors.code_execution_utils import (
    CodeExecutionInput,
    CodeExecutionResult,
    File,
)
from pydantic import Field, PrivateAttr

from cellwall import CellwallError, Sandbox

_MAX_FILES = 20
_MAX_FILE_BYTES = 8 * 1024 * 1024
_REFUSED = 125  # as the command line of Cellwall
_SHARED_PREFIX = "user:"


class CellwallCodeExecutor(BaseCodeExecutor):
    """Runs Python in a sandbox. `sandbox` holds the options of `Sandbox.create`.

    With `stateful`, the variables and files of a session stay until `close`. With `collect_files`,
    files that the code writes into the workspace are output files.
    """

    collect_files: bool = False
    sandbox: dict[str, Any] = Field(default_factory=dict)
    _sessions: dict[str, Sandbox] = PrivateAttr(default_factory=dict)

    def execute_code(
        self, invocation_context: InvocationContext, code_execution_input: CodeExecutionInput
    ) -> CodeExecutionResult:
        """Run a block of code; a denied one has the reason as its error output."""
        session = code_execution_input.execution_id if self.stateful else None
        if session is None:
            with Sandbox.create(**self.sandbox) as sandbox:
                return self._run(sandbox, code_execution_input)
        return self._run(self._session(session), code_execution_input)

    def _session(self, session: str) -> Sandbox:
        """The sandbox of a session; of two that threads make at once, one stays and one ends."""
        if session not in self._sessions:
            made = Sandbox.create(**self.sandbox)
            if self._sessions.setdefault(session, made) is not made:
                made.kill()
        return self._sessions[session]

    def close(self) -> None:
        """End the sandboxes of all sessions."""
        while self._sessions:
            self._sessions.popitem()[1].kill()

    def _run(self, sandbox: Sandbox, request: CodeExecutionInput) -> CodeExecutionResult:
        try:
            for file in request.input_files:
                sandbox.files.write(file.name, _content(file))
        except CellwallError as error:
            return CodeExecutionResult(stderr=f"cellwall: {error}\n", exit_code=_REFUSED)
        before = _modified(sandbox) if self.collect_files else {}
        done = sandbox.run_code(request.code, timeout=self.timeout_seconds)
        if done.refusal is not None:
            return CodeExecutionResult(stderr=done.transcript, exit_code=done.shell_exit_code)
        ended = f"cellwall: the run was ended by its {done.limit} limit\n" if done.limit else ""
        value = f"{done.text}\n" if done.text is not None else ""
        return CodeExecutionResult(
            stdout=done.stdout + value,
            stderr=done.stderr + ended,
            exit_code=done.exit_code,
            output_files=_new_files(sandbox, before) if self.collect_files else [],
        )


def _content(file: File) -> bytes:
    """ADK gives text as base64."""
    if isinstance(file.content, bytes):
        return file.content
    return base64.b64decode(file.content)


def _modified(sandbox: Sandbox) -> dict[str, float]:
    """Of each file; none where the policy keeps the list of files."""
    try:
        entries = sandbox.files.list()
    except CellwallError:
        return {}
    return {each.name: each.modified_s for each in entries if each.kind == "file"}


def _new_files(sandbox: Sandbox, before: dict[str, float]) -> list[File]:
    """The files that the code wrote into the workspace itself, small ones alone."""
    after = _modified(sandbox)
    # ADK keeps an artifact `user:…` for all sessions of the user: code in one must not write there.
    changed = sorted(
        name
        for name, time_s in after.items()
        if before.get(name) != time_s and not name.startswith(_SHARED_PREFIX)
    )
    found = []
    for name in changed[:_MAX_FILES]:
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        try:
            entry = sandbox.files.stat(name)
            if entry is not None and entry.size_bytes <= _MAX_FILE_BYTES:
                found.append(File(name, sandbox.files.read_bytes(name), kind))
        except CellwallError:  # denied by policy: this file stays inside
            continue
    return found

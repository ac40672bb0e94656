"""A sandbox backend for LangChain's deepagents: the extra `cellwall[deepagents]`.

    with Sandbox.create() as sandbox:
        agent = create_deep_agent(model=…, backend=CellwallBackend(sandbox))

The agent's tools for files and for the shell then act in the sandbox.
"""

from __future__ import annotations

from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox

from cellwall import CellwallError, Sandbox

# What a model can act on; for any other error it gets the message of Cellwall itself.
_FILE_ERRORS = {
    "CW-NOT-FOUND": "file_not_found",
    "CW-NOT-A-FILE": "is_directory",
    "CW-NOT-A-DIRECTORY": "invalid_path",
    "CW-BAD-PATH": "invalid_path",
    "CW-PATH-OUTSIDE": "permission_denied",
}


class CellwallBackend(BaseSandbox):
    """A backend on a live sandbox, which its creator ends."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    @property
    def id(self) -> str:
        """The id of the sandbox."""
        return self._sandbox.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell command; a refusal is a result with its reason and exit code 125."""
        # deepagents means "no timeout" by 0, which no sandbox has: the limit of the profile counts.
        done = self._sandbox.commands.run(command, timeout=timeout or None)
        is_cut = done.outcome.truncated
        return ExecuteResponse(done.transcript, exit_code=done.shell_exit_code, truncated=is_cut)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files; each has a result of its own."""
        return [
            FileUploadResponse(path=path, error=self._upload(path, content))
            for path, content in files
        ]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files; each has a result of its own."""
        return [self._download(path) for path in paths]

    def _upload(self, path: str, content: bytes) -> str | None:
        if not path.startswith("/"):
            return "invalid_path"
        try:
            self._sandbox.files.write(path, content)
        except CellwallError as error:
            return _FILE_ERRORS.get(error.code, str(error))
        return None

    def _download(self, path: str) -> FileDownloadResponse:
        if not path.startswith("/"):
            return FileDownloadResponse(path=path, error="invalid_path")
        try:
            return FileDownloadResponse(path=path, content=self._sandbox.files.read_bytes(path))
        except CellwallError as error:
            return FileDownloadResponse(path=path, error=_FILE_ERRORS.get(error.code, str(error)))

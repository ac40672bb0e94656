"""A sandbox backend for LangChain's deepagents: the extra `cellwall[deepagents]`.

    with Sandbox.create() as sandbox:
        agent = create_deep_agent(model=…, backend=CellwallBackend(sandbox))

The agent's tools for files and for the shell then act in the sandbox.
"""

from __future__ import annotations

from deepagents.backends.protocol import (
    BackendProtocol,
    EditResult,
    ExecuteResponse,
    FileData,
    FileDownloadResponse,
    FileUploadResponse,
    ReadResult,
    WriteResult,
)
from deepagents.backends.sandbox import MAX_OUTPUT_BYTES, BaseSandbox
from deepagents.backends.utils import slice_read_response

from cellwall import CellwallError, Sandbox, check_access

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

    # deepagents does this by scripts with encoded arguments, which no rule for files can judge.
    # What the file API does not have, such as /usr and large files, is left to the scripts.

    def write(self, file_path: str, content: str) -> WriteResult:
        """Write a file, as `Write(…)` rules allow."""
        if error := self._upload(file_path, content.encode()):
            return WriteResult(error=f"Failed to write file '{file_path}': {error}")
        return WriteResult(path=file_path)

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Read lines of a text, as `Read(…)` rules allow."""
        try:
            text = self._small_text(file_path)
        except CellwallError as error:
            return ReadResult(error=f"File '{file_path}': {error}")
        if not text or not text.strip():
            return super().read(file_path, offset, limit)
        found = slice_read_response(FileData(content=text, encoding="utf-8"), offset, limit)
        if found.file_data is not None:  # the scripts join lines: none behind the last
            found.file_data["content"] = found.file_data["content"].removesuffix("\n")
        return found

    def edit(
        self, file_path: str, old_string: str, new_string: str, replace_all: bool = False
    ) -> EditResult:
        """Replace a text that occurs once, or all of them; line ends stay as they are."""
        try:
            text = self._small_text(file_path, is_written=True)
        except CellwallError as error:
            return EditResult(error=f"Error editing file '{file_path}': {error}")
        # Absent, ambiguous or without carriage returns that the file has: deepagents has the words.
        count = text.count(old_string) if text and old_string else 0
        if text is None or count == 0 or (count > 1 and not replace_all):
            return super().edit(file_path, old_string, new_string, replace_all)
        failure = self._upload(file_path, text.replace(old_string, new_string).encode())
        if failure:
            return EditResult(error=f"Error editing file '{file_path}': {failure}")
        return EditResult(path=file_path, occurrences=count)

    # Those of `BaseSandbox` run the scripts; these call the methods above in a thread.
    aread, awrite, aedit = BackendProtocol.aread, BackendProtocol.awrite, BackendProtocol.aedit

    def _small_text(self, path: str, *, is_written: bool = False) -> str | None:
        """A text as the file API has it; raises where the policy denies reading the file."""
        files = self._sandbox.files
        try:
            entry = files.stat(path)
            check_access(entry, path, "read")
            if is_written:
                check_access(entry, path, "write")
            if entry is None or entry.kind != "file" or entry.size_bytes > MAX_OUTPUT_BYTES:
                return None
            return files.read_bytes(path).decode()
        except CellwallError as error:
            if error.code in _FILE_ERRORS:
                return None
            raise
        except (OSError, UnicodeDecodeError):
            return None

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

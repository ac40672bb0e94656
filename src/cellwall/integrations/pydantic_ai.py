"""A workspace backend for Pydantic AI: the extra `cellwall[pydantic-ai]`.

    backend = CellwallWorkspace(allow_domains=["pypi.org"])
    await agent.run("…", workspace=backend)
    await backend.kill()

The sandbox lives in the user's supervisor, as Pydantic AI wants: a run that ends does not end the
sandbox, and a later run, also of another process, continues in it by `backend.ref`.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, cast

import anyio
from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

import cellwall
from cellwall import AsyncSandbox, BadInput, CellwallError, Execution, Status

PROVIDER = "cellwall"
_WORKSPACE = "/workspace"
_KEEP_ALIVE_S = 3600.0
_GONE = {"CW-NO-SANDBOX", "CW-SANDBOX-ENDED", "CW-SUPERVISOR-GONE"}


class CellwallWorkspace:
    """One sandbox: created by the first operation, or the one that `ref` names.

    The options are those of `AsyncSandbox.create`; `keep_alive` is an hour without any use.
    """

    def __init__(self, *, ref: WorkspaceRef | None = None, **options: Any) -> None:  # noqa: ANN401  # each option has its own type
        if ref is not None and ref.provider != PROVIDER:
            raise ValueError(f"the workspace belongs to {ref.provider!r:.60}, not to {PROVIDER}")
        self._ref = ref
        self._options = {"keep_alive": _KEEP_ALIVE_S, **options}
        self._lock = anyio.Lock()
        self._sandbox: AsyncSandbox | None = None

    @property
    def ref(self) -> WorkspaceRef | None:
        """The id of the sandbox, once there is one."""
        return self._ref

    async def working_dir(self) -> str:
        async with self._at():
            return _WORKSPACE

    async def kill(self) -> None:
        """End the sandbox."""
        async with self._at() as sandbox:
            await sandbox.kill()

    async def run(
        self,
        command: str | Sequence[str],
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a command; an action that Cellwall denies is a `PermissionError` with its reason."""
        if isinstance(command, str) is not shell:
            raise TypeError("a string needs shell=True, a list of arguments shell=False")
        async with self._at() as sandbox:
            done = await sandbox.commands.run(command, envs=env, stdin=b"", timeout=timeout)
            return _result(done)

    async def read_bytes(self, path: str) -> bytes:
        async with self._at(path) as sandbox:
            return await sandbox.files.read_bytes(await self._permitted(path, "read"))

    async def write_bytes(self, path: str, data: bytes) -> None:
        async with self._at(path) as sandbox:
            await sandbox.files.write(await self._permitted(path, "write"), data)

    async def stat(self, path: str) -> FileEntry:
        async with self._at(path):
            _, entry = await self._follow(path)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return _shown(path, entry)

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        async with self._at(path) as sandbox:
            entries = await sandbox.files.list((await self._follow(path))[0])
        return [await self._listed(posixpath.join(path, each.name), each) for each in entries]

    async def _listed(self, path: str, entry: cellwall.FileEntry) -> FileEntry:
        try:
            return _shown(path, (await self._follow(path))[1] if entry.kind == "symlink" else entry)
        except (CellwallError, OSError):  # a loop, or a link to a place that is not shown
            return _shown(path, None)

    async def make_dir(self, path: str) -> None:
        async with self._at(path) as sandbox:
            await sandbox.files.make_dir(path)

    async def remove(self, path: str) -> None:
        if posixpath.commonpath([posixpath.normpath(path), _WORKSPACE]) == posixpath.normpath(path):
            raise ValueError("the working directory and its parents cannot be removed")
        async with self._at(path) as sandbox:
            await sandbox.files.remove(path)

    async def exists(self, path: str) -> bool:
        async with self._at(path) as sandbox:
            return await sandbox.files.exists(path)

    async def realpath(self, path: str) -> str:
        """Resolved inside, where an absolute link leads to the same place as for a command."""
        done: CommandResult = await self.run(["realpath", "--canonicalize-missing", "--", path])
        if done.exit_code != 0:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        return str(done.stdout).removesuffix("\n")

    async def _follow(self, path: str) -> tuple[str, cellwall.FileEntry | None]:
        """The entry that a path leads to. A link out of the workspace stays refused: the file API
        judges the resolved path as well."""
        sandbox = await self._live()
        try:
            entry = await sandbox.files.stat(path)
        except CellwallError as error:
            if error.code != "CW-PATH-OUTSIDE":
                raise
        else:
            if entry is None or entry.kind != "symlink":
                return path, entry
        path = await self.realpath(path)
        return path, await sandbox.files.stat(path)

    async def _permitted(self, path: str, wanted: Literal["read", "write"]) -> str:
        path, entry = await self._follow(path)
        cellwall.check_access(entry, path, wanted)
        return path

    @asynccontextmanager
    async def _at(self, path: str | None = None) -> AsyncIterator[AsyncSandbox]:
        """The sandbox; its errors become those of Pydantic AI and of Python's file functions."""
        try:
            yield await self._live()
        except CellwallError as error:
            if error.code in _GONE:
                raise WorkspaceUnavailableError(str(error)) from None
            if isinstance(error, BadInput):
                raise ValueError(str(error)) from None  # noqa: TRY004  # the value, not the type
            raise (error if path is None else cellwall.as_os_error(error, path)) from None

    async def _live(self) -> AsyncSandbox:
        # Shielded: a sandbox whose creator is cancelled would live on without anybody who knows it.
        async with self._lock:
            with anyio.CancelScope(shield=True):
                if self._ref is not None:
                    self._sandbox = self._sandbox or await AsyncSandbox.connect(self._ref.id)
                    return self._sandbox
                self._sandbox = await AsyncSandbox.create(**self._options)
                self._ref = WorkspaceRef(provider=PROVIDER, id=self._sandbox.id)
            return cast("AsyncSandbox", self._sandbox)


def _shown(path: str, entry: cellwall.FileEntry | None) -> FileEntry:
    is_dir = entry is not None and entry.kind == "dir"
    size = entry.size_bytes if entry is not None and entry.kind == "file" else None
    return FileEntry(name=posixpath.basename(path), path=path, is_dir=is_dir, size=size)


def _result(done: Execution) -> CommandResult:
    if done.limit == "wall":
        raise WorkspaceTimeoutError(
            "the command ran longer than its time limit", stdout=done.stdout, stderr=done.stderr
        )
    if done.limit == "output":
        shown = len(done.outcome.stdout_bytes) + len(done.outcome.stderr_bytes)
        raise WorkspaceOutputLimitError(
            "the output is longer than its limit",
            limit=shown,
            stdout=done.stdout,
            stderr=done.stderr,
        )
    refusal = done.refusal
    if refusal is None:
        return CommandResult(exit_code=done.exit_code or 0, stdout=done.stdout, stderr=done.stderr)
    if (code := done.shell_exit_code) == 127:
        return CommandResult(exit_code=code, stdout="", stderr=refusal.message)
    if done.status is Status.DENIED:
        raise PermissionError(errno.EACCES, str(refusal))
    raise refusal

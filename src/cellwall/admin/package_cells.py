"""Cells in which package managers run, with registries behind the proxy alone (PKG-3, PKG-4).

Every step is an action of the principal: judged, recorded and cleaned like any other. No file that
a package manager wrote is executed or imported on the host.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import anyio

from cellwall.core.cancellation import check_cancelled
from cellwall.core.errors import CellwallError
from cellwall.core.files import FileOperation
from cellwall.core.ids import new_id
from cellwall.core.limits import GIB, Limits
from cellwall.core.outcomes import Outcome, Status
from cellwall.core.packages import parse_install
from cellwall.core.ports import ApproverPort
from cellwall.core.types import Action, Principal, RunCommand, WorkspaceRequest
from cellwall.runtime.app import App
from cellwall.sandbox.files.file_tree import FileTree, WriteLimits
from cellwall.sandbox.files.tar_transfer import unpack

MAX_TREE_BYTES = 8 * GIB
MAX_TREE_FILES = 190_000
_MAX_FILE_BYTES = 4 * GIB
_MEMORY_BYTES = GIB
_PROCESSES = 512
_CPUS = 2.0
INSTALL_WITHIN_S = 1800.0
_LOOK_EVERY_S = 0.1
_MAX_LINE_BYTES = 8192

OnLine = Callable[[str], None]
"""Called with each line that a package manager prints."""
_Result = TypeVar("_Result")


def build_limits(usual: Limits) -> Limits:
    """The limits of a cell that installs packages: larger than usual, and bounded."""
    return replace(
        usual,
        wall_s=INSTALL_WITHIN_S,
        cpu_s=INSTALL_WITHIN_S,
        cpus=max(usual.cpus, _CPUS),
        memory_bytes=max(usual.memory_bytes, _MEMORY_BYTES),
        processes=max(usual.processes, _PROCESSES),
        file_size_bytes=max(usual.file_size_bytes, _MAX_FILE_BYTES),
        disk_bytes=max(usual.disk_bytes, MAX_TREE_BYTES),
        file_count=max(usual.file_count, MAX_TREE_FILES),
    )


@dataclass(frozen=True, slots=True)
class PackageCell:
    """A session for package managers."""

    app: App
    pattern: Action
    """The action that each step is derived from."""
    ask: ApproverPort | None = None
    """The caller's own channel for questions about packages; the queue of approvals is another."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: str,
        stdin: bytes = b"",
        on_line: OnLine,
        on_packages: Callable[[int], None] | None = None,
    ) -> Outcome:
        """Run a program; raises if the action was refused, not if the program failed.

        `on_packages` is called with the number of packages that the program has got so far.
        """
        lines = _LineSplitter(on_line)
        operation = RunCommand(tuple(argv), cwd=cwd)
        action = replace(self.pattern, id=new_id("act"), operation=operation, stdin=stdin)
        async with self._counting(action.id, on_packages):
            outcome = await self.app.runtime.perform(action, sink=lines.feed, ask=self.ask)
        if outcome.status in {Status.DENIED, Status.ERROR}:
            outcome.raise_for_status()
        return outcome

    async def build(self, requirements: Sequence[str]) -> Outcome:
        """Build the sources that a resolver lacked, in cells without network (PKG-3); raises if
        that was refused. Afterwards the index shows the wheels."""
        operation = replace(parse_install("pypi", requirements), only_build=True)
        action = replace(
            self.pattern, id=new_id("act"), operation=operation, registries=(), env={}, stdin=None
        )
        outcome = await self.app.runtime.perform(action, ask=self.ask)
        if outcome.status in {Status.DENIED, Status.ERROR}:
            outcome.raise_for_status()
        return outcome

    @asynccontextmanager
    async def _counting(
        self, action_id: str, on_packages: Callable[[int], None] | None
    ) -> AsyncIterator[None]:
        if on_packages is None:
            yield
            return

        async def watch(tell: Callable[[int], None]) -> None:
            told = 0
            while True:
                await anyio.sleep(_LOOK_EVERY_S)
                count = self.app.egress.count_packages(action_id)
                if count != told:
                    tell(told := count)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch, on_packages)
            yield
            tasks.cancel_scope.cancel()

    async def read(self, path: str) -> bytes:
        """A file that the package manager wrote; its content is untrusted."""
        outcome = await self._operate(FileOperation("read", path))
        return bytes(outcome.payload)

    async def write(self, path: str, content: bytes) -> None:
        await self._operate(FileOperation("write", path, content=content))

    async def remove(self, path: str) -> None:
        """Remove a file or tree; a missing one is removed already."""
        if await self.exists(path):
            await self._operate(FileOperation("remove", path))

    async def exists(self, path: str) -> bool:
        return bool((await self._operate(FileOperation("exists", path))).payload)

    async def copy_out(self, path: str, directory: str) -> None:
        """Copy a tree into the host directory of the same name below `directory`.

        Regular files and directories alone: a link or a device refuses the whole tree. Owners and
        other mode bits than those of an ordinary file are dropped, counts and sizes are bounded.
        """
        limits = self.pattern.limits
        bounds = WriteLimits(
            max_file_bytes=limits.file_size_bytes,
            max_total_bytes=limits.disk_bytes,
            max_files=limits.file_count,
            blocked_extensions=(),
        )
        with tempfile.TemporaryFile(dir=directory) as file:
            await self._operate(FileOperation("download", path, sink=file))
            file.seek(0)

            def extract() -> None:
                with FileTree.open(directory) as tree:
                    unpack(tree, os.path.basename(path), file, limits=bounds)

            await anyio.to_thread.run_sync(extract)

    async def _operate(self, operation: FileOperation) -> Outcome:
        action = replace(self.pattern, id=new_id("act"), operation=operation, registries=())
        outcome = await self.app.runtime.perform(action)
        outcome.raise_for_status()
        return outcome


class _LineSplitter:
    """Splits output into lines of bounded length."""

    def __init__(self, on_line: OnLine) -> None:
        self._on_line = on_line
        self._waiting = b""

    def feed(self, _stream: str, data: bytes) -> None:
        *lines, self._waiting = (self._waiting + data).split(b"\n")
        self._waiting = self._waiting[-_MAX_LINE_BYTES:]
        for line in lines:
            self._on_line(line[:_MAX_LINE_BYTES].decode("utf-8", "replace").rstrip())


@contextmanager
def package_cell(
    app: App,
    principal: Principal,
    *,
    template: str = "python",
    registries: Sequence[str],
    env: dict[str, str],
    workspace: WorkspaceRequest | None = None,
    ask: ApproverPort | None = None,
) -> Iterator[PackageCell]:
    """A session of its own, which ends with the block; swept if this process is killed."""
    request = workspace or WorkspaceRequest()
    with app.session(request, principal) as session_id:
        pattern = Action(
            principal=principal,
            operation=RunCommand(("true",)),
            session_id=session_id,
            workspace=request,
            limits=build_limits(app.limits),
            registries=tuple(registries),
            template=template,
            env=env,
        )
        yield PackageCell(app, pattern, ask)


def run_cancellable(work: Callable[[], Awaitable[_Result]]) -> _Result:
    """Run steps to their end in this thread, or until the caller's work is cancelled."""

    async def run() -> _Result:
        results: list[_Result] = []
        cancelled: list[CellwallError] = []

        async def watch() -> None:
            while True:
                await anyio.sleep(_LOOK_EVERY_S)
                try:
                    check_cancelled()
                except CellwallError as error:
                    cancelled.append(error)
                    scope.cancel()

        errors: list[BaseException] = []
        async with anyio.create_task_group() as tasks:
            scope = tasks.cancel_scope
            tasks.start_soon(watch)
            try:
                results.append(await work())
            except anyio.get_cancelled_exc_class():
                raise
            except BaseException as error:  # noqa: BLE001  # raised below, not as a group
                errors.append(error)
            scope.cancel()
        for raised in (*errors, *cancelled):
            raise raised
        return results[0]

    return anyio.run(run)

"""Installations by name (PKG-1): the verdict on the names, the cells that install, the lock file.

The package manager runs in a cell with the registry proxy as its only network, on a copy of the
environment. The proxy judges registry facts, versions and artifacts, and reports each artifact that
it served. Sources without a wheel are built where policy allows (`runtime/source_builds.py`), and
the package manager runs again. A second cell without network exchanges the copy with the
environment, after the hashes were compared with the lock file and the new lock file was written
(PKG-5). Where there is no environment yet, and the proxy answers as at an earlier installation of
the same request, one cell without network unpacks the tree of that one (`package_trees.py`).
"""

# ruff: noqa: PLC0415  # late imports: few actions install packages; the ranked names load slowly

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import resources
from typing import TYPE_CHECKING

import anyio

from cellwall.core.approvals import Answer
from cellwall.core.errors import CellwallError, Denied, WorkspaceError
from cellwall.core.files import FileOperation
from cellwall.core.outcomes import Finding, RunResult
from cellwall.core.packages import InstallPackages, requested_name
from cellwall.core.ports import InstallCells
from cellwall.core.sandbox_ports import WorkspacePort
from cellwall.core.types import Action, Json, RunCommand, WorkspaceMode, WorkspaceRequest
from cellwall.core.verdict import Decision, Verdict, strictest
from cellwall.runtime.outcomes import PACKAGES_RULE
from cellwall.runtime.package_trees import PackageTrees
from cellwall.runtime.python_query import PythonQuery, bare_action
from cellwall.sandbox.inside import install as inside
from cellwall.sandbox.languages import python_inside
from cellwall.sandbox.linux.jobs import user_base
from cellwall.sandbox.templates import uv_program

if TYPE_CHECKING:
    from cellwall.packages.evidence import PackageVerdict
    from cellwall.packages.inventory import InstalledPackage
    from cellwall.packages.judge import PackageJudge
    from cellwall.runtime.package_record import PackageRecord
    from cellwall.runtime.package_sessions import PackageSessions
    from cellwall.runtime.source_builds import SourceBuilder

_WRITABLE = frozenset({WorkspaceMode.PRIVATE, WorkspaceMode.READ_WRITE})
_MAX_REPORTED = 500
_NPM_LOCKS = ("npm-shrinkwrap.json", "package-lock.json")


@dataclass(frozen=True, slots=True)
class _WrittenLock:
    """A lock file that was written before the files of its packages are in their place."""

    notes: tuple[Finding, ...] = ()
    before: bytes | None = None
    data: bytes | None = None
    """None: nothing was written."""


@dataclass(frozen=True, slots=True)
class PackageInstaller:
    """Implements `InstallerPort`."""

    open_judge: Callable[[], PackageJudge]
    record: PackageRecord
    sessions: PackageSessions
    workspaces: WorkspacePort
    open_builder: Callable[[], SourceBuilder]
    query: PythonQuery
    trees: PackageTrees
    _lock_turn: threading.Lock = field(default_factory=threading.Lock)
    """Two installations that read the lock file before either writes would lose one's hashes."""

    # (4)
    def judge(self, operation: InstallPackages) -> Decision:
        """The strictest verdict on the names, before any registry is asked."""
        from cellwall.packages.names import Ecosystem, canonical_name

        ecosystem, judge = Ecosystem(operation.ecosystem), self.open_judge()
        names = [requested_name(operation.ecosystem, each) for each in operation.requirements]
        return strictest(
            *(
                _decision(judge.judge_name(ecosystem, canonical_name(ecosystem, name)))
                for name in names
            )
        )

    # (5)
    def consent(self, action: Action, operation: InstallPackages, answer: Answer) -> None:
        """A person has allowed the action: the proxy asks no more about the names in it."""
        from cellwall.packages.names import Ecosystem, canonical_name

        ecosystem = Ecosystem(operation.ecosystem)
        names = [requested_name(operation.ecosystem, each) for each in operation.requirements]
        allowed = [canonical_name(ecosystem, name) for name in names]
        self.sessions.consent(action.id, ecosystem, allowed, answer)

    # (7)
    async def prepare(self, action: Action, cells: InstallCells) -> None:
        """What package managers ask in every new cell is asked once."""
        await self.query.prepare(action, cells)

    # (7), (8)
    async def install(self, action: Action, cells: InstallCells) -> RunResult:
        """In one-shot cells on the session's files: stage, lock, then commit.

        The first has the registry as its only destination, the second no network; neither has a
        variable or a secret of the session.
        """
        assert isinstance(action.operation, InstallPackages)  # noqa: S101  # by the pipeline
        operation = action.operation
        await self.prepare(action, cells)
        # Around all cells: the answer to a question holds for each of them.
        asking = replace(action, session_id=None, registries=(operation.ecosystem,))
        with self.record.keeping(action.id):
            async with self.sessions.open(asking, near=cells.near):
                if operation.only_build:
                    return await self._probe(action, operation, cells)
                return await self._install(action, operation, cells)

    async def _install(
        self, action: Action, operation: InstallPackages, cells: InstallCells
    ) -> RunResult:
        if action.session_id is None or cells.mount.mode not in _WRITABLE:
            raise WorkspaceError(
                "packages are installed into the workspace of a sandbox, which must be writable",
                hint="Create the sandbox with the directory as :rw, or without a directory.",
                code="CW-INSTALL-WORKSPACE",
            )
        if operation.ecosystem == "npm":
            await anyio.to_thread.run_sync(self._check_npm_locks, action)
        base = user_base(home=cells.mount.home)
        step = partial(_cell_action, action, operation, base)
        key = await anyio.to_thread.run_sync(self.trees.new_key, action, operation, base)
        if key:
            filled = await self._fill(action, operation, cells, step)
            if filled is not None:
                return filled

        async def stage() -> RunResult:
            self.record.take_answers(action.id)  # of an attempt that failed
            staged = replace(step("stage"), registries=(operation.ecosystem,))
            if operation.ecosystem == "pypi":
                staged = replace(staged, env=uv_program.ENVIRONMENT, template=uv_program.TEMPLATE)
                staged = replace(staged, stdin=key)
            return await cells.run(staged)

        staged = await self._with_builds(action, operation, cells, stage)
        if not _is_done(staged):
            return replace(staged, value=_report(operation, ()))
        served = self.record.served(action.id)
        locked = _WrittenLock()
        if operation.ecosystem == "pypi" and served:
            try:
                locked = await anyio.to_thread.run_sync(self._lock, action, served)
            except CellwallError:
                await cells.run(step("discard"))
                raise
        if key:
            answers = self.record.take_answers(action.id)
            keep = partial(self.trees.keep, key=key, answers=answers)
            await anyio.to_thread.run_sync(keep, action, operation, _source())
        committed = await cells.run(step("commit"))
        if not _is_done(committed):
            await anyio.to_thread.run_sync(self._restore_lock, action, locked)
        return replace(
            staged,
            exit_code=committed.exit_code,
            limit=committed.limit,
            stderr=staged.stderr + committed.stderr,
            findings=(*staged.findings, *locked.notes),
            value=_report(operation, served if _is_done(committed) else ()),
        )

    async def _fill(
        self,
        action: Action,
        operation: InstallPackages,
        cells: InstallCells,
        step: Callable[[str], Action],
    ) -> RunResult | None:
        """From the tree of an earlier installation; None: the package manager has to run."""
        tree = await self.trees.find(action, operation, _source())
        if tree is None:
            return None
        served = self.record.served(action.id)
        locked = await anyio.to_thread.run_sync(self._lock, action, served)
        filled = await cells.run(replace(step("fill"), stdin=tree.archive))
        if not _is_done(filled):
            await anyio.to_thread.run_sync(self._restore_lock, action, locked)
        if filled.exit_code == inside.NOT_EMPTY:
            return None
        return replace(
            filled,
            findings=(*filled.findings, *tree.findings, *locked.notes),
            value=_report(operation, served if _is_done(filled) else ()),
        )

    async def _probe(
        self, action: Action, operation: InstallPackages, cells: InstallCells
    ) -> RunResult:
        """Resolve in a cell of its own, and build what the resolver lacks."""

        async def resolve() -> RunResult:
            asked = _private_action(action, operation)
            async with cells.private(asked) as fresh:
                return await fresh.run(replace(asked, registries=(operation.ecosystem,)))

        return await self._with_builds(action, operation, cells, resolve)

    async def _with_builds(
        self,
        action: Action,
        operation: InstallPackages,
        cells: InstallCells,
        attempt: Callable[[], Awaitable[RunResult]],
    ) -> RunResult:
        """The result of an attempt, repeated after each build of sources that it lacked (PKG-3)."""
        result, built = await attempt(), set[str]()
        while not _is_done(result) and operation.ecosystem == "pypi":
            # Ends: each round builds something new, up to `MAX_BUILDS`.
            report = await self.open_builder().build_missing(action, operation, cells, before=built)
            if report.failed is not None:
                return report.failed
            if not report.built:
                break
            built |= set(report.built)
            result = await attempt()
        return result

    def _lock(self, action: Action, served: Sequence[InstalledPackage]) -> _WrittenLock:
        with self._lock_turn:
            return self._update_lock(action, served)

    def _restore_lock(self, action: Action, locked: _WrittenLock) -> None:
        """As before an installation that failed behind it, unless another one has written since."""
        from cellwall.packages.locks.workspace import LOCK_NAME

        with self._lock_turn:
            if locked.data is None or self._read(action, LOCK_NAME) != locked.data:
                return
            restore = FileOperation("remove", LOCK_NAME)
            if locked.before is not None:
                restore = FileOperation("write", LOCK_NAME, locked.before)
            self.workspaces.operate(replace(action, operation=restore))

    def _update_lock(self, action: Action, served: Sequence[InstalledPackage]) -> _WrittenLock:
        """Refuse a changed hash, then write the lock of all packages (PKG-5)."""
        from cellwall.packages.inventory import render_pylock
        from cellwall.packages.locks.workspace import (
            LOCK_NAME,
            changed_hash,
            merge_locks,
            read_workspace_lock,
        )

        content = self._read(action, LOCK_NAME)
        lock = None if content is None else read_workspace_lock(content)
        locked = lock.files if lock else ()
        changed = changed_hash(locked, served)
        if changed is not None:
            raise Denied(
                f"{changed.filename} does not have the hash of {LOCK_NAME}: the file on the index "
                "was replaced, or the lock was edited",
                hint=f"Ask a person to compare both; {changed.name} is not installed.",
                code="CW-LOCK-CHANGED",
            )
        if lock is not None and not lock.is_own:
            text = f"{LOCK_NAME} was written by another tool and is left as it is"
            return _WrittenLock((Finding(PACKAGES_RULE, "low", text),))
        data = render_pylock(merge_locks(locked, served))
        self.workspaces.operate(replace(action, operation=FileOperation("write", LOCK_NAME, data)))
        return _WrittenLock(before=content, data=data)

    def _check_npm_locks(self, action: Action) -> None:
        """npm installs `lodash` from where a lock of the workspace says that it is (PKG-4)."""
        from cellwall.packages.locks.installable import foreign_places
        from cellwall.packages.locks.model import BadLock
        from cellwall.packages.locks.npm import parse_package_lock

        for name in _NPM_LOCKS:
            content = self._read(action, name)
            if content is None:
                continue
            for problem in foreign_places(parse_package_lock(content)):
                raise BadLock(
                    f"{name} of this workspace: {problem}",
                    hint=f"Ask a person to look at {name}; without it, packages are resolved anew.",
                )

    def _read(self, action: Action, name: str) -> bytes | None:
        exists = replace(action, operation=FileOperation("exists", name))
        if not self.workspaces.operate(exists):
            return None
        content = self.workspaces.operate(replace(action, operation=FileOperation("read", name)))
        assert isinstance(content, bytes)  # noqa: S101  # by the port
        return content


def _is_done(result: RunResult) -> bool:
    return result.exit_code == 0 and result.limit is None


def _decision(verdict: PackageVerdict) -> Decision:
    from cellwall.packages.evidence import EvidenceStep

    subject = f"{verdict.ecosystem.value}:{verdict.name}"
    reasons = [each for each in verdict.reasons if each.verdict is not Verdict.ALLOW]
    if not reasons:
        return Decision.built_in(Verdict.ALLOW, PACKAGES_RULE, f"nothing speaks against {subject}")
    # A person's yes does not replace the feed: the proxy refuses the dependencies all the same.
    strictest_verdict = max(
        Verdict.DENY if each.step is EvidenceStep.FEED else each.verdict for each in reasons
    )
    text = "; ".join(each.text for each in reasons)
    if verdict.suggestion and verdict.suggestion not in text:
        text += f"; did you mean {verdict.suggestion}?"
    made = Decision.built_in(strictest_verdict, PACKAGES_RULE, text)
    return replace(made, subject=subject)


def _report(operation: InstallPackages, served: Sequence[InstalledPackage]) -> Json:
    """For programs: the packages with the hashes under which the proxy judged them."""
    listed: list[Json] = [
        {
            "name": each.name,
            "version": each.version,
            "file": each.filename,
            each.algorithm: each.digest,
        }
        for each in served[:_MAX_REPORTED]
    ]
    return {"ecosystem": operation.ecosystem, "installed": listed}


def _cell_action(action: Action, operation: InstallPackages, base: str, step: str) -> Action:
    """One step of `inside/install.py` in a one-shot cell."""
    argv = (python_inside(), "-IS", "-c", _source(), step, operation.ecosystem, action.id)
    rest = (base, str(action.limits.memory_bytes), *operation.requirements)
    return bare_action(action, RunCommand((*argv, *rest), "/"))


def _private_action(action: Action, operation: InstallPackages) -> Action:
    """uv resolves the request; its result is dropped, the proxy notes what uv asked for."""
    words = ("pip", "compile", "--no-config", "--quiet", "--only-binary", ":all:")
    argv = (uv_program.INSIDE, *words, "--python", python_inside(), "-", "-o", "/tmp/lock.txt")
    text = "".join(f"{each}\n" for each in operation.requirements)
    return replace(
        bare_action(action, RunCommand(argv, "/")),
        stdin=text.encode(),
        env=uv_program.ENVIRONMENT,
        template=uv_program.TEMPLATE,
        workspace=WorkspaceRequest(),
    )


@cache
def _source() -> str:
    return (resources.files("cellwall.sandbox.inside") / "install.py").read_text("utf-8")

"""Locks of packages, and workspaces installed from them (PKG-4, PKG-5).

Both run in a cell, through the registry proxy: uv for `pylock.toml`, npm for `package-lock.json`.
No install script and no build runs. A file whose hash differs from the lock is refused.

The workspace may be prepared by an attacker: an installed package with other code, a cache with a
file that no registry judged, an `.npmrc`, a second lock. So an installation uses nothing of it:

  (1) a new folder in the workspace, with no setting, no cache and no package in it;
  (2) the packages of the lock, installed there;
  (3) the result put in the place of `.venv` or `node_modules`, which is removed as it is: a link is
      not followed.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from cellwall.admin import python_installs
from cellwall.admin.package_cells import PackageCell, package_cell, run_cancellable
from cellwall.core.errors import BadInput, CellwallError
from cellwall.core.host_programs import has_program
from cellwall.core.outcomes import Status
from cellwall.core.packages import Package, parse_request
from cellwall.core.ports import ApproverPort
from cellwall.core.types import Permission, Principal, WorkspaceMode, WorkspaceRequest
from cellwall.packages.locks.installable import (
    installable_package_lock,
    installable_pylock,
    packages_of,
)
from cellwall.packages.locks.model import Lock
from cellwall.packages.names import Ecosystem, canonical_name
from cellwall.runtime.app import App
from cellwall.runtime.judging import require
from cellwall.runtime.wiring import open_app
from cellwall.sandbox.inside.install import NPM_WITHOUT_GIT
from cellwall.sandbox.templates import environments, uv_program

__all__ = ["LOCK_NAMES", "Ecosystem", "PackageLocks", "ResolvedLock"]

LOCK_NAMES = {Ecosystem.PYPI: "pylock.toml", Ecosystem.NPM: "package-lock.json"}
"""The name of the lock file of each registry."""
_STAGING = ".cellwall-sync"
_RESULTS = {Ecosystem.PYPI: ".venv", Ecosystem.NPM: "node_modules"}
_MANIFEST = "package.json"
_NPM = (
    *("npm", "--ignore-scripts", "--registry=https://registry.npmjs.org/"),
    *("--no-audit", "--no-fund", "--no-update-notifier"),
    # npm repeats a download with a wrong hash: the first time after 10 s, then after a minute.
    *("--fetch-retry-mintimeout=500", "--fetch-retry-maxtimeout=2000"),
)
_NPM_ENVIRONMENT = {
    "npm_config_cache": f"/workspace/{uv_program.CACHE}",
    "npm_config_userconfig": "/dev/null",
    **NPM_WITHOUT_GIT,
}
# In the cell: `rm` removes a link and not its target. A lock without packages leaves no folder.
_CLEAR = f"cd /workspace && rm -rf {_STAGING} {uv_program.CACHE} && mkdir {_STAGING}"
_COMMIT = f'cd /workspace && mkdir -p {_STAGING}/"$1" && rm -rf "$1" && mv -T {_STAGING}/"$1" "$1"'
# A range of versions or a tag; a URL, a path, an alias or a repository needs other characters.
_NPM_RANGE = re.compile(r"[A-Za-z0-9.^~<>=*| +-]{1,100}")

Progress = Callable[[str], None]
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class ResolvedLock:
    """A lock file and the packages in it."""

    content: bytes
    packages: tuple[Package, ...]


class PackageLocks:
    """Locks and installs with one configuration, as one principal."""

    def __init__(
        self,
        principal: Principal,
        *,
        config: str | None = None,
        profile: str | None = None,
        ask: ApproverPort | None = None,
    ) -> None:
        """`ask` is the caller's own channel for questions about packages."""
        self._principal = principal
        self._ask = ask
        self._config, self._profile = config, profile

    def resolve(
        self, ecosystem: Ecosystem, requirements: Sequence[str], *, on_progress: Progress
    ) -> ResolvedLock:
        """The lock of these requirements: `requests<3` of PyPI, `lodash@^4` of npm."""
        if ecosystem is Ecosystem.NPM:
            manifest = _manifest_of(dict(map(_split_npm, requirements)))
            return self._run(lambda app: self._resolve_npm(app, manifest, on_progress))
        request = parse_request(requirements)
        return self._run(lambda app: self._resolve_python(app, request, on_progress))

    def sync(
        self, ecosystem: Ecosystem, content: bytes, workspace: str, *, on_progress: Progress
    ) -> tuple[Package, ...]:
        """Install a lock into a workspace: `.venv` for PyPI, `node_modules` for npm."""
        place = WorkspaceRequest(WorkspaceMode.READ_WRITE, workspace)
        if ecosystem is Ecosystem.NPM:
            npm_lock = installable_package_lock(content)
            return self._run(lambda app: self._sync_npm(app, npm_lock, content, place, on_progress))
        lock = installable_pylock(content)
        return self._run(lambda app: self._sync_python(app, lock, place, on_progress))

    def _run(self, work: Callable[[App], Awaitable[_Result]]) -> _Result:
        with closing(open_app(config=self._config, profile=self._profile)) as app:
            require(app.settings, self._principal, Permission.PACKAGES_INSTALL)
            return run_cancellable(lambda: work(app))

    async def _resolve_python(
        self, app: App, request: Sequence[str], on_progress: Progress
    ) -> ResolvedLock:
        python = environments.interpreter().path
        with self._python_cell(app) as cell:
            lock, content = await python_installs.resolve(
                cell, request, python=python, on_progress=on_progress
            )
        return ResolvedLock(content, packages_of(lock))

    async def _sync_python(
        self, app: App, lock: Lock, place: WorkspaceRequest, on_progress: Progress
    ) -> tuple[Package, ...]:
        python = environments.interpreter().path
        with self._python_cell(app, place) as cell:
            async with _staging(cell, Ecosystem.PYPI) as folder:
                await python_installs.sync_environment(
                    cell, lock, python=python, folder=folder, on_progress=on_progress
                )
        return packages_of(lock)

    @contextmanager
    def _python_cell(
        self, app: App, place: WorkspaceRequest | None = None
    ) -> Iterator[PackageCell]:
        with package_cell(
            app,
            self._principal,
            template=uv_program.TEMPLATE,
            registries=("pypi",),
            env=uv_program.ENVIRONMENT,
            workspace=place,
            ask=self._ask,
        ) as cell:
            yield cell

    async def _resolve_npm(self, app: App, manifest: bytes, on_progress: Progress) -> ResolvedLock:
        with self._npm_cell(app) as cell:
            on_progress("resolving")
            await cell.write(_MANIFEST, manifest)
            await _run_npm(cell, ["install", "--package-lock-only"])
            content = await cell.read(LOCK_NAMES[Ecosystem.NPM])
        return ResolvedLock(content, packages_of(installable_package_lock(content)))

    async def _sync_npm(
        self,
        app: App,
        lock: Lock,
        content: bytes,
        place: WorkspaceRequest,
        on_progress: Progress,
    ) -> tuple[Package, ...]:
        with self._npm_cell(app, place) as cell:
            manifest = await _place_lock(cell, lock, content)
            async with _staging(cell, Ecosystem.NPM):
                await cell.write(f"{_STAGING}/{_MANIFEST}", manifest)
                await cell.write(f"{_STAGING}/{LOCK_NAMES[Ecosystem.NPM]}", content)
                total = len(packages_of(lock))
                on_progress(f"installing {python_installs.counted(total)}")
                shown = python_installs.count_of(total, on_progress)
                await _run_npm(cell, ["ci"], folder=f"/workspace/{_STAGING}", on_packages=shown)
        return packages_of(lock)

    @contextmanager
    def _npm_cell(self, app: App, place: WorkspaceRequest | None = None) -> Iterator[PackageCell]:
        if not has_program("npm"):
            raise CellwallError(
                "npm is not installed on this host",
                hint="Install it with the system's packages, for example: apt-get install npm",
                code="CW-NO-NPM",
            )
        with package_cell(
            app,
            self._principal,
            registries=("npm",),
            env=_NPM_ENVIRONMENT,
            workspace=place,
            ask=self._ask,
        ) as cell:
            yield cell


@asynccontextmanager
async def _staging(cell: PackageCell, ecosystem: Ecosystem) -> AsyncIterator[str]:
    """(1), (3) The path for the result; the folders of the installation go, whatever happened."""
    result = _RESULTS[ecosystem]
    try:
        await _run_shell(cell, _CLEAR)
        yield f"/workspace/{_STAGING}/{result}"
        await _run_shell(cell, _COMMIT, result)
    finally:
        await cell.remove(_STAGING)
        await cell.remove(uv_program.CACHE)


async def _run_shell(cell: PackageCell, script: str, *words: str) -> None:
    argv = ("/bin/sh", "-c", script, "sh", *words)
    outcome = await cell.run(argv, cwd="/", on_line=lambda _line: None)
    if outcome.status is not Status.OK:
        raise python_installs.failure_of(outcome)


async def _run_npm(
    cell: PackageCell,
    words: Sequence[str],
    *,
    folder: str = "/workspace",
    on_packages: Callable[[int], None] | None = None,
) -> None:
    # With `--prefix` npm reads the settings of this folder, and looks for no project above it.
    argv = [*_NPM, "--prefix", folder, *words]
    outcome = await cell.run(argv, cwd=folder, on_line=lambda _line: None, on_packages=on_packages)
    if outcome.status is not Status.OK:
        raise python_installs.failure_of(outcome)


async def _place_lock(cell: PackageCell, lock: Lock, content: bytes) -> bytes:
    """Write the lock and the manifest where there are none, and return the manifest.

    A person's own files are not replaced.
    """
    name = LOCK_NAMES[Ecosystem.NPM]
    if not await cell.exists(name):
        await cell.write(name, content)
    elif await cell.read(name) != content:
        raise BadInput(
            f"the workspace has another {name}",
            hint=f"Sync that one, or remove it: cellwall packages sync {name} --workspace DIR",
            code="CW-BAD-LOCK",
        )
    if not await cell.exists(_MANIFEST):
        await cell.write(_MANIFEST, _manifest_of(dict(lock.requirements)))
    return await cell.read(_MANIFEST)


def _manifest_of(dependencies: dict[str, str]) -> bytes:
    return json.dumps({"private": True, "dependencies": dependencies}, indent=2).encode() + b"\n"


def _split_npm(text: str) -> tuple[str, str]:
    """`lodash`, `lodash@^4`, `@types/node@22`."""
    at = text.find("@", 1)
    name, wanted = (text, "*") if at < 0 else (text[:at], text[at + 1 :])
    if _NPM_RANGE.fullmatch(wanted) is None:
        raise BadInput(
            f"{text[:60]!r} is not a package with a range of versions",
            hint="Write a name such as lodash, 'lodash@^4' or @types/node@22.",
            code="CW-BAD-PACKAGE",
        )
    canonical_name(Ecosystem.NPM, name)  # raises for another text
    return name, wanted

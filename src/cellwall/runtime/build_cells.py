"""The cells of one build from source: a wheel of a judged archive, and nothing else (PKG-3).

(5) Install the build requirements as wheels into an environment, in a cell with the registry alone.
(6) Build in a second cell on the same files, without network, variables, secrets or the files of
    the session. Where the backend asks for further requirements, start again at (5), once.
(7) Take one wheel of the expected name and version.
The numbers are those of `runtime/source_builds.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import resources

import anyio

from cellwall.core.errors import CellwallError
from cellwall.core.ids import new_id
from cellwall.core.limits import GIB, KIB, MIB, Limits
from cellwall.core.outcomes import RunResult
from cellwall.core.ports import InstallCells
from cellwall.core.types import Action, RunCommand, WorkspaceMount, WorkspaceRequest
from cellwall.packages.source_builds import (
    MAX_WHEEL_BYTES,
    BuildRefused,
    BuildSystem,
    check_wheel_name,
    hook_requirements,
)
from cellwall.sandbox.files.file_tree import FileTree, WriteLimits
from cellwall.sandbox.inside import build as inside
from cellwall.sandbox.templates import environments, uv_program

_MAX_REQUIRES_BYTES = 32 * KIB
_MIN_DISK_BYTES = 2 * GIB
_MIN_FILES = 100_000
_MAX_CPU_S = 86_400.0
_MAX_ENVIRONMENTS = 2
_MAX_RESULTS = 10
_WORKSPACE = "/workspace/"


@dataclass(frozen=True, slots=True)
class BuildInput:
    """A judged source archive."""

    name: str
    version: str
    filename: str
    content: bytes
    system: BuildSystem


@dataclass(frozen=True, slots=True)
class WheelFile:
    """What a build left."""

    filename: str
    content: bytes


def build_action(action: Action) -> Action:
    """An action of the same principal, with nothing of its session."""
    return replace(
        action,
        id=new_id("act"),
        operation=RunCommand(("true",)),
        session_id=None,
        workspace=WorkspaceRequest(),
        limits=_with_disk(action.limits),
        env={},
        brief={},
        stdin=None,
        allow_domains=(),
        registries=(),
        secrets=(),
        tools=(),
        skills=(),
        template=uv_program.TEMPLATE,
    )


async def run_build(
    cells: InstallCells, action: Action, source: BuildInput, *, timeout_s: float
) -> WheelFile | RunResult:
    """The wheel, or the result of the cell that failed. `action` is a `build_action`."""
    python = environments.interpreter().version
    requires, known = source.system.requires, "[]"
    for _ in range(_MAX_ENVIRONMENTS):
        # Each time on empty files: no code of the package has run before the network is used.
        async with cells.private(action) as fresh:
            made = await fresh.run(_install(action, requires))  # (5)
            if not _is_done(made):
                return made
            place = partial(_write, fresh.mount, source.filename, source.content, action.limits)
            await anyio.to_thread.run_sync(place)
            ended = await fresh.run(_build(action, source, known, timeout_s))  # (6)
            if _is_done(ended):
                wheel = partial(_read_wheel, fresh.mount, source.name, source.version, python)
                return await anyio.to_thread.run_sync(wheel)  # (7)
            if ended.exit_code != inside.MORE_REQUIREMENTS or ended.limit is not None:
                return ended
            read = partial(_read, fresh.mount, inside.REQUIRES, _MAX_REQUIRES_BYTES)
            answer = await anyio.to_thread.run_sync(read)
        more = hook_requirements(answer, python)
        requires = tuple(dict.fromkeys((*source.system.requires, *more)))
        known = json.dumps(json.loads(answer))
    raise BuildRefused("the build backend asks for other requirements each time")


def _install(action: Action, requires: Sequence[str]) -> Action:
    step = _step(action, ("environment", uv_program.INSIDE, *requires))
    return replace(step, registries=("pypi",), env=uv_program.ENVIRONMENT)


def _build(action: Action, source: BuildInput, known: str, timeout_s: float) -> Action:
    system, paths = source.system, json.dumps(source.system.backend_path)
    words = ("build", _WORKSPACE + source.filename, system.backend, paths, known)
    cpu_s = min(timeout_s * max(1.0, action.limits.cpus), _MAX_CPU_S)
    limits = replace(action.limits, wall_s=timeout_s, cpu_s=cpu_s)
    return replace(_step(action, words), limits=limits)


def _step(action: Action, words: Sequence[str]) -> Action:
    argv = (environments.interpreter().path, "-I", "-c", _source(), *words)
    return replace(action, operation=RunCommand(argv, "/"))


@cache
def _source() -> str:
    return (resources.files("cellwall.sandbox.inside") / "build.py").read_text("utf-8")


def _is_done(result: RunResult) -> bool:
    return result.exit_code == 0 and result.limit is None


def _with_disk(limits: Limits) -> Limits:
    """More disk than memory: the files lie on disk, and the memory is that of the slot."""
    return replace(
        limits,
        disk_bytes=max(limits.disk_bytes, _MIN_DISK_BYTES, limits.memory_bytes + MIB),
        file_size_bytes=max(limits.file_size_bytes, MAX_WHEEL_BYTES),
        file_count=max(limits.file_count, _MIN_FILES),
    )


# The files of a build, by descriptors below the root: code in the cell has chosen their names.


def _tree(mount: WorkspaceMount) -> FileTree:
    if mount.dir_fd is None:
        raise CellwallError("the build has no workspace on disk")
    return FileTree(os.dup(mount.dir_fd))


def _write(mount: WorkspaceMount, name: str, content: bytes, limits: Limits) -> None:
    with _tree(mount) as tree:
        tree.write(name, content, WriteLimits.of(limits, ()))


def _read(mount: WorkspaceMount, path: str, max_bytes: int) -> bytes:
    with _tree(mount) as tree:
        return tree.read(path.removeprefix(_WORKSPACE), max_bytes=max_bytes)


def _read_wheel(mount: WorkspaceMount, name: str, version: str, python: str) -> WheelFile:
    folder = inside.WHEEL.removeprefix(_WORKSPACE)
    with _tree(mount) as tree:
        names = [each.name for each in tree.list(folder, max_entries=_MAX_RESULTS)]
        filename = check_wheel_name(names, name, version, python)
        content = tree.read(f"{folder}/{filename}", max_bytes=MAX_WHEEL_BYTES)
        return WheelFile(filename, content)

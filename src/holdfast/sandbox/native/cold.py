"""The cold path: one bubblewrap for one run, with every layer, and nothing left after it.

(1) what to start      (4) the outer wall            (7) read the counters, let go
(2) which layers       (5) limits, init's plan       (8) the result
(3) the cgroup         (6) watch: output, deadline
"""

from __future__ import annotations

import functools
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

from holdfast.core.errors import BadInput, LayerMissing
from holdfast.core.ports import Slot, WorkspaceLease
from holdfast.core.types import Action, OutputSink, RunCode, RunCommand, RunResult
from holdfast.sandbox import languages
from holdfast.sandbox.native import cellplan, cgroups, groups, rootfs, seccomp
from holdfast.sandbox.native._syscalls import landlock_abi
from holdfast.sandbox.native.channels import RESULT_FD_INSIDE
from holdfast.sandbox.native.standing import Shape, Standing, spares
from holdfast.sandbox.native.watch import Watch
from holdfast.sandbox.runs import RunLedger


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSettings:
    """The part of the configuration that the native sandbox needs."""

    uid_base: int
    tmp_bytes: int
    shm_bytes: int
    max_result_bytes: int
    extra_read_only_paths: tuple[str, ...] = ()
    dangerously_without_cgroup: bool = False
    dangerously_without_landlock: bool = False


@dataclass(frozen=True, slots=True)
class HostLayers:
    """What this host offers, looked up once when the sandbox is made."""

    bubblewrap: str | None
    landlock_abi: int
    cgroup: cgroups.Choice

    @classmethod
    def detect(cls) -> HostLayers:
        return cls(shutil.which("bwrap"), landlock_abi(), cgroups.choose(cgroups.gather()))


class NativeSandbox:
    """The port's native implementation; `run` may be called by many tasks at once."""

    def __init__(self, settings: NativeSettings, layers: HostLayers, ledger: RunLedger) -> None:
        self._settings = settings
        self._layers = layers
        self._ledger = ledger

    async def run(
        self, action: Action, *, slot: Slot, workspace: WorkspaceLease, sink: OutputSink | None
    ) -> RunResult:
        started = time.monotonic()
        # (1) What to start.
        program, code = _program(action)
        # (2) Which layers; a required one that is missing is a refusal (ISO-4).
        walls = self._walls(slot, open_files=action.limits.open_files)
        with ExitStack() as stack:
            tools = self._tools(stack, walls, program)
            shape = Shape(
                self._ledger,
                walls.outer,
                self._layers.cgroup if walls.cgroup else None,
                wants_stdin=action.stdin is not None,
            )
            # Only a cell to which nothing of this run's is shown can have been raised before it.
            is_plain = workspace.mount.dir_fd is None and not tools and not shape.in_scope
            taken = spares.take(shape) if is_plain else None
            standing, numbers = taken or (Standing(shape, action.id), None)
            stack.callback(standing.close)
            watch = Watch(action, standing, workspace, started=started)
            async with watch:
                # (3) The cgroup into which bubblewrap is born, (4) bubblewrap.
                if numbers is None:
                    await standing.join_scope()
                    numbers = standing.raise_wall(workspace.mount, tools)
                # (5) While it works: every limit, then the plan, then the word to go on.
                if standing.group is not None:
                    _limit_group(standing.group, action, workspace)
                home = "/workspace" if workspace.mount.home else "/tmp"
                job = cellplan.Job(
                    argv=program.argv,
                    env=_environment(action, program, home=home),
                    limits=action.limits,
                    mount=workspace.mount,
                    descriptors=_given(program, numbers),
                    files=_files(program, code, home=home),
                )
                standing.go(cellplan.init_plan(walls, job))
                if is_plain:
                    spares.renew(shape)
                # (6)-(8) Until the end, whatever its cause.
                return await watch.until_end(
                    sink=sink, max_result_bytes=self._settings.max_result_bytes
                )

    def _walls(self, slot: Slot, *, open_files: int) -> cellplan.Walls:
        layers, settings = self._layers, self._settings
        if layers.bubblewrap is None:
            raise LayerMissing(
                "bubblewrap is not installed",
                mend="Install it, for example: apt-get install bubblewrap",
                code="HF-LAYER-BUBBLEWRAP",
            )
        abi = layers.landlock_abi
        if abi == 0 and not settings.dangerously_without_landlock:
            raise LayerMissing(
                "this kernel has no Landlock",
                mend="Use Linux 5.13 or newer with `landlock` in its lsm= list, or accept the "
                "other walls alone with sandbox.dangerously_without_landlock = true.",
                code="HF-LAYER-LANDLOCK",
            )
        way = layers.cgroup.way
        if way == "none" and not settings.dangerously_without_cgroup:
            choice = layers.cgroup
            raise LayerMissing(choice.reason, mend=choice.mend, code="HF-LAYER-CGROUP")
        drop_to = settings.uid_base + slot.number if os.geteuid() == 0 else None
        if drop_to is not None and not is_mapped(drop_to):
            raise LayerMissing(
                f"the unprivileged uid {drop_to} does not exist in this user namespace",
                mend="Set sandbox.uid_base to the first of a range of uids that are mapped here "
                "and belong to nobody (see /proc/self/uid_map).",
                code="HF-LAYER-UID",
            )
        return cellplan.Walls(
            outer=cellplan.OuterWall(layers.bubblewrap, rootfs.survey(), drop_to),
            landlock_abi=abi,
            seccomp_filter=seccomp.build(seccomp.host_arch(), open_files=open_files),
            cgroup=way != "none",
            tmp_bytes=settings.tmp_bytes,
            shm_bytes=settings.shm_bytes,
        )

    def _tools(
        self, stack: ExitStack, walls: cellplan.Walls, program: languages.Program
    ) -> list[cellplan.Shown]:
        """Directories beyond /usr that the administrator or the language needs, read-only."""
        wanted = [(path, path) for path in self._settings.extra_read_only_paths]
        if walls.outer.root.foreign_python is not None:
            wanted.append((walls.outer.root.foreign_python, "/opt/python"))
        if program.extra_bind is not None:
            outside, inside = program.extra_bind
            wanted.append((os.path.dirname(outside), os.path.dirname(inside)))
        shown = []
        for outside, inside in wanted:
            try:
                descriptor = os.open(outside, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                raise BadInput(
                    f"{outside} is not a directory that can be shown",
                    mend="Correct sandbox.extra_read_only_paths in the configuration.",
                ) from error
            stack.callback(os.close, descriptor)
            shown.append(cellplan.Shown(descriptor, outside, inside, True, mapped=False))
        return shown


@functools.cache
def is_mapped(uid: int) -> bool:
    """Whether a uid exists here: in a container root may be the only one."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return any(first <= uid < first + count for first, _outside, count in ranges)


def _program(action: Action) -> tuple[languages.Program, bytes]:
    match action.want:
        case RunCommand(argv):
            return languages.Program(argv, ""), b""
        case RunCode() as want:
            return languages.program_for(want), want.code
        case _:
            raise BadInput("only commands and code run in a sandbox")


def _environment(action: Action, program: languages.Program, *, home: str) -> Mapping[str, str]:
    """From nothing (ISO-3): what programs cannot do without, then what the caller named."""
    return {
        "PATH": rootfs.SEARCH_PATH,
        "HOME": home,
        "USER": "sandbox",
        "LOGNAME": "sandbox",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "SHELL": "/bin/sh",
        "HOLDFAST": "1",
        # Hooks copied from a template would be refused where .git/hooks is protected (FS-4).
        "GIT_TEMPLATE_DIR": "/.holdfast/empty",
        **dict(program.env),
        **action.env,
    }


def _files(program: languages.Program, code: bytes, *, home: str) -> dict[str, bytes]:
    files = {
        "/etc/passwd": rootfs.PASSWD.format(home=home).encode(),
        "/etc/group": rootfs.GROUP.encode(),
        "/etc/hosts": rootfs.HOSTS.encode(),
        "/etc/nsswitch.conf": rootfs.NSSWITCH.encode(),
        "/.holdfast/nothing": b"",
    }
    if program.code_path:
        files[program.code_path] = code
    return files


def _given(program: languages.Program, numbers: Mapping[int, int]) -> Mapping[int, int]:
    """A program that tells no value has no use for a descriptor that nobody else gives it."""
    return {
        inside: number
        for inside, number in numbers.items()
        if inside != RESULT_FD_INSIDE or program.tells_value
    }


def _limit_group(group: groups.Group, action: Action, workspace: WorkspaceLease) -> None:
    directory = workspace.mount.dir_fd
    device = None if directory is None else groups.block_device(os.fstat(directory).st_dev)
    group.limit(action.limits, io_device=device)

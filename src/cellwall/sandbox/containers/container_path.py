"""One-shot runs and live cells in containers, behind the same port as native cells."""

from __future__ import annotations

import os
import platform
import resource
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import anyio

from cellwall.core.errors import LayerMissing, WorkspaceError
from cellwall.core.ids import new_id
from cellwall.core.network import CellNetwork
from cellwall.core.outcomes import RunResult
from cellwall.core.skills import Skill
from cellwall.core.types import Action, WorkspaceMount
from cellwall.sandbox import languages
from cellwall.sandbox.containers import root_image
from cellwall.sandbox.containers.container_cell import (
    CONTAINER_PREFIX,
    ContainerCell,
    kernel_version,
)
from cellwall.sandbox.containers.container_plan import container_plan
from cellwall.sandbox.containers.container_request import (
    LABEL,
    ContainerBind,
    ContainerSpec,
    container_request,
    seccomp_profile,
)
from cellwall.sandbox.containers.container_walls import (
    ContainerUser,
    EngineChoice,
    container_walls,
    find_engine,
    judge_engine,
    user_in,
)
from cellwall.sandbox.containers.container_workspace import EmptySources, workspace_binds
from cellwall.sandbox.containers.engine import Engine
from cellwall.sandbox.linux import cell_plan, jobs, run_cgroup, visible_host
from cellwall.sandbox.linux.channels import EgressSockets
from cellwall.sandbox.linux.jobs import CellRunRequest
from cellwall.sandbox.linux.layers import (
    HostLayers,
    NativeSettings,
    UidLease,
    python_template_spec,
    tools_for,
)
from cellwall.sandbox.linux.live_cell import LiveCellParts
from cellwall.sandbox.linux.live_cell_factory import skill_digests
from cellwall.sandbox.linux.outer_wall import HostDirectory
from cellwall.sandbox.linux.plan import PAGE_ROOM
from cellwall.sandbox.linux.prepared_cell import CellShape
from cellwall.sandbox.linux.programs import cell_program
from cellwall.sandbox.linux.run_monitor import RunMonitor
from cellwall.sandbox.linux.skill_plan import skill_files
from cellwall.sandbox.linux.walls import Walls
from cellwall.sandbox.run_ledger import RunLedger

_HOME_INSIDE = "/workspace"
PATH_NAME = "container"
_OWN_DESCRIPTORS = 256  # those that init receives have numbers from 64 on
_SENTRY_THREADS = 256  # gVisor's kernel and file server; more with the processors of the host


@dataclass(frozen=True, slots=True)
class ReadyEngine:
    """An engine that was asked once, and holds our image."""

    engine: Engine
    choice: EngineChoice
    image: str


class ContainerHost:
    """The engine and the walls of every container; shared by all runs, and used by many threads."""

    def __init__(self, settings: NativeSettings, layers: HostLayers, ledger: RunLedger) -> None:
        self._settings, self._layers = settings, layers
        self.ledger = ledger
        self._lock = threading.Lock()
        self._ready: ReadyEngine | None = None
        self._directory = f"{ledger.directory}.containers"
        self._profile = f"{ledger.directory}.seccomp.json"

    def ready(self) -> ReadyEngine:
        """Ask the engine; load the image if it is not there. Blocks at first."""
        with self._lock:
            if self._ready is None:
                engine = find_engine(self._settings, os.environ)
                facts = engine.facts()
                choice = judge_engine(self._settings, facts)
                with open(cell_program(), "rb") as file:
                    program = file.read()
                archive = root_image.root_archive(visible_host.survey(), program, home=_HOME_INSIDE)
                image = root_image.image_name(archive)
                if not engine.has_image(image):
                    engine.load_image(image, archive)
                os.makedirs(self._directory, mode=0o700, exist_ok=True)
                self._empty = EmptySources.make(f"{self._directory}.empty")
                if choice.is_podman:
                    self._write_profile()
                self._sweep(engine)
                self._ready = ReadyEngine(engine, choice, image)
            return self._ready

    def _sweep(self, engine: Engine) -> None:
        """A supervisor that was killed between the two requests has left a container behind that
        never ran; the engine removes all others at their end (ISO-8)."""
        live = {f"{CONTAINER_PREFIX}{name}" for name in self.ledger.live()}
        for name, container in engine.not_running(f"{LABEL}={self.ledger.tag}"):
            if name not in live:
                engine.remove(container)

    def _write_profile(self) -> None:
        fresh = f"{self._profile}.{os.getpid()}"
        with open(fresh, "w", encoding="ascii") as file:
            file.write(seccomp_profile())
        os.replace(fresh, self._profile)

    def walls(self, *, open_files: int, uid_offset: int) -> tuple[Walls, ContainerUser]:
        """Blocks at first; a required layer that is missing is a refusal (ISO-4)."""
        user = user_in(self.ready().choice, self._settings, uid_offset=uid_offset)
        walls = container_walls(self._settings, self._layers, user, open_files=open_files)
        return walls, user

    def start(
        self,
        cell: ContainerCell,
        walls: Walls,
        user: ContainerUser,
        job: cell_plan.Job,
        tools: Sequence[HostDirectory],
        egress: EgressSockets | None,
        program: languages.Program | None,
    ) -> None:
        """Start the container, and init with its plan. Blocks."""
        ready = self.ready()
        if job.skills and walls.landlock_abi == 0:
            # Init has no capability to make their memory file system read-only (SKL-1).
            raise LayerMissing(
                "skills in a container are kept unchanged by Landlock, which is not there",
                hint='Use sandbox.backend = "container" on a kernel with Landlock, or "native".',
                code="CW-LAYER-LANDLOCK",
            )
        root = walls.outer.root
        binds = [ContainerBind(path, path) for path in root.binds]
        binds += [ContainerBind(f"/etc/{name}", f"/etc/{name}") for name in root.etc]
        binds += [ContainerBind(each.outside, each.inside) for each in tools]
        workspace = workspace_binds(job.mount, user, self._empty, can_compare=not walls.is_gvisor)
        spec = ContainerSpec(
            image=ready.image,
            user=user.inside,
            closes_init=walls.is_gvisor,
            tag=self.ledger.tag,
            limits=job.limits,
            join_directory=cell.join_directory,
            workspace=workspace.binds,
            binds=tuple(binds),
            tmp_bytes=walls.tmp_bytes,
            shm_bytes=walls.shm_bytes,
            file_bytes=_file_bytes(job, egress),
            kernel=kernel_version(platform.release()),
            open_files=_open_files(job.limits.open_files),
            runtime=ready.choice.runtime,
            profile_path=self._profile if ready.choice.is_podman else None,
            own_processes=_SENTRY_THREADS if walls.is_gvisor else run_cgroup.WARM_PROCESSES,
        )
        numbers = cell.start(container_request(spec), egress)
        descriptors = numbers.program
        if program is not None:
            descriptors = jobs.program_descriptors(program, numbers.program)
        job = replace(
            job,
            descriptors=descriptors if job.argv else {},
            egress=egress.plan(cell.egress_number) if egress else None,
        )
        cell.start_init(
            container_plan(
                walls,
                job,
                workspace.expected,
                life_number=numbers.life,
                user=user.inside if walls.is_gvisor else None,
            )
        )
        if egress is not None:
            egress.hand_over()

    def make_cell(self, walls: Walls, name: str, *, wants_stdin: bool = False) -> ContainerCell:
        shape = CellShape(self.ledger, walls.outer, None, wants_stdin)
        shares_user = self._settings.dangerously_without_user_namespace
        return ContainerCell(
            shape,
            name,
            self.ready().engine,
            self._directory,
            may_share=frozenset({"user"} if shares_user else ()),
            is_gvisor=walls.is_gvisor,
        )

    def tools(
        self,
        stack: ExitStack,
        walls: Walls,
        action: Action,
        program: languages.Program | None,
    ) -> list[HostDirectory]:
        spec = python_template_spec(action.template, self._settings.environment_of)
        return tools_for(stack, self._settings, walls.outer.root, program, spec)


class ContainerPath:
    """One-shot runs; `run` may be called by many tasks at once."""

    def __init__(self, settings: NativeSettings, host: ContainerHost) -> None:
        self._settings, self._host = settings, host

    async def run(self, request: CellRunRequest) -> RunResult:
        action, mount = request.action, request.mount
        program, code = jobs.program_of(action, only_deno=self._settings.only_deno)
        await anyio.to_thread.run_sync(self._host.ready)
        walls, user = self._host.walls(
            open_files=action.limits.open_files, uid_offset=request.slot.number
        )
        with ExitStack() as stack:
            tools = self._host.tools(stack, walls, action, program)
            wants_stdin = action.stdin is not None
            cell = self._host.make_cell(walls, action.id, wants_stdin=wants_stdin)
            stack.callback(cell.close)
            egress = _open_egress(walls, request.network, stack)
            job = cell_plan.Job(
                argv=program.argv,
                env=jobs.environment(action, program, mount),
                limits=action.limits,
                mount=mount,
                files={program.code_path: code} if program.code_path else {},
                cwd=jobs.working_directory(action),
                skills=request.skills,
            )
            async with RunMonitor(request, cell, stdin=action.stdin) as monitor:
                await anyio.to_thread.run_sync(
                    self._host.start, cell, walls, user, job, tools, egress, program
                )
                result = await monitor.until_end(
                    max_result_bytes=self._settings.max_result_bytes,
                    frame=jobs.interpreter_request(program, code, action),
                )
        return replace(result, path=PATH_NAME)


class ContainerCells:
    """Makes live cells; as `LiveCellFactory`."""

    def __init__(self, host: ContainerHost) -> None:
        self._host = host

    def open(
        self,
        action: Action,
        mount: WorkspaceMount,
        skills: Sequence[Skill],
        network: CellNetwork | None,
    ) -> LiveCellParts:
        with ExitStack() as stack:
            uid = UidLease(f"{self._host.ledger.directory}.uids")
            stack.callback(uid.close)
            walls, user = self._host.walls(
                open_files=action.limits.open_files, uid_offset=uid.number
            )
            cell = self._host.make_cell(walls, new_id("cell"))
            stack.callback(cell.close)
            with ExitStack() as until_sent:
                tools = self._host.tools(until_sent, walls, action, None)
                egress = _open_egress(walls, network, until_sent)
                job = cell_plan.Job(limits=action.limits, mount=mount, is_once=False, skills=skills)
                self._host.start(cell, walls, user, job, tools, egress, None)
            cell.wait_until_ready()
            open_cell = stack.pop_all()
        return LiveCellParts(
            path=PATH_NAME,
            init=cell.pipes.status,
            meter=cell.meter,
            owner=walls.outer.drop_to,
            interpreter=languages.interpreter(),
            limits=action.limits,
            failure=cell.failure,
            close=open_cell.close,
            skills=skill_digests(skills),
        )

    def open_view(self, action: Action, mount: WorkspaceMount) -> int:  # noqa: ARG002  # the signature of native cells
        raise WorkspaceError(
            "a container of an engine has no copy-on-write layers",
            hint='Use sandbox.backend = "native".',
            code="CW-BACKEND-WORKSPACE",
        )


def _open_egress(
    walls: Walls, network: CellNetwork | None, stack: ExitStack
) -> EgressSockets | None:
    if network is not None and walls.is_gvisor:
        raise LayerMissing(
            "code in gVisor has no egress: its kernel sends no socket of its network out",
            hint='Run without allowed domains, or use sandbox.backend = "container" or "native".',
            code="CW-BACKEND-EGRESS",
        )
    return EgressSockets.open(network, stack, is_proxy_only=True)


def _open_files(limit: int) -> int:
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limit + _OWN_DESCRIPTORS
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def _file_bytes(job: cell_plan.Job, egress: EgressSockets | None) -> int:
    """An upper bound of what init writes into each of its memory file systems."""
    _folders, skills = skill_files(job.skills)
    network = () if egress is None else egress.plan(0).files.values()
    sizes = [*map(len, job.files.values()), *(len(data) for data, _ in skills.values())]
    sizes += map(len, network)
    return sum(sizes) + PAGE_ROOM * len(sizes)

"""A template: an outer wall built once by bubblewrap, and a zygote inside that forks cells.

The zygote holds no secret, has no network and runs no untrusted code. Each cell forked from it
takes namespaces of its own and builds the same inner walls as a cold cell (cell/zygote.c).
"""

from __future__ import annotations

import functools
import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from importlib import resources

from cellwall.core.errors import CellwallError, LayerMissing, SandboxFailed
from cellwall.core.ids import new_id
from cellwall.core.limits import MIB, Limits
from cellwall.core.skills import Skill
from cellwall.core.types import WorkspaceMode, WorkspaceMount
from cellwall.sandbox import languages
from cellwall.sandbox.linux import cell_plan, jobs, outer_wall, seccomp
from cellwall.sandbox.linux.channels import INTERPRETER_FDS_INSIDE, EgressSockets, ready_to_read
from cellwall.sandbox.linux.layers import (
    PACKAGES_INSIDE,
    HostLayers,
    NativeSettings,
    TemplateSpec,
    UidLease,
    tools_for,
    walls_for,
)
from cellwall.sandbox.linux.outside_processes import FIRST_SENT_FD, CellShim, memory_file
from cellwall.sandbox.linux.prepared_cell import CellShape, PreparedCell
from cellwall.sandbox.linux.walls import Walls
from cellwall.sandbox.run_ledger import RunLedger

_START_WITHIN_S = 30.0
_MAX_PLANS = 16
_PRIVATE = WorkspaceMount(mode=WorkspaceMode.PRIVATE)
# For the zygote itself; each cell has its own limits.
_ZYGOTE_LIMITS = Limits(memory_bytes=1024 * MIB, processes=256, cpus=2.0)

_COMMAND = (
    'import sys; sys.path.append("/.cellwall"); import _cellwall_zygote as zygote; '
    'import _cellwall_runner; sys.path.remove("/.cellwall"); zygote.main()'
)


@dataclass(frozen=True, slots=True)
class CellRecipe:
    """Cells of a template with equal recipes are interchangeable."""

    limits: Limits
    is_once: bool = True


@dataclass(frozen=True, slots=True)
class CellContents:
    """The contents of one cell beyond its template's root."""

    mount: WorkspaceMount | None = None
    files: Mapping[str, bytes] | None = None
    skills: Sequence[Skill] = ()
    egress: EgressSockets | None = None

    @property
    def adds_nothing(self) -> bool:
        """Apart from the mount."""
        return not self.files and not self.skills and self.egress is None


NO_CONTENTS = CellContents()


class TemplateGone(SandboxFailed):
    """The template is dead, or does not answer in time."""


class Template:
    """A running template. `fork` may be called by several threads."""

    def __init__(
        self, spec: TemplateSpec, settings: NativeSettings, layers: HostLayers, ledger: RunLedger
    ) -> None:
        self.spec = spec
        self._settings, self._layers = settings, layers
        with ExitStack() as stack:
            self._uid = UidLease(f"{ledger.directory}.uids")
            stack.callback(self._uid.close)
            walls = self.walls(_ZYGOTE_LIMITS)
            self.uid = walls.outer.drop_to
            shape = CellShape.of(walls, layers, ledger, is_template=True)
            self._prepared = PreparedCell(shape, new_id("tpl"))
            stack.callback(self._prepared.close)
            self._prepared.join_scope()
            self.group = self._prepared.group
            self._prepared.limit(_ZYGOTE_LIMITS, io_device=None)
            tools = tools_for(stack, settings, walls.outer.root, None, spec)
            numbers = self._prepared.start_bubblewrap(None, tools)
            self._prepared.start_init(self._plan(walls, numbers))
            pipes = self._prepared.pipes
            control = pipes.control if spec.is_interpreter else pipes.status.socket
            assert control is not None  # noqa: S101  # a template has a control socket
            self.control: socket.socket = control
            """The socket over which the supervisor requests cells."""
            self._wait_for_zygote()
            self._plans: dict[CellRecipe, int] = {}
            stack.callback(self._close_plans)
            self._stack = stack.pop_all()

    def walls(self, limits: Limits, *, reports_sockets: bool = False) -> Walls:
        return walls_for(
            self._settings,
            self._layers,
            uid_offset=self._uid.number,
            open_files=limits.open_files,
            reports_sockets=reports_sockets,
        )

    def _plan(self, walls: Walls, numbers: Mapping[int, int]) -> bytes:
        files = dict(jobs.base_files(home="/workspace"))
        files[cell_plan.PASSWD_WITHOUT_HOME] = jobs.base_files(home="/tmp")["/etc/passwd"]
        files |= languages.script_files()
        argv: tuple[str, ...] = ()
        env: dict[str, str] = {}
        if self.spec.is_interpreter:
            files |= languages.inside_files() | _zygote_files()
            paths = [] if self.spec.site_packages is None else [PACKAGES_INSIDE]
            contents = {
                "preload": self.spec.preload,
                "paths": paths,
                "packages": self.spec.preload_packages,
            }
            files["/.cellwall/template.json"] = json.dumps(contents).encode()
            argv = (languages.python_inside(), "-I", "-c", _COMMAND)
            env = {
                "PATH": "/usr/bin:/bin",
                "LANG": "C.UTF-8",
                "HOME": "/workspace",
                # A fork copies the locks of a thread but not the thread: none may start.
                "OPENBLAS_NUM_THREADS": "1",
                "OMP_NUM_THREADS": "1",
            }
        job = cell_plan.Job(
            limits=_ZYGOTE_LIMITS,
            mount=_PRIVATE,
            argv=argv,
            env=env,
            descriptors=numbers,
            files=files,
        )
        arch = seccomp.host_arch()
        zygote_filter = seccomp.build(arch, open_files=None, for_zygote=True)
        return cell_plan.template_plan(walls, job, zygote_filter=zygote_filter)

    def _wait_for_zygote(self) -> None:
        shim = self._prepared.shim
        deadline = time.monotonic() + _START_WITHIN_S
        report, words = "", ["hello"]
        while not report and words == ["hello"] and (left_s := deadline - time.monotonic()) > 0:
            ready = ready_to_read(self.control, shim, timeout_s=left_s)
            if self.control.fileno() in ready:
                report = self.control.recv(256).decode("ascii", "replace") or "gone"
            elif ready:
                words = shim.receive() or ["gone"]
        if report == "zygote":
            return
        if report.startswith("fail "):
            raise shim.failure(report.removeprefix("fail "))
        raise SandboxFailed(
            f"the template {self.spec.name} did not start",
            hint="Run `cellwall doctor` to see which layer fails on this host.",
            code="CW-TEMPLATE",
            detail=f"{report} {' '.join(words)} {_read_some(self._prepared.channels.stderr)}",
        )

    @property
    def shim(self) -> CellShim:
        return self._prepared.shim

    def is_alive(self) -> bool:
        """The shim outlives the zygote; a live zygote sends nothing on its control socket."""
        return self._prepared.shim.is_alive() and not ready_to_read(self.control, timeout_s=0)

    @property
    def pid(self) -> int:
        return self._prepared.shim.pid

    def plan_of(self, recipe: CellRecipe, joins: int) -> int:
        """The plan of cells without contents, written once: only their descriptors differ."""
        plan = self._plans.get(recipe)
        if plan is None:
            while len(self._plans) >= _MAX_PLANS:
                os.close(self._plans.pop(next(iter(self._plans))))
            plan = memory_file("cellwall-cell", self.cell_plan(recipe, joins=joins))
            self._plans[recipe] = plan
        return plan

    def cell_plan(
        self,
        recipe: CellRecipe,
        *,
        joins: int,
        contents: CellContents = NO_CONTENTS,
    ) -> bytes:
        """`joins`: how many cgroup files are sent, after the descriptors of an interpreter."""
        mount, egress = contents.mount or _PRIVATE, contents.egress
        waits = self.spec.is_interpreter and recipe.is_once
        count = len(INTERPRETER_FDS_INSIDE) if waits else 0
        descriptors = {number: FIRST_SENT_FD + number for number in range(count)}
        first = FIRST_SENT_FD + count
        after = first + joins
        tree = after if mount.dir_fd is not None else None
        last = after if tree is None else after + 1
        job = cell_plan.Job(
            limits=recipe.limits,
            mount=mount,
            descriptors=descriptors,
            files=contents.files or {},
            is_once=recipe.is_once,
            skills=contents.skills,
            egress=None if egress is None else egress.plan(last),
        )
        # A live cell has a network namespace of its own: the supervisor dials into it.
        keeps_network = recipe.is_once and egress is None
        return cell_plan.warm_plan(
            self.walls(recipe.limits, reports_sockets=keeps_network),
            job,
            joins=range(first, after),
            tree=tree,
            is_interpreter=waits,
        )

    def fork(self, descriptors: list[int]) -> None:
        """Ask for a cell. `descriptors`: its plan, its status socket, then those the plan uses."""
        try:
            socket.send_fds(self.control, [b"cell"], descriptors)
        except OSError as error:
            raise self.gone(error) from error

    def gone(self, error: OSError | None) -> TemplateGone:
        return TemplateGone(
            f"the template {self.spec.name} is gone",
            hint="Try again; a new one is started.",
            code="CW-TEMPLATE-GONE",
            detail=str(error),
        )

    def trees(self, mount: WorkspaceMount) -> list[int]:
        """Detached mounts of a given directory, with ids mapped to those of the template.

        For copy-on-write layers there are two: the cell's, and the view for the file API.
        """
        with self.requested_trees(mount) as receive:
            return receive()

    def requested_trees(
        self, mount: WorkspaceMount
    ) -> AbstractContextManager[Callable[[], list[int]]]:
        """`trees`, which are made while the caller does something else."""
        if self.uid is None:
            raise LayerMissing(
                "an ordinary user cannot give a directory to a warm cell", code="CW-LAYER-TREE"
            )
        plan = outer_wall.tree_plan(self.uid, mount, FIRST_SENT_FD)
        sent = [directory.descriptor for directory in outer_wall.workspace_directories(mount)]
        count = 2 if mount.mode is WorkspaceMode.COPY_ON_WRITE else 1
        return self._prepared.shim.requested_trees(plan, sent, count)

    def failure(self, step: str) -> CellwallError:
        return self._prepared.shim.failure(step)

    def drop_copy(self) -> None:
        """In a forked child: close our copies of the parent's sockets."""
        self._prepared.shim.drop_copy()
        self.control.close()

    def close(self) -> None:
        """End the zygote and every cell forked from it."""
        self._stack.close()

    def _close_plans(self) -> None:
        for descriptor in self._plans.values():
            os.close(descriptor)
        self._plans.clear()


def _read_some(descriptor: int | None) -> str:
    if descriptor is None:
        return ""
    try:
        return os.read(descriptor, 4096).decode("utf-8", "replace").strip()
    except OSError:
        return ""


@functools.cache
def _zygote_files() -> dict[str, bytes]:
    native = resources.files("cellwall.sandbox.linux")
    library = native.joinpath("cellwall-cell.so").read_bytes()
    return {**languages.module_files("zygote"), "/.cellwall/cell.so": library}

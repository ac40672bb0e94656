"""A template: a wall built once by bubblewrap, and a zygote behind it from which cells are forked.

The zygote holds no secret and no network and runs no code of anybody's. Each cell forked from it
takes namespaces of its own and builds the same inner walls as a cold one (cell/zygote.c).
"""

from __future__ import annotations

import functools
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import resources

from cellwall.core.errors import CellwallError, LayerMissing, SandboxFailed
from cellwall.core.limits import MIB, Limits
from cellwall.core.skills import Skill
from cellwall.core.types import WorkspaceMode, WorkspaceMount, new_id
from cellwall.sandbox import languages
from cellwall.sandbox.linux import cellplan, jobs, keeperplan, seccomp
from cellwall.sandbox.linux.channels import INTERPRETER_FDS_INSIDE
from cellwall.sandbox.linux.keeper import FIRST_SENT_FD, Keeper, memory_file
from cellwall.sandbox.linux.layers import HostLayers, NativeSettings, tools_for, walls_for
from cellwall.sandbox.linux.specs import PACKAGES_INSIDE, Spec
from cellwall.sandbox.linux.standing import Shape, Standing
from cellwall.sandbox.linux.uids import UidLease
from cellwall.sandbox.linux.waiting import ready_to_read
from cellwall.sandbox.linux.wayout import WayOut
from cellwall.sandbox.run_ledger import RunLedger

_START_WITHIN_S = 30.0
_MAX_PLANS = 16
_PRIVATE = WorkspaceMount(mode=WorkspaceMode.PRIVATE)
# The zygote's own; cells have theirs.
_ZYGOTE_LIMITS = Limits(memory_bytes=1024 * MIB, processes=256, cpus=2.0)

_COMMAND = (
    'import sys; sys.path.append("/.cellwall"); import _cellwall_zygote as zygote; '
    'import _cellwall_runner; sys.path.remove("/.cellwall"); zygote.main()'
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What makes one cell of a template like another: equal ones can stand in for each other."""

    limits: Limits
    is_once: bool = True


class Template:
    """A living one. `fork` may be called by several threads."""

    def __init__(
        self, spec: Spec, settings: NativeSettings, layers: HostLayers, ledger: RunLedger
    ) -> None:
        self.spec = spec
        self._settings, self._layers = settings, layers
        with ExitStack() as stack:
            self._uid = UidLease(f"{ledger.directory}.uids")
            stack.callback(self._uid.close)
            walls = self.walls(_ZYGOTE_LIMITS)
            self.uid = walls.outer.drop_to
            shape = Shape(
                ledger,
                walls.outer,
                layers.cgroup if walls.cgroup else None,
                wants_stdin=False,
                is_template=True,
            )
            self._standing = Standing(shape, new_id("tpl"))
            stack.callback(self._standing.close)
            self._standing.join_scope()
            self.group = self._standing.group
            self._standing.limit(_ZYGOTE_LIMITS, io_device=None)
            tools = tools_for(stack, settings, walls.outer.root, None, spec)
            numbers = self._standing.raise_wall(None, tools)
            self._standing.go(self._plan(walls, numbers))
            ends = self._standing.ends
            control = ends.control if spec.is_interpreter else ends.status.socket
            assert control is not None  # noqa: S101  # a template has a channel
            self._control: socket.socket = control
            self._wait_for_zygote()
            self._plans: dict[Recipe, int] = {}
            stack.callback(self._close_plans)
            self._stack = stack.pop_all()

    def walls(self, limits: Limits) -> cellplan.Walls:
        return walls_for(
            self._settings,
            self._layers,
            uid_offset=self._uid.number,
            open_files=limits.open_files,
        )

    def _plan(self, walls: cellplan.Walls, numbers: Mapping[int, int]) -> bytes:
        files = dict(jobs.base_files(home="/workspace"))
        files[cellplan.PASSWD_WITHOUT_HOME] = jobs.base_files(home="/tmp")["/etc/passwd"]
        argv: tuple[str, ...] = ()
        env: dict[str, str] = {}
        if self.spec.is_interpreter:
            files |= languages.inside_files() | _zygote_files()
            paths = [] if self.spec.site_packages is None else [PACKAGES_INSIDE]
            wanted = {
                "preload": self.spec.preload,
                "paths": paths,
                "packages": self.spec.preload_packages,
            }
            files["/.cellwall/template.json"] = json.dumps(wanted).encode()
            argv = (languages.python_inside(), "-I", "-c", _COMMAND)
            env = {
                "PATH": "/usr/bin:/bin",
                "LANG": "C.UTF-8",
                "HOME": "/workspace",
                # A thread in the zygote would not be there after the fork, its locks would.
                "OPENBLAS_NUM_THREADS": "1",
                "OMP_NUM_THREADS": "1",
            }
        job = cellplan.Job(argv, env, _ZYGOTE_LIMITS, _PRIVATE, dict(numbers), files)
        arch = seccomp.host_arch()
        zygote_filter = seccomp.build(arch, open_files=None, for_zygote=True)
        return cellplan.template_plan(walls, job, zygote_filter=zygote_filter)

    def _wait_for_zygote(self) -> None:
        keeper = self._standing.keeper
        deadline = time.monotonic() + _START_WITHIN_S
        said, words = "", ["hello"]
        while not said and words == ["hello"] and (left := deadline - time.monotonic()) > 0:
            ready = ready_to_read(self._control, keeper, timeout_s=left)
            if self._control.fileno() in ready:
                said = self._control.recv(256).decode("ascii", "replace") or "gone"
            elif ready:
                words = keeper.heard() or ["gone"]
        if said == "zygote":
            return
        if said.startswith("fail "):
            raise keeper.failure(said.removeprefix("fail "))
        raise SandboxFailed(
            f"the template {self.spec.name} did not start",
            hint="Run `cellwall doctor` to see which layer fails on this host.",
            code="CW-TEMPLATE",
            detail=f"{said} {' '.join(words)} {_read_some(self._standing.channels.stderr)}",
        )

    @property
    def keeper(self) -> Keeper:
        return self._standing.keeper

    @property
    def control(self) -> socket.socket:
        """Where the zygote is asked for cells."""
        return self._control

    def is_alive(self) -> bool:
        """The keeper outlives the zygote; from a zygote that lives nothing is heard on its line."""
        return self._standing.keeper.is_alive() and not ready_to_read(self._control, timeout_s=0)

    @property
    def pid(self) -> int:
        return self._standing.keeper.pid

    def plan_of(self, recipe: Recipe, joins: int) -> int:
        """The plan of such cells, written once: they differ in nothing but their descriptors."""
        found = self._plans.get(recipe)
        if found is None:
            while len(self._plans) >= _MAX_PLANS:
                os.close(self._plans.pop(next(iter(self._plans))))
            found = memory_file("cellwall-cell", self.cell_plan(recipe, joins=joins))
            self._plans[recipe] = found
        return found

    def cell_plan(
        self,
        recipe: Recipe,
        *,
        joins: int,
        mount: WorkspaceMount | None = None,
        files: Mapping[str, bytes] | None = None,
        skills: Sequence[Skill] = (),
        way_out: WayOut | None = None,
    ) -> bytes:
        """`joins`: how many cgroup files are sent along, after what an interpreter is given."""
        mount = mount or _PRIVATE
        waits = self.spec.is_interpreter and recipe.is_once
        count = len(INTERPRETER_FDS_INSIDE) if waits else 0
        given = {number: FIRST_SENT_FD + number for number in range(count)}
        first = FIRST_SENT_FD + count
        after = first + joins
        tree = after if mount.dir_fd is not None else None
        last = after if tree is None else after + 1
        job = cellplan.Job(
            (),
            {},
            recipe.limits,
            mount,
            given,
            files or {},
            is_once=recipe.is_once,
            skills=skills,
            opening=None if way_out is None else way_out.opening(last),
        )
        return cellplan.warm_plan(
            self.walls(recipe.limits),
            job,
            joins=range(first, after),
            tree=tree,
            is_interpreter=waits,
        )

    def fork(self, descriptors: list[int]) -> None:
        """Ask for a cell: its plan, its status socket, and what the plan needs."""
        try:
            socket.send_fds(self._control, [b"cell"], descriptors)
        except OSError as error:
            raise SandboxFailed(
                f"the template {self.spec.name} is gone",
                hint="Try again; a new one is started.",
                code="CW-TEMPLATE-GONE",
                detail=str(error),
            ) from error

    def trees(self, mount: WorkspaceMount) -> list[int]:
        """A mount of a given directory, hanging nowhere yet, with ids mapped to the template's.

        Of copy-on-write layers there are two: the cell's, and the view for the file API.
        """
        if self.uid is None:
            raise LayerMissing(
                "an ordinary user cannot give a directory to a warm cell", code="CW-LAYER-TREE"
            )
        plan = keeperplan.tree_plan(self.uid, mount, FIRST_SENT_FD)
        sent = [place.descriptor for place in keeperplan.shown_directories(mount)]
        count = 2 if mount.mode is WorkspaceMode.COPY_ON_WRITE else 1
        return self._standing.keeper.trees(plan, sent, count)

    def failure(self, step: str) -> CellwallError:
        return self._standing.keeper.failure(step)

    def drop_copy(self) -> None:
        """In a forked child: the lines are the parent's."""
        self._standing.keeper.drop_copy()
        self._control.close()

    def close(self) -> None:
        """End the zygote and with it every cell forked from it."""
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

"""The walls of every cell from the host's layers and the configuration, or a refusal.

Also the contents of each template, which decide what its cells see beyond /usr.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Literal

from cellwall.core.errors import BadInput, Busy, LayerMissing
from cellwall.core.host_programs import ProgramRefused, host_program
from cellwall.core.limits import Limits
from cellwall.sandbox import languages
from cellwall.sandbox.files.operations import FileRules
from cellwall.sandbox.linux import (
    cgroups,
    outer_wall,
    seccomp,
    second_user,
    visible_host,
)
from cellwall.sandbox.linux._syscalls import landlock_abi
from cellwall.sandbox.linux.second_user import is_mapped
from cellwall.sandbox.linux.walls import Walls

PACKAGES_INSIDE = "/opt/packages"

# Modules that most code imports and that are slow to import. Cells share their pages, but each page
# also costs time at the start and end of a cell: this list costs nothing measurable, three times as
# many modules cost 0.4 ms a run.
_STANDARD = """
    collections contextlib copy dataclasses datetime enum functools itertools json math operator
    random re string time typing
"""
_DATA = "numpy numpy.random pandas matplotlib matplotlib.pyplot matplotlib.backends.backend_agg"


@dataclass(frozen=True, slots=True)
class TemplateSpec:
    """The contents of a template."""

    name: str
    is_interpreter: bool
    """The zygote is a Python from which interpreters are forked; otherwise cells start empty."""
    preload: tuple[str, ...] = ()
    """Modules of the standard library that the zygote imports."""
    preload_packages: tuple[str, ...] = ()
    """Packages that the zygote imports; only those whose hashes Cellwall ships."""
    site_packages: str | None = None
    """A host directory with the template's packages, mounted read-only."""
    site_identity: tuple[int, int] | None = None
    """Device and inode of that directory. One that was removed and built again has the same path; a
    running template still shows the removed one, and keeps its identity."""


SHELL = TemplateSpec("shell", is_interpreter=False)  # also runs deno, and node from /usr
PYTHON = TemplateSpec("python", is_interpreter=True, preload=tuple(_STANDARD.split()))

EnvironmentOf = Callable[[str], str | None]
"""The packages built for a template, by its name; raises for an unknown one."""


def python_template_spec(name: str, environment_of: EnvironmentOf) -> TemplateSpec:
    """The Python template of this name; raises if there is none."""
    if name == PYTHON.name:
        return PYTHON
    site_packages = environment_of(name)
    identity = None if site_packages is None else _site_identity(site_packages)
    if site_packages is None or identity is None:
        raise BadInput(
            f"the template {name} was not built yet",
            hint=f"Build it once: cellwall template build {name}",
            code="CW-TEMPLATE-NOT-BUILT",
        )
    return TemplateSpec(
        name,
        is_interpreter=True,
        preload=PYTHON.preload,
        preload_packages=tuple(_DATA.split()) if name == "python-data" else (),
        site_packages=site_packages,
        site_identity=identity,
    )


def _site_identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:  # removed meanwhile
        return None
    return status.st_dev, status.st_ino


Path = Literal["auto", "warm", "cold"]
Backend = Literal["native", "container", "gvisor", "kvm"]
"""Who builds the outer wall: bubblewrap, a container engine with one of its runtimes, or a virtual
machine for each cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeSettings:
    """The part of the configuration that the native sandbox needs."""

    uid_base: int
    tmp_bytes: int
    shm_bytes: int
    max_result_bytes: int
    extra_read_only_paths: tuple[str, ...] = ()
    usual_limits: Limits = Limits()
    environment_of: EnvironmentOf = field(default=lambda _name: None)
    path: Path = "auto"
    """`warm` refuses if no template can be started; `auto` then uses the cold path."""
    file_rules: FileRules = FileRules()
    only_deno: bool = False
    """JavaScript and TypeScript run with Deno's permissions, or not at all."""
    backend: Backend = "native"
    engine_socket: str | None = None
    """Of a container engine; None: the first that is found."""
    allows_second_user: bool = False
    machine_kernel: str | None = None
    """Of virtual machines; None: the newest of /boot."""
    dangerously_without_cgroup: bool = False
    dangerously_without_landlock: bool = False
    dangerously_without_user_namespace: bool = False
    dangerously_emulate_machines: bool = False


NO_BUBBLEWRAP = (
    "bubblewrap is not installed",
    "Install it, for example: apt-get install bubblewrap",
)


@dataclass(frozen=True, slots=True)
class HostLayers:
    """The layers of this host, detected once when the sandbox is made."""

    bubblewrap: str | None
    landlock_abi: int
    cgroup: cgroups.Choice
    bubblewrap_problem: tuple[str, str] | None = None
    """Why an installed bubblewrap is not used, and a hint."""

    @classmethod
    def detect(cls) -> HostLayers:
        bubblewrap, problem = None, None
        try:
            bubblewrap = host_program("bwrap")
        except ProgramRefused as refused:
            problem = None if refused.is_missing else (refused.why, refused.hint)
        cgroup = cgroups.choose(cgroups.gather())
        return cls(bubblewrap, landlock_abi(), cgroup, problem)


def walls_for(
    settings: NativeSettings,
    layers: HostLayers,
    *,
    uid_offset: int,
    open_files: int,
    has_second_user: bool = False,
    reports_sockets: bool = False,
) -> Walls:
    """The walls of a cell; a required layer that is missing is a refusal (ISO-4).

    `uid_offset` makes the cell's host uid unique, if Cellwall was started as root.
    """
    if layers.bubblewrap is None:
        why, hint = layers.bubblewrap_problem or NO_BUBBLEWRAP
        raise LayerMissing(why, hint=hint, code="CW-LAYER-BUBBLEWRAP")
    abi = layers.landlock_abi
    if abi == 0 and not settings.dangerously_without_landlock:
        raise LayerMissing(
            "this kernel has no Landlock",
            hint="Use Linux 5.13 or newer with `landlock` in its lsm= list, or accept the "
            "other walls alone with sandbox.dangerously_without_landlock = true.",
            code="CW-LAYER-LANDLOCK",
        )
    way = layers.cgroup.way
    if way == "none" and not settings.dangerously_without_cgroup:
        choice = layers.cgroup
        raise LayerMissing(choice.reason, hint=choice.hint, code="CW-LAYER-CGROUP")
    drop_to = settings.uid_base + uid_offset if os.geteuid() == 0 else None
    if drop_to is not None and not is_mapped(drop_to):
        raise LayerMissing(
            f"the unprivileged uid {drop_to} does not exist in this user namespace",
            hint="Set sandbox.uid_base to the first of a range of uids that are mapped here "
            "and belong to no user (see /proc/self/uid_map).",
            code="CW-LAYER-UID",
        )
    second = None
    if has_second_user:
        second_user.check_allowed(is_allowed=settings.allows_second_user, backend=settings.backend)
        assert drop_to is not None  # noqa: S101  # checked above: started as root
        second = second_user.second_user_of(
            drop_to, uid_base=settings.uid_base, has_cgroup=way != "none"
        )
    return Walls(
        outer=outer_wall.OuterWall(layers.bubblewrap, visible_host.survey(), drop_to, second),
        landlock_abi=abi,
        seccomp_filter=seccomp.build(
            seccomp.host_arch(),
            open_files=open_files,
            has_cgroup=way != "none",
            reports_sockets=reports_sockets,
        ),
        cgroup=way != "none",
        tmp_bytes=settings.tmp_bytes,
        shm_bytes=settings.shm_bytes,
        reports_sockets=reports_sockets,
    )


def tools_for(
    stack: ExitStack,
    settings: NativeSettings,
    root: visible_host.HostRoot,
    program: languages.Program | None,
    spec: TemplateSpec | None = None,
) -> list[outer_wall.HostDirectory]:
    """Directories beyond /usr that the administrator needs and the program that the language needs,
    read-only."""
    directories = [(path, path) for path in settings.extra_read_only_paths]
    if root.foreign_python is not None:
        directories.append((root.foreign_python, "/opt/python"))
    if spec is not None and spec.site_packages is not None:
        directories.append((spec.site_packages, PACKAGES_INSIDE))
    shown = []
    for outside, inside in directories:
        try:
            descriptor = os.open(outside, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise BadInput(
                f"{outside} is not a directory that can be shown",
                hint="Correct sandbox.extra_read_only_paths in the configuration.",
            ) from error
        stack.callback(os.close, descriptor)
        shown.append(outer_wall.HostDirectory(descriptor, outside, inside, True, mapped=False))
    bind = None if program is None else program.extra_bind
    if spec is not None and program is None:
        with suppress(BadInput):  # only a run that asks for Deno is refused
            bind = languages.deno_bind()  # a template does not know which programs will run in it
    if bind is not None:
        # The file alone: other files of its directory name paths of the host.
        outside, inside = bind
        descriptor = os.open(outside, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        shown.append(outer_wall.HostDirectory(descriptor, outside, inside, True, mapped=False))
    return shown


FIRST_LEASED_UID = 10_000
"""Above the uid of every slot: one-shot cold cells use the numbers from `uid_base` on."""
_MAX_LEASED_UIDS = 4096


class UidLease:
    """A uid for one template or live cell; the kernel releases the lock with the process."""

    def __init__(self, directory: str) -> None:
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)  # not makedirs: without a state folder, fail
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        for number in range(_MAX_LEASED_UIDS):
            descriptor = os.open(f"{directory}/{number}", flags, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            self.number, self._descriptor = FIRST_LEASED_UID + number, descriptor
            return
        raise Busy(
            f"all {_MAX_LEASED_UIDS} places for live sandboxes are taken",
            hint="End some: `cellwall ps` lists them.",
            code="CW-TOO-MANY-LIVE",
        )

    def close(self) -> None:
        with suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)

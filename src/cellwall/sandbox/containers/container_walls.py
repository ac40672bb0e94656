"""The walls of a cell in a container from the engine, the host and the configuration, or a refusal.

Pure but for `find_engine`: `judge_engine` takes plain facts, so that tests cover engines that we do
not have. A wall that the engine does not build is a refusal with a hint (ISO-4).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from cellwall.core.errors import LayerMissing
from cellwall.sandbox.containers.engine import Engine, EngineFacts, is_socket
from cellwall.sandbox.linux import outer_wall, seccomp, visible_host
from cellwall.sandbox.linux.layers import Backend, HostLayers, NativeSettings
from cellwall.sandbox.linux.walls import Walls

_GVISOR = ("runsc",)
_SYSTEM_SOCKETS = ("/run/docker.sock", "/run/podman/podman.sock")
_USER_SOCKETS = ("docker.sock", "podman/podman.sock")


@dataclass(frozen=True, slots=True)
class ContainerUser:
    """As whom code runs: inside, and on the host where that is known."""

    inside: tuple[int, int]
    outside: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine that may be used: its runtime, and as whom code runs."""

    runtime: str
    has_user_namespace: bool
    root_ids: tuple[int, int] | None
    is_podman: bool = False


def find_engine(settings: NativeSettings, environ: Mapping[str, str]) -> Engine:
    """The engine of the configured socket, or of the first that is there."""
    if settings.engine_socket:
        return Engine(settings.engine_socket)
    own = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    places = (*_SYSTEM_SOCKETS, *(os.path.join(own, name) for name in _USER_SOCKETS))
    usable = [path for path in places if is_socket(path) and os.access(path, os.W_OK)]
    if not usable:
        raise LayerMissing(
            "there is no container engine whose socket this user may use",
            hint="Install and start Docker or Podman, or set sandbox.engine_socket: apt-get "
            "install docker.io, or apt-get install podman && systemctl --user start podman.socket",
            code="CW-LAYER-ENGINE",
            detail=", ".join(places),
        )
    return Engine(usable[0])


def judge_engine(settings: NativeSettings, facts: EngineFacts) -> EngineChoice:
    """Decide whether this engine builds every wall that the configuration demands. Pure."""
    runtime = _runtime(settings.backend, facts)
    if not facts.has_limits:  # no setting accepts this: containers are not sampled
        raise LayerMissing(
            "the container engine cannot limit memory, processes and processor time",
            hint="Give the engine the memory, pids and cpu controllers: for a rootless engine, "
            "cgroup v2 with delegation; see docs/guides/backends.md.",
            code="CW-LAYER-CGROUP",
        )
    if settings.backend == "gvisor":
        # The Sentry, gVisor's kernel, has a user namespace of its own in any case. The engine's
        # would keep gVisor's file server from the state folder, which is closed to other users.
        if facts.has_user_namespace:
            raise LayerMissing(
                "gVisor cannot reach the state folder from the user namespace of this engine",
                hint="For gVisor, use a Docker daemon without userns-remap.",
                code="CW-LAYER-GVISOR",
            )
        return EngineChoice(runtime, has_user_namespace=False, root_ids=None)
    if not facts.has_user_namespace and not settings.dangerously_without_user_namespace:
        raise LayerMissing(
            "the container engine gives containers no user namespace of their own",
            hint='Write {"userns-remap": "default"} to /etc/docker/daemon.json and restart Docker, '
            "or use a rootless engine, or accept the host's user namespace with "
            "sandbox.dangerously_without_user_namespace = true.",
            code="CW-LAYER-USERNS",
        )
    return EngineChoice(runtime, facts.has_user_namespace, facts.root_ids, facts.is_podman)


def _runtime(backend: Backend, facts: EngineFacts) -> str:
    if backend == "gvisor":
        found = [name for name in _GVISOR if name in facts.runtimes]
        if not found:
            raise LayerMissing(
                "the container engine has no runtime `runsc`, which is gVisor",
                hint='Install runsc, add {"runtimes": {"runsc": {"path": "/usr/bin/runsc", '
                '"runtimeArgs": ["--network=none", "--host-uds=open"]}}} to '
                "/etc/docker/daemon.json and restart Docker.",
                code="CW-LAYER-GVISOR",
            )
        return found[0]
    return ""


def user_in(choice: EngineChoice, settings: NativeSettings, *, uid_offset: int) -> ContainerUser:
    """Never root, inside or outside."""
    if choice.has_user_namespace:
        inside = (outer_wall.UID_INSIDE, outer_wall.GID_INSIDE)
        if choice.root_ids is None:
            return ContainerUser(inside, None)
        uid, gid = choice.root_ids
        return ContainerUser(inside, (uid + inside[0], gid + inside[1]))
    if os.geteuid() == 0:
        own = (settings.uid_base + uid_offset, settings.uid_base + uid_offset)
    else:
        own = (os.geteuid(), os.getegid())
    return ContainerUser(own, own)


def container_walls(
    settings: NativeSettings, layers: HostLayers, user: ContainerUser, *, open_files: int
) -> Walls:
    """The inner walls, which init builds; a required layer that is missing is a refusal."""
    # gVisor's kernel has neither Landlock nor notifications of a filter.
    is_gvisor = settings.backend == "gvisor"
    abi = 0 if is_gvisor else layers.landlock_abi
    if abi == 0 and not settings.dangerously_without_landlock:
        raise LayerMissing(
            "gVisor has no Landlock" if is_gvisor else "this kernel has no Landlock",
            hint="Accept the other walls alone with sandbox.dangerously_without_landlock = true, "
            "or use a kernel with `landlock` in its lsm= list and another sandbox.backend.",
            code="CW-LAYER-LANDLOCK",
        )
    owner = user.outside[0] if user.outside is not None and os.geteuid() == 0 else None
    return Walls(
        outer=outer_wall.OuterWall("", visible_host.survey(), owner),
        landlock_abi=abi,
        seccomp_filter=seccomp.build(
            seccomp.host_arch(), open_files=None if is_gvisor else open_files
        ),
        is_gvisor=is_gvisor,
        cgroup=True,
        tmp_bytes=settings.tmp_bytes,
        shm_bytes=settings.shm_bytes,
    )

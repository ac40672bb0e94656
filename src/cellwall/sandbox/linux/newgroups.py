"""Makes control groups: as root below our own, or in a scope that the user's systemd delegates."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from cellwall.core.errors import LayerMissing
from cellwall.core.host_programs import ProgramRefused, host_program
from cellwall.sandbox.linux.cgroups import (
    NEEDED,
    USEFUL_V2,
    Choice,
    directory_of,
    gather,
    parse_membership,
    read_text,
)
from cellwall.sandbox.linux.run_cgroup import ZYGOTE, Group, write_control


def make_group(
    choice: Choice,
    name: str,
    *,
    nested: bool = False,
    note: Callable[[Iterable[str]], None] | None = None,
) -> Group:
    """A new, empty group as root. `name` is an id that `check_id` has seen or that we made.

    `nested`: for a template, inside a group that will hold its cells' as well. `note` hears which
    directories there will be before there are any: who is killed in between leaves a note.
    """
    version: Literal[1, 2] = 2 if choice.way == "v2-root" else 1
    try:
        if version == 2:
            _delegate(next(iter(choice.bases.values())), choice.bases)
        directories = {}
        for controller, base in choice.bases.items():
            own = f"{base}/cellwall"
            if version == 2:
                os.makedirs(own, exist_ok=True)
                _delegate(own, choice.bases)
            directories[controller] = f"{own}/{name}"
        if note is not None:
            note(dict.fromkeys(directories.values()))
        for path in dict.fromkeys(directories.values()):
            try:
                os.mkdir(path)
            except FileNotFoundError:  # the first run on this host
                os.makedirs(path)
        if nested:
            return _nest(version, directories)
    except OSError as error:
        raise _no_group(error, version) from error
    return Group(version, directories)


def _nest(version: Literal[1, 2], outer: Mapping[str, str]) -> Group:
    if version == 2:
        _delegate(next(iter(outer.values())), outer)
    inner = {controller: f"{path}/{ZYGOTE}" for controller, path in outer.items()}
    for path in dict.fromkeys(inner.values()):
        os.mkdir(path)
    return Group(version, inner, nest=outer)


def _no_group(error: OSError, version: int) -> LayerMissing:
    hint = "Run `cellwall doctor`; the cgroup file system must be writable."
    if error.errno == errno.EBUSY and version == 2:
        # A container's own root group: unlike the host's, it cannot both hold processes and
        # limit groups below it. Moving other people's processes is not ours to do.
        hint = (
            "Move the container's processes into a group of their own before Cellwall starts: "
            "mkdir /sys/fs/cgroup/main && while read pid; do echo $pid > "
            "/sys/fs/cgroup/main/cgroup.procs; done < /sys/fs/cgroup/cgroup.procs"
        )
    return LayerMissing(
        "no cgroup can be made on this host",
        hint=hint,
        code="CW-LAYER-CGROUP",
        detail=str(error),
    )


def scope_command(name: str) -> list[str]:
    """systemd's own tool asks the user's manager for a delegated scope and then becomes us."""
    try:
        program = host_program("systemd-run")
    except ProgramRefused as refused:
        raise LayerMissing(refused.why, hint=refused.hint, code="CW-LAYER-CGROUP") from None
    return [
        program, "--user", "--scope", "--quiet", "--collect",
        f"--unit=cellwall-{name}", "--property=Delegate=yes", "--",
    ]  # fmt: skip


def group_in_scope(keeper_pid: int, *, nested: bool = False) -> Group:
    """The group below the scope in which systemd put the keeper.

    A v2 group with controllers for its children may hold no process itself, so the keeper moves
    into a leaf of its own first.
    """
    facts = gather()
    unified = next((mount for mount in facts.mounts if mount.version == 2), None)
    path = parse_membership(read_text(f"/proc/{keeper_pid}/cgroup")).get("", "")
    try:
        if unified is None or "cellwall-" not in path:
            raise OSError(f"not in a scope of ours: {path}")
        scope = directory_of(unified, path)
        os.mkdir(f"{scope}/keeper")
        write_control(f"{scope}/keeper/cgroup.procs", str(keeper_pid))
        available = read_text(f"{scope}/cgroup.controllers").split()
        names = [name for name in USEFUL_V2 if name in available]
        if not set(names) >= NEEDED:
            raise OSError(f"systemd delegates only: {available}")
        _delegate(scope, dict.fromkeys(names, ""))
        os.mkdir(f"{scope}/cell")
    except OSError as error:
        raise LayerMissing(
            "the user's systemd gave no usable cgroup",
            hint="Run `cellwall doctor`; the memory, pids and cpu controllers must be delegated "
            "to user sessions.",
            code="CW-LAYER-CGROUP",
            detail=str(error),
        ) from error
    # systemd removes the scope with all that is in it: the nest itself is not ours to remove.
    nest = dict.fromkeys(names, scope) if nested else None
    return Group(2, dict.fromkeys(names, f"{scope}/cell"), nest=nest, removes_nest=False)


def _delegate(directory: str, controllers: Mapping[str, str]) -> None:
    enabled = read_text(f"{directory}/cgroup.subtree_control").split()
    missing = [f"+{name}" for name in controllers if name not in enabled]
    if missing:
        write_control(f"{directory}/cgroup.subtree_control", " ".join(missing))


def block_device(st_dev: int) -> str | None:
    """`major:minor` of the whole disk behind a file system; throttles take no partitions."""
    major, minor = os.major(st_dev), os.minor(st_dev)
    node = f"/sys/dev/block/{major}:{minor}"
    if major == 0 or not os.path.exists(node):
        return None
    if os.path.exists(f"{node}/partition"):
        return read_text(f"{os.path.realpath(node)}/../dev").strip() or None
    return f"{major}:{minor}"

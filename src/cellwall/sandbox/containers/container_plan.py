"""The steps of init inside a container. Pure.

As `cell_plan.init_plan`, without the steps that need a capability: the engine has made the mounts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cellwall.core.network import NETWORK_INSIDE, PROXY_PORT
from cellwall.sandbox.linux import cell_plan
from cellwall.sandbox.linux.cell_plan import Job
from cellwall.sandbox.linux.plan import Plan, offer_files
from cellwall.sandbox.linux.skill_plan import plan_skill_files
from cellwall.sandbox.linux.walls import Walls, plan_inner_walls

_INIT_IN_PROC = "/proc/1"


def container_plan(
    walls: Walls,
    job: Job,
    expected: Sequence[tuple[str, int, int]],
    *,
    life_number: int,
    user: tuple[int, int] | None = None,
) -> bytes:
    """`expected`: path -> device and inode of each mount of the workspace. `life_number`: the
    socket whose end of file ends the cell, by its number in the cell. `user`: whom init becomes
    after it has closed its own part of /proc, where it was started with the right to do so."""
    plan = Plan()
    plan.step("life", life_number)
    if user is not None:
        plan.step("tmpfs", _INIT_IN_PROC, "size=4096,mode=0")
        plan.step("become", *user)
    plan.files(job.files)
    for path, device, inode in expected:
        # The engine has resolved the path again: it must still be the file that was checked.
        plan.step("expect", path, device, inode)
    cell_plan.plan_watch(plan, job.limits, replace(job.mount, covers=()))  # the engine's work
    # Into a memory file system of this container, on which Landlock allows no writing.
    plan_skill_files(plan, job.skills)
    _plan_egress(plan, job)
    cell_plan.plan_life(plan, job)
    plan_inner_walls(plan, walls, job.limits)
    return plan.encode()


def _plan_egress(plan: Plan, job: Job) -> None:
    """The proxy alone: an address for transparent connections needs CAP_NET_ADMIN."""
    egress = job.egress
    if egress is None:
        return
    offer_files(plan, egress, homes=cell_plan.homes(job.mount))
    plan.files({f"{NETWORK_INSIDE}/{name}": data for name, data in egress.files.items()})
    plan.step("listen", egress.socket_number, "proxy", "127.0.0.1", PROXY_PORT)
    plan.step("handed", egress.socket_number)

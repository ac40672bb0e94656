"""The hosts of a fleet as `cellwall fleet status` shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cellwall.core.limits import size_text
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.admin.fleet_hosts import HostState


def host_table(hosts: Sequence[HostState]) -> str:
    """The hosts with state and load, a line each."""
    if not hosts:
        return "no hosts\n"
    lines = [
        f"{'host':32} {'state':9} {'sessions':>8} {'busy':>5} {'free':>7}  version  policy  labels"
    ]
    for each in hosts:
        state = "lost" if each.is_lost else "drains" if each.is_draining else "serves"
        labels = ",".join(f"{name}={value}" for name, value in sorted(each.labels.items()))
        lines.append(
            f"{each.id:32} {state:9} {each.sessions:8} {each.busy:5} "
            f"{size_text(each.memory_free_bytes // 2**20 * 2**20):>7}  "
            f"{one_line(each.version):8} {each.policy_version or '-':>6}  {one_line(labels)}"
        )
    return "\n".join(lines) + "\n"

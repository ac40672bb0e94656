"""Whether a run is within its disk limit, where no file system enforces it (LIM-6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio

from cellwall.core.limits import Limits
from cellwall.core.sandbox_ports import WorkspaceLease
from cellwall.sandbox.linux.unlinked_files import BRIEF_SCAN, find_unlinked_files


async def has_room(
    workspace: WorkspaceLease, limits: Limits, pids: Callable[[], Sequence[int]]
) -> bool:
    """Counts the files of the workspace, and the unlinked files that these processes hold."""
    if workspace.bounded_by_kernel:
        return True
    if workspace.is_quick:
        # A hop to a thread and back costs more than a look at a few files.
        unlinked = find_unlinked_files(pids, BRIEF_SCAN)
        if not unlinked.is_partial:
            is_within = workspace.has_room_if_small(limits, unlinked)
            if is_within is not None:
                return is_within
    return await anyio.to_thread.run_sync(
        lambda: workspace.has_room(limits, find_unlinked_files(pids))
    )

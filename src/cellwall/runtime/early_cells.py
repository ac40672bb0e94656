"""The live cell of a session, opened before the first action: `run` then finds it open.

The steps are those of an action up to its run, and nothing runs:

   (1) bound                                     (7) lease a slot, if one is free, and the workspace
   (2) who asks, and whether the account can pay (8) open the cell
   (4) judge

No person is asked, nothing waits, nothing is counted or recorded: the first action is judged, paid
for and recorded by itself. A failure leaves the cell to that action, whose outcome names the cause.
"""

from __future__ import annotations

import logging

from cellwall.core.errors import CellwallError
from cellwall.core.types import Action, WorkspaceMode
from cellwall.core.verdict import Verdict
from cellwall.runtime.egress import with_configuration
from cellwall.runtime.judging import effective_role, missing_permissions, with_role
from cellwall.runtime.parts import RuntimeParts

_log = logging.getLogger("cellwall")


async def open_early(parts: RuntimeParts, action: Action) -> None:
    """Open the cell of the action's session where the action would be allowed now. `action` stands
    for the first one: it runs code."""
    try:
        await _open(parts, action)
    except (CellwallError, OSError) as error:
        _log.debug("no cell was opened early: %s", getattr(error, "code", type(error).__name__))


async def _open(parts: RuntimeParts, action: Action) -> None:
    # (1)
    parts.stop.check()
    parts.bounds.check(action)
    # (2)
    role = effective_role(parts.roles, action)
    action = with_role(role, action)
    if missing_permissions(role, action) is not None or not await parts.quota.has_room(action):
        return
    # (4) The role and the policy decide again at each action, with findings and labels.
    if parts.policy.judge(action, ()).verdict is not Verdict.ALLOW:
        return
    if _needs_more(with_configuration(action, role, parts.reach)):
        return
    # (7)
    if parts.templates is not None:
        await parts.templates.check(action)
    async with (
        parts.governor.lease(memory_bytes=action.limits.memory_bytes, waits=False) as slot,
        parts.workspaces.lease(action) as workspace,
    ):
        # (8) A directory of the user has names to protect at the moment of the first run.
        if workspace.mount.mode is WorkspaceMode.PRIVATE:
            parts.stop.check()
            await parts.sandbox.open_early(action, slot=slot, workspace=workspace)


def _needs_more(action: Action) -> bool:
    """Whether the cell gets something that is leased for an action, so that it cannot be opened
    without one."""
    has_network = bool(action.allow_domains or action.registries or action.asks_destinations)
    return has_network or bool(action.secrets or action.skills or action.second_user)

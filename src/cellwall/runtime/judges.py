"""Step 4: the judges of an action, the policy and those of packages and tool servers."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import anyio.to_thread

from cellwall.core.labels import ActionLabelsPort
from cellwall.core.outcomes import Finding
from cellwall.core.packages import InstallPackages
from cellwall.core.ports import InstallerPort, PolicyPort, ToolServersPort
from cellwall.core.tool_servers import CallServerTool
from cellwall.core.types import Action, ReachHost, UseTool
from cellwall.core.verdict import Decision, Verdict, strictest
from cellwall.runtime.host_operations import required_servers
from cellwall.runtime.outcomes import with_all_reasons

_UNKNOWN = Decision.built_in(
    Verdict.ASK, "egress.unknown", "code in the sandbox connects to it, and no domain rule names it"
)


async def judge(
    action: Action,
    findings: Sequence[Finding],
    *,
    policy: PolicyPort,
    installer: InstallerPort,
    servers: ToolServersPort | None,
    labels: ActionLabelsPort,
    effective: Action,
) -> Decision:
    """The decision of all judges. `effective` is the action with the configured domains, which
    bring labels as well; labels can only make the decision stricter (POL-9)."""
    decision = await _judge_call(
        action, findings, policy=policy, installer=installer, servers=servers
    )
    if decision.verdict is Verdict.DENY:
        return decision
    is_named = isinstance(action.operation, CallServerTool) and required_servers(
        servers
    ).is_named_together(action.operation.server)
    by_labels = labels.judge(effective, is_named=is_named)
    return decision if by_labels is None else with_all_reasons(by_labels, decision)


async def _judge_call(
    action: Action,
    findings: Sequence[Finding],
    *,
    policy: PolicyPort,
    installer: InstallerPort,
    servers: ToolServersPort | None,
) -> Decision:
    """An agent's command may take long to parse, so it is judged in a thread."""
    if isinstance(action.operation, CallServerTool):
        # No rule allows a tool that no person has accepted (SRV-7).
        by_rules = policy.judge(action, findings)
        return strictest(required_servers(servers).judge(action.operation), by_rules)
    if isinstance(action.operation, InstallPackages):
        by_rules = policy.judge(action, findings)
        by_names = await anyio.to_thread.run_sync(installer.judge, action.operation)
        return with_all_reasons(by_rules, by_names)
    if isinstance(action.operation, ReachHost):
        # No rule makes a destination known: a person decides, and a denial of the rules holds.
        return strictest(_UNKNOWN, policy.judge(action, findings))
    if isinstance(action.operation, UseTool):
        return await anyio.to_thread.run_sync(policy.judge, action, findings)
    return policy.judge(action, findings)

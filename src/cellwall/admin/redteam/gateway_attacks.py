"""The layer gateway: hostile MCP servers, each in a cell behind the gateway.

Three servers are enough: one that no person has accepted, one whose accepted tools change while it
runs, and one with definitions that must not be accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio

from cellwall.admin.redteam.blocking import in_thread
from cellwall.admin.redteam.trial_host import TrialHost
from cellwall.admin.tool_reviews import ServerReview
from cellwall.admin.tool_servers import ServerSettings, ToolServerAdmin
from cellwall.core.errors import CellwallError
from cellwall.core.outcomes import Outcome, Status
from cellwall.core.tool_servers import CallServerTool
from cellwall.core.types import Action
from cellwall.redteam.attack import NOT_TRIED, Attack, AttackResult, Observation, judge
from cellwall.redteam.catalog import server_text
from cellwall.runtime.home import local_principal
from cellwall.runtime.tool_servers import ToolServers

_NEW, _CHANGING, _POISONED = "rtnew", "rtchanging", "rtpoisoned"
_WITHIN_S = 90.0
_POLICY = f'[permissions]\nallow = ["mcp__{_NEW}", "mcp__{_CHANGING}"]\n'
_HARMLESS = "harmless"
_TRIGGER = "trigger"


async def run(host: TrialHost, attacks: Sequence[Attack]) -> list[AttackResult]:
    """Start the servers that the chosen attacks need, and judge each attack."""
    path = host.write_policy("gateway.toml", _POLICY)
    gateway = _TrialGateway(host, (*host.app.settings.policy.files, path))
    found: dict[str, AttackResult] = {}
    calling = [each for each in attacks if each.data["kind"] in {"new", "changed"}]
    if calling:
        for result in await gateway.try_calls(calling):
            found[result.attack.id] = result
    accepting = [each for each in attacks if each.data["kind"] in {"poisoned", "shadow"}]
    if accepting:
        for result in await gateway.try_acceptance(accepting):
            found[result.attack.id] = result
    return [found[attack.id] for attack in attacks]


class _TrialGateway:
    """The gateway of a trial host, as a person and as a model use it."""

    def __init__(self, host: TrialHost, policy: tuple[str, ...]) -> None:
        self._host = host
        self._policy = policy
        self._admin = ToolServerAdmin(host.app)

    async def try_calls(self, attacks: Sequence[Attack]) -> list[AttackResult]:
        """Tools that were never accepted, or that change after they were."""
        changed = [each for each in attacks if each.data["kind"] == "changed"]
        await self._add(_NEW, _script("TOOLS.append(tool('say'))"))
        await self._add(_CHANGING, _changing(changed))
        review = self._admin.review(_CHANGING)
        await in_thread(lambda: self._admin.accept(review, who=self._host.who))
        results: list[AttackResult] = []
        with anyio.fail_after(_WITHIN_S):
            async with anyio.create_task_group() as tasks:
                servers = ToolServers(self._host.app, tasks, starter=self._host.who)
                try:
                    before = {
                        each.id: await self._call(servers, _CHANGING, each.data["tool"])
                        for each in changed
                    }
                    control = await self._call(servers, _CHANGING, _TRIGGER)  # changes the rest
                    for attack in attacks:
                        is_new = attack.data["kind"] == "new"
                        place = (_NEW, "say") if is_new else (_CHANGING, attack.data["tool"])
                        attempt = await self._call(servers, *place)
                        results.append(
                            judge(attack, control=before.get(attack.id, control), attempt=attempt)
                        )
                finally:
                    with anyio.CancelScope(shield=True):
                        await servers.close()
                tasks.cancel_scope.cancel()
        return results

    async def try_acceptance(self, attacks: Sequence[Attack]) -> list[AttackResult]:
        """Definitions that a person must not accept by mistake."""
        names = {each.id: _tool_name(each) for each in attacks}
        lines = [f"TOOLS.append(tool({_HARMLESS!r}, 'Adds two numbers.'))"]
        for each in attacks:
            text = each.data.get("text", "Adds two numbers.")
            lines.append(f'TOOLS.append(tool({names[each.id]!r}, "{text}"))')
        await self._add(_POISONED, _script("\n".join(lines)))
        review = self._admin.review(_POISONED)
        observed = {each.id: await self._accept(review, names[each.id]) for each in attacks}
        control = await self._accept(review, _HARMLESS)
        return [
            judge(each, control=control, attempt=observed.get(each.id, NOT_TRIED))
            for each in attacks
        ]

    async def _accept(self, review: ServerReview, name: str) -> Observation:
        def work() -> Observation:
            try:
                accepted = self._admin.accept(review, only=[name], who=self._host.who)
            except CellwallError as error:
                return Observation("refused", error.code)
            return Observation("through", f"accepted: {', '.join(sorted(accepted))}")

        return await in_thread(work)

    async def _add(self, name: str, script: tuple[str, ...]) -> None:
        settings = ServerSettings(name=name, argv=script)
        await in_thread(lambda: self._admin.add(settings, who=self._host.who))
        await self._admin.look(name, who=self._host.who, ask=None)

    async def _call(self, servers: ToolServers, server: str, tool: str) -> Observation:
        action = Action(
            principal=local_principal("mcp"),
            operation=CallServerTool(server, tool, {}),
            session_id=await servers.session_of(server),
            policy=self._policy,
            audience="model",
        )
        return _observe(await self._host.app.runtime.perform(action, servers=servers))


def _observe(outcome: Outcome) -> Observation:
    match outcome.status:
        case Status.OK:
            return Observation("through", "the tool answered")
        case Status.DENIED:
            return Observation("refused", f"denied by {outcome.decision.rule or 'default'}")
        case _:
            code = outcome.error.code if outcome.error is not None else outcome.status.value
            return Observation("broken", code)


def _tool_name(attack: Attack) -> str:
    return str(attack.data.get("name") or "t_" + attack.id.partition("/")[2].replace("-", "_"))


def _script(changes: str) -> tuple[str, ...]:
    return ("python3", "-I", "-c", server_text(changes))


def _changing(attacks: Sequence[Attack]) -> tuple[str, ...]:
    """A server whose tools change when the tool `trigger` is called, and which announces that."""
    tools = ("described", "typed", "annotated", "doubled", _TRIGGER)
    lines = [f"TOOLS.append(tool({name!r}))" for name in tools]
    lines += ["def change():"]
    lines += [f"    {each.data['changes']}" for each in attacks] or ["    pass"]
    return _script("\n".join(lines))

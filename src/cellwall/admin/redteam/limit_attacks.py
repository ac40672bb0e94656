"""The layer limits: code that takes too much is ended by its limit, and less of the same is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cellwall.admin.redteam.cell_programs import describe
from cellwall.admin.redteam.trial_host import TrialHost
from cellwall.core.outcomes import Status
from cellwall.core.types import Action, RunCode
from cellwall.redteam.attack import Attack, AttackResult, Observation, judge

_WALL_S = 15.0
_CPU_S = 20.0
_AMOUNT = "AMOUNT"


async def run(host: TrialHost, attacks: Sequence[Attack]) -> list[AttackResult]:
    """Each attack runs twice: over its limit, and below it as the control."""
    results = []
    for attack in attacks:
        control = await _try(host, attack, attack.data["below"])
        attempt = await _try(host, attack, attack.data["over"])
        results.append(judge(attack, control=control, attempt=attempt))
    return results


async def _try(host: TrialHost, attack: Attack, amount: float) -> Observation:
    data = attack.data
    chosen = {"wall_s": _WALL_S, "cpu_s": _CPU_S, **data.get("limits", {})}
    # The stricter of both: a lower limit of the configuration stays in force.
    usual = host.app.limits
    limits = replace(
        usual, **{name: min(value, getattr(usual, name)) for name, value in chosen.items()}
    )
    code = data["code"].replace(_AMOUNT, f"{amount:g}" if amount < 10**6 else str(int(amount)))
    action = Action(
        principal=host.who,
        operation=RunCode(data.get("language", "python"), code.encode()),
        limits=limits,
    )
    outcome = await host.app.runtime.perform(action)
    if outcome.status is Status.OK:
        return Observation("through", "the code ran to its end")
    if outcome.status is Status.LIMIT:
        return Observation("refused", describe(outcome))
    if outcome.status is Status.FAILED:
        # Without a cgroup some limits are rlimits: the program fails, and no limit is named.
        return Observation("refused", f"the program failed; {describe(outcome)}")
    return Observation("broken", describe(outcome))

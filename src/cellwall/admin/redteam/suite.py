"""All attacks, layer by layer, on one trial host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import TypeAlias

import anyio

from cellwall import __version__
from cellwall.admin.redteam import (
    audit_attacks,
    gateway_attacks,
    judged_attacks,
    limit_attacks,
    program_attacks,
    secret_attacks,
    service_attacks,
)
from cellwall.admin.redteam.trial_host import TrialHost, trial_host
from cellwall.core.errors import CellwallError
from cellwall.redteam.attack import (
    LAYERS,
    NOT_TRIED,
    Attack,
    AttackResult,
    AttackVerdict,
)
from cellwall.redteam.catalog import attacks as all_attacks
from cellwall.redteam.catalog import explanation, select
from cellwall.redteam.report import RedteamReport, to_junit, to_sarif
from cellwall.redteam.report_page import to_html

__all__ = [
    "LAYERS",
    "Attack",
    "AttackResult",
    "AttackVerdict",
    "RedteamReport",
    "all_attacks",
    "explanation",
    "run_attacks",
    "select",
    "to_html",
    "to_junit",
    "to_sarif",
]

OnLayer: TypeAlias = Callable[[str, int, int], None]
"""Called before each layer with its name, the number of attacks done, and of all."""
_Runner: TypeAlias = Callable[[TrialHost, Sequence[Attack]], Awaitable[list[AttackResult]]]

_RUNNERS: Mapping[str, _Runner] = {
    "isolation": program_attacks.run,
    "limits": limit_attacks.run,
    "files": program_attacks.run,
    "network": program_attacks.run,
    "policy": judged_attacks.run_policy,
    "guard": judged_attacks.run_guard,
    "secrets": secret_attacks.run,
    "packages": judged_attacks.run_packages,
    "audit": audit_attacks.run,
    "service": service_attacks.run,
    "gateway": gateway_attacks.run,
}


def run_attacks(
    chosen: Sequence[Attack], *, config: str | None, profile: str | None, on_layer: OnLayer
) -> RedteamReport:
    """Try the chosen attacks on this host, with the effective configuration."""
    began, started = datetime.now(UTC), monotonic()
    with trial_host(config=config, profile=profile) as host:
        results = anyio.run(_run_layers, host, tuple(chosen), on_layer)
        return RedteamReport(
            results=tuple(results),
            profile=host.app.settings.profile,
            version=__version__,
            began=began,
            took_s=monotonic() - started,
        )


async def _run_layers(
    host: TrialHost, chosen: Sequence[Attack], on_layer: OnLayer
) -> list[AttackResult]:
    results: list[AttackResult] = []
    for layer in LAYERS:
        attacks = [attack for attack in chosen if attack.layer == layer]
        if attacks:
            on_layer(layer, len(results), len(chosen))
            results += await _run_layer(host, layer, attacks)
    return results


async def _run_layer(host: TrialHost, layer: str, attacks: Sequence[Attack]) -> list[AttackResult]:
    """A runner that fails proves nothing about its attacks, and ends no other layer."""
    try:
        return await _RUNNERS[layer](host, attacks)
    except (CellwallError, OSError, TimeoutError) as error:
        name = error.code if isinstance(error, CellwallError) else type(error).__name__
        words = f": {error.message}" if isinstance(error, CellwallError) else ""
        return [
            AttackResult(
                attack=attack,
                verdict=AttackVerdict.NOT_PROVED,
                reason=f"the layer could not be tried: {name}{words}"[:300],
                attempt=NOT_TRIED,
                control=NOT_TRIED,
            )
            for attack in attacks
        ]

"""The blast radius: what code can and cannot do under the effective configuration (CFG-3).

`compute_blast_radius` is pure; `blast_radius` reads the host for it. Probes confirm the lines
(admin/blast_radius_probe.py), and two configurations can be compared (admin/radius_changes.py).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from cellwall.admin.abilities import abilities_of
from cellwall.admin.ability import VERBS, Ability, Verb
from cellwall.config.load import load_settings, profile_settings
from cellwall.config.models import PROFILE_NAMES, Settings, weakened
from cellwall.core.home import state_path
from cellwall.core.showing import escaped
from cellwall.core.types import Json
from cellwall.policy.engine import Policy
from cellwall.runtime.policies import effective_policy
from cellwall.runtime.signed_grants import signed_grants
from cellwall.sandbox.linux.visible_host import HostRoot, survey

__all__ = [
    "VERBS",
    "Ability",
    "BlastRadius",
    "ProbeResult",
    "ProbeState",
    "blast_radius",
    "compute_blast_radius",
    "configured_radius",
    "named_settings",
]


class ProbeState(StrEnum):
    """What a probe says about a line."""

    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    NOT_PROBED = "not probed"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What was tried for one line; the reason, where nothing was or the trial proves nothing."""

    state: ProbeState
    found: str

    def to_json(self) -> dict[str, Json]:
        return {"state": self.state.value.replace(" ", "-"), "found": self.found}


@dataclass(frozen=True, slots=True)
class BlastRadius:
    """All abilities, and the settings that weaken a wall."""

    profile: str
    abilities: tuple[Ability, ...]
    weakened: tuple[str, ...]

    def of(self, verb: Verb) -> tuple[Ability, ...]:
        return tuple(each for each in self.abilities if each.verb == verb)

    def to_text(self, probed: Mapping[str, ProbeResult] | None = None) -> str:
        """For people; with the result of each probe, where there are any."""
        lines = [f"profile: {self.profile}"]
        for verb in VERBS:
            lines.append(f"{verb}:")
            for each in self.of(verb):
                word = "can" if each.is_possible else "cannot"
                weak = "  (weakened)" if each.is_weakened else ""
                lines.append(f"  {word:6}  {escaped(each.to_text())}{weak}")
                if probed is not None:
                    result = probed[each.id]
                    mark = result.state.value
                    mark = mark.upper() if result.state is ProbeState.CONTRADICTED else mark
                    lines.append(f"{'':10}{mark}: {escaped(result.found)}")
        lines.append(f"weakened by: {', '.join(self.weakened) or 'nothing'}")
        if probed is not None:
            counts = Counter(each.state for each in probed.values())
            found = ", ".join(f"{counts[state]} {state.value}" for state in ProbeState)
            lines.append(f"{len(probed)} lines: {found}")
        return "\n".join(lines) + "\n"

    def to_json(self, probed: Mapping[str, ProbeResult] | None = None) -> dict[str, Json]:
        """For programs; each line has its `probe` where there are any."""
        lines: list[Json] = [
            {**each.to_json(), **({} if probed is None else {"probe": probed[each.id].to_json()})}
            for each in self.abilities
        ]
        return {"profile": self.profile, "abilities": lines, "weakened": list(self.weakened)}


def blast_radius(settings: Settings, policy: Policy) -> BlastRadius:
    """For this host."""
    return compute_blast_radius(settings, policy, survey())


def compute_blast_radius(settings: Settings, policy: Policy, host: HostRoot) -> BlastRadius:
    """From plain data."""
    return BlastRadius(settings.profile, abilities_of(settings, policy, host), weakened(settings))


def configured_radius(settings: Settings, *, environ: Mapping[str, str]) -> BlastRadius:
    """Of these settings and the policy files that apply in the working directory."""
    policy = effective_policy(
        named=settings.policy.files,
        cwd=os.getcwd(),
        environ=environ,
        grants=signed_grants(state_path(environ), settings),
        protects_build_files=settings.workspace.protects_build_files,
    )
    return blast_radius(settings, policy)


def named_settings(name: str, *, environ: Mapping[str, str]) -> Settings:
    """Of a configuration file, or of a shipped profile by its name."""
    if name in PROFILE_NAMES:
        return profile_settings(name)
    return load_settings(file=name, environ=environ)

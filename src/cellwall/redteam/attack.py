"""One attack, what was seen of it, and the verdict. Pure: the runners are in `admin.redteam`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeAlias, get_args

from cellwall.core.types import Json

LAYERS = (
    "isolation",
    "limits",
    "files",
    "network",
    "policy",
    "guard",
    "secrets",
    "packages",
    "audit",
    "service",
    "gateway",
)
"""In the order in which they run and are reported."""

_NO_SUCH_CALL = "ENOSYS"
_FILTERED = frozenset({"EPERM", "SIGSYS"})
_MAX_WORDS = 300

ObservationKind: TypeAlias = Literal["through", "refused", "lacks", "broken"]
_KINDS: dict[str, ObservationKind] = {kind: kind for kind in get_args(ObservationKind)}


class AttackVerdict(StrEnum):
    """How an attack ended."""

    HELD = "held"
    THROUGH = "through"
    NOT_PROVED = "not-proved"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack of the catalog."""

    id: str
    """The layer and the name: `files/read-by-dot-dot`."""
    layer: str
    title: str
    requirement: str
    wall: str
    """The mechanism that is expected to stop it."""
    control: str
    """The positive control, in words."""
    owasp: tuple[str, ...] = ()
    """OWASP Top 10 for Agentic Applications: ASI01 to ASI10."""
    atlas: tuple[str, ...] = ()
    """Technique ids of MITRE ATLAS."""
    program: str = ""
    """The program that tries it inside a cell; empty where it is tried from outside."""
    key: str = ""
    """Its name within the program."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the catalog, which the runner of its layer reads."""

    def to_json(self) -> dict[str, Json]:
        return {
            "id": self.id,
            "layer": self.layer,
            "title": self.title,
            "requirement": self.requirement,
            "wall": self.wall,
            "control": self.control,
            "owasp": list(self.owasp),
            "atlas": list(self.atlas),
        }


@dataclass(frozen=True, slots=True)
class Observation:
    """What came of one attempt: got through, was refused, had no target, or was no attempt at
    all."""

    kind: ObservationKind
    words: str = ""

    @classmethod
    def of(cls, value: object) -> Observation:
        """From a report, whose content is untrusted: anything unexpected is a broken attempt."""
        match value:
            case [str(kind), str(words)] if kind in _KINDS:
                return cls(_KINDS[kind], words[:_MAX_WORDS])
            case _:
                return cls("broken", "its report is malformed")


NOT_TRIED = Observation("broken", "it was not tried")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackResult:
    """The verdict on one attack, with the facts it rests on."""

    attack: Attack
    verdict: AttackVerdict
    reason: str
    attempt: Observation = NOT_TRIED
    control: Observation = NOT_TRIED

    def to_json(self) -> dict[str, Json]:
        return {
            **self.attack.to_json(),
            "verdict": self.verdict.value,
            "reason": self.reason,
            "attempt": [self.attempt.kind, self.attempt.words],
            "control_result": [self.control.kind, self.control.words],
        }


def judge(
    attack: Attack, *, control: Observation, attempt: Observation, effects: Sequence[str] = ()
) -> AttackResult:
    """The verdict. `effects` are facts seen from outside, which outweigh every report.

    1. An effect on the host, or an attempt that succeeded: through.
    2. A control that did not succeed proves nothing, whatever the attempt reported.
    3. Only a refusal is held: no report, a crash or a missing target is not.
    """
    verdict, reason = _decide(control, attempt, effects)
    return AttackResult(
        attack=attack, verdict=verdict, reason=reason, attempt=attempt, control=control
    )


def _decide(
    control: Observation, attempt: Observation, effects: Sequence[str]
) -> tuple[AttackVerdict, str]:
    if effects:
        return AttackVerdict.THROUGH, f"seen from outside: {'; '.join(effects)[:_MAX_WORDS]}"
    if attempt.kind == "through":
        return AttackVerdict.THROUGH, f"the attempt succeeded: {attempt.words}"
    if control.kind == "lacks":
        return AttackVerdict.NOT_PROVED, f"this host has nothing to attack: {control.words}"
    if control.kind == "refused" and control.words == _NO_SUCH_CALL:
        filtered = ", and the filter refuses its number" if attempt.words in _FILTERED else ""
        return AttackVerdict.NOT_PROVED, f"this kernel has no such system call{filtered}"
    if control.kind != "through":
        return AttackVerdict.NOT_PROVED, f"the control did not succeed: {control.words}"
    if attempt.kind == "refused":
        return AttackVerdict.HELD, f"refused: {attempt.words}"
    return AttackVerdict.NOT_PROVED, f"the attempt was not made: {attempt.words}"

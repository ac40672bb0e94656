"""Silences: alerts that a person does not want to be told of for some time. Pure.

A silence hides messages, never the alert. Critical alerts are silenced by the exact name of their
rule alone: a pattern that was meant for noise must not hide tampering.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import asdict, dataclass
from typing import Any

from cellwall.audit.alerts.series import Alert
from cellwall.core.errors import BadInput

MAX_SILENCES = 200
MAX_SILENCE_S = 30 * 86_400.0
_RULE = re.compile(r"[a-z0-9*][a-z0-9*-]{0,39}")
_MAX_GROUP_CHARACTERS = 120
_MAX_REASON_CHARACTERS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """`rule` may contain `*`; an empty `group` stands for every group."""

    id: str
    rule: str
    group: str = ""
    until_s: float
    by: str
    reason: str
    made_s: float

    def hides(self, alert: Alert, now_s: float) -> bool:
        """Whether messages about the alert are held back. The longest time counts from when it was
        made, so a clock that was set back does not extend it for ever."""
        if not self.made_s - MAX_SILENCE_S <= now_s < self.until_s:
            return False
        if alert.severity == "critical" and alert.rule != self.rule:
            return False
        is_rule = fnmatch.fnmatchcase(alert.rule, self.rule)
        return is_rule and self.group in ("", alert.group)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Silence:
        """From `to_json`; raises `TypeError`."""
        made = cls(**fields)
        texts = (made.id, made.rule, made.group, made.by, made.reason)
        times = (made.until_s, made.made_s)
        if not all(isinstance(each, str) for each in texts) or not all(
            isinstance(each, int | float) for each in times
        ):
            raise TypeError("not a stored silence")
        return made


def check_silence(silence: Silence) -> Silence:
    """Raise `BadInput` for a silence out of bounds."""
    if _RULE.fullmatch(silence.rule) is None:
        raise _bad("the rule of a silence is its name, in which * stands for any letters")
    if len(silence.group) > _MAX_GROUP_CHARACTERS:
        raise _bad(f"a group has at most {_MAX_GROUP_CHARACTERS} characters")
    if not silence.reason.strip() or len(silence.reason) > _MAX_REASON_CHARACTERS:
        raise _bad(f"a silence needs a reason of at most {_MAX_REASON_CHARACTERS} characters")
    if not 0 < silence.until_s - silence.made_s <= MAX_SILENCE_S:
        raise _bad(f"a silence lasts up to {MAX_SILENCE_S / 86_400:g} days")
    return silence


def _bad(message: str) -> BadInput:
    return BadInput(message, hint="See `cellwall alerts silence --help`.", code="CW-BAD-SILENCE")

"""Standing grants as text for a person and as JSON.

Names and paths may be anybody's: each is one escaped line, at full length, since an omitted part
would be signed as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cellwall.core.errors import BadInput
from cellwall.core.showing import WIDTH, escaped
from cellwall.core.types import Json
from cellwall.interfaces.cli.policy_trust import MAX_SHOWN_ROWS, doubts, rules_text

if TYPE_CHECKING:
    from cellwall.admin.standing_grants import StandingGrant, WaitingGrant


def listing(signed: Mapping[StandingGrant, int], waiting: Sequence[WaitingGrant]) -> str:
    """One line for each grant."""
    lines = [
        f"signed {_when(at)}  {each.kind.value:12} {escaped(each.subject)}  {each.digest[:16]}"
        for each, at in signed.items()
    ]
    lines += [f"DOES NOT COUNT  {escaped(each.title)}" for each in waiting]
    if waiting:
        lines.append("Look at these, then sign them: cellwall approvals sign")
    return "".join(f"{line}\n" for line in lines) or "no standing grants\n"


def shown(waiting: Sequence[WaitingGrant]) -> str:
    """All that a signature would allow. Raises for more than a person would read."""
    parts = []
    for each in waiting:
        parts.append(f"{escaped(each.title)}\n{doubts(each.title)}")
        if each.policy is not None:
            parts.append(rules_text(each.policy))
        parts += [f"  {escaped(line)}\n{doubts(line)}" for line in each.details]
    text = "".join(parts)
    # As the terminal folds them: one long line would scroll all others away.
    if sum(1 + len(line) // WIDTH for line in text.splitlines()) > MAX_SHOWN_ROWS:
        raise BadInput(
            f"there is too much to review at once: {len(waiting)} grants",
            hint="Sign one kind at a time with --only, or policy files with `cellwall policy "
            "trust FILE`.",
            code="CW-GRANTS-LONG",
        )
    return text


def as_json(
    signed: Mapping[StandingGrant, int], waiting: Sequence[WaitingGrant], problems: Sequence[str]
) -> dict[str, Json]:
    """The same for programs."""
    done: list[Json] = [
        {
            "kind": each.kind.value,
            "subject": each.subject,
            "digest": each.digest,
            "signed": _when(at),
        }
        for each, at in signed.items()
    ]
    unsigned: list[Json] = [
        {
            "kind": each.kind.value,
            "subject": each.subject,
            "digests": [grant.digest for grant in each.grants],
            "title": each.title,
            "details": list(each.details),
        }
        for each in waiting
    ]
    return {"signed": done, "waiting": unsigned, "problems": list(problems)}


def _when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")

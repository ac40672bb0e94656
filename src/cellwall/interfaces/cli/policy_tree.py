"""How a decision is drawn for people: the tree of what was judged. Pure."""

from __future__ import annotations

from cellwall.core.showing import escaped
from cellwall.core.verdict import Decision, Verdict

_SIGNS = {Verdict.ALLOW: "+", Verdict.ASK: "?", Verdict.DENY: "-"}
_WIDTH = 100


def draw(decision: Decision) -> str:
    """The whole, then each part beneath what it stands in."""
    lines = [f"{decision.verdict.word.upper()}  {_short(decision.subject)}", ""]
    place: tuple[str, ...] = ()
    for part in decision.parts or (decision,):
        lines += _opened(place, part.place)
        place = part.place
        indent = "   " * len(place)
        lines.append(f"{indent}{_SIGNS[part.verdict]} {_short(part.subject)}")
        rule = f"  [{part.rule}, {part.source}]" if part.rule else ""
        lines.append(f"{indent}    {part.verdict.word}: {part.reason}{rule}")
    return "\n".join([*lines, ""])


def _opened(before: tuple[str, ...], place: tuple[str, ...]) -> list[str]:
    """What is entered on the way to a part."""
    shared = 0
    while shared < min(len(before), len(place)) and before[shared] == place[shared]:
        shared += 1
    return [f"{'   ' * level}{place[level]}" for level in range(shared, len(place))]


def _short(text: str) -> str:
    shown = escaped(" ".join(text.split()))  # the command's own characters steer nothing
    return shown if len(shown) <= _WIDTH else shown[: _WIDTH - 1] + "…"

"""The rule of two (POL-9): untrusted content, private data and egress do not meet unasked. Pure.

An action is asked about if (1) the session with the action would have all three labels, and (2) the
action brings a source to which nobody has consented. A source that came while the three were not
together needs no consent of its own: it was harmless then, and who consents to the third label is
told of the other two.

A person who names all three in one request (a workspace, a secret and a domain of one `cellwall
run`, of one `Sandbox.create`) has consented to these by asking, and to nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from cellwall.core.labels import (
    MAX_SHOWN_SOURCES,
    RULE_OF_TWO,
    Label,
    LabelKey,
    LabelSet,
    LabelSource,
    is_complete,
)
from cellwall.core.verdict import Decision, Verdict


def unconsented(
    held: LabelSet,
    brought: Sequence[LabelSource],
    *,
    admitted: Collection[LabelKey],
    named: Collection[LabelKey],
) -> tuple[LabelSource, ...]:
    """The sources about which a person must be asked; none if the action may go on.

    `held`: what the session has. `admitted`: sources that need no consent any more. `named`: the
    sources that a person has named in this very request.
    """
    if not is_complete([*(each.label for each in held.sources), *(each.label for each in brought)]):
        return ()
    is_named_whole = is_complete(label for label, _ in named)
    return tuple(
        each
        for each in brought
        if each.key not in admitted and not (is_named_whole and each.key in named)
    )


def object_to(
    held: LabelSet, brought: Sequence[LabelSource], *, verdict: Verdict, action_id: str
) -> Decision:
    """The decision on an action that brings the three together, with each label's sources."""
    parts: list[str] = []
    for label in Label:
        found = dict.fromkeys((*held.of(label), *(each for each in brought if each.label is label)))
        shown = [_shown(each, action_id) for each in found][:MAX_SHOWN_SOURCES]
        left = len(found) - len(shown)
        parts.append(f"{label.words} ({', '.join(shown)}{f', {left} more' if left else ''})")
    reason = f"in one session, {parts[0]}, {parts[1]} and {parts[2]} would meet"
    return Decision.built_in(verdict, RULE_OF_TWO, reason)


def _shown(source: LabelSource, action_id: str) -> str:
    by = "this action" if source.action_id in ("", action_id) else source.action_id
    return f"{source.name} by {by}"

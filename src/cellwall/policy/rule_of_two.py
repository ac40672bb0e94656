"""The rule of two (POL-9): untrusted content, private data and egress do not meet unasked. Pure.

An action is asked about if (1) the session with the action would have all three labels, and (2) the
action brings a source without consent of a person. A source that came while the three were not
together needs no consent of its own: it was harmless then, and who consents to the third label is
told of the other two.

A person who names all three in one request (a workspace and a domain of one `cellwall run`, of one
`Sandbox.create`, of one `cellwall mcp`) has consented to these by asking. A session that has
anything else is asked about.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

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

_MAX_IN_REASON = 2
"""Sources of one label; the newest, since one of them is why the action is asked about."""


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
    if not is_complete([each.label for each in (*held.sources, *brought)]):
        return ()
    if is_complete(label for label, _ in named) and all(
        each.key in named for each in (*held.sources, *brought)
    ):
        return ()
    return tuple(each for each in brought if each.key not in admitted)


def object_to(
    held: LabelSet, brought: Sequence[LabelSource], *, verdict: Verdict, action_id: str
) -> Decision:
    """The decision on an action that brings the three together. Its parts name the sources of one
    label each, so that many sources of one do not hide those of another from a person. A person
    reads the parts; the reason reaches the agent as well, and names no path of the host (ERR-1)."""
    met, parts = [], []
    for label in Label:
        found = dict.fromkeys((*held.of(label), *(each for each in brought if each.label is label)))
        sources = [_shown(each, action_id) for each in found]
        told = [_shown(_without_path(each), action_id) for each in found]
        met.append(f"{label.words} ({_joined(told, _MAX_IN_REASON)})")
        subject = f"{label.words}: {_joined(sources, MAX_SHOWN_SOURCES)}"
        part = Decision.built_in(verdict, RULE_OF_TWO, "it would meet the other two")
        parts.append(replace(part, subject=subject))
    reason = f"in one session, {met[0]}, {met[1]} and {met[2]} would meet"
    return replace(Decision.built_in(verdict, RULE_OF_TWO, reason), parts=tuple(parts))


def _without_path(source: LabelSource) -> LabelSource:
    before, separator, _ = source.name.partition(" /")
    return replace(source, name=f"{before} a directory of the host") if separator else source


def _joined(sources: Sequence[str], most: int) -> str:
    left = len(sources) - most
    return ", ".join(sources[-most:]) + (f" and {left} more" if left > 0 else "")


def _shown(source: LabelSource, action_id: str) -> str:
    by = "this action" if source.action_id in ("", action_id) else source.action_id
    return f"{source.name} by {by}"

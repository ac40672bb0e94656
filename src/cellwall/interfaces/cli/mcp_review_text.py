"""The review of an MCP server's definitions, for a person and as JSON.

Every text of the server stands escaped behind a bar: nothing in it can look like Cellwall's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cellwall.core.showing import block, escaped
from cellwall.core.types import Json
from cellwall.interfaces.cli.policy_trust import doubts
from cellwall.interfaces.terminal import one_line
from cellwall.runtime.server_catalog import labels_together

if TYPE_CHECKING:
    from cellwall.admin.tool_reviews import ReviewedTool, ServerReview

_MAX_ROWS, _MAX_CHARACTERS = 50_000, 1 << 20
"""More than a definition can have: nothing may be left out of what a person accepts."""
_WORDS = {
    "accepted": "accepted, unchanged",
    "new": "new",
    "changed": "CHANGED since you accepted it",
    "rejected": "rejected",
    "refused": "cannot be offered",
    "gone": "gone",
}


def review_text(review: ServerReview) -> str:
    """What waits in full, the rest in one line each."""
    return "\n".join(_lines(review))


def _lines(review: ServerReview) -> Iterator[str]:
    name = review.entry.name
    yield f"MCP server {name}, as seen at {review.entry.seen_at}. Text behind a bar (|) is its own."
    yield "It is run and reached like this:"
    for line in review.entry.settings.lines():
        yield _whole(escaped(line))
        yield from doubts(line).splitlines()
    for tool in review.tools:
        change = tool.change
        title = f"tool {one_line(change.name)}" if change.name else "the server itself"
        yield f"\n{title}: {_WORDS[change.state]}" + (
            f" ({change.reason})" if change.reason else ""
        )
        if tool.shadows:
            yield f"  REFUSED: {one_line(tool.shadows)} has a tool of this name."
        for finding in tool.findings:
            where = f" in {one_line(finding.where)}" if finding.where else ""
            yield f"  FOUND{where}: {one_line(finding.message)} [{finding.rule}]"
        diff = change.diff()
        if diff:
            yield _whole(diff)
    yield f"\nDigest of the whole set: {review.seen.sha256}"
    yield from _labels(review)
    if review.waits:
        yield f"Accept it:  cellwall mcp gateway review {name} --accept"
        yield f"Reject it:  cellwall mcp gateway review {name} --reject"
    else:
        yield "Nothing waits for you."


def _whole(text: str) -> str:
    return block(text, max_rows=_MAX_ROWS, max_characters=_MAX_CHARACTERS).rstrip("\n")


def _labels(review: ServerReview) -> Iterator[str]:
    """That this server alone completes the three labels, where it does (POL-9)."""
    together = labels_together(review.entry.settings)
    if not together:
        return
    yield f"\nBy itself this server brings {one_line(together)}."
    if review.entry.is_named_together:
        yield "You have consented to that for this set. What a session has from elsewhere asks."
        return
    yield "So its first call in each session asks a person. Consent to that for exactly this set:"
    yield f"  cellwall mcp gateway review {review.entry.name} --accept --together"


def review_json(review: ServerReview) -> dict[str, Json]:
    """The same for programs."""
    return {
        "name": review.entry.name,
        "sha256": review.seen.sha256,
        "seen_at": review.entry.seen_at,
        "waits": review.waits,
        "definitions": [_tool_json(each) for each in review.tools],
    }


def _tool_json(tool: ReviewedTool) -> dict[str, Json]:
    change = tool.change
    return {
        "tool": change.name,
        "state": change.state,
        "reason": change.reason,
        "before": None if change.before is None else dict(change.before.fields),
        "after": None if change.after is None else dict(change.after.fields),
        "diff": change.diff(),
        "findings": [dict(each.to_json()) for each in tool.findings],
        "shadows": tool.shadows,
    }

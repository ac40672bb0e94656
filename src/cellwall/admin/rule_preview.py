"""What a rule would have allowed: recorded calls that were not allowed, judged again with it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cellwall.admin import audit_queries
from cellwall.admin.policy_learning import calls_of
from cellwall.core.errors import BadInput
from cellwall.core.outcomes import EventKind
from cellwall.core.verdict import Verdict
from cellwall.policy.calls import ToolCall
from cellwall.policy.engine import Policy, judge_call
from cellwall.policy.rule_parser import parse_rule
from cellwall.policy.rulebook import RuleBook
from cellwall.policy.rules import BadRule, Layer, Source
from cellwall.policy.subjects import only_itself
from cellwall.secrets.session_keys import SessionKeys

WINDOW_DAYS = 7
_MAX_CALLS = 2000
_MAX_EXAMPLES = 5
_WITHIN_S = 1.0
"""A person waits for the page; what was judged by then is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePreview:
    """How many of the recorded calls a rule would have allowed."""

    judged: int
    newly: int
    examples: tuple[str, ...]
    is_partial: bool


def rules_with(text: str, *, answers: str, policy: Policy, layer: Layer) -> RuleBook:
    """The rules of the policy and one more that allows, in the layer of the file that gets it."""
    try:
        rule = parse_rule(text, verdict=Verdict.ALLOW, source=Source("preview"), layer=layer)
    except BadRule as problem:
        raise BadInput(
            f"this is not a rule: {problem}", hint="Write Tool or Tool(specifier)."
        ) from None
    return RuleBook((*policy.rules, replace(rule, answers=answers)))


def preview_rule(
    text: str, *, answers: str, policy: Policy, layer: Layer, home: str, keys: SessionKeys
) -> RulePreview:
    """The last week's calls that were denied or asked about, with this rule added.

    `answers` is the rule that asked, as in a policy file. Calls inside sandboxes alone: a call of
    an agent's own tool is judged where the agent works.
    """
    before = RuleBook(policy.rules)
    after = rules_with(text, answers=answers, policy=policy, layer=layer)
    deadline = time.monotonic() + _WITHIN_S
    seen: set[str] = set()
    judged = newly = 0
    examples: list[str] = []
    is_partial = False
    for call in _recorded_calls(home, keys):
        if judged >= _MAX_CALLS or time.monotonic() > deadline:
            is_partial = True
            break
        judged += 1
        shown = _text_of(call)
        if _is_allowed(after, call) and not _is_allowed(before, call):
            newly += 1
            if shown not in seen and len(examples) < _MAX_EXAMPLES:
                examples.append(shown)
            seen.add(shown)
    return RulePreview(judged=judged, newly=newly, examples=tuple(examples), is_partial=is_partial)


def _recorded_calls(home: str, keys: SessionKeys) -> Iterator[ToolCall]:
    since = datetime.now(UTC) - timedelta(days=WINDOW_DAYS)
    for verdict in (Verdict.DENY, Verdict.ASK):
        query = audit_queries.Query(since=since, verdict=verdict)
        for record in audit_queries.newest(query, home=home, keys=keys):
            if record["kind"] in {EventKind.DENIAL, EventKind.INTENT}:
                yield from _calls(record["body"])


def _calls(body: Mapping[str, Any]) -> Sequence[ToolCall]:
    try:
        return calls_of(body)
    except BadInput:  # truncated or redacted: not the call that was made
        return ()


def _is_allowed(book: RuleBook, call: ToolCall) -> bool:
    try:
        return judge_call(book, call, only_itself).verdict is Verdict.ALLOW
    except (BadInput, BadRule):
        return False


def _text_of(call: ToolCall) -> str:
    values = [str(value) for value in call.input.values() if isinstance(value, str)]
    return f"{call.tool}({values[0] if values else ''})"

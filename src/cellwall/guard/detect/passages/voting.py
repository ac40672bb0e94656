"""Rules and classifier vote (GRD-2, GRD-8).

A text that instructs its reader as a whole (a system prompt, a manual for agents) has the words of
an attack without being one. There, a finding of medium severity stands only if the classifier
suspects a passage as well; otherwise it goes down to low, and is still reported. Findings of high
severity stand anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from cellwall.core.outcomes import SEVERITIES
from cellwall.guard.detect.passages.finder import PassageFinding
from cellwall.guard.report import Hit

_JUDGED = frozenset({"injection", "jailbreak", "role-marker", "system-prompt", "tool-call", "task"})


def vote(rules: Iterable[Hit], classifier: PassageFinding) -> Iterator[Hit]:
    """The hits of the rules as the classifier lets them stand, and its own."""
    is_doubted = classifier.is_for_reader and not classifier.is_likely
    standing: list[Hit] = []
    for hit in rules:
        if is_doubted and hit.severity == "medium" and hit.category in _JUDGED:
            standing.append(replace(hit, severity="low", score=hit.score / 2))
        else:
            standing.append(hit)
    yield from standing
    for hit in classifier.hits:
        # Where a rule already acts as strictly, its finding says more than the classifier's.
        is_covered = any(
            rule.start < hit.end
            and hit.start < rule.end
            and SEVERITIES.index(rule.severity) >= SEVERITIES.index(hit.severity)
            for rule in standing
        )
        if not is_covered:
            yield hit

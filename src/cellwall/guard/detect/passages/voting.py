"""Rules and classifier vote (GRD-2, GRD-3, GRD-8).

A rule knows a wording, not who says it to whom: system prompts, manuals for agents and texts about
attacks have the words of an attack without being one. A finding of a rule stands by itself where it
is certain:

- it is critical: an instruction beside an order to send data out or to disclose a secret;
- it is high, and the text is short, so that there is little else to be about; in a text of a few
  sentences a medium one is enough, except for the forms of tool calls and jailbreaks, which
  configuration and prompts have too, and in one of two lines any;
- two different rules of injection agree, or one matches very often, and the text is not about
  attacks;
- it is a request in a text of some lines that is neither for a reader nor about attacks.

Where the classifier denies, that is, where no passage of a text comes near to an instruction, only
the first stands, except in a text of two lines, and an address with a gap is a template. Everywhere
else a finding stands if the classifier assents, and otherwise it goes down to low: nothing is
removed, and the session is labelled with untrusted content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from cellwall.core.outcomes import SEVERITIES
from cellwall.guard.detect.passages.finder import PassageFinding
from cellwall.guard.report import Hit

_JUDGED = frozenset(
    {"injection", "jailbreak", "role-marker", "system-prompt", "tool-call", "task", "urgency"}
)
"""What is hidden, encoded, a beacon or a delimiter is no matter of wording."""
_PLACEHOLDERS = frozenset({"beacon.link-holder", "beacon.image-holder"})
"""An address with a gap does nothing by itself: an instruction has to ask the model to fill it."""
_SHORT = frozenset({"text under 120", "text over 120", "text over 300", "text over 700"})
_TINY = frozenset({"text under 120", "text over 120"})
_VERY_SHORT = _TINY | {"text over 300"}
_COMMON = frozenset({"tool-call", "jailbreak", "role-marker"})
_OF_PROMPTS = frozenset({"injection.response.en"})
"""Wordings that ordinary prompts have as well."""
_ABOUT_ATTACKS = "text about attacks"
_FOR_OTHERS = frozenset({"text to a reader", _ABOUT_ATTACKS})
_FLOOD = 20
"""Attack: one instruction so often that none stands out for the classifier."""
_ORDERS = "orders."
"""Rules about orders to a reader, which two sentences of one manual match together."""


def vote(rules: Iterable[Hit], classifier: PassageFinding) -> Iterator[Hit]:
    """The hits of the rules as the classifier lets them stand, and its own."""
    found = list(rules)
    of_injection = [hit for hit in found if _is_of_injection(hit)]
    agree = len({hit.rule for hit in of_injection}) > 1
    is_flood = len(of_injection) >= _FLOOD and _ABOUT_ATTACKS not in classifier.traits
    standing = [
        hit
        if classifier.assents
        or (is_flood and _is_of_injection(hit))
        or _is_certain(hit, classifier, agree=agree)
        else _doubted(hit)
        for hit in found
    ]
    yield from standing
    for hit in classifier.hits:
        if not _is_covered(hit, standing):
            yield hit


def _is_of_injection(hit: Hit) -> bool:
    is_order = hit.rule.startswith(_ORDERS)
    return hit.category == "injection" and hit.severity != "low" and not is_order


def _is_certain(hit: Hit, classifier: PassageFinding, *, agree: bool) -> bool:
    if hit.severity in ("low", "critical"):
        return True
    traits = classifier.traits
    is_denied = classifier.denies and traits.isdisjoint(_TINY)
    if hit.category not in _JUDGED:
        return not (is_denied and hit.rule in _PLACEHOLDERS)
    if is_denied:
        return False
    if hit.category == "task":
        is_carrier = "text of lines" in traits and traits.isdisjoint(_TINY)
        return is_carrier and traits.isdisjoint(_FOR_OTHERS)
    if hit.severity == "high" and not traits.isdisjoint(_SHORT):
        return True
    is_common = hit.category in _COMMON or hit.rule in _OF_PROMPTS
    if not traits.isdisjoint(_TINY if is_common else _VERY_SHORT):
        return True
    return agree and hit.category == "injection" and _ABOUT_ATTACKS not in traits


def _doubted(hit: Hit) -> Hit:
    return replace(hit, severity="low", score=hit.score / 2)


def _is_covered(hit: Hit, standing: Sequence[Hit]) -> bool:
    """Where a rule already acts as strictly, its finding says more than the classifier's."""
    return any(
        rule.start < hit.end
        and hit.start < rule.end
        and SEVERITIES.index(rule.severity) >= SEVERITIES.index(hit.severity)
        for rule in standing
    )

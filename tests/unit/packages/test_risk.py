"""The risk of a package in one line."""

from __future__ import annotations

from cellwall.core.verdict import Verdict
from cellwall.packages.evidence import EvidenceStep, PackageVerdict, Reason
from cellwall.packages.names import Ecosystem
from cellwall.packages.risk import risk_of


def verdict(*found, answered=(), suggestion="requests"):
    def reason(step, code):
        return Reason(step, Verdict.ASK, code, "…")

    return PackageVerdict(
        Ecosystem.PYPI,
        "reqeusts",
        None,
        tuple(reason(*each) for each in found),
        suggestion,
        answered=tuple(reason(*each) for each in answered),
    )


def test_the_line_names_what_was_found():
    found = verdict((EvidenceStep.REGISTRY, "new-project"), (EvidenceStep.NAME, "transposition"))
    assert risk_of(found).line == "risk 7 of 10: new project, resembles requests"
    assert risk_of(verdict()).line == "risk 0 of 10"


def test_what_a_rule_answered_is_still_a_risk_and_a_denied_license_is_none():
    found = verdict(
        (EvidenceStep.VERSION, "license"), answered=[(EvidenceStep.REGISTRY, "new-project")]
    )
    assert risk_of(found).line == "risk 3 of 10: new project"


def test_the_risk_has_a_maximum_and_counts_each_cause_once():
    found = verdict(
        (EvidenceStep.FEED, "malicious"),
        (EvidenceStep.NAME, "omission"),
        (EvidenceStep.NAME, "affix"),
    )
    assert risk_of(found).line == "risk 10 of 10: reported as malicious, resembles requests"

"""The rules that come with Cellwall do what their examples say, through the whole detector."""

from __future__ import annotations

from collections import Counter

import pytest

from cellwall.guard.detect import Detector
from cellwall.guard.detect.rule_packs import DetectionRule, shipped_packs

RULES = [rule for pack in shipped_packs() for rule in pack.rules]
LANGUAGES = ("en", "de", "fr", "es", "pt", "ru", "zh", "ja", "ko", "ar")
INTENTS = (
    "injection.override",
    "injection.role",
    "injection.address",
    "jailbreak.no-limits",
    "system-prompt.reveal",
    "exfiltration.send",
    "code-injection.run",
)
ENGLISH = {
    "injection.role": "injection.you-are-now.en",
    "exfiltration.send": "exfiltration.secrets.en",
    "code-injection.run": "code-injection.order.en",
}


@pytest.fixture(scope="module")
def detector() -> Detector:
    return Detector.shipped()


@pytest.mark.requirement("GRD-2")
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_examples_of_a_rule_hold(rule: DetectionRule) -> None:
    assert list(rule.faults()) == []


@pytest.mark.slow
@pytest.mark.requirement("GRD-2")
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_each_example_is_found_in_the_middle_of_other_text(
    detector: Detector, rule: DetectionRule
) -> None:
    for example in rule.match:
        text = f"{'The weather was fine. ' * 60}\n\n{example}\n\n{'Nothing else happened. ' * 60}"
        found = {hit.category for hit in detector.find(text).hits}
        assert rule.category in found, example


@pytest.mark.requirement("GRD-8")
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_no_rule_takes_offence_at_an_everyday_sentence(
    detector: Detector, rule: DetectionRule
) -> None:
    for example in rule.not_match:
        assert rule.id not in {hit.rule for hit in detector.find(example).hits}, example


def test_ids_are_unique_and_named_after_their_theme() -> None:
    assert Counter(rule.id for rule in RULES).most_common(1)[0][1] == 1
    assert all(rule.id.startswith(f"{rule.category}.") for rule in RULES)


@pytest.mark.requirement("GRD-2")
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("intent", INTENTS)
def test_every_main_intent_is_known_in_every_language(intent: str, language: str) -> None:
    wanted = ENGLISH.get(intent, "") if language == "en" else ""
    assert any(
        (rule.id == wanted if wanted else rule.id.startswith(intent)) and language in rule.languages
        for rule in RULES
    )

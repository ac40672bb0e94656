"""One set of rules for credentials serves screen, record and wire (GRD-11)."""

from __future__ import annotations

import json
from importlib import resources

import pytest

from cellwall.audit.encoding import RecordDraft
from cellwall.audit.redaction import redact_text
from cellwall.core.outcomes import Event, EventKind
from cellwall.egress.inspection.leak_scan import KnownIndex, LeakScan, Patterns
from cellwall.guard.redact import Redactor
from cellwall.parsing.credentials.rule_set import shipped
from cellwall.parsing.credentials.text_scan import listed_words, may_hold, words

pytestmark = pytest.mark.requirement("GRD-11")

REDACTOR = Redactor()
RULES = shipped().shapes
EXAMPLES = [
    pytest.param(rule, text, id=f"{rule.id}-{number}")
    for rule in RULES
    for number, text in enumerate(rule.match)
]
NAMED = [
    'api_key = "Zk3vQ8mT1xLr6WbY0pNs"',
    "--token 9f8e7d6c5b4a39281706f5e4d3c2b1a0",
    '"password": "hunter2-Xy9!"',
    "groq: 9f8e7d6c5b4a39281706f5e4d3c2b1a0",
    "password=hunter2",
    "db: password: hunter2-x\n",
    "MYAPP_TOKEN=x2mymoadh96cjb0ehsyfk7ku",
]


def secrets_in(text: str) -> list[str]:
    """What the guard takes out of a text."""
    return [text[hit.start : hit.end] for hit in REDACTOR.redact_text(text).hits]


def recorded(*command: str) -> str:
    body = {"command": list(command)}
    return RecordDraft(Event(EventKind.INTENT, "act_1", "ann", "cli", body)).body


def told(text: str) -> str:
    """As it stands in a body, without the quotes."""
    return json.dumps(text)[1:-1]


@pytest.mark.parametrize(("rule", "text"), EXAMPLES)
def test_screen_and_record_take_out_the_same(rule, text):
    secrets = secrets_in(text)
    assert secrets
    assert told(secrets[0]) in json.dumps(["echo", text])  # a record as it came would hold it
    for written in (recorded("echo", text), recorded("sh", "-c", f"echo '{text}'")):
        assert not [secret for secret in secrets if told(secret) in written]
    assert not [secret for secret in secrets if secret in redact_text(text)]


@pytest.mark.parametrize("text", NAMED)
def test_screen_and_record_agree_about_values_that_have_only_a_name(text):
    secrets = secrets_in(text)
    assert secrets
    assert not [secret for secret in secrets if told(secret) in recorded("echo", text)]


@pytest.mark.parametrize(("rule", "text"), EXAMPLES)
def test_the_wire_refuses_what_the_screen_hides(rule, text):
    scan = LeakScan(KnownIndex({}), Patterns.shipped())
    hit = scan.feed(text.encode())
    if rule.is_on_wire:
        assert hit is not None
    else:  # another rule may find it by its own shape
        assert hit is None or hit.name != rule.id


def test_rules_that_are_not_refused_on_the_wire_say_why():
    file = resources.files("cellwall.parsing.credentials").joinpath("rules.toml")
    lines = [line for line in file.read_text("utf-8").splitlines() if line.startswith("wire")]
    assert len(lines) == len([rule for rule in RULES if not rule.is_on_wire])
    assert not [line for line in lines if not line.startswith("wire = false # ")]


def test_the_list_of_words_is_that_of_the_rules():
    # Written by: "\n".join(listed_words(shipped())) + "\n"
    assert list(words()) == listed_words(shipped())


@pytest.mark.parametrize(("rule", "text"), EXAMPLES)
def test_no_text_with_a_credential_is_passed_over(rule, text):
    assert may_hold(text)
    assert may_hold(json.dumps(text))

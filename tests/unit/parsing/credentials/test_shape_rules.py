"""The packs: every rule finds its own examples, and leaves alone what merely looks like them."""

from __future__ import annotations

import pytest

from cellwall.guard.redact import Redactor, SecretRules, shipped
from cellwall.parsing.credentials.shape_rules import ShapeRule
from cellwall.parsing.credentials.spans import RUNS

RULES = shipped()
REDACTOR = Redactor()


@pytest.mark.requirement("GRD-5")
@pytest.mark.parametrize("rule", RULES.shapes, ids=lambda rule: rule.id)
def test_a_rule_finds_its_examples_and_not_what_is_near_them(rule: ShapeRule) -> None:
    alone = Redactor(SecretRules((rule,)))
    assert rule.match, "a rule without an example proves nothing"
    assert {text: alone.redact_text(text).hits != () for text in rule.match} == dict.fromkeys(
        rule.match, True
    )
    assert {text: alone.redact_text(text).hits for text in rule.not_match} == dict.fromkeys(
        rule.not_match, ()
    )


def test_ids_are_told_apart_and_runs_are_all_used() -> None:
    ids = [rule.id for rule in RULES.shapes]
    assert sorted(set(ids)) == sorted(ids)
    used = [rule.run for rule in RULES.shapes]
    assert [name for name, run in RUNS.items() if run not in used] == []


@pytest.mark.requirement("GRD-5")
@pytest.mark.parametrize(
    "text",
    [
        'api_key = "9f8e7d6c5b4a39281706f5e4d3c2b1a0"',
        "acme_token: Zk3vQ8mT1xLr6WbY0pNs",
        '{"clientSecret": "Zk3vQ8mT1xLr6WbY0pNs"}',
        '{\\"clientSecret\\": \\"Zk3vQ8mT1xLr6WbY0pNs\\"}',
        "export ACME_API_KEY=Zk3vQ8mT1xLr6WbY0pNs",
        "<apiKey>Zk3vQ8mT1xLr6WbY0pNs</apiKey>",
        "deploy --auth-token Zk3vQ8mT1xLr6WbY0pNs --force",
        "deploy --auth-token=Zk3vQ8mT1xLr6WbY0pNs",
        "acmeTOKEN=Zk3vQ8mT1xLr6WbY0pNs",
        "acme_key.access.9f8e7d6c5b4a39281706f5e4d3c2b1a0",
        "acme SECRET 9f8e7d6c5b4a39281706f5e4d3c2b1a0",
        "define('AUTH_KEY', 'Zk3vQ8mT1xLr6WbY0pNs');",
        "'secret' => 'Zk3vQ8mT1xLr6WbY0pNs',",
        "const token: string = 'Zk3vQ8mT1xLr6WbY0pNs'",
        "token = b'Zk3vQ8mT1xLr6WbY0pNs'",
        "https://a.example/x?access_token=Zk3vQ8mT1xLr6WbY0pNs&y=1",
        'variable "acme_token" {\n  default = "Zk3vQ8mT1xLr6WbY0pNs"\n}',
        "openweathermap: 9f8e7d6c5b4a39281706f5e4d3c2b1a0",
        "acme_key=123e4567-e89b-12d3-a456-426614174000",
        'password = "S3cur3&long!"',
        "DB_PASSWORD=correcthorse",
        "passphrase: 'b4ttery-st4ple'",
    ],
)
def test_what_is_named_a_secret_and_looks_like_chance_is_taken_out(text: str) -> None:
    told = REDACTOR.redact_text(text)
    assert [hit.rule in ("named-secret", "vendor-secret") for hit in told.hits] == [True]
    assert text[told.hits[0].start : told.hits[0].end] not in told.text


@pytest.mark.requirement("GRD-5", "GRD-8")
@pytest.mark.parametrize(
    "text",
    [
        "token = self.next_token()",
        "token = get_token(request, refresh=True)",
        'password = os.environ["DB_PASSWORD"]',
        "password = process.env.APP_PASSWORD1",
        "API_KEY=${ACME_API_KEY}",
        "api_key: <your-api-key>",
        "api_key = 'xxxxxxxxxxxxxxxxxxxx'",
        "api_key = 'YOUR_API_KEY_GOES_HERE_1234'",
        'secret_key = "changeme"',
        "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "public_key = 'MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE1'",
        '"integrity": "sha512-9f8e7d6c5b4a39281706f5e4d3c2b1a09f8e7d6c5b4a39281706f5e4d3c2b1a0"',
        "commit 9f8e7d6c5b4a39281706f5e4d3c2b1a012345678",
        "key_id = '9f8e7d6c5b4a39281706'",
        "keyword = 'abc'",
        "the monkey 12 keys of the keyboard",
        "tokenizer = AutoTokenizer.from_pretrained('bert-base-uncased')",
        "primary_key = True",
        "for key, value in mapping.items():",
        "if isinstance(private_key, ed25519.Ed25519PrivateKey):",
        "Password: ",
        'password: str = ""',
        "def login(user, password=None):",
        "http://localhost:8080/x",
        "AccessDenied: access is denied for user 12",
        "token=hfsecret_github_token_abcdefghij234567klmnopqrst",
        "Authorization: Bearer hfsecret_api_key_abcdefghij234567klmnopqrst",
        "hfsecret_token_ur2vzpsnahb5cmevf2b7ftnr5uhfsecret_token_yuet6xcfdc54dugx2ihnstrh76",
    ],
)
def test_code_and_placeholders_are_left_as_they_are(text: str) -> None:
    assert REDACTOR.redact_text(text).text == text


def test_rules_can_be_joined_and_neither_is_lost() -> None:
    first, second = RULES.shapes[:2]
    joined = SecretRules((first,)).with_rules(SecretRules((second,)))
    assert joined.shapes == (first, second)
    assert RULES.with_rules(RULES).named == RULES.named


@pytest.mark.requirement("GRD-5")
@pytest.mark.parametrize(
    "form",
    [
        "&quot;{name}&quot;: &quot;{value}&quot;",
        "{name}%3D{value}",
        '<add key="{name}" value="{value}"/>',
        "{name}:\n  {value}\n",
        '{{\\\\\\"{name}\\\\\\": \\\\\\"{value}\\\\\\"}}',
    ],
)
def test_a_name_introduces_its_value_in_the_forms_of_the_web_and_of_files(form: str) -> None:
    value = "q8Zk2LmP0xVb7RtY5uWe1NsA"
    redactor = Redactor()
    other = form.format(name="colour", value=value)
    assert redactor.redact_text(other).text == other  # it is the name that tells
    named = form.format(name="api_key", value=value)
    assert redactor.redact_text(named).text == named.replace(value, "[redacted:named-secret]")
    ordinary = form.format(name="api_key", value="read_from_the_environment")
    assert redactor.redact_text(ordinary).text == ordinary

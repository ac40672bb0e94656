"""`[alerts]`: rules as data over the built-in ones, receivers, and each mistake with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellwall.config.alerts_section import AlertsSection, shipped_alert_rules
from cellwall.config.load import load_settings
from cellwall.config.models import Settings, weakened
from cellwall.core.errors import ConfigError

pytestmark = pytest.mark.requirement("OBS-2", "CFG-2")


def load(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "cellwall.toml"
    file.write_text(text)
    file.chmod(0o600)
    return load_settings(file=str(file), environ={})


def mistakes(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, text)
    return [line.rpartition("cellwall.toml:")[2] for line in refused.value.message.splitlines()]


def test_the_built_in_rules_are_those_of_the_promise():
    rules = Settings().alerts.rules
    assert rules.keys() == shipped_alert_rules().keys()
    assert (rules["failures"].over, rules["failures"].min_events) == (0.1, 20)
    assert (rules["time-outs"].over, rules["time-outs"].min_events) == (0.05, 20)
    assert (rules["one-error"].over, rules["one-error"].by) == (100, "error_code")
    assert rules["limits"].by == "limit"
    assert {"egress-refusals", "tampering"} <= rules.keys()
    assert rules["tampering"].severity == "critical"
    assert all(each.state == "on" for each in rules.values())


def test_a_table_changes_the_keys_that_it_names_and_adds_rules(tmp_path):
    text = '[alerts.rules.failures]\nover = 0.5\n[alerts.rules.mine]\nsummary = "denials"\n'
    text += 'of = [{ kinds = ["denial"] }]\nover = 3\n'
    rules = load(tmp_path, text).alerts.rules
    assert rules["failures"].over == 0.5
    assert rules["failures"].of == Settings().alerts.rules["failures"].of
    assert rules["mine"].of[0].kinds == ("denial",)
    assert len(rules) == len(shipped_alert_rules()) + 1


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        (
            "[alerts.rules.failures]\n\nmin_event = 3",
            (
                "3: alerts.rules.failures.min_event: unknown key. Did you mean "
                "alerts.rules.failures.min_events?"
            ),
        ),
        (
            "[alerts.rules.failures]\nwindow_s = 1",
            "2: alerts.rules.failures.window_s: 1 is too small. Write a value from 10 to 604800.",
        ),
        (
            "[alerts.rules.failures]\nover = 10.0",
            (
                "1: alerts.rules.failures: a table is a ratio that is never above 1. "
                "Write 0.1 for 10 %."
            ),
        ),
        (
            '[alerts.rules.x]\nsummary = "x"',
            (
                "1: alerts.rules.x: a table counts nothing. Write for example "
                'of = [{ kinds = ["denial"] }].'
            ),
        ),
        (
            '[alerts.rules.x]\nsummary = "x"\nof = [{ kinds = ["denial"] },\n{ stauses = ["a"] }]',
            (
                "4: alerts.rules.x.of[1].stauses: unknown key. Did you mean "
                "alerts.rules.x.of[1].statuses?"
            ),
        ),
        (
            '[alerts.rules.x]\nsummary = "x"\nof = [{}]',
            "3: alerts.rules.x.of[0]: a table selects every record. Name a kind or a status.",
        ),
        ("[alerts]\nrules = 3", "2: alerts.rules: 3 is not a table of names and values."),
        (
            "[alerts.rules]\nfailures = 3",
            (
                "2: alerts.rules.failures: 3 is not a table. Write a header such as [limits] and its "
                "keys below."
            ),
        ),
        (
            '[alerts.receivers.a]\nkind = "webhook"\nto = "https://hooks.example/x"',
            (
                "1: alerts.receivers.a: a table needs a secret. Run `cellwall vault set NAME`, and "
                "write secret = NAME here."
            ),
        ),
        (
            (
                '[alerts.receivers.a]\nkind = "slack"\nto = "https://hooks.slack.com/T0/B0"\n'
                'secret = "A"'
            ),
            (
                "1: alerts.receivers.a: a table has a secret in its URL. Leave `to` out, and name the "
                "URL in the vault."
            ),
        ),
        (
            '[alerts.receivers.a]\nkind = "syslog"\nto = "udp://logs.example:514"',
            "1: alerts: a table has a receiver (a) on another machine without TLS. Use TLS.",
        ),
    ],
)
def test_each_mistake_has_its_line_and_a_hint(tmp_path, text, mistake):
    assert mistakes(tmp_path, text) == [mistake]


@pytest.mark.parametrize(
    "to",
    [
        "",
        "ftp://x/",
        "https://",
        "https://u:p@h/",
        "https://h/ x",
        "https://h:0/",
        "h",
        "https://h/#x",
    ],
)
def test_a_destination_that_cannot_be_used_is_refused(tmp_path, to):
    text = f'[alerts.receivers.a]\nkind = "webhook"\nsecret = "A"\nto = "{to}"'
    (mistake,) = mistakes(tmp_path, text)
    assert mistake.endswith('Write for example to = "https://hooks.example/cellwall".')


@pytest.mark.parametrize("address", ["a", "a@b c", "a@b\\nBcc: x@y", "<a@b>", "a@b,c@d"])
def test_an_address_that_could_add_a_header_is_refused(tmp_path, address):
    text = '[alerts.receivers.a]\nkind = "email"\nto = "smtps://mail.example"\n'
    text += f'sender = "c@example.com"\nrecipients = ["{address}"]'
    assert mistakes(tmp_path, text)[0].startswith("5: alerts.receivers.a.recipients[0]: ")


def test_sending_in_clear_to_another_machine_is_a_weakening(tmp_path):
    text = '[alerts]\ndangerously_without_tls = true\n[alerts.receivers.a]\nkind = "syslog"\n'
    settings = load(tmp_path, text + 'to = "udp://logs.example:514"')
    assert weakened(settings) == ("alerts.dangerously_without_tls",)


def test_names_are_short_words(tmp_path):
    with pytest.raises(ConfigError):
        load(tmp_path, '[alerts.receivers."A b"]\nkind = "file"\nto = "/x"')
    assert AlertsSection.model_validate({"receivers": {"a-1": {"kind": "file", "to": "/x"}}})

"""Values of the vault do not stand in the record, and its own words stay (SEC-2)."""

from __future__ import annotations

import base64

import pytest

from cellwall.admin.vault import VaultAdmin, VaultKeyChoice
from cellwall.core.types import Principal
from cellwall.runtime.secret_leases import RecordRedactor, SecretLeaser

ME = Principal("somebody", "cli")
VALUE = "a-value-that-is-looked-for"
OLD = "the-value-before-the-last-one"


@pytest.fixture
def vault(state_home: str) -> VaultAdmin:
    vault = VaultAdmin.configured()
    vault.init(choice=VaultKeyChoice(source="file"), principal=ME)
    for value in (OLD, "in-between-value", VALUE):
        vault.set("TOKEN", value.encode(), ME)
    return vault


@pytest.fixture
def redact(vault: VaultAdmin, state_home: str) -> RecordRedactor:
    leaser = SecretLeaser(lambda: vault, state_home)
    assert leaser.own is vault
    return RecordRedactor(leaser)


@pytest.mark.requirement("SEC-2")
def test_values_are_taken_out_at_any_depth_and_from_keys_that_others_chose(redact):
    body = {
        "message": f"run {VALUE} now",
        "argv": ["echo", VALUE, {"deep": [f"x={VALUE}"]}],
        "arguments": {VALUE: 1, "plain": VALUE},
        "count": 3,
        "old": f"was {OLD} once",
    }
    assert redact(body) == {
        "message": "run [secret TOKEN] now",
        "argv": ["echo", "[secret TOKEN]", {"deep": ["x=[secret TOKEN]"]}],
        "arguments": {"[secret TOKEN]": 1, "plain": "[secret TOKEN]"},
        "count": 3,
        "old": "[left out: holds an old value of TOKEN]",
    }


@pytest.mark.requirement("SEC-2", "GRD-5")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"echo {base64.b64encode(VALUE.encode()).decode()}", "echo [secret TOKEN]I="),
        (f"echo {VALUE.encode().hex()}", "echo [secret TOKEN]"),
        (f"curl 'http://x/?{VALUE.replace('-', '%2D')}'", "curl 'http://x/?[secret TOKEN]'"),
        (f"echo {VALUE}\ud800", "echo [secret TOKEN]\ud800"),
        ("no\ud800value", "no\ud800value"),
        ("the PIN is 1234-56.", "the PIN is [secret PIN]."),
        ("q1234-56q", "q[secret PIN]q"),
        (4929123412341234, "[secret CARD]"),
        (-4929123412341234, "-[secret CARD]"),
        (4929123412341235, 4929123412341235),
        ("it's p4ss'w0rd$with99", "it's [secret QUOTED]"),
        (r"echo 'p4ss'\''w0rd$with99'", "echo '[secret QUOTED]'"),
    ],
)
def test_values_are_found_however_they_are_written(redact, vault, text, shown):
    vault.set("CARD", b"4929123412341234", ME)
    vault.set("PIN", b"1234-56", ME)
    vault.set("QUOTED", b"p4ss'w0rd$with99", ME)
    assert redact({"said": text}) == {"said": shown}


@pytest.mark.requirement("SEC-2", "AUD-1")
def test_a_secret_that_is_a_word_of_the_record_takes_no_field_away(redact, vault):
    vault.set("WORD", b"status", ME)
    vault.set("WORD2", b"message", ME)
    body = {"status": "ok", "message": "the status is ok", "exit_code": 0}
    assert redact(body) == {
        "status": "ok",
        "message": "the [secret WORD] is ok",
        "exit_code": 0,
    }


@pytest.mark.requirement("AUD-1")
def test_keys_that_look_the_same_afterwards_are_all_kept(redact):
    given = {f"{OLD} 1": 1, f"{OLD} 2": 2, VALUE: 3, "[secret TOKEN]": 4}
    found = redact({"arguments": given})["arguments"]
    assert isinstance(found, dict)
    assert sorted(found.values()) == [1, 2, 3, 4]
    assert found["[secret TOKEN]"] == 4
    assert not [key for key in found if OLD in key or VALUE in key]


def test_while_it_is_locked_nothing_is_known(redact, vault):
    vault.lock()
    assert redact({"message": VALUE}) == {"message": VALUE}  # the limit that the docs tell

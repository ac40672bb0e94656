"""The vault for the record: who may, and what is written down (SEC-7, AUD-1)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from cellwall.admin.vault import VaultAdmin, VaultKeyChoice
from cellwall.core.errors import AuditFailed, BadInput, Denied, VaultError
from cellwall.core.network import Binding
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Principal
from conftest import audit_records

ME = Principal("somebody", "cli")
VALUE = b"a value that is looked for"
BY_FILE = VaultKeyChoice(source="file")
GITHUB = Binding(host="API.GitHub.com")


def recorded(passphrase: str = "") -> list[dict[str, Any]]:
    found = audit_records(kind=EventKind.VAULT, passphrase=passphrase)
    return [record["body"] for record in found]


def told(passphrase: str = "") -> list[tuple[str, str]]:
    return [(body["change"], body["status"]) for body in recorded(passphrase)]


@pytest.fixture
def vault() -> VaultAdmin:
    vault = VaultAdmin.configured()
    vault.init(choice=BY_FILE, principal=ME)
    vault.set("TOKEN", VALUE, ME)
    return vault


@pytest.mark.requirement("SEC-7")
def test_every_change_is_on_the_record_with_its_generation_and_no_value(vault):
    vault.rotate("TOKEN", VALUE[::-1], ME)
    grant = vault.grant("TOKEN", GITHUB, ME)
    vault.end_overlap("TOKEN", ME)
    vault.revoke("TOKEN", grant.id, ME)
    vault.rekey(choice=BY_FILE, principal=ME)
    vault.remove("TOKEN", ME)
    changes = ("init", "set", "rotate", "grant", "end-overlap", "revoke", "rekey", "remove")
    assert told() == [(change, status) for change in changes for status in ("begins", "ok")]
    ended = [body for body in recorded() if body["status"] == "ok"]
    assert [body["generation"] for body in ended] == list(range(1, 9))
    assert [body["vault"] for body in ended[1:3]] == ["TOKEN", "TOKEN"]
    assert ended[3]["grant"]["host"] == "api.github.com"
    text = json.dumps(audit_records())
    assert VALUE.decode() not in text
    assert VALUE[::-1].decode() not in text


@pytest.mark.requirement("SEC-7")
def test_opening_is_on_the_record_also_when_it_fails(vault, state_home):
    again = VaultAdmin.configured()
    assert [each.name for each in again.list(ME)] == ["TOKEN"]
    assert told()[-1] == ("unlock", "ok")
    key_file = Path(state_home, "vault-key")
    key_file.rename(key_file.with_suffix(".away"))
    vault.lock()
    again.lock()
    with pytest.raises(VaultError):
        VaultAdmin.configured().list(ME)
    with pytest.raises(VaultError, match="its key is in the vault"):  # of the record, too
        told()
    key_file.with_suffix(".away").rename(key_file)
    assert (told()[-1], recorded()[-1]["error_code"]) == (("unlock", "failed"), "CW-VAULT-NO-KEY")


@pytest.mark.requirement("SEC-7")
def test_what_cannot_be_written_down_is_not_done(vault, monkeypatch):
    def fail(*_: object) -> str:
        raise AuditFailed("the disk is full")

    monkeypatch.setattr("cellwall.audit.log.AuditLog.write", fail)
    for change in (
        lambda: vault.set("TOKEN", b"other", ME),
        lambda: vault.remove("TOKEN", ME),
        lambda: vault.grant("TOKEN", GITHUB, ME),
        lambda: vault.rekey(choice=BY_FILE, principal=ME),
    ):
        with pytest.raises(AuditFailed):
            change()
    assert (vault.generation, dict(vault.values())) == (2, {"TOKEN": VALUE})
    locked = VaultAdmin.configured()
    with pytest.raises(AuditFailed):
        locked.list(ME)
    assert not locked.is_unlocked


@pytest.mark.requirement("SEC-3", "SEC-7", "AUD-1")
def test_a_lease_is_on_the_record_before_it_is_lent(vault, monkeypatch):
    vault.grant("TOKEN", GITHUB, ME, tools=["run"])

    async def use() -> None:
        lease = await vault.lease(["TOKEN"], tool="run", principal=ME, action_id="act_1")
        assert lease.uses[0].reveal() == VALUE
        await vault.release(lease, principal=ME, action_id="act_1")
        with pytest.raises(VaultError):
            lease.uses[0].reveal()
        with pytest.raises(VaultError) as refused:
            await vault.lease(["TOKEN"], tool="fetch", principal=ME)
        assert refused.value.code == "CW-VAULT-NOT-GRANTED"

    anyio.run(use)
    assert told()[-3:] == [("lease", "ok"), ("release", "ok"), ("lease", "refused")]
    lent, ended, refused = recorded()[-3:]
    assert (lent["names"], lent["tool"], lent["generation"]) == (["TOKEN"], "run", 3)
    assert ended["revealed"] == {"TOKEN": 1}
    assert refused["error_code"] == "CW-VAULT-NOT-GRANTED"

    async def fail(*_: object) -> str:
        raise AuditFailed("the disk is full")

    async def lend() -> None:
        await vault.lease(["TOKEN"], tool="run", principal=ME)

    monkeypatch.setattr("cellwall.audit.log.AuditLog.record", fail)
    with pytest.raises(AuditFailed):
        anyio.run(lend)


@pytest.mark.requirement("SEC-3")
def test_leases_end_with_their_session(vault):
    vault.grant("TOKEN", GITHUB, ME)
    session = "sbx_" + "0" * 26

    async def lend() -> Any:
        return await vault.lease(["TOKEN"], tool="run", principal=ME, session_id=session)

    lease = anyio.run(lend)
    assert lease.uses[0].reveal() == VALUE
    vault.end_session(session)
    with pytest.raises(VaultError):
        lease.uses[0].reveal()


@pytest.mark.requirement("SEC-3")
def test_a_role_bounds_use_and_change(vault):
    user, power = Principal("a", "cli", role="user"), Principal("b", "cli", role="power-user")
    vault.grant("TOKEN", GITHUB, ME)

    async def lend(who: Principal) -> None:
        await vault.lease(["TOKEN"], tool="run", principal=who)

    anyio.run(lend, power)
    assert [each.name for each in vault.list(power)] == ["TOKEN"]
    with pytest.raises(Denied):
        anyio.run(lend, user)
    with pytest.raises(Denied):
        vault.list(user)
    for who in (user, power):
        for change in (
            lambda who=who: vault.set("TOKEN", b"other", who),
            lambda who=who: vault.grant("TOKEN", GITHUB, who),
            lambda who=who: vault.rekey(choice=BY_FILE, principal=who),
            lambda who=who: VaultAdmin.configured().init(choice=BY_FILE, principal=who),
        ):
            with pytest.raises(Denied):
                change()
    assert vault.generation == 3


@pytest.mark.requirement("SEC-2")
@pytest.mark.parametrize("name", ["s3cr3t!", "not a name", ""])
def test_what_is_no_name_is_not_written_down(vault, name):
    before = told()
    with pytest.raises(BadInput):
        vault.set(name, VALUE, ME)
    assert told() == before


@pytest.mark.parametrize(
    "host", ["*.com", "*", "*.co.uk", "a.example.com:443", "a.example.com/x", "127.1"]
)
def test_a_grant_names_a_host_as_an_allowlist_does(vault, host):
    with pytest.raises(BadInput):
        vault.grant("TOKEN", Binding(host=host), ME)
    assert vault.list(ME)[0].grants == ()


@pytest.mark.parametrize(
    "choice",
    [
        VaultKeyChoice(source="nothing"),
        VaultKeyChoice(source="keyring", file="x"),
        VaultKeyChoice(file="x", command=("y",)),
    ],
)
def test_a_key_is_of_one_kind(choice):
    with pytest.raises(BadInput):
        VaultAdmin.configured().init(choice=choice, principal=ME)


# Passphrases

SETTINGS = "[vault]\nargon2_memory_kib = {memory}\nargon2_passes = 1\nargon2_lanes = 1\n"


def configured(home: str, memory: int, *typed: str) -> VaultAdmin:
    config = Path(home, "cellwall.toml")
    config.write_text(SETTINGS.format(memory=memory))
    config.chmod(0o600)
    words = iter(typed)
    asked.clear()

    def ask(is_new: bool) -> bytearray:
        asked.append(is_new)
        handed.append(bytearray(next(words).encode()))
        return handed[-1]

    return VaultAdmin.configured(config=str(config), ask=ask)


asked: list[bool] = []
handed: list[bytearray] = []


def test_a_passphrase_is_asked_for_and_wiped(state_home):
    handed.clear()
    vault = configured(state_home, 64, "the old passphrase")
    vault.init(choice=VaultKeyChoice(), principal=ME)
    vault.set("TOKEN", VALUE, ME)
    vault = configured(state_home, 64, "the old passphrase", "the new passphrase")
    vault.rekey(choice=VaultKeyChoice(), principal=ME)
    assert asked == [False, True]
    assert [any(each) for each in handed] == [False, False, False]
    with pytest.raises(VaultError) as caught:
        configured(state_home, 64, "the old passphrase").list(ME)
    assert caught.value.code == "CW-VAULT-WRONG-KEY"
    assert configured(state_home, 64, "the new passphrase").list(ME)[0].name == "TOKEN"


@pytest.mark.requirement("SEC-1")
def test_a_dearer_hash_is_taken_when_the_configuration_wants_it(state_home):
    configured(state_home, 64, "the passphrase").init(choice=VaultKeyChoice(), principal=ME)
    configured(state_home, 128, "the passphrase").list(ME)
    assert told("the passphrase")[-2:] == [("strengthen", "begins"), ("strengthen", "ok")]
    configured(state_home, 128, "the passphrase").list(ME)
    assert told("the passphrase")[-1] == ("unlock", "ok")
    assert b'"argon2id":[128,1,1]' in Path(state_home, "vault", "store").read_bytes()


def test_where_nobody_can_be_asked_it_is_told(state_home):
    configured(state_home, 64, "the passphrase").init(choice=VaultKeyChoice(), principal=ME)
    with pytest.raises(VaultError) as caught:
        VaultAdmin.configured().list(ME)
    assert caught.value.code == "CW-VAULT-NO-KEY"
    assert os.listdir(Path(state_home, "vault")) != []

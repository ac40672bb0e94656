"""A session with egress has a watched vault, or has no egress (NET-5, SEC-3)."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from cellwall.admin.vault import VaultAdmin, VaultKeyChoice
from cellwall.core.errors import AuditFailed, VaultError
from cellwall.core.network import Binding
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Action, Principal, RunCommand
from cellwall.runtime.secret_leases import SecretLeaser
from conftest import audit_records
from interfaces.test_cli_vault import QUICK

ME = Principal("somebody", "cli")
VALUE = b"a value that is looked for"
ACTION = Action(principal=ME, operation=RunCommand(("true",)), allow_domains=("example.com",))
SESSION = "sbx_" + "0" * 26


def told() -> list[tuple[str, str]]:
    bodies = [record["body"] for record in audit_records(kind=EventKind.VAULT)]
    return [(body["change"], body["status"]) for body in bodies]


def leaser(home: str) -> SecretLeaser:
    return SecretLeaser(VaultAdmin.configured, home)


def lend(lender: SecretLeaser, action: Action = ACTION) -> tuple[Any, ...]:
    async def use() -> tuple[Any, ...]:
        async with lender.lease(action) as uses:
            return uses

    return anyio.run(use)


def refusal(work: Callable[..., object], *words: object) -> VaultError:
    with pytest.raises(VaultError) as caught:
        work(*words)
    return caught.value


@pytest.fixture
def home(state_home: str) -> str:
    vault = VaultAdmin.configured()
    vault.init(choice=VaultKeyChoice(source="file"), principal=ME)
    vault.set("TOKEN", VALUE, ME)
    vault.grant("TOKEN", Binding(host="api.example.com"), ME)
    vault.lock()
    return state_home


# A vault that opens without a person


@pytest.mark.requirement("NET-5")
def test_without_a_vault_there_is_nothing_to_know(state_home):
    lender = leaser(state_home)
    assert (lend(lender), dict(lender.values())) == ((), {})


@pytest.mark.requirement("NET-5")
def test_what_opens_without_a_person_is_opened_whatever_the_role(home):
    lender = leaser(home)
    # The role may reach out and may use no secrets: what must not leave is the same for it.
    assert lend(lender, replace(ACTION, principal=replace(ME, role="user"))) == ()
    assert dict(lender.values()) == {"TOKEN": VALUE}
    assert told()[-1] == ("unlock", "ok")


def flip(home: Path) -> None:
    store = home / "vault/store"
    data = bytearray(store.read_bytes())
    data[-5] ^= 1
    store.write_bytes(data)


BREAKS = {
    "a flipped byte": flip,
    "open to others": lambda home: (home / "vault/store").chmod(0o644),
    "its folder open to others": lambda home: (home / "vault").chmod(0o755),
    "its key gone": lambda home: (home / "vault-key").unlink(),
    "its key damaged": lambda home: (home / "vault-key").write_bytes(b"x"),
    "its file gone": lambda home: (home / "vault/store").unlink(),
    "its note gone": lambda home: (home / "vault/seen").unlink(),
    "a folder in its place": lambda home: (
        (home / "vault/store").unlink(),
        (home / "vault/store").mkdir(mode=0o700),
    ),
}


@pytest.mark.requirement("NET-5")
@pytest.mark.parametrize("how", BREAKS)
def test_a_vault_that_does_not_open_refuses_egress(home, how):
    assert lend(leaser(home)) == ()
    BREAKS[how](Path(home))
    lender = leaser(home)
    error = refusal(lend, lender)
    assert error.code == "CW-VAULT-SHUT"
    assert "Without egress (no domains, no secrets) a run needs no vault." in error.hint
    assert home not in str(error)
    assert refusal(lender.values).code == "CW-VAULT-SHUT"


@pytest.mark.requirement("NET-5")
def test_a_vault_that_another_process_holds_refuses_egress(home, monkeypatch):
    monkeypatch.setattr("cellwall.secrets.folder._LOCK_TIMEOUT_S", 0.05)
    with Path(home, "vault/lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert refusal(lend, leaser(home)).code == "CW-VAULT-SHUT"
    assert lend(leaser(home)) == ()


@pytest.mark.requirement("NET-5", "AUD-1")
def test_an_opening_that_cannot_be_written_down_refuses_egress(home, monkeypatch):
    def fail(*_: object) -> str:
        raise AuditFailed("the disk is full")

    monkeypatch.setattr("cellwall.audit.log.AuditLog.write", fail)
    lender = leaser(home)
    with pytest.raises(AuditFailed):
        lend(lender)
    assert refusal(lender.values).code == "CW-VAULT-SHUT"


@pytest.mark.requirement("NET-5")
def test_a_vault_that_breaks_or_is_locked_later_is_told_to_whoever_watches(home):
    lender = leaser(home)
    lend(lender)
    store = Path(home, "vault/store")
    whole = store.read_bytes()
    flip(Path(home))
    assert refusal(lender.values).code == "CW-VAULT-TAMPERED"
    store.unlink()
    assert refusal(lender.values).code.startswith("CW-VAULT-")
    store.write_bytes(whole)
    store.chmod(0o600)
    assert dict(lender.values()) == {"TOKEN": VALUE}
    lender.vault.lock()
    assert refusal(lender.values).code == "CW-VAULT-SHUT"


@pytest.mark.requirement("NET-5")
def test_a_passphrase_that_nobody_has_typed_refuses_nothing(state_home, monkeypatch):
    config = Path(state_home, "cellwall.toml")
    config.write_text(QUICK)
    config.chmod(0o600)
    monkeypatch.setenv("CELLWALL_CONFIG", str(config))
    vault = VaultAdmin.configured(ask=lambda _: bytearray(b"a long passphrase"))
    vault.init(choice=VaultKeyChoice(), principal=ME)
    vault.set("TOKEN", VALUE, ME)
    lender = leaser(state_home)
    assert (lend(lender), dict(lender.values())) == ((), {})  # the limit that the docs tell
    assert dict(SecretLeaser(lambda: vault, state_home).values()) == {"TOKEN": VALUE}
    # Damaged so that nobody can tell what opens it: then it may be one that needs nobody.
    flip(Path(state_home))
    assert refusal(lend, lender).code == "CW-VAULT-SHUT"


# Leases on the record


@pytest.mark.requirement("SEC-3", "SEC-7")
def test_the_lease_of_a_live_sandbox_is_released_on_the_record(home):
    lender = leaser(home)
    action = replace(ACTION, secrets=("TOKEN",), session_id=SESSION)
    uses = lend(lender, action)
    assert lend(lender, action) == uses  # as long as it lives
    assert uses[0].reveal() == VALUE
    assert ("release", "ok") not in told()
    lender.end_session(SESSION)
    assert refusal(uses[0].reveal).code == "CW-VAULT-LEASE-ENDED"
    assert told()[-2:] == [("lease", "ok"), ("release", "ok")]
    record = audit_records(kind=EventKind.VAULT)[-1]
    assert (record["session_id"], record["action_id"]) == (SESSION, action.id)
    assert (record["body"]["names"], record["body"]["revealed"]) == (["TOKEN"], {"TOKEN": 1})
    lender.end_session(SESSION)
    assert told().count(("release", "ok")) == 1


@pytest.mark.requirement("SEC-3", "SEC-7")
def test_two_first_actions_of_a_sandbox_leave_one_lease(home):
    lender, uses = leaser(home), []

    async def use() -> None:
        action = replace(ACTION, secrets=("TOKEN",), session_id=SESSION)
        async with lender.lease(action) as lent:
            uses.append(lent)

    async def both() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(use)
            group.start_soon(use)

    anyio.run(both)
    assert uses[0] == uses[1]
    lender.end_session(SESSION)
    assert told().count(("lease", "ok")) == told().count(("release", "ok"))


@pytest.mark.requirement("SEC-3")
def test_a_lease_ends_though_its_release_cannot_be_written_down(home, monkeypatch):
    lender = leaser(home)
    uses = lend(lender, replace(ACTION, secrets=("TOKEN",), session_id=SESSION))

    def fail(*_: object) -> str:
        raise AuditFailed("the disk is full")

    monkeypatch.setattr("cellwall.audit.log.AuditLog.write", fail)
    lender.end_session(SESSION)
    assert refusal(uses[0].reveal).code == "CW-VAULT-LEASE-ENDED"


# A value in the place of a name


@pytest.mark.requirement("SEC-2")
def test_a_value_that_was_typed_as_a_name_is_not_written_down(home):
    vault, typed = VaultAdmin.configured(), "MyS3cret"
    binding = Binding(host="api.example.com")
    for change in (
        lambda: vault.remove(typed, ME),
        lambda: vault.rotate(typed, VALUE, ME),
        lambda: vault.end_overlap(typed, ME),
        lambda: vault.grant(typed, binding, ME),
        lambda: vault.revoke(typed, None, ME),
        lambda: lend(leaser(home), replace(ACTION, secrets=("TOKEN", typed))),
    ):
        assert refusal(change).code == "CW-VAULT-UNKNOWN"
    assert typed not in str(audit_records())
    assert audit_records(kind=EventKind.VAULT)[-1]["body"]["names"] == ["TOKEN"]
    vault.set(typed, VALUE, ME)  # a name by now, and so the look finds what is there
    assert typed in str(audit_records())

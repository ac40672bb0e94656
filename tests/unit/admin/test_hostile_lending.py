"""What a damaged answer, a failing database or a full disk does to lent secrets (SRV-6).

None of it ends the service of a host, and none of it lends or keeps more than before.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import anyio
import pytest
from sqlalchemy import text

from cellwall.admin import fleet_secret_keeper
from cellwall.admin.fleet_secret_keeper import TTL_S
from cellwall.core.errors import AuditFailed, VaultError
from cellwall.fleet.certificates import read_host_certificate
from cellwall.fleet.secret_lending import LentSecret, SecretQuestion, seal_answer
from cellwall.secrets.leases import Lease
from unit.admin.lending_fleet import BorrowingHost, LendingFleet
from unit.admin.test_fleet_secrets import (
    ANNS,
    borrow,
    code_of_answer,
    in_fleet,
    question,
    refusal,
    reveal,
)

pytestmark = [pytest.mark.slow, pytest.mark.requirement("SRV-6", "SEC-3")]


def with_field(**fields: object) -> Callable[[bytes], bytes]:
    """The answer of the keeper with other fields."""
    return lambda answer: json.dumps({**json.loads(answer), **fields}).encode()


async def with_grants(fleet: LendingFleet, host: BorrowingHost, *grants: object) -> None:
    """The keeper signs and seals these grants, as one of another version would."""
    pems = {each.host_id: each.pem for each in await fleet.store.list_certificates()}
    certificate = read_host_certificate(pems[host.keys.host_id], fleet.authority.pem)

    def seal(_: bytes) -> bytes:
        asked, _signature = SecretQuestion.parse(fleet.wire.seen[-2])
        lent = {name: LentSecret(ANNS, grants) for name in asked.names}  # type: ignore[arg-type]  # the attack
        return seal_answer(asked, lent, host=certificate, keeper=fleet.keys, ttl_s=TTL_S)

    fleet.wire.change = seal


def is_lent(lease: Lease) -> bool:
    try:
        return reveal(lease) == ANNS
    except VaultError:
        return False


def test_a_damaged_answer_ends_a_lease_and_not_the_task_that_renews(tmp_path):
    """The task belongs to the service of the host: an exception in it would end all sessions."""

    async def go(fleet: LendingFleet) -> None:
        host = await fleet.host("one")
        damaged = (
            with_field(ttl_s=10**400),  # no float
            with_field(ttl_s=[1]),
            with_field(box=7, signature=None),
            with_field(error=1),
            with_field(error=["CW-X"]),
            lambda _: b"[" * 100_000,
            lambda _: b"\xff",
        )
        for change in damaged:
            lease = await borrow(fleet, host, await fleet.session(host))
            fleet.wire.change = change
            await host.vault.renew_once()
            assert not is_lent(lease)
            assert host.vault.values() == {}
            assert await refusal(borrow(fleet, host, await fleet.session(host))) != ""
            fleet.wire.change = lambda answer: answer
        lease = await borrow(fleet, host, await fleet.session(host))
        await host.vault.renew_once()
        assert is_lent(lease)  # the control

    in_fleet(tmp_path, go)


def test_grants_that_a_host_cannot_read_are_refused(tmp_path):
    async def go(fleet: LendingFleet) -> None:
        host = await fleet.host("one")
        session = await fleet.session(host)
        lease = await borrow(fleet, host, session)
        (granted,) = lease.granted.values()
        whole = granted[0].to_json()
        for grant in (7, "x", {}, {**whole, "ports": 443}, {**whole, "host": None}):
            await with_grants(fleet, host, grant)
            assert await refusal(borrow(fleet, host, session)) == "CW-FLEET-FORGED"
        await with_grants(fleet, host, whole)
        assert is_lent(await borrow(fleet, host, session))  # the control

    in_fleet(tmp_path, go)


def test_a_nonce_has_one_spelling(tmp_path):
    """The keeper remembers nonces: white space in them would fill its memory, and a second spelling
    of a nonce would be a second question."""

    async def go(fleet: LendingFleet) -> None:
        host = await fleet.host("one")
        asked = question(fleet, host, await fleet.session(host))
        spellings = ("AB" * 16, " " * 100_000 + "ab" * 16, "ab " * 16, "ab" * 17, "")
        for nonce, code in (*((each, "CW-FLEET-SECRETS") for each in spellings), ("ab" * 16, "")):
            fields = {name: getattr(asked, name) for name in asked.__slots__} | {"nonce": nonce}
            message = SecretQuestion(**fields).signed(host.keys.signing)
            assert await code_of_answer(fleet, message) == code

    in_fleet(tmp_path, go)


def test_secrets_come_back_after_the_database_was_away(tmp_path):
    """A database that does not answer has refused nobody."""

    async def rename(fleet: LendingFleet, old: str, new: str) -> None:
        async with fleet.store._database.write() as connection:
            await connection.execute(text(f"ALTER TABLE {old} RENAME TO {new}"))

    async def go(fleet: LendingFleet) -> None:
        host = await fleet.host("one")
        lease = await borrow(fleet, host, await fleet.session(host))
        for table in ("hosts", "sessions"):  # at the host, and at the keeper
            await rename(fleet, table, "away")
            await host.vault.renew_once()
            host.clock_s[0] += TTL_S
            assert not is_lent(lease)  # not for longer than without the failure
            await rename(fleet, "away", table)
            await host.vault.renew_once()
            assert is_lent(lease)

    in_fleet(tmp_path, go)


def test_a_full_disk_does_not_end_the_keeper(tmp_path, monkeypatch):
    """A release that cannot be recorded ends the lease all the same; the service goes on."""
    monkeypatch.setattr(fleet_secret_keeper, "_TIDY_EVERY_S", 0.001)

    async def go(fleet: LendingFleet) -> None:
        host = await fleet.host("one")
        await borrow(fleet, host, await fleet.session(host))
        (held,) = fleet.keeper._held.values()
        held.until_s = 0.0

        async def full(*_: object) -> None:
            raise AuditFailed("no space")

        write = fleet.vault._write_use
        monkeypatch.setattr(fleet.vault, "_write_use", full)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fleet.keeper.tidy_up)
            with anyio.fail_after(10):
                while fleet.keeper._held:
                    await anyio.sleep(0)
            assert held.lease.is_over
            monkeypatch.setattr(fleet.vault, "_write_use", write)
            lease = await borrow(fleet, host, await fleet.session(host))
            assert is_lent(lease)  # the control: it lends again
            (held,) = fleet.keeper._held.values()
            held.until_s = 0.0
            with anyio.fail_after(10):
                while fleet.keeper._held:  # and the same task tidies up again
                    await anyio.sleep(0)
            tasks.cancel_scope.cancel()

    in_fleet(tmp_path, go)


def test_a_renewal_under_way_keeps_no_value_of_an_ended_session(tmp_path):
    async def go(fleet: LendingFleet) -> None:
        host = await fleet.host("one")
        session = await fleet.session(host)
        await borrow(fleet, host, session)
        held = host.vault._borrowed[session]
        assert list(held.values.values()) == [bytearray(ANNS)]  # the control

        def end(answer: bytes) -> bytes:
            fleet.wire.change = lambda answer: answer
            host.vault.end_session(session)
            host.vault._borrowed[session] = type(held)(held.names)  # it has begun anew meanwhile
            return answer

        fleet.wire.change = end
        await host.vault.renew_once()
        assert held.values == {}

    in_fleet(tmp_path, go)

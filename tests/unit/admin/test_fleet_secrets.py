"""Secrets of a fleet are lent to the host of a session, sealed for it, for a short time (SRV-6).

Every attack is made beside the same question or answer without it, which is answered.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from cellwall.admin.fleet_secret_keeper import TTL_S
from cellwall.core.errors import VaultError
from cellwall.core.types import Principal
from cellwall.fleet.certificates import read_host_certificate
from cellwall.fleet.secret_lending import SecretQuestion, open_answer
from cellwall.runtime.home import local_principal
from cellwall.secrets.leases import Lease
from cellwall.secrets.ownership import stored_name
from unit.admin.lending_fleet import (
    NAME,
    VALUE,
    BorrowingHost,
    LendingFleet,
    lending_fleet,
    long_ago_s,
)

pytestmark = [pytest.mark.slow, pytest.mark.requirement("SRV-6", "SEC-3")]
ANNS = VALUE + b"ann"


def in_fleet(folder: Path, go: Callable[[LendingFleet], Awaitable[None]]) -> None:
    async def run() -> None:
        async with lending_fleet(folder) as fleet:
            await go(fleet)

    anyio.run(run)


def names(fleet: LendingFleet) -> tuple[str, ...]:
    return (stored_name(NAME, fleet.principal(fleet.ann.id)),)


async def borrow(fleet: LendingFleet, host: BorrowingHost, session_id: str) -> Lease:
    who: Principal = fleet.principal(fleet.ann.id)
    return await host.vault.lease(
        names(fleet), tool="sandbox", principal=who, session_id=session_id
    )


def reveal(lease: Lease) -> bytes:
    return lease.uses[0].reveal()


async def refusal(work: Awaitable[object]) -> str:
    """The code of the refusal; empty where there is none."""
    try:
        await work
    except VaultError as error:
        return error.code
    return ""


def question(fleet: LendingFleet, host: BorrowingHost, session_id: str) -> SecretQuestion:
    return SecretQuestion(
        host_id=host.keys.host_id,
        incarnation=host.incarnation,
        session_id=session_id,
        owner_id="",
        names=names(fleet),
        nonce="00" * 16,
        policy=0,
    )


async def code_of_answer(fleet: LendingFleet, message: bytes) -> str:
    answer = json.loads(await fleet.keeper.hear(message))
    return str(answer["error"][0]) if "error" in answer else ""


def test_the_host_of_a_session_gets_its_secrets_and_nobody_can_read_them_on_the_way(tmp_path):
    async def go(fleet: LendingFleet) -> None:
        host = await fleet.host("one")
        lease = await borrow(fleet, host, await fleet.session(host))
        assert reveal(lease) == ANNS
        assert [binding.host for binding in lease.uses[0].bindings] == ["api.github.com"]
        assert ANNS in host.vault.values().values()  # the leak check knows it
        carried = b"\n".join(fleet.wire.seen)
        for form in (ANNS, base64.b64encode(ANNS), ANNS.hex().encode(), VALUE[4:20]):
            assert form not in carried
        assert names(fleet)[0].encode() in carried  # the control: this is what crossed
        await host.vault.release(lease, principal=fleet.principal(fleet.ann.id))
        assert host.vault.values() == {}
        with pytest.raises(VaultError):
            reveal(lease)
        text = b"".join(each.read_bytes() for each in (tmp_path / "one").rglob("*.jsonl"))
        assert VALUE not in text

    in_fleet(tmp_path, go)


def test_another_host_gets_nothing_for_a_session_that_it_does_not_have(tmp_path):
    async def go(fleet: LendingFleet) -> None:
        one, two = await fleet.host("one"), await fleet.host("two")
        session = await fleet.session(one)
        assert await refusal(borrow(fleet, two, session)) == "CW-FLEET-SECRETS"
        # As the right host, with a signature of its own or none.
        asked = question(fleet, one, session)
        for key in (two.keys.signing, fleet.keys.signing):
            assert await code_of_answer(fleet, asked.signed(key)) == "CW-FLEET-SECRETS"
        # A whole answer for the right host is of no use to the other one.
        answer = await fleet.keeper.hear(asked.signed(one.keys.signing))
        certificates = {each.host_id: each.pem for each in await fleet.store.list_certificates()}
        keeper = read_host_certificate(certificates[fleet.keys.host_id], fleet.authority.pem)
        with pytest.raises(VaultError, match="not for this question"):
            open_answer(answer, asked, keeper=keeper, own=two.keys)
        opened = open_answer(answer, asked, keeper=keeper, own=one.keys)  # the control
        assert [each.value for each in opened.secrets.values()] == [ANNS]

    in_fleet(tmp_path, go)


def test_a_replayed_question_and_a_replayed_answer_are_refused(tmp_path):
    async def go(fleet: LendingFleet) -> None:
        host = await fleet.host("one")
        session = await fleet.session(host)
        message = question(fleet, host, session).signed(host.keys.signing)
        assert await code_of_answer(fleet, message) == ""
        assert await code_of_answer(fleet, message) == "CW-FLEET-SECRETS"
        old = await fleet.keeper.hear(
            replace(question(fleet, host, session), nonce="11" * 16).signed(host.keys.signing)
        )
        fleet.wire.change = lambda _: old
        assert await refusal(borrow(fleet, host, session)) == "CW-FLEET-FORGED"
        fleet.wire.change = lambda answer: answer
        assert reveal(await borrow(fleet, host, session)) == ANNS  # the control

    in_fleet(tmp_path, go)


def test_an_answer_with_any_bit_flipped_or_another_time_is_refused(tmp_path):
    async def go(fleet: LendingFleet) -> None:
        host = await fleet.host("one")
        session = await fleet.session(host)

        def with_box(change: Callable[[bytearray], None]) -> Callable[[bytes], bytes]:
            def apply(answer: bytes) -> bytes:
                fields = json.loads(answer)
                box = bytearray(base64.b64decode(fields["box"]))
                change(box)
                return json.dumps({**fields, "box": base64.b64encode(box).decode()}).encode()

            return apply

        def flip(at: int) -> Callable[[bytearray], None]:
            def change(box: bytearray) -> None:
                box[at] ^= 1

            return change

        def longer(answer: bytes) -> bytes:
            return json.dumps({**json.loads(answer), "ttl_s": TTL_S + 1}).encode()

        attacks = [with_box(flip(at)) for at in (0, 31, 32, 60, -17, -1)]
        for attack in (*attacks, longer, lambda _: b"{}", lambda answer: answer[:-9]):
            fleet.wire.change = attack
            assert await refusal(borrow(fleet, host, session)) == "CW-FLEET-FORGED"
        fleet.wire.change = with_box(lambda box: None)
        assert reveal(await borrow(fleet, host, session)) == ANNS  # the control

    in_fleet(tmp_path, go)


def test_a_session_that_has_moved_or_ended_loses_its_secrets(tmp_path):
    async def go(fleet: LendingFleet) -> None:
        one, two = await fleet.host("one"), await fleet.host("two")
        for change in ({"service_id": two.keys.host_id}, {"ended_s": 1.0}):
            session = await fleet.session(one)
            lease = await borrow(fleet, one, session)
            await one.vault.renew_once()
            assert reveal(lease) == ANNS  # the control
            await fleet.change(session, **change)
            await one.vault.renew_once()
            with pytest.raises(VaultError):
                reveal(lease)
            assert one.vault.values() == {}
        await fleet.change(session, ended_s=None, service_id=two.keys.host_id)
        assert reveal(await borrow(fleet, two, session)) == ANNS  # its new host has them

    in_fleet(tmp_path, go)


def test_a_revoked_lost_or_replaced_host_and_one_with_an_old_policy_get_nothing(tmp_path):
    async def go(fleet: LendingFleet) -> None:
        changes = (
            ({"seen_s": long_ago_s()}, "CW-FLEET-SECRETS"),
            ({"lost_s": 1.0}, "CW-FLEET-SECRETS"),
            ({"incarnation": "inc_other"}, "CW-FLEET-SECRETS"),
        )
        for number, (change, code) in enumerate(changes):
            host = await fleet.host(f"h{number}")
            session = await fleet.session(host)
            assert await refusal(borrow(fleet, host, session)) == ""  # the control
            await fleet.change_host(host, **change)
            assert await refusal(borrow(fleet, host, session)) == code
        host = await fleet.host("revoked")
        session = await fleet.session(host)
        assert await refusal(borrow(fleet, host, session)) == ""
        assert await fleet.store.revoke_certificate(host.keys.host_id)
        assert await refusal(borrow(fleet, host, session)) == "CW-FLEET-SECRETS"
        current, old = await fleet.host("new", policy=2), await fleet.host("old", policy=1)
        fleet.policy = 2
        assert await refusal(borrow(fleet, current, await fleet.session(current))) == ""
        assert await refusal(borrow(fleet, old, await fleet.session(old))) == "CW-FLEET-OLD"

    in_fleet(tmp_path, go)


def test_a_lease_ends_by_itself_when_the_keeper_is_cut_off_and_comes_back_with_it(tmp_path):
    async def go(fleet: LendingFleet) -> None:
        host = await fleet.host("one")
        lease = await borrow(fleet, host, await fleet.session(host))
        host.clock_s[0] += TTL_S - 1
        assert reveal(lease) == ANNS
        fleet.wire.change = lambda _: b""  # as the answer of a host that is fenced
        await host.vault.renew_once()
        host.clock_s[0] += 1
        with pytest.raises(VaultError):
            reveal(lease)
        assert host.vault.values() == {}
        fleet.wire.change = lambda answer: answer
        await host.vault.renew_once()
        assert reveal(lease) == ANNS

    in_fleet(tmp_path, go)


def test_a_session_gets_no_secret_of_another_user_and_none_without_a_grant(tmp_path):
    async def go(fleet: LendingFleet) -> None:
        host = await fleet.host("one")
        session = await fleet.session(host, owner_id=fleet.bob.id)
        assert await refusal(borrow(fleet, host, session)) == "CW-FLEET-SECRETS"
        own = await fleet.session(host)
        lease = await borrow(fleet, host, own)
        assert reveal(lease) == ANNS  # the control
        assert fleet.vault.revoke(names(fleet)[0], None, local_principal("cli")) == 1
        await host.vault.renew_once()
        with pytest.raises(VaultError):
            reveal(lease)
        assert await refusal(borrow(fleet, host, own)) == "CW-VAULT-NOT-GRANTED"
        who = fleet.principal(fleet.ann.id)
        no_session = host.vault.lease(names(fleet), tool="run", principal=who)
        assert await refusal(no_session) == "CW-FLEET-SESSION"

    in_fleet(tmp_path, go)


def test_names_are_checked_when_a_session_is_made(tmp_path):
    async def go(fleet: LendingFleet) -> None:
        host, who = await fleet.host("one"), fleet.principal(fleet.ann.id)
        check = host.vault.check_names
        await anyio.to_thread.run_sync(check, names(fleet), who)
        unknown = stored_name("UNKNOWN", who)
        with pytest.raises(VaultError, match="no secret of this name"):
            await anyio.to_thread.run_sync(check, (unknown,), who)
        bobs = stored_name(NAME, fleet.principal(fleet.bob.id))
        with pytest.raises(VaultError, match="another user"):
            await anyio.to_thread.run_sync(check, (bobs,), who)
        assert ANNS not in b"".join(fleet.wire.seen)
        assert host.vault.values() == {}

    in_fleet(tmp_path, go)

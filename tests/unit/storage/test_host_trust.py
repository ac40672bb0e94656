"""What the database keeps of the trust between hosts: single use, and never another key (SRV-6)."""

from __future__ import annotations

import time

import anyio
import pytest

from cellwall.core.errors import Denied
from cellwall.core.host_trust import (
    HostAdmission,
    HostLog,
    SignedRelease,
    StoredCertificate,
    WitnessedCheckpoint,
)
from cellwall.core.ids import new_id
from cellwall.storage.store import Store
from databases import in_store

pytestmark = pytest.mark.requirement("SRV-6")
TOKEN = b"t" * 32
FIRST = StoredCertificate(new_id("svc"), "pem", is_revoked=False)
OTHER = StoredCertificate(new_id("svc"), "pem", is_revoked=False)


def soon() -> float:
    return time.time() + 600


def test_of_many_machines_with_one_token_exactly_one_is_admitted(settings):
    async def go(store: Store) -> None:
        await store.add_join_token(TOKEN, expires_s=soon(), made_by="ann")
        found: list[HostAdmission] = []

        async def ask() -> None:
            new = StoredCertificate(new_id("svc"), "pem", is_revoked=False)
            found.append(await store.admit_host(TOKEN, new, public_keys="k"))

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(ask)
        assert sorted(found) == [HostAdmission.ADMITTED] + [HostAdmission.NO_TOKEN] * 7
        assert len(await store.list_certificates()) == 1  # refused ones have left nothing

    in_store(settings, go)


def test_an_unknown_and_an_expired_token_admit_nobody(settings):
    async def go(store: Store) -> None:
        await store.add_join_token(TOKEN, expires_s=time.time() - 1, made_by="ann")
        for token in (TOKEN, b"u" * 32):
            found = await store.admit_host(token, FIRST, public_keys="k")
            assert found is HostAdmission.NO_TOKEN
        assert await store.list_certificates() == []
        await store.add_join_token(b"v" * 32, expires_s=soon(), made_by="ann")
        found = await store.admit_host(b"v" * 32, FIRST, public_keys="k")
        assert found is HostAdmission.ADMITTED  # the control

    in_store(settings, go)


def test_a_name_keeps_its_keys_and_a_refused_machine_does_not_use_the_token_up(settings):
    async def go(store: Store) -> None:
        await store.add_join_token(TOKEN, expires_s=soon(), made_by="ann")
        assert await store.keep_certificate(FIRST, public_keys="mine")
        assert not await store.keep_certificate(FIRST, public_keys="another")
        found = await store.admit_host(TOKEN, FIRST, public_keys="another")
        assert found is HostAdmission.OTHER_KEY
        assert await store.admit_host(TOKEN, FIRST, public_keys="mine") is HostAdmission.ADMITTED

    in_store(settings, go)


def test_a_revoked_name_is_not_admitted_again(settings):
    async def go(store: Store) -> None:
        await store.add_join_token(TOKEN, expires_s=soon(), made_by="ann")
        assert await store.keep_certificate(FIRST, public_keys="k")
        assert await store.revoke_certificate(FIRST.host_id)
        assert not await store.revoke_certificate(FIRST.host_id)
        assert [each.is_revoked for each in await store.list_certificates()] == [True]
        assert await store.admit_host(TOKEN, FIRST, public_keys="k") is HostAdmission.OTHER_KEY
        assert await store.admit_host(TOKEN, OTHER, public_keys="k") is HostAdmission.ADMITTED

    in_store(settings, go)


def test_a_revoked_host_gets_no_lease_and_keeps_none(settings):
    async def go(store: Store) -> None:
        own = StoredCertificate(store.service_id, "pem", is_revoked=False)
        assert await store.keep_certificate(own, public_keys="k")
        await store.join_host(incarnation := new_id("inc"), {}, rivals_s=60)
        assert await store.renew_host(incarnation, {}) is not None  # the control
        assert await store.revoke_certificate(store.service_id)
        assert await store.renew_host(incarnation, {}) is None
        with pytest.raises(Denied) as caught:
            await store.join_host(new_id("inc"), {}, rivals_s=60)
        assert caught.value.code == "CW-FLEET-REVOKED"

    in_store(settings, go)


def test_logs_and_witnessed_checkpoints_are_never_replaced(settings):
    log = HostLog(origin="cellwall/audit/1", host_id=FIRST.host_id, statement="s")
    seen = WitnessedCheckpoint(origin=log.origin, size=7, witness_id=OTHER.host_id, note="n")

    async def go(store: Store) -> None:
        assert await store.add_host_log(log)
        assert await store.add_host_log(log)
        stolen = HostLog(origin=log.origin, host_id=OTHER.host_id, statement="s")
        assert not await store.add_host_log(stolen)
        assert await store.list_host_logs() == [log]
        assert await store.add_witnessed(seen)
        assert await store.add_witnessed(seen)
        forked = WitnessedCheckpoint(
            origin=log.origin, size=7, witness_id=OTHER.host_id, note="another"
        )
        assert not await store.add_witnessed(forked)
        assert await store.list_witnessed(log.origin) == [seen]

    in_store(settings, go)


def test_a_release_is_only_followed_by_a_later_one(settings):
    def release(version: int) -> SignedRelease:
        return SignedRelease(kind="policy", version=version, note="n", content=b"c")

    async def go(store: Store) -> None:
        assert await store.newest_release("policy") is None
        assert await store.add_release(release(2))
        assert not await store.add_release(release(2))
        assert not await store.add_release(release(1))
        assert await store.add_release(release(3))
        assert await store.newest_release("policy") == release(3)
        assert await store.newest_release_note("policy") == (3, release(3).note)
        assert await store.newest_release_note("feed") is None
        assert await store.newest_release("feed") is None

    in_store(settings, go)

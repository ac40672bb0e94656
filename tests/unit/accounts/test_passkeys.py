"""Passkeys: challenges once, origin and relying party, counters, several per user (SRV-2)."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import cbor2
import pytest

from cellwall.accounts import failures, flows, passkeys
from cellwall.accounts.identity import Identity
from cellwall.core.errors import BadInput, Denied, LimitExceeded, NotFound, SignInRefused
from cellwall.core.outcomes import EventKind
from conftest import audit_records
from unit.accounts.authenticator import Authenticator, decode, encode
from unit.accounts.test_sign_in import code_of, recorded
from unit.accounts.worlds import ADDRESS, AUDIENCE, ISSUER, PASSWORD, ROOT, World, in_world
from unit.parsing.test_cbor import shared_key
from unit.storage.test_store import race

pytestmark = pytest.mark.requirement("SRV-2")
REFUSED = "CW-SIGN-IN-IDENTITY"


async def begin(world: World, who: Identity) -> Any:
    return await world.accounts.passkeys.begin_registration(who, password=PASSWORD, address=ADDRESS)


async def register(world: World, who: Identity, device: Authenticator, name: str = "laptop") -> str:
    ceremony = await begin(world, who)
    made = await world.accounts.passkeys.finish_registration(
        who, ceremony.id, device.create(ceremony.options), name=name
    )
    return made.id


async def sign_in(world: World, device: Authenticator) -> Identity:
    service = world.accounts.passkeys
    ceremony = await service.begin_sign_in(address=ADDRESS)
    pair = await service.finish_sign_in(
        ceremony.id, device.get(ceremony.options), address=ADDRESS, audience=AUDIENCE
    )
    return await world.who(pair.access)


async def ann_with_a_passkey(world: World) -> tuple[Identity, Authenticator]:
    await world.add("ann")
    who = await world.who((await world.sign_in("ann")).access)
    device = Authenticator(ISSUER)
    await register(world, who, device)
    return who, device


@pytest.mark.slow
def test_a_person_registers_passkeys_and_signs_in_with_each(settings):
    async def go(world: World) -> None:
        who, laptop = await ann_with_a_passkey(world)
        world.clock.now_s += 1
        phone = Authenticator(ISSUER, counts=False)  # as passkeys that are synchronised
        second = await register(world, who, phone, "phone")
        for device in (laptop, phone, laptop, phone):
            found = await sign_in(world, device)
            assert (found.user_id, found.scopes) == (who.user_id, None)
        listed = await world.accounts.passkeys.list_own(who)
        assert [(each.name, each.sign_count) for each in listed] == [("laptop", 2), ("phone", 0)]
        await world.accounts.passkeys.remove_own(who, second)
        assert await code_of(sign_in(world, phone)) == REFUSED
        assert await sign_in(world, laptop)

    in_world(settings, go)
    assert ("ann", "passkey", "ok") in recorded()
    changes = [each["body"]["change"] for each in audit_records(kind=EventKind.ACCOUNT)]
    assert (changes.count("add passkey"), changes.count("remove passkey")) == (2, 1)


def test_the_options_ask_for_verification_and_name_no_credential(sqlite_settings):
    async def go(world: World) -> None:
        who, device = await ann_with_a_passkey(world)
        options = (await world.accounts.passkeys.begin_sign_in(address=ADDRESS)).options
        assert options["userVerification"] == "required"
        assert not options.get("allowCredentials")
        again = (await begin(world, who)).options
        assert [each["id"] for each in again["excludeCredentials"]] == [
            encode(device.credential_id)
        ]
        assert again["rp"]["id"] == "cellwall.example"

    in_world(sqlite_settings, go)


def test_a_challenge_counts_once_and_for_ten_minutes(settings):
    async def go(world: World) -> None:
        _, device = await ann_with_a_passkey(world)
        service = world.accounts.passkeys
        ceremony = await service.begin_sign_in(address=ADDRESS)
        answers = [device.get(ceremony.options) for _ in range(4)]
        calls = [
            lambda each=each: service.finish_sign_in(
                ceremony.id, each, address=ADDRESS, audience=AUDIENCE
            )
            for each in answers
        ]
        found = await race(calls)
        assert sum(not isinstance(each, Exception) for each in found) <= 1
        late = await service.begin_sign_in(address=ADDRESS)
        answer = device.get(late.options)
        world.clock.now_s += 600
        finish = service.finish_sign_in(late.id, answer, address="192.0.2.9", audience=AUDIENCE)
        assert await code_of(finish) == REFUSED
        assert await sign_in(world, device)

    in_world(settings, go)


def changed(name: str, change: Callable[[bytes], bytes]) -> Callable[[dict[str, Any]], None]:
    def apply(answer: dict[str, Any]) -> None:
        inner = answer["response"]
        inner[name] = encode(change(decode(inner[name])))

    return apply


def evil_origin(data: bytes) -> bytes:
    return data.replace(b"https://cellwall.example", b"https://cellwall.example.evil.test")


ATTACKS: dict[str, Callable[[dict[str, Any]], None]] = {
    "another origin": changed("clientDataJSON", evil_origin),
    "another type": changed("clientDataJSON", lambda data: data.replace(b"webauthn.get", b"webauthn.create")),
    "another relying party": changed("authenticatorData", lambda data: bytes(32) + data[32:]),
    "not present": changed("authenticatorData", lambda data: data[:32] + b"\x04" + data[33:]),
    "not verified": changed("authenticatorData", lambda data: data[:32] + b"\x01" + data[33:]),
    "a higher counter": changed("authenticatorData", lambda data: data[:33] + b"\x7f\xff\xff\xff"),
    "another signature": changed("signature", lambda data: data[:-1] + bytes([data[-1] ^ 1])),
    "another user": changed("userHandle", lambda _: b"usr_other"),
    "another credential": lambda answer: answer.update(rawId=encode(b"x" * 32), id=encode(b"x" * 32)),
    "two credentials": lambda answer: answer.update(id=encode(b"x" * 32)),
    "no response": lambda answer: answer.pop("response"),
    "no id": lambda answer: answer.pop("rawId"),
    "a list": lambda answer: answer.update(response=[]),
    "numbers": lambda answer: answer["response"].update(signature=7, authenticatorData=None),
    "huge": lambda answer: answer.update(extra="x" * 100_000),
    "not base64": lambda answer: answer.update(rawId="é" * 10),
    "bad client data": changed("clientDataJSON", lambda _: b"\xff{"),
    "cut data": changed("authenticatorData", lambda data: data[:20]),
    "shared keys": changed(
        "authenticatorData", lambda data: data[:32] + b"\x85" + data[33:37] + shared_key(4)
    ),
    "nothing": lambda answer: answer.clear(),
}  # fmt: skip


@pytest.mark.slow
def test_a_changed_answer_is_refused_with_one_text(sqlite_settings):
    async def go(world: World) -> None:
        _, device = await ann_with_a_passkey(world)
        service = world.accounts.passkeys
        texts = set()
        for number, attack in enumerate(ATTACKS.values()):
            ceremony = await service.begin_sign_in(address=ADDRESS)
            answer = deepcopy(device.get(ceremony.options))
            attack(answer)
            with pytest.raises(SignInRefused) as caught:
                await service.finish_sign_in(
                    ceremony.id, answer, address=f"198.51.100.{number}", audience=AUDIENCE
                )
            texts.add(str(caught.value))
        assert len(texts) == 1
        assert await sign_in(world, device)  # the control

    in_world(sqlite_settings, go)
    refused = [each for each in recorded() if each[1:] == ("passkey", "refused")]
    assert len(refused) == len(ATTACKS)


@pytest.mark.parametrize("place", ["attestation", "key", "extensions"])
def test_shared_values_in_a_registration_are_refused_before_they_are_decoded(
    sqlite_settings, place
):
    """A few more levels would stop the service: the decoder holds the interpreter."""
    bomb = shared_key(4)
    device = Authenticator(ISSUER)

    def change(data: bytes) -> bytes:
        if place == "attestation":
            return bomb
        found = cbor2.loads(data)
        inner = found["authData"]
        if place == "key":
            inner = inner[:-77] + bomb
        else:
            inner = inner[:32] + bytes([inner[32] | 0x80]) + inner[33:] + bomb
        return cbor2.dumps({**found, "authData": inner})

    async def go(world: World) -> None:
        await world.add("ann")
        who = await world.who((await world.sign_in("ann")).access)
        ceremony = await begin(world, who)
        answer = device.create(ceremony.options)
        changed("attestationObject", change)(answer)
        with pytest.raises(failures.IdentityRefused) as refused:
            await world.accounts.passkeys.finish_registration(who, ceremony.id, answer, name="a")
        assert refused.value.detail == "registration: ValueError"  # not one of the library
        await register(world, who, device)  # the control
        assert await sign_in(world, device)

    in_world(sqlite_settings, go)


def test_a_page_of_another_origin_cannot_use_a_passkey(sqlite_settings):
    async def go(world: World) -> None:
        who, device = await ann_with_a_passkey(world)
        for changes in ({"origin": "https://evil.test"}, {"rp_id": "evil.test"}):
            assert await code_of(sign_in(world, replace(device, **changes))) == REFUSED
            assert await code_of(register(world, who, replace(device, **changes))) == REFUSED
        assert await code_of(register(world, who, device)) == REFUSED  # known already
        unverified = Authenticator(ISSUER, flags=0x01)
        assert await code_of(register(world, who, unverified)) == REFUSED

    in_world(sqlite_settings, go)


def test_a_copied_passkey_is_found_by_its_counter(settings):
    async def go(world: World) -> None:
        _, device = await ann_with_a_passkey(world)
        copy = replace(device)
        assert await sign_in(world, device)
        assert await sign_in(world, device)
        assert await code_of(sign_in(world, copy)) == REFUSED
        assert await sign_in(world, device)
        # Of two with the same counter at once, one signs in.
        copy.sign_count = device.sign_count
        found = await race([lambda: sign_in(world, device), lambda: sign_in(world, copy)])
        assert sum(isinstance(each, SignInRefused) for each in found) == 1

    in_world(settings, go)
    reasons = [each["body"].get("reason", "") for each in audit_records(kind=EventKind.SIGN_IN)]
    assert sum("counter did not increase" in each for each in reasons) == 2


def test_a_registration_needs_the_person_and_the_password(sqlite_settings):
    async def go(world: World) -> None:
        who, device = await ann_with_a_passkey(world)
        await world.add("bob")
        bob = await world.who((await world.sign_in("bob")).access)
        service = world.accounts.passkeys
        for password in (None, "", "wrong"):
            call = service.begin_registration(
                who, password=password, address=f"192.0.2.{password!r:.1}"
            )
            assert await code_of(call) == "CW-SIGN-IN"
            world.clock.now_s += 10
        secret, _ = await world.accounts.directory.create_own_token(
            who, name="ci", scopes=[], lives_s=600.0
        )
        program = await world.who(secret)
        with pytest.raises(Denied):
            await begin(world, program)
        # A challenge of one user registers nothing for another.
        ceremony = await begin(world, who)
        answer = Authenticator(ISSUER).create(ceremony.options)
        call = service.finish_registration(bob, ceremony.id, answer, name="x")
        assert await code_of(call) == REFUSED
        # A sign-in is no registration, and a registration no sign-in.
        ceremony = await service.begin_sign_in(address=ADDRESS)
        call = service.finish_registration(who, ceremony.id, answer, name="x")
        assert await code_of(call) == REFUSED
        ceremony = await begin(world, who)
        call = service.finish_sign_in(
            ceremony.id, device.get(ceremony.options), address=ADDRESS, audience=AUDIENCE
        )
        assert await code_of(call) == REFUSED
        texts = set()
        for passkey_id in ((await service.list_own(who))[0].id, "pky_missing"):
            with pytest.raises(NotFound) as caught:
                await service.remove_own(bob, passkey_id)
            texts.add(str(caught.value))
        assert len(texts) == 1

    in_world(sqlite_settings, go)


def test_the_number_of_passkeys_is_bounded_and_an_owner_can_remove_all(
    sqlite_settings, monkeypatch
):
    assert passkeys._MAX_PER_USER == 20
    monkeypatch.setattr(passkeys, "_MAX_PER_USER", 3)

    async def go(world: World) -> None:
        who, device = await ann_with_a_passkey(world)
        for number in range(2):
            await register(world, who, Authenticator(ISSUER), f"key{number}")
        with pytest.raises(BadInput):
            await register(world, who, Authenticator(ISSUER))
        with pytest.raises(Denied):
            await world.accounts.directory.remove_passkeys(who.user_id, by=who.principal("http"))
        assert await world.accounts.directory.remove_passkeys(who.user_id, by=ROOT) == 3
        assert await code_of(sign_in(world, device)) == REFUSED

    in_world(sqlite_settings, go)


def test_a_disabled_user_does_not_sign_in(sqlite_settings):
    async def go(world: World) -> None:
        who, device = await ann_with_a_passkey(world)
        await world.accounts.directory.set_disabled(who.user_id, is_disabled=True, by=ROOT)
        assert await code_of(sign_in(world, device)) == REFUSED
        await world.accounts.directory.set_disabled(who.user_id, is_disabled=False, by=ROOT)
        assert await sign_in(world, device)

    in_world(sqlite_settings, go)


@pytest.mark.requirement("RBAC-4")
def test_a_flood_of_begun_sign_ins_is_slowed_and_drops_the_oldest_ones(settings, monkeypatch):
    monkeypatch.setattr(flows, "_MAX_LIVE", 5)

    async def go(world: World) -> None:
        _, device = await ann_with_a_passkey(world)
        rates = replace(world.settings.rates, address_sign_ins=8)
        world.accounts = world.another(settings=replace(world.settings, rates=rates))
        service = world.accounts.passkeys
        first = await service.begin_sign_in(address=ADDRESS)
        for _ in range(7):
            world.clock.now_s += 0.1
            await service.begin_sign_in(address=ADDRESS)
        with pytest.raises(LimitExceeded):
            await service.begin_sign_in(address=ADDRESS)
        # Another address goes on; the oldest of all is gone, the newest counts.
        ceremony = await service.begin_sign_in(address="203.0.113.5")
        for begun, is_live in ((first, False), (ceremony, True)):
            call = service.finish_sign_in(
                begun.id, device.get(begun.options), address=ADDRESS, audience=AUDIENCE
            )
            if is_live:
                assert await call
            else:
                assert await code_of(call) == REFUSED

    in_world(settings, go)

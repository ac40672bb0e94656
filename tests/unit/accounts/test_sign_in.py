"""Sign-in by password, link and refresh token; guesses are slowed and recorded (SRV-2, RBAC-4)."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cellwall.accounts.failures import TooManyGuesses
from cellwall.accounts.passwords import PasswordSettings
from cellwall.audit.log import AuditLog
from cellwall.core.errors import AuditFailed, BadInput, Denied, NotFound, SignInRefused
from cellwall.core.outcomes import EventKind
from cellwall.runtime.recording import audit_directory
from cellwall.storage.backup import backup
from conftest import audit_records
from databases import in_store
from unit.accounts.worlds import ADDRESS, AUDIENCE, PASSWORD, QUICK, ROOT, World, in_world
from unit.storage.test_store import race

pytestmark = pytest.mark.requirement("SRV-2")


async def code_of(call) -> str:
    with pytest.raises(SignInRefused) as caught:
        await call
    return caught.value.code


def recorded(kind: EventKind = EventKind.SIGN_IN) -> list[tuple[str, str, str]]:
    return [
        (record["principal"], record["body"]["change"], record["body"]["status"])
        for record in audit_records(kind=kind)
    ]


@pytest.mark.requirement("AUD-1")
def test_a_person_signs_in_with_name_and_password(settings):
    async def go(world: World) -> None:
        ann = await world.add("Ann")
        pair = await world.sign_in("ANN")
        who = await world.who(pair.access)
        assert (who.user_id, who.name, who.role, who.scopes) == (ann, "ann", "user", None)
        assert pair.expires_s == world.clock.now_s + 600
        assert who.principal("http").role == "user"
        assert pair.access not in repr(pair)
        assert pair.refresh not in repr(pair)

    in_world(settings, go)
    assert recorded()[-1] == ("ann", "password", "ok")


def test_a_wrong_password_an_unknown_a_disabled_and_a_passwordless_user_look_the_same(
    sqlite_settings,
):
    async def go(world: World) -> None:
        gone = await world.add("gone")
        await world.accounts.directory.set_disabled(gone, is_disabled=True, by=ROOT)
        await world.add("ann")
        await world.accounts.directory.add_user("new", role="user", by=ROOT)
        texts = set()
        for name, password in (
            ("ann", "wrong"),
            ("nobody", PASSWORD),
            ("gone", PASSWORD),
            ("new", ""),
            ("ann", PASSWORD + "x" * 300),
        ):
            with pytest.raises(SignInRefused) as caught:
                await world.sign_in(name, password)
            texts.add((str(caught.value), caught.value.code, caught.value.detail))
        assert len(texts) == 1
        assert await world.sign_in("ann")  # the control

    in_world(sqlite_settings, go)
    # A name that is no account may be a password: it is not recorded.
    assert "nobody" not in str(audit_records(kind=EventKind.SIGN_IN))


@pytest.mark.requirement("RBAC-4")
def test_guesses_are_slowed_by_account_whatever_the_address_and_recorded(settings):
    async def go(world: World) -> None:
        await world.add("ann")
        for number in range(4):
            call = world.sign_in("ann", "wrong", f"198.51.100.{number}")
            assert await code_of(call) == "CW-SIGN-IN"
        # Now not even the right password is compared.
        with pytest.raises(TooManyGuesses) as caught:
            await world.sign_in("ann", PASSWORD, "198.51.100.9")
        assert caught.value.retry_after_s == 1
        world.clock.now_s += 1
        assert await world.sign_in("ann")
        # A success begins anew.
        assert await code_of(world.sign_in("ann", "wrong")) == "CW-SIGN-IN"
        assert await world.sign_in("ann")

    in_world(settings, go)
    found = [each for each in recorded() if each[1] in {"password", "guesses"}]
    assert found == [
        *[("ann", "password", "refused")] * 4,
        ("unknown", "guesses", "slowed"),
        ("ann", "password", "ok"),
        ("ann", "password", "refused"),
        ("ann", "password", "ok"),
    ]


@pytest.mark.requirement("RBAC-4")
def test_guesses_are_slowed_by_address_whatever_the_account(settings):
    async def go(world: World) -> None:
        await world.add("ann")
        for number in range(7):
            address = f"2001:db8::{number}"  # one /64 network
            assert await code_of(world.sign_in(f"user{number}", "x", address)) == "CW-SIGN-IN"
        blocked = world.sign_in("ann", PASSWORD, "2001:db8::ffff")
        assert await code_of(blocked) == "CW-SIGN-IN-SLOW"
        assert await world.sign_in("ann", PASSWORD, "2001:db8:0:1::1")
        # An attacker who signs in between guesses gains nothing.
        world.clock.now_s += 1
        assert await world.sign_in("ann", PASSWORD, "2001:db8::1")
        assert await code_of(world.sign_in("user8", "x", "2001:db8::1")) == "CW-SIGN-IN"
        assert await code_of(world.sign_in("user9", "x", "2001:db8::1")) == "CW-SIGN-IN-SLOW"

    in_world(settings, go)


@pytest.mark.requirement("RBAC-4")
def test_concurrent_guesses_do_not_exceed_the_limit(settings):
    async def go(world: World) -> None:
        await world.add("ann")
        found = await race([partial(world.sign_in, "ann", "wrong") for _ in range(8)])
        codes = sorted(each.code for each in found)
        assert codes == ["CW-SIGN-IN"] * 4 + ["CW-SIGN-IN-SLOW"] * 4

    in_world(settings, go)


def test_a_refresh_token_is_exchanged_once_and_its_reuse_ends_the_sign_in(settings):
    async def go(world: World) -> None:
        await world.add("ann")
        sign_in = world.accounts.sign_in
        first = await world.sign_in("ann")
        other = await world.sign_in("ann")
        world.clock.now_s += 5
        second = await sign_in.refresh(first.refresh, address=ADDRESS)
        assert second.refresh != first.refresh
        assert (await world.who(second.access)).name == "ann"
        world.clock.now_s += 10  # the grace is over
        code = await code_of(sign_in.refresh(first.refresh, address=ADDRESS))
        assert code == "CW-SIGN-IN-TOKEN"
        # Everything of this sign-in is dead, the access tokens as well; another one is not.
        for token in (first.access, second.access):
            assert await code_of(world.who(token)) == "CW-SIGN-IN-TOKEN"
        code = await code_of(sign_in.refresh(second.refresh, address=ADDRESS))
        assert code == "CW-SIGN-IN-TOKEN"
        assert await world.who(other.access)

    in_world(settings, go)
    assert ("ann", "refresh", "reused, so the sign-in is ended") in recorded()


def test_windows_that_refresh_at_once_get_the_same_successor(settings):
    async def go(world: World) -> None:
        await world.add("ann")
        pair = await world.sign_in("ann")
        other = world.another().sign_in  # as in another process
        calls = [partial(each.refresh, pair.refresh, address=ADDRESS)
                 for each in (world.accounts.sign_in, other) * 2]  # fmt: skip
        found = await race(calls)
        assert len({each.refresh for each in found}) == 1
        assert found[0].refresh != pair.refresh
        assert len({each.access for each in found}) == 4
        for each in found:
            assert (await world.who(each.access)).name == "ann"

    in_world(settings, go)


@pytest.mark.parametrize("how", ["late", "successor used", "no grace"])
def test_a_reuse_is_found_when_the_grace_is_over_or_the_successor_was_used(settings, how):
    async def go(world: World) -> None:
        await world.add("ann")
        grace_s = 0.0 if how == "no grace" else 10.0
        tokens = replace(world.settings.tokens, refresh_grace_s=grace_s)
        world.accounts = world.another(settings=replace(world.settings, tokens=tokens))
        refresh = partial(world.accounts.sign_in.refresh, address=ADDRESS)
        first = await world.sign_in("ann")
        second = await refresh(first.refresh)
        last = second
        if how == "late":
            world.clock.now_s += 9.9
            assert (await refresh(first.refresh)).refresh == second.refresh  # the control
            world.clock.now_s += 0.1
        elif how == "successor used":
            last = await refresh(second.refresh)
        assert await code_of(refresh(first.refresh)) == "CW-SIGN-IN-TOKEN"
        assert await code_of(refresh(last.refresh)) == "CW-SIGN-IN-TOKEN"
        assert await code_of(world.who(last.access)) == "CW-SIGN-IN-TOKEN"

    in_world(settings, go)


def test_a_repeated_refresh_does_not_outlive_a_revocation(settings):
    async def go(world: World) -> None:
        await world.add("ann")
        refresh = partial(world.accounts.sign_in.refresh, address=ADDRESS)
        first = await world.sign_in("ann")
        second = await refresh(first.refresh)
        await world.accounts.directory.revoke_own(await world.who(second.access))
        assert await code_of(refresh(first.refresh)) == "CW-SIGN-IN-TOKEN"

    in_world(settings, go)


def test_a_refresh_ends_with_the_family_and_with_sign_out(settings):
    async def go(world: World) -> None:
        await world.add("ann")
        sign_in = world.accounts.sign_in
        first, second = await world.sign_in("ann"), await world.sign_in("ann")
        await sign_in.sign_out(first.refresh, address=ADDRESS)
        await sign_in.sign_out("cwr_unknown", address=ADDRESS)
        assert await code_of(world.who(first.access)) == "CW-SIGN-IN-TOKEN"
        assert await world.who(second.access)
        world.clock.now_s += 30 * 86_400
        code = await code_of(sign_in.refresh(second.refresh, address=ADDRESS))
        assert code == "CW-SIGN-IN-TOKEN"

    in_world(settings, go)


def test_the_first_owner_signs_up_by_a_link_that_works_once(settings):
    """There is no default password, and no second first owner."""

    async def go(store) -> None:
        with AuditLog.open(audit_directory(settings.home)) as audit:
            world = World(store, settings.home, audit)
            sign_in = world.accounts.sign_in

            async def use(link: str, name: str = "Root"):
                return await sign_in.by_link(
                    link, PASSWORD, name=name, address=ADDRESS, audience=AUDIENCE
                )

            old = await sign_in.first_owner_link()
            link = await sign_in.first_owner_link()
            assert old is not None
            assert link is not None
            assert await code_of(use(old)) == "CW-SIGN-IN-LINK"
            found = await race([partial(use, link, f"root{n}") for n in range(3)])
            assert sum(not isinstance(each, Exception) for each in found) == 1
            (pair,) = [each for each in found if not isinstance(each, Exception)]
            assert (await world.who(pair.access)).role == "owner"
            assert await sign_in.first_owner_link() is None
            assert len(await store.list_users()) == 1

    in_store(settings, go)


def test_a_link_expires_and_sets_only_a_good_password(sqlite_settings):
    async def go(world: World) -> None:
        directory, sign_in = world.accounts.directory, world.accounts.sign_in
        user = await directory.add_user("ann.smith@corp", role="user", by=ROOT)
        link = await sign_in.make_link(user.id, by=ROOT)
        use = partial(sign_in.by_link, address=ADDRESS, audience=AUDIENCE)
        for bad in ("short", "x" * 257):
            with pytest.raises(BadInput):
                await use(link, bad)
        # The link of a user creates no owner, and stays valid after the attempt.
        assert await code_of(use(link, PASSWORD, name="eve")) == "CW-SIGN-IN-LINK"
        world.clock.now_s += 901
        assert await code_of(use(link, PASSWORD)) == "CW-SIGN-IN-LINK"
        link = await sign_in.make_link(user.id, by=ROOT)
        assert (await world.who((await use(link, PASSWORD)).access)).name == "ann.smith@corp"
        with pytest.raises(NotFound):
            await sign_in.make_link("usr_missing", by=ROOT)

    in_world(sqlite_settings, go)


def test_other_parameters_renew_the_hash_at_the_next_sign_in(sqlite_settings):
    stronger = PasswordSettings(memory_kib=128, passes=2, lanes=1)

    async def go(world: World) -> None:
        ann = await world.add("ann")

        async def parameters() -> str:
            user = await world.store.find_user(ann)
            assert user is not None
            assert user.password_hash is not None
            return user.password_hash.split("$")[3]

        before = await world.sign_in("ann")
        assert await parameters() == "m=64,t=1,p=1"
        changed = replace(world.settings, passwords=stronger)
        world.accounts = world.another(settings=changed)
        assert await world.sign_in("ann")
        assert await parameters() == "m=128,t=2,p=1"
        assert await world.who(before.access)  # tokens stay

    in_world(sqlite_settings, go)


def test_a_changed_password_needs_the_old_one_and_ends_every_token(sqlite_settings):
    async def go(world: World) -> None:
        await world.add("ann")
        pair = await world.sign_in("ann")
        who = await world.who(pair.access)
        change = partial(world.accounts.directory.change_password, who, address=ADDRESS)
        assert await code_of(change("wrong", "another long password")) == "CW-SIGN-IN"
        await change(PASSWORD, "another long password")
        assert await code_of(world.who(pair.access)) == "CW-SIGN-IN-TOKEN"
        assert await code_of(world.sign_in("ann")) == "CW-SIGN-IN"
        assert await world.sign_in("ann", "another long password")

    in_world(sqlite_settings, go)


@pytest.mark.requirement("AUD-1")
def test_a_sign_in_that_cannot_be_recorded_is_refused(sqlite_settings):
    async def go(world: World) -> None:
        await world.add("ann")

        class Full:
            async def record(self, event) -> str:
                raise AuditFailed("no space")

        world.accounts = world.another(audit=Full())
        with pytest.raises(AuditFailed):
            await world.sign_in("ann")
        with pytest.raises(AuditFailed):
            await world.accounts.directory.revoke_everybody(by=ROOT)

    in_world(sqlite_settings, go)


@pytest.mark.slow
def test_no_secret_is_in_the_database_or_in_the_log(settings, tmp_path):
    async def go(world: World) -> list[str]:
        await world.add("ann")
        pair = await world.sign_in("ann")
        who = await world.who(pair.access)
        token, _ = await world.accounts.directory.create_own_token(
            who, name="ci", scopes=["files:read"], lives_s=60.0
        )
        link = await world.accounts.sign_in.make_link(who.user_id, by=ROOT)
        return [PASSWORD, pair.access, pair.refresh, token, link]

    secrets = in_world(settings, go)
    backup(settings, str(tmp_path / "all.db"))
    stored = (tmp_path / "all.db").read_bytes() + str(audit_records()).encode()
    assert b"ann" in stored  # the control
    assert [each for each in secrets if each.encode() in stored] == []
    assert [each for each in secrets if each.split("_", 1)[-1].encode() in stored] == []
    key = re.findall(rb"[A-Za-z0-9+/]{43}=", Path(settings.home, "accounts.key").read_bytes())
    assert len(key) == 1
    assert key[0] not in stored
    assert os.stat(f"{settings.home}/accounts.key").st_mode & 0o777 == 0o600


def test_only_who_manages_users_can(sqlite_settings):
    async def go(world: World) -> None:
        await world.add("ann", "administrator")
        who = (await world.who((await world.sign_in("ann")).access)).principal("http")
        directory = world.accounts.directory
        for call in (
            directory.add_user("eve", role="owner", by=who),
            directory.set_role("usr_1", "owner", by=who),
            directory.set_disabled("usr_1", is_disabled=True, by=who),
            directory.create_token("usr_1", name="x", scopes=[], lives_s=1.0, by=who),
            directory.revoke_user("usr_1", by=who),
            directory.revoke_everybody(by=who),
            directory.list_users(by=who),
            directory.add_team("red", by=who),
            directory.add_member("t", "u", by=who),
            directory.remove_member("t", "u", by=who),
            world.accounts.rotate_keys(by=who),
        ):
            with pytest.raises(Denied):
                await call
        assert len(await directory.list_users(by=ROOT)) == 2

    in_world(sqlite_settings, go)


def test_default_parameters_are_not_weaker_than_owasp_advises():
    made = PasswordSettings()
    assert made.memory_kib * made.passes >= 2 * 19_456
    assert made.min_characters >= 12
    assert made.memory_kib > QUICK.memory_kib

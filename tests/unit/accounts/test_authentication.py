"""Bearer tokens of requests: revoked at once, everywhere; keys rotate; scopes bind (SRV-2)."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import anyio
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc import jwt
from joserfc.jwk import KeySet

from cellwall.accounts.access_tokens import AccessClaims, sign
from cellwall.accounts.authentication import Authentication
from cellwall.accounts.roles import Roles
from cellwall.core.accounts import SealedKey
from cellwall.core.errors import BadInput, Denied, NotFound, SignInRefused
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Permission, Principal
from cellwall.storage.engine import StorageSettings
from conftest import audit_records
from unit.accounts.test_sign_in import code_of
from unit.accounts.worlds import (
    ADDRESS,
    AUDIENCE,
    ISSUER,
    ROOT,
    World,
    in_world,
    some_service_token,
)

pytestmark = pytest.mark.requirement("SRV-2")
REFUSED = "CW-SIGN-IN-TOKEN"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["token", "user", "own", "everybody", "disabled", "role"])
def test_a_revocation_holds_at_once_also_in_another_process(settings, how):
    async def go(world: World) -> None:
        ann = await world.add("ann")
        await world.add("bob")
        pair, again = await world.sign_in("ann"), await world.sign_in("ann")
        bob = await world.sign_in("bob")
        other = world.another()
        who = await world.who(pair.access)
        for each in (pair, again, bob):  # known to both from now on
            assert await world.who(each.access, other) == await world.who(each.access)
        directory = other.directory
        match how:
            case "token":
                await directory.revoke_access(who)
            case "user":
                await directory.revoke_user(ann, by=ROOT)
            case "own":
                await directory.revoke_own(who)
            case "everybody":
                await directory.revoke_everybody(by=ROOT)
            case "disabled":
                await directory.set_disabled(ann, is_disabled=True, by=ROOT)
            case "role":
                await directory.set_role(ann, "guest", by=ROOT)
        if how == "role":
            assert (await world.who(pair.access)).role == "guest"
            return
        assert await code_of(world.who(pair.access)) == REFUSED
        refresh = world.accounts.sign_in.refresh
        assert await code_of(refresh(pair.refresh, address=ADDRESS)) == REFUSED
        if how == "token":
            assert await world.who(again.access)
        else:
            assert await code_of(world.who(again.access)) == REFUSED
        if how == "everybody":
            assert await code_of(world.who(bob.access)) == REFUSED
        else:
            assert await world.who(bob.access)
        if how != "disabled":
            assert await world.who((await world.sign_in("ann")).access)

    in_world(settings, go)


def test_an_access_token_expires_and_serves_one_audience(sqlite_settings):
    async def go(world: World) -> None:
        await world.add("ann")
        pair = await world.sign_in("ann")
        assert await world.who(pair.access)
        call = partial(world.accounts.authenticate, pair.access, address=ADDRESS)
        for known in (True, False):  # from memory, and verified anew
            if not known:
                world.accounts = world.another()
                call = partial(world.accounts.authenticate, pair.access, address=ADDRESS)
            assert await code_of(call(audience="https://other.example")) == REFUSED
        world.clock.now_s = pair.expires_s
        assert await code_of(world.who(pair.access)) == REFUSED

    in_world(sqlite_settings, go)


def test_an_old_key_is_replaced_also_while_no_user_signs_in(settings):
    async def go(world: World) -> None:
        accounts = world.accounts
        assert not await accounts.rotate_aged_keys(by=ROOT)  # there is none yet
        await world.add("ann")
        await world.sign_in("ann")
        first = await accounts.jwks()
        assert not await accounts.rotate_aged_keys(by=ROOT)
        world.clock.now_s += 31 * 86_400
        assert await accounts.rotate_aged_keys(by=ROOT)
        assert not await accounts.rotate_aged_keys(by=ROOT)
        kids = [key["kid"] for key in (await accounts.jwks())["keys"]]
        assert kids
        assert kids[0] not in [key["kid"] for key in first["keys"]]

    in_world(settings, go)


def test_old_keys_verify_until_their_last_token_has_expired(sqlite_settings):
    async def go(world: World) -> None:
        await world.add("ann")

        async def kids() -> list[str]:
            return [key["kid"] for key in (await world.accounts.jwks())["keys"]]

        assert await kids() == []
        old = await world.sign_in("ann")
        (first,) = await kids()
        world.clock.now_s += 300
        await world.accounts.rotate_keys(by=ROOT)
        new = await world.sign_in("ann")
        second = next(kid for kid in await kids() if kid != first)
        assert await kids() == [second, first]
        for pair in (old, new):
            assert await world.who(pair.access)
        # The last token of the old key expires here; a minute later the key is gone.
        world.clock.now_s = old.expires_s - 1
        assert await world.who(old.access)
        world.clock.now_s += 1 + 300 + 60
        assert await kids() == [second]
        await world.accounts.purge()
        assert await kids() == [second]
        assert await code_of(world.who(old.access)) == REFUSED

    in_world(sqlite_settings, go)


def test_a_key_is_replaced_by_age(sqlite_settings):
    async def go(world: World) -> None:
        await world.add("ann")
        await world.sign_in("ann")
        (before,) = (await world.accounts.jwks())["keys"]
        world.clock.now_s += 30 * 86_400
        await world.sign_in("ann")
        after = (await world.accounts.jwks())["keys"]
        assert after[0]["kid"] != before["kid"]

    in_world(sqlite_settings, go)


def test_another_program_verifies_tokens_by_the_published_keys(sqlite_settings):
    async def go(world: World) -> None:
        await world.add("ann")
        pair = await world.sign_in("ann")
        published = json.loads(json.dumps(await world.accounts.jwks()))
        (key,) = published["keys"]
        assert set(key) == {"kty", "crv", "x", "kid", "alg", "use"}  # never "d"
        found = jwt.decode(pair.access, KeySet.import_key_set(published), algorithms=["Ed25519"])
        assert (found.claims["iss"], found.claims["aud"]) == (ISSUER, AUDIENCE)

    in_world(sqlite_settings, go)


def test_a_key_that_a_writer_of_the_database_adds_is_not_trusted(sqlite_settings):
    async def go(world: World) -> None:
        ann = await world.add("ann", "owner")
        pair = await world.sign_in("ann")
        who = await world.who(pair.access)
        evil = Ed25519PrivateKey.generate()
        real = (await world.store.signing_keys())[0]
        claims = AccessClaims(
            user_id=ann, family_id=who.family_id, jti="jti_x", audience=AUDIENCE,
            issued_s=world.clock.now_s, expires_s=world.clock.now_s + 60, generation=1,
            user_generation=1,
        )  # fmt: skip
        for sealed in (real.sealed, b"", evil.private_bytes_raw()):
            planted = SealedKey(kid=f"kid_{len(sealed)}", public=evil.public_key().public_bytes_raw(),
                                sealed=sealed, created_s=0.0, verify_until_s=None)  # fmt: skip
            await world.store.add_signing_key(planted, others_until_s=world.clock.now_s + 600)
            token = sign(claims, issuer=ISSUER, kid=planted.kid, private=evil.private_bytes_raw())
            assert await code_of(world.who(token)) == REFUSED
        # The control: the same claims under a real key count.
        private = world.another()._keys
        token = await private.sign(claims, issuer=ISSUER, revision=await world.store.revision())
        assert (await world.who(token)).user_id == ann

    in_world(sqlite_settings, go)


def test_a_lost_key_file_ends_tokens_and_a_new_key_is_made(sqlite_settings, tmp_path):
    async def go(world: World) -> None:
        await world.add("ann")
        pair = await world.sign_in("ann")
        world.home = str(tmp_path)
        world.accounts = world.another()
        assert await code_of(world.who(pair.access)) == REFUSED
        assert await world.who((await world.sign_in("ann")).access)

    in_world(sqlite_settings, go)


def test_a_service_token_has_scopes_an_expiry_and_an_end(settings):
    async def go(world: World) -> None:
        await world.add("ann", "power-user")
        me = await world.who((await world.sign_in("ann")).access)
        directory = world.accounts.directory
        create = partial(directory.create_own_token, me)
        secret, token = await create(name="ci", scopes=["files:read"], lives_s=60.0)
        who = await world.who(secret)
        assert (who.name, who.scopes, who.credential) == (
            "ann",
            frozenset({Permission.FILES_READ}),
            token.id,
        )
        roles = Roles()
        assert roles.role_of(who.principal("http")).permissions == {Permission.FILES_READ}
        assert roles.role_of(me.principal("http")).permissions > {Permission.FILES_READ}
        # It creates no wider token, for itself or for others.
        narrow = partial(directory.create_own_token, who)
        with pytest.raises(BadInput):
            await narrow(name="x", scopes=["network:use"], lives_s=60.0)
        _, inner = await narrow(name="x", scopes=[], lives_s=60.0)
        assert inner.scopes == ("files:read",)
        for scopes in (["audit:read"], ["files:eat"], ["users:manage"]):
            with pytest.raises(BadInput):
                await create(name="x", scopes=scopes, lives_s=60.0)
        for lives_s in (0.0, -1.0, 366 * 86_400.0, float("nan"), float("inf")):
            with pytest.raises(BadInput):
                await create(name="x", scopes=[], lives_s=lives_s)
        world.clock.now_s += 60
        assert await code_of(world.who(secret)) == REFUSED
        secret, token = await create(name="ci", scopes=[], lives_s=60.0)
        assert await world.who(secret)
        await directory.revoke_own_token(me, token.id)
        assert await code_of(world.who(secret)) == REFUSED
        assert await code_of(world.who("cws_unknown")) == REFUSED

    in_world(settings, go)


@pytest.mark.requirement("RBAC-3")
def test_a_token_of_another_user_answers_like_a_missing_one(sqlite_settings):
    async def go(world: World) -> None:
        await world.add("ann")
        await world.add("bob")
        ann = await world.who((await world.sign_in("ann")).access)
        bob = await world.who((await world.sign_in("bob")).access)
        directory = world.accounts.directory
        secret, token = await directory.create_own_token(ann, name="ci", scopes=[], lives_s=60.0)
        texts = set()
        for token_id in (token.id, "tok_missing"):
            with pytest.raises(NotFound) as caught:
                await directory.revoke_own_token(bob, token_id)
            texts.add(str(caught.value))
        assert len(texts) == 1
        assert await world.who(secret)

    in_world(sqlite_settings, go)


@pytest.mark.requirement("RBAC-4")
def test_guessing_tokens_is_slowed_by_address_and_recorded_once_per_block(sqlite_settings):
    async def go(world: World) -> None:
        await world.add("ann")
        pair, fresh = await world.sign_in("ann"), await world.sign_in("ann")
        assert await world.who(pair.access)
        codes = [await code_of(world.who(some_service_token())) for _ in range(12)]
        assert codes == [REFUSED] * 8 + ["CW-SIGN-IN-SLOW"] * 4
        assert await world.who(pair.access)  # a token that is known is no guess
        assert await code_of(world.who(fresh.access)) == "CW-SIGN-IN-SLOW"
        assert await world.who(fresh.access, address="203.0.113.1")
        # An expired token is no guess either.
        world.clock.now_s = pair.expires_s + 1
        for _ in range(12):
            assert await code_of(world.who(pair.access, address="203.0.113.2")) == REFUSED

    in_world(sqlite_settings, go)
    found = [record["body"]["change"] for record in audit_records(kind=EventKind.SIGN_IN)]
    assert (found.count("token"), found.count("guesses")) == (7, 1)


@pytest.mark.requirement("RBAC-1")
def test_a_principal_over_the_network_without_a_role_is_a_guest():
    roles = Roles(default="owner")
    for interface in ("http", "mcp-http"):
        assert roles.role_of(Principal("ann", interface)).name == "guest"
        assert roles.role_of(Principal("ann", interface, "user")).name == "user"
        assert Roles(default="guest").role_of(Principal("a", interface, "user")).name == "user"
        lowered = Roles(users={"ann": "guest"}, interfaces={interface: "user"})
        assert lowered.role_of(Principal("ann", interface, "owner")).name == "guest"
        assert lowered.role_of(Principal("bob", interface, "owner")).name == "user"
    for interface in ("cli", "sdk", "hook", "mcp"):
        assert roles.role_of(Principal("ann", interface)).name == "owner"


@pytest.mark.requirement("RBAC-1")
def test_scopes_only_take_away():
    roles = Roles()
    wide = Principal("ann", "http", "guest", frozenset(Permission))
    assert roles.role_of(wide).permissions == roles.role_of(replace(wide, scopes=None)).permissions
    none = Principal("ann", "http", "owner", frozenset())
    assert roles.role_of(none).permissions == frozenset()
    with pytest.raises(Denied):
        roles.require(none, Permission.FILES_READ)


def test_the_last_owner_stays(sqlite_settings):
    async def go(world: World) -> None:
        root = await world.accounts.directory.find_user("root", by=ROOT)
        with pytest.raises(Denied):
            await world.accounts.directory.set_role(root.id, "user", by=ROOT)
        with pytest.raises(Denied):
            await world.accounts.directory.set_disabled(root.id, is_disabled=True, by=ROOT)
        with pytest.raises(NotFound):
            await world.accounts.directory.set_role("usr_missing", "user", by=ROOT)
        with pytest.raises(BadInput):
            await world.accounts.directory.add_user("eve", role="king", by=ROOT)
        with pytest.raises(BadInput):
            await world.accounts.directory.add_user("ROOT", role="user", by=ROOT)

    in_world(sqlite_settings, go)


def test_members_of_a_team_are_known_at_once(settings):
    async def go(world: World) -> None:
        ann = await world.add("ann")
        pair = await world.sign_in("ann")
        assert (await world.who(pair.access)).teams == frozenset()
        directory = world.accounts.directory
        team = await directory.add_team("blue", by=ROOT)
        await directory.add_member(team.id, ann, by=ROOT)
        assert (await world.who(pair.access)).teams == {team.id}
        await directory.remove_member(team.id, ann, by=ROOT)
        assert (await world.who(pair.access)).teams == frozenset()
        with pytest.raises(NotFound):
            await directory.add_member(team.id, "usr_missing", by=ROOT)

    in_world(settings, go)


def test_a_token_that_is_far_too_long_costs_nothing(state_home):
    class Untouched:
        def __getattr__(self, name: str):
            raise AssertionError(name)

    async def go() -> None:
        found = Authentication(*[Untouched()] * 4, issuer=ISSUER)
        with pytest.raises(SignInRefused):
            await found.authenticate("x" * 5000, audience=AUDIENCE, address=ADDRESS)

    anyio.run(go)
    assert StorageSettings(home=state_home).is_missing


@pytest.mark.parametrize("how", ["token", "user", "everybody", "disabled"])
def test_a_running_request_outlasts_its_access_token_but_no_revocation(settings, how):
    async def go(world: World) -> None:
        ann = await world.add("ann")
        who = await world.who((await world.sign_in("ann")).access)
        bob_id = await world.add("bob")
        directory, renewed = world.accounts.directory, world.accounts.renewed
        secret, _ = await directory.create_token(
            bob_id, name="agent", scopes=(), lives_s=86_400, by=ROOT
        )
        bob = await world.who(secret)
        world.clock.now_s += 3600  # the access token has expired
        before = await world.accounts.revision()
        assert await renewed(who) == who
        assert await renewed(bob) == bob
        match how:
            case "token":
                await directory.revoke_access(who)
                await directory.revoke_access(bob)
            case "user":
                await directory.revoke_user(ann, by=ROOT)
                await directory.revoke_user(bob_id, by=ROOT)
            case "everybody":
                await directory.revoke_everybody(by=ROOT)
            case "disabled":
                await directory.set_disabled(ann, is_disabled=True, by=ROOT)
                await directory.set_disabled(bob_id, is_disabled=True, by=ROOT)
        assert await world.accounts.revision() != before
        assert await renewed(who) is None
        assert await renewed(bob) is None

    in_world(settings, go)


def test_a_running_request_does_not_outlast_its_service_token(settings):
    async def go(world: World) -> None:
        ann = await world.add("ann")
        directory = world.accounts.directory
        secret, _ = await directory.create_token(ann, name="agent", scopes=(), lives_s=60, by=ROOT)
        who = await world.who(secret)
        assert await world.accounts.renewed(who) is not None
        world.clock.now_s += 61
        assert await world.accounts.renewed(who) is None
        assert await world.accounts.renewed(replace(who, user_id="usr_unknown")) is None

    in_world(settings, go)

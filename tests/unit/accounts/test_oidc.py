"""Sign-in at a real OpenID provider, and the attacks on it (SRV-2)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from cellwall.accounts.identity import Identity
from cellwall.accounts.oidc.provider import ProviderSettings
from cellwall.accounts.oidc.sign_in import OidcSettings, OidcSignIn
from cellwall.core.errors import Busy, Denied, NotFound
from cellwall.core.outcomes import EventKind
from conftest import audit_records
from oidc_providers import CLIENT_SECRET, REDIRECT_URI, OpenIdProvider, openid
from unit.accounts.test_sign_in import code_of, recorded
from unit.accounts.worlds import ADDRESS, AUDIENCE, PASSWORD, ROOT, World, in_world
from unit.storage.test_store import race

__all__ = ["openid"]  # a fixture
pytestmark = [pytest.mark.requirement("SRV-2"), pytest.mark.xdist_group("openid")]
REFUSED = "CW-SIGN-IN-IDENTITY"


@asynccontextmanager
async def service(
    world: World, openid: OpenIdProvider, *, provider: Mapping[str, Any] = {}, **changes: Any
) -> AsyncIterator[OidcSignIn]:
    known = {"issuer": openid.issuer, "client_id": "cellwall", "client_secret": CLIENT_SECRET,
             "ca_file": openid.ca_file}  # fmt: skip
    settings = replace(
        world.settings,
        provider=ProviderSettings(**{**known, **provider}),
        oidc=OidcSettings(**{"redirect_uri": REDIRECT_URI, "creates_guests": True, **changes}),
    )
    world.clock.now_s = time.time()  # the provider has the real one
    found = world.another(settings=settings).oidc
    assert found is not None
    try:
        yield found
    finally:
        await found.close()


async def sign_in(
    world: World,
    oidc: OidcSignIn,
    openid: OpenIdProvider,
    subject: str,
    link_to: Identity | None = None,
) -> Identity:
    begin = {"audience": AUDIENCE, "address": ADDRESS}
    if link_to is None:
        begun = await oidc.begin(**begin)
    else:
        begun = await oidc.begin_link(link_to, password=PASSWORD, **begin)
    answer = openid.sign_in(begun.url, subject)
    pair = await oidc.finish(answer, browser_secret=begun.browser_secret, address=ADDRESS)
    return await world.who(pair.access)


def test_a_person_signs_in_and_is_the_same_account_again(settings, openid):
    openid.set_accounts({"ann-1": {"preferred_username": "Ann"}})

    async def go(world: World) -> None:
        async with service(world, openid) as oidc:
            first = await sign_in(world, oidc, openid, "ann-1")
            assert (first.name, first.role, first.scopes) == ("ann", "guest", None)
            # A changed name at the provider is no other account, and takes none over.
            openid.set_accounts({"ann-1": {"preferred_username": "root"}})
            again = await sign_in(world, oidc, openid, "ann-1")
            assert (again.user_id, again.name) == (first.user_id, "ann")

    in_world(settings, go)
    assert ("ann", "oidc", "ok") in recorded()


def test_an_account_is_never_found_by_its_name_or_e_mail_address(sqlite_settings, openid):
    openid.set_accounts(
        {"evil": {"preferred_username": "root", "email": "root", "email_verified": True},
         "odd": {"preferred_username": "ünd so/weiter"}}
    )  # fmt: skip

    async def go(world: World) -> None:
        async with service(world, openid) as oidc:
            found = await sign_in(world, oidc, openid, "evil")
            assert found.role == "guest"
            assert found.name.startswith("root-")
            assert (await sign_in(world, oidc, openid, "odd")).name == "user"

    in_world(sqlite_settings, go)


def test_an_unknown_identity_is_refused_unless_guests_are_created(sqlite_settings, openid):
    async def go(world: World) -> None:
        async with service(world, openid, creates_guests=False) as oidc:
            assert await code_of(sign_in(world, oidc, openid, "stranger")) == REFUSED
            await world.add("ann", "power-user")
            ann = await world.who((await world.sign_in("ann")).access)
            # A person who is signed in adds the identity.
            linked = await sign_in(world, oidc, openid, "stranger", link_to=ann)
            assert (linked.user_id, linked.role) == (ann.user_id, "power-user")
            assert (await sign_in(world, oidc, openid, "stranger")).user_id == ann.user_id
            # It belongs to one account; a program adds none.
            await world.add("bob")
            bob = await world.who((await world.sign_in("bob")).access)
            assert await code_of(sign_in(world, oidc, openid, "stranger", link_to=bob)) == REFUSED
            program = replace(ann, scopes=frozenset())
            with pytest.raises(Denied):
                await sign_in(world, oidc, openid, "other", link_to=program)
            await world.accounts.directory.set_disabled(ann.user_id, is_disabled=True, by=ROOT)
            assert await code_of(sign_in(world, oidc, openid, "stranger")) == REFUSED

    in_world(sqlite_settings, go)


def test_a_claim_sets_the_role_of_accounts_that_the_provider_created(sqlite_settings, openid):
    roles = {"staff": "user", "admins": "administrator"}

    async def go(world: World) -> None:
        async with service(world, openid, role_claim="groups", roles=roles) as oidc:
            for groups, role in (
                (["staff"], "user"),
                (["staff", "admins", "other"], "administrator"),
                ("staff", "user"),
                (["owner", 7, None], "guest"),
                ({"admins": 1}, "guest"),
                (None, "guest"),
            ):
                openid.set_accounts({"ann": {"groups": groups}})
                assert (await sign_in(world, oidc, openid, "ann")).role == role
            # An account that was linked keeps its own.
            openid.set_accounts({"boss": {"groups": ["staff"]}})
            root = await world.who((await world.sign_in("root")).access)
            assert (await sign_in(world, oidc, openid, "boss", link_to=root)).role == "owner"
            assert (await sign_in(world, oidc, openid, "boss")).role == "owner"

    in_world(sqlite_settings, go)


def test_the_browser_is_sent_with_pkce_state_and_nonce(sqlite_settings, openid):
    async def go(world: World) -> None:
        async with service(world, openid) as oidc:
            one, two = [await oidc.begin(audience=AUDIENCE, address=ADDRESS) for _ in range(2)]
            asked = [parse_qs(urlsplit(each.url).query) for each in (one, two)]
            for name in ("state", "nonce", "code_challenge"):
                assert asked[0][name] != asked[1][name]
                assert len(asked[0][name][0]) >= 43
            assert asked[0]["code_challenge_method"] == ["S256"]
            assert asked[0]["redirect_uri"] == [REDIRECT_URI]
            assert CLIENT_SECRET not in one.url
            assert one.browser_secret not in one.url + repr(one)

    in_world(sqlite_settings, go)


def test_a_stolen_access_token_adds_no_identity(sqlite_settings, openid):
    async def go(world: World) -> None:
        async with service(world, openid, creates_guests=False) as oidc:
            await world.add("ann")
            ann = await world.who((await world.sign_in("ann")).access)
            begin = {"audience": AUDIENCE, "address": ADDRESS}
            for guess in (None, "", "wrong horse battery"):
                assert await code_of(oidc.begin_link(ann, password=guess, **begin)) == "CW-SIGN-IN"
            # What was begun with the password ends when the password changes.
            begun = await oidc.begin_link(ann, password=PASSWORD, **begin)
            answer = openid.sign_in(begun.url, "thief")
            directory = world.accounts.directory
            await directory.change_password(ann, PASSWORD, f"{PASSWORD} 2", address=ADDRESS)
            finish = oidc.finish(answer, browser_secret=begun.browser_secret, address=ADDRESS)
            assert await code_of(finish) == REFUSED
            assert await code_of(sign_in(world, oidc, openid, "thief")) == REFUSED
            await directory.change_password(ann, f"{PASSWORD} 2", PASSWORD, address=ADDRESS)
            ann = await world.who((await world.sign_in("ann")).access)
            assert await sign_in(world, oidc, openid, "own", link_to=ann)  # the control
            assert [each.subject for each in await directory.list_own_identities(ann)] == ["own"]

    in_world(sqlite_settings, go)


def test_an_identity_is_removed_by_its_user_or_an_owner(sqlite_settings, openid):
    async def go(world: World) -> None:
        directory = world.accounts.directory
        async with service(world, openid, creates_guests=False) as oidc:
            people = {}
            for name in ("ann", "bob"):
                await world.add(name)
                people[name] = await world.who((await world.sign_in(name)).access)
                assert await sign_in(world, oidc, openid, f"at-{name}", link_to=people[name])
            ann, bob = people.values()
            with pytest.raises(NotFound):
                await directory.remove_own_identity(bob, "at-ann")
            with pytest.raises(Denied):
                await directory.remove_own_identity(replace(ann, scopes=frozenset()), "at-ann")
            assert (await sign_in(world, oidc, openid, "at-ann")).user_id == ann.user_id
            await directory.remove_own_identity(ann, "at-ann")
            assert await directory.remove_identities(bob.user_id, by=ROOT) == 1
            for name in people:
                assert await code_of(sign_in(world, oidc, openid, f"at-{name}")) == REFUSED

    in_world(sqlite_settings, go)


def test_replayed_stolen_and_mixed_up_answers_are_refused(settings, openid):
    async def go(world: World) -> None:
        async with service(world, openid) as oidc:
            refused = []

            async def finish(answer: dict[str, str], secret: str) -> None:
                # An address for each: the limit of guesses is another test.
                address = f"198.51.100.{len(refused)}"
                refused.append(await code_of(
                    oidc.finish(answer, browser_secret=secret, address=address)
                ))  # fmt: skip

            begun = await oidc.begin(audience=AUDIENCE, address=ADDRESS)
            answer = openid.sign_in(begun.url, "ann")
            await finish(answer, "another browser")  # login CSRF; the state is used up by it
            await finish(answer, begun.browser_secret)
            begun = await oidc.begin(audience=AUDIENCE, address=ADDRESS)
            answer = openid.sign_in(begun.url, "ann")
            assert await oidc.finish(answer, browser_secret=begun.browser_secret, address=ADDRESS)
            await finish(answer, begun.browser_secret)  # replayed
            # A code that was used, or of another sign-in, under a fresh state.
            for code in (
                answer["code"],
                openid.sign_in((await oidc.begin(audience=AUDIENCE, address=ADDRESS)).url, "ann")[
                    "code"
                ],
            ):
                fresh = await oidc.begin(audience=AUDIENCE, address=ADDRESS)
                state = openid.sign_in(fresh.url, "ann")
                await finish({**state, "code": code}, fresh.browser_secret)
            for change in (
                {"iss": "https://evil.test"}, {"iss": ""}, {"code": ""}, {"code": "x" * 5000},
                {"error": "access_denied"}, {"state": ""}, {"state": "cwf_x"}, {"code": "guess"},
            ):  # fmt: skip
                begun = await oidc.begin(audience=AUDIENCE, address=ADDRESS)
                answer = openid.sign_in(begun.url, "ann")
                await finish({**answer, **change}, begun.browser_secret)
            begun = await oidc.begin(audience=AUDIENCE, address=ADDRESS)
            answer = openid.sign_in(begun.url, "ann")
            del answer["iss"]  # which the provider promises to send
            await finish(answer, begun.browser_secret)
            begun = await oidc.begin(audience=AUDIENCE, address=ADDRESS)
            answer = openid.sign_in(begun.url, "ann")
            world.clock.now_s += 600
            await finish(answer, begun.browser_secret)
            assert refused == [REFUSED] * 15

    in_world(settings, go)
    reasons = [each["body"].get("reason") for each in audit_records(kind=EventKind.SIGN_IN)]
    assert {"another browser", "unknown state", "an answer of another provider"} <= set(reasons)


def test_of_two_that_finish_at_once_one_signs_in_and_one_account_is_made(settings, openid):
    async def go(world: World) -> None:
        async with service(world, openid) as oidc:
            begun = await oidc.begin(audience=AUDIENCE, address=ADDRESS)
            answer = openid.sign_in(begun.url, "racer")
            call = lambda: oidc.finish(answer, browser_secret=begun.browser_secret, address=ADDRESS)  # noqa: E731
            found = await race([call] * 3)
            assert sum(not isinstance(each, Exception) for each in found) == 1
            # Two sign-ins of a new person at the same time.
            flows = [await oidc.begin(audience=AUDIENCE, address=ADDRESS) for _ in range(2)]
            calls = [
                lambda each=each, back=back: oidc.finish(
                    back, browser_secret=each.browser_secret, address="192.0.2.8"
                )
                for each, back in [(each, openid.sign_in(each.url, "new")) for each in flows]
            ]
            pairs = await race(calls)
            assert len({pair.user_id for pair in pairs}) == 1

    in_world(settings, go)


def test_keys_rotate_at_the_provider(sqlite_settings, openid):
    async def go(world: World) -> None:
        async with service(world, openid) as oidc:
            first = await sign_in(world, oidc, openid, "ann")
            openid.rotate_keys()
            world.clock.now_s += 29
            # Keys are not fetched again for each token with an unknown key.
            assert await code_of(sign_in(world, oidc, openid, "ann")) == REFUSED
            world.clock.now_s += 1
            assert (await sign_in(world, oidc, openid, "ann")).user_id == first.user_id

    in_world(sqlite_settings, go)


def test_a_public_client_and_another_algorithm(sqlite_settings, openid):
    async def go(world: World) -> None:
        public = {"client_id": "public", "client_secret": None}
        async with service(world, openid, provider=public) as oidc:
            assert await sign_in(world, oidc, openid, "ann")
        # ES256 is what this client gets, and not allowed here.
        async with service(world, openid, provider={**public, "algorithms": ("RS256",)}) as oidc:
            assert await code_of(sign_in(world, oidc, openid, "ann")) == REFUSED
        async with service(world, openid, provider={"client_secret": "wrong"}) as oidc:
            assert await code_of(sign_in(world, oidc, openid, "ann")) == REFUSED

    in_world(sqlite_settings, go)


def test_a_provider_that_is_not_trusted_or_not_there_is_an_error_without_detail(
    sqlite_settings, openid
):
    async def go(world: World) -> None:
        port = urlsplit(openid.issuer).port
        for provider in (
            {"ca_file": None},  # an unknown authority
            {"issuer": f"https://127.0.0.1:{port}"},  # another name than in its certificate
            {"issuer": f"{openid.issuer}/other"},
            {"issuer": f"{openid.issuer}/"},  # answers, and names itself otherwise
            {"issuer": "https://localhost:1"},
        ):
            async with service(world, openid, provider=provider) as oidc:
                with pytest.raises(Busy) as caught:
                    await oidc.begin(audience=AUDIENCE, address=ADDRESS)
                assert caught.value.code == "CW-SIGN-IN-PROVIDER"
                assert "localhost" not in str(caught.value)

    in_world(sqlite_settings, go)

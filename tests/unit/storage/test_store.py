"""What is stored comes back, and of two that race for one thing one gets it (SRV-4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from cellwall.core.accounts import (
    Budget,
    Charge,
    GuessLimit,
    LastOwner,
    Meter,
    NameTaken,
    OwnerExists,
    Rotation,
)
from cellwall.storage.store import Store, open_store
from databases import in_store
from unit.storage import records
from unit.storage.records import NOW_S

pytestmark = pytest.mark.requirement("SRV-4")
RACERS = 4


async def race(calls: list[Callable[[], Awaitable[Any]]]) -> list[Any]:
    """The results, or the exceptions, of calls that run at once."""
    results: list[Any] = [None] * len(calls)

    async def go(index: int) -> None:
        try:
            results[index] = await calls[index]()
        except Exception as error:
            results[index] = error

    async with anyio.create_task_group() as group:
        for index in range(len(calls)):
            group.start_soon(go, index)
    return results


def test_users_and_teams_come_back_as_they_were_stored(settings):
    ann, bob, blue = records.user("ann"), records.user("bob", password_hash=None), records.team()

    async def go(store: Store) -> None:
        for each in (bob, ann):
            await store.add_user(each)
        assert await store.find_user(ann.id) == ann
        assert await store.find_user_named("bob") == bob
        assert await store.find_user_named("Bob") is None
        assert await store.list_users() == (ann, bob)
        assert await store.list_users(after="ann", limit=1) == (bob,)
        await store.add_team(blue)
        assert await store.list_teams() == (blue,)
        await store.add_member(blue.id, ann.id)
        await store.add_member(blue.id, ann.id)
        assert await store.teams_of(ann.id) == {blue.id}
        with pytest.raises(KeyError):
            await store.add_member(blue.id, "usr_missing")
        assert await store.remove_member(blue.id, ann.id)
        assert not await store.remove_member(blue.id, ann.id)
        assert await store.teams_of(ann.id) == frozenset()
        with pytest.raises(LastOwner):  # there is none
            await store.set_role("usr_missing", "owner")
        assert await store.set_role(ann.id, "owner")
        assert not await store.set_role("usr_missing", "owner")
        assert await store.find_user(ann.id) == replace(ann, role="owner")

    in_store(settings, go)


def test_of_two_owners_that_are_removed_at_once_one_stays(settings):
    ann, bob = records.user("ann", role="owner"), records.user("bob", role="owner")

    async def go(store: Store) -> None:
        for each in (ann, bob):
            await store.add_user(each)
        found = await race(
            [
                partial(store.set_role, ann.id, "user"),
                partial(store.set_disabled, bob.id, is_disabled=True),
            ]
        )
        assert sorted(str(type(each)) for each in found) == sorted(map(str, (bool, LastOwner)))

    in_store(settings, go)


def test_a_restart_keeps_everything(settings):
    ann = records.user()
    run = records.session(ann.id)

    async def before(store: Store) -> None:
        await store.add_user(ann)
        await store.add_session(run, max_live=5)

    async def after(store: Store) -> None:
        assert await store.find_user(ann.id) == ann
        assert await store.find_session(run.id, user_id=ann.id, teams=frozenset()) == run

    in_store(settings, before)
    in_store(settings, after)


def test_of_many_users_with_one_name_one_is_added(settings):
    async def go(store: Store) -> None:
        found = await race([partial(store.add_user, records.user()) for _ in range(RACERS)])
        assert found.count(None) == 1
        assert sum(isinstance(each, NameTaken) for each in found) == RACERS - 1
        assert len(await store.list_users()) == 1

    in_store(settings, go)


@pytest.mark.requirement("SRV-2")
def test_a_refresh_token_used_twice_at_once_is_taken_by_one_and_ends_the_family(settings):
    ann = records.user()
    sign_in = records.family(ann.id)

    async def go(store: Store) -> None:
        await store.add_user(ann)
        assert await store.add_family(sign_in, token_hash=b"first", generation=1)
        before = await store.revision()
        calls = [
            lambda name=bytes([n]): store.rotate(b"first", successor=name, now_s=NOW_S)
            for n in range(RACERS)
        ]
        found = [status for status, *_ in await race(calls)]
        assert sorted(found) == sorted([Rotation.DONE] + [Rotation.REUSED] * (RACERS - 1))
        assert await store.revision() > before
        # The successor of the winner is dead as well.
        taken = [await store.rotate(bytes([n]), successor=b"x", now_s=NOW_S) for n in range(RACERS)]
        assert sorted(status for status, *_ in taken) == sorted(
            [Rotation.REVOKED] + [Rotation.UNKNOWN] * (RACERS - 1)
        )
        state = await store.access_state(user_id=ann.id, family_id=sign_in.id, jti="")
        assert state is not None
        assert not state.is_family_live

    in_store(settings, go)


@pytest.mark.requirement("SRV-2")
def test_refresh_tokens_form_a_chain_until_the_family_expires(settings):
    ann = records.user()
    sign_in = records.family(ann.id)

    async def go(store: Store) -> None:
        await store.add_user(ann)
        await store.add_family(sign_in, token_hash=b"1", generation=1)
        assert await store.rotate(b"0", successor=b"x", now_s=NOW_S) == (
            Rotation.UNKNOWN,
            None,
            b"",
        )
        assert await store.rotate(b"1", successor=b"2", now_s=NOW_S) == (
            Rotation.DONE,
            sign_in,
            b"",
        )
        assert await store.rotate(b"2", successor=b"3", now_s=NOW_S) == (
            Rotation.DONE,
            sign_in,
            b"",
        )
        late_s = sign_in.expires_s
        assert (await store.rotate(b"3", successor=b"4", now_s=late_s))[0] is Rotation.EXPIRED
        assert await store.purge(now_s=late_s) == 1
        assert (await store.rotate(b"1", successor=b"x", now_s=late_s))[0] is Rotation.UNKNOWN

    in_store(settings, go)


@pytest.mark.requirement("SRV-2")
@pytest.mark.parametrize("how", ["user", "everybody", "password", "disabled"])
def test_what_ends_all_tokens_also_stops_a_sign_in_that_is_under_way(settings, how):
    ann, bob = records.user("ann"), records.user("bob", role="owner")
    sign_in, other = records.family(ann.id), records.family(bob.id)

    async def go(store: Store) -> None:
        for each in (ann, bob):
            await store.add_user(each)
        await store.add_family(sign_in, token_hash=b"1", generation=1)
        await store.add_family(other, token_hash=b"2", generation=1)
        await store.add_service_token(records.token(ann.id), generation=1)
        before = await store.revision()
        match how:
            case "user":
                assert await store.revoke_user(ann.id)
            case "everybody":
                await store.revoke_everybody()
            case "password":
                assert await store.set_password(ann.id, "new")
            case "disabled":
                assert await store.set_disabled(ann.id, is_disabled=True)
        assert await store.revision() > before
        assert (await store.rotate(b"1", successor=b"3", now_s=NOW_S))[0] is Rotation.REVOKED
        left = (await store.rotate(b"2", successor=b"4", now_s=NOW_S))[0]
        assert left is (Rotation.REVOKED if how == "everybody" else Rotation.DONE)
        found = await store.find_service_token(b"t")
        assert found is not None
        assert found[0].is_revoked
        late = records.family(ann.id)
        assert not await store.add_family(late, token_hash=b"5", generation=1)
        assert not await store.add_service_token(records.token(ann.id, b"u"), generation=1)
        state = await store.access_state(user_id=ann.id, family_id=sign_in.id, jti="")
        assert state is not None
        assert (state.user.generation, state.generation) == (2, 2 if how == "everybody" else 1)
        assert state.user.is_disabled == (how == "disabled")

    in_store(settings, go)


def test_renewing_a_hash_keeps_the_tokens_and_loses_against_a_new_password(settings):
    ann = records.user(password_hash="old")

    async def go(store: Store) -> None:
        await store.add_user(ann)
        assert await store.set_password(ann.id, "renewed", replaces="old")
        assert not await store.set_password(ann.id, "again", replaces="old")
        assert await store.find_user(ann.id) == replace(ann, password_hash="renewed")

    in_store(settings, go)


def test_service_tokens_are_found_by_their_hash_and_ended_by_their_owner(settings):
    ann, bob = records.user("ann"), records.user("bob")
    mine = records.token(ann.id, b"1", scopes=("files:read", "network:use"))

    async def go(store: Store) -> None:
        for each in (ann, bob):
            await store.add_user(each)
        assert await store.add_service_token(mine, generation=1)
        found = await store.find_service_token(b"1")
        assert found is not None
        assert found[0] == mine
        assert await store.find_service_token(b"2") is None
        assert not await store.revoke_service_token(mine.id, user_id=bob.id)
        assert await store.revoke_service_token(mine.id, user_id=ann.id)
        assert not await store.revoke_service_token(mine.id, user_id=ann.id)
        assert await store.list_service_tokens(ann.id) == (replace(mine, is_revoked=True),)
        assert await store.list_service_tokens(bob.id) == ()

    in_store(settings, go)


def test_a_removed_user_takes_tokens_and_sessions_along_and_the_last_owner_stays(settings):
    ann, bob = records.user("ann", role="owner"), records.user("bob")
    token = records.token(bob.id, b"1")

    async def go(store: Store) -> None:
        for each in (ann, bob):
            await store.add_user(each)
        assert await store.add_service_token(token, generation=1)
        assert await store.add_session(records.session(bob.id), max_live=1)
        before = await store.revision()
        assert await store.remove_user(bob.id)
        assert await store.revision() > before
        assert not await store.remove_user(bob.id)
        assert await store.find_service_token(b"1") is None
        with pytest.raises(LastOwner):
            await store.remove_user(ann.id)
        assert await store.list_users() == (ann,)

    in_store(settings, go)


def test_of_two_owners_that_are_deleted_at_once_one_stays(settings):
    owners = [records.user(name, role="owner") for name in ("ann", "bob")]

    async def go(store: Store) -> None:
        for each in owners:
            await store.add_user(each)
        results = await race([partial(store.remove_user, each.id) for each in owners])
        assert sorted(map(type, results), key=str) == [bool, LastOwner]
        assert len(await store.list_users()) == 1

    in_store(settings, go)


def test_an_operator_ends_a_token_of_any_user(settings):
    ann = records.user("ann")
    token = records.token(ann.id, b"1")

    async def go(store: Store) -> None:
        await store.add_user(ann)
        assert await store.add_service_token(token, generation=1)
        assert await store.revoke_service_token(token.id, user_id=None)
        assert not await store.revoke_service_token(token.id, user_id=None)

    in_store(settings, go)


def test_a_revoked_access_token_is_known_until_it_expires(settings):
    ann = records.user()

    async def go(store: Store) -> None:
        await store.add_user(ann)

        async def is_revoked() -> bool:
            state = await store.access_state(user_id=ann.id, family_id="", jti="jti_1")
            assert state is not None
            return state.is_token_revoked

        assert not await is_revoked()
        await store.revoke_token("jti_1", until_s=NOW_S + 10)
        await store.revoke_token("jti_1", until_s=NOW_S + 10)
        await store.purge(now_s=NOW_S)
        assert await is_revoked()
        await store.purge(now_s=NOW_S + 10)
        assert not await is_revoked()
        assert await store.access_state(user_id="usr_missing", family_id="", jti="") is None

    in_store(settings, go)


def test_a_new_signing_key_limits_how_long_the_others_verify(settings):
    first, second = records.signing_key(), records.signing_key(created_s=NOW_S + 1)

    async def go(store: Store) -> None:
        await store.add_signing_key(first, others_until_s=NOW_S + 600)
        assert await store.signing_keys() == (first,)
        await store.add_signing_key(second, others_until_s=NOW_S + 600)
        assert await store.signing_keys() == (
            second,
            replace(first, verify_until_s=NOW_S + 600),
        )
        await store.purge(now_s=NOW_S + 600)
        assert await store.signing_keys() == (second,)

    in_store(settings, go)


@pytest.mark.requirement("SRV-2")
def test_of_many_who_open_the_link_of_the_first_owner_one_becomes_it(settings):
    async def go(store: Store) -> None:
        await store.add_link(records.link(b"old"))
        await store.add_link(records.link(b"new"))
        people = [records.user(f"user{n}", role="owner") for n in range(RACERS)]

        def opened(link_hash: bytes, who) -> Callable[[], Awaitable[Any]]:
            return lambda: store.use_link(
                link_hash, password_hash="h", now_s=NOW_S, first_owner=who
            )

        assert await opened(b"old", people[0])() is None
        found = await race([opened(b"new", who) for who in people])
        assert found.count(None) == RACERS - 1
        (only,) = await store.list_users()
        assert only.id in found
        await store.add_link(records.link(b"again"))
        with pytest.raises(OwnerExists):
            await opened(b"again", records.user("late"))()

    in_store(settings, go)


def test_the_link_of_a_user_sets_the_password_once_and_ends_the_tokens(settings):
    ann = records.user(password_hash=None)

    async def go(store: Store) -> None:
        await store.add_user(ann)
        await store.add_family(records.family(ann.id), token_hash=b"1", generation=1)
        await store.add_link(records.link(b"l", ann.id))

        async def use(now_s: float) -> str | None:
            return await store.use_link(b"l", password_hash="set", now_s=now_s, first_owner=None)

        assert await use(NOW_S + 100) is None  # expired
        assert await use(NOW_S) == ann.id
        assert await use(NOW_S) is None
        assert await store.find_user(ann.id) == replace(ann, password_hash="set", generation=2)
        assert (await store.rotate(b"1", successor=b"2", now_s=NOW_S))[0] is Rotation.REVOKED

    in_store(settings, go)


LIMIT = GuessLimit(free=3, first_delay_s=1.0, max_delay_s=8.0, forget_s=100.0)


@pytest.mark.requirement("RBAC-4")
def test_guesses_at_once_cannot_exceed_the_limit(settings):
    async def go(store: Store) -> None:
        calls = [
            lambda: store.begin_attempt([("a", LIMIT), ("b", LIMIT)], now_s=NOW_S) for _ in range(8)
        ]
        found = await race(calls)
        # Three have no consequence; the fourth is allowed and blocks those after it.
        assert sorted(found) == [0.0] * 4 + [NOW_S + 1.0] * 4

    in_store(settings, go)


@pytest.mark.requirement("RBAC-4")
def test_each_further_failure_doubles_the_wait_up_to_a_limit_and_success_ends_it(settings):
    async def go(store: Store) -> None:
        async def failures(count: int, now_s: float) -> float:
            for _ in range(count):
                assert await store.begin_attempt([("a", LIMIT)], now_s=now_s) == 0.0
            return await store.begin_attempt([("a", LIMIT)], now_s=now_s)

        now_s, waits = NOW_S, []
        blocked_s = await failures(4, now_s)
        for _ in range(5):
            waits.append(blocked_s - now_s)
            now_s = blocked_s
            blocked_s = await failures(1, now_s)
        assert waits == [1.0, 2.0, 4.0, 8.0, 8.0]
        # Nothing is counted while blocked.
        assert await store.begin_attempt([("a", LIMIT)], now_s=now_s) == blocked_s
        await store.forgive_attempt(["a"])
        assert await store.begin_attempt([("a", LIMIT)], now_s=now_s) == 0.0
        await store.clear_attempts(["a"])
        assert await failures(4, now_s) == now_s + 1.0
        # After a quiet time the count begins again.
        assert await failures(4, now_s + 102.0) == now_s + 103.0

    in_store(settings, go)


@pytest.mark.requirement("RBAC-3")
def test_sessions_of_others_are_absent_unless_a_team_shares_them(settings):
    ann, bob, blue = records.user("ann"), records.user("bob"), records.team()
    none: frozenset[str] = frozenset()

    async def go(store: Store) -> None:
        for each in (ann, bob):
            await store.add_user(each)
        await store.add_team(blue)
        own, shared = records.session(ann.id), records.session(ann.id, blue.id)
        for each in (own, shared):
            assert await store.add_session(each, max_live=2)
        assert not await store.add_session(records.session(ann.id), max_live=2)
        assert await store.find_session(own.id, user_id=ann.id, teams=none) == own
        assert await store.find_session(own.id, user_id=bob.id, teams=none) is None
        assert await store.find_session(shared.id, user_id=bob.id, teams=none) is None
        teams = frozenset({blue.id})
        assert await store.find_session(shared.id, user_id=bob.id, teams=teams) == shared
        assert await store.find_session(own.id, user_id=bob.id, teams=teams) is None
        assert await store.list_sessions(user_id=bob.id, teams=teams) == (shared,)
        listed = await store.list_sessions(user_id=ann.id, teams=none)
        assert listed == tuple(sorted((own, shared), key=lambda each: each.id))
        page = await store.list_sessions(user_id=ann.id, teams=none, after=listed[0].id, limit=1)
        assert page == listed[1:]
        named = {"user_id": ann.id, "teams": none, "among": (own.id, "sbx_gone")}
        assert await store.list_sessions(**named) == (own,)
        assert await store.list_sessions(**{**named, "user_id": bob.id}) == ()
        assert await store.list_sessions(**{**named, "among": ()}) == ()
        assert await store.end_session(own.id, now_s=NOW_S + 1)
        assert not await store.end_session(own.id, now_s=NOW_S + 2)
        found = await store.find_session(own.id, user_id=ann.id, teams=none)
        assert found == replace(own, ended_s=NOW_S + 1)
        assert await store.add_session(records.session(ann.id), max_live=2)
        assert await store.end_all_sessions(now_s=NOW_S + 3) == 2

    in_store(settings, go)


def test_sessions_that_ended_long_ago_are_forgotten_and_live_ones_stay(settings):
    ann = records.user("ann")
    old, recent, live = (records.session(ann.id) for _ in range(3))

    async def go(store: Store) -> None:
        await store.add_user(ann)
        for each in (old, recent, live):
            assert await store.add_session(each, max_live=3)
        assert await store.end_session(old.id, now_s=NOW_S + 1)
        assert await store.end_session(recent.id, now_s=NOW_S + 5)
        assert await store.forget_sessions(ended_before_s=NOW_S + 1) == 0
        assert await store.forget_sessions(ended_before_s=NOW_S + 5) == 1
        found = await store.list_sessions(user_id=ann.id, teams=frozenset())
        assert {each.id for each in found} == {recent.id, live.id}

    in_store(settings, go)


def test_a_start_ends_what_its_own_service_and_the_dead_have_left_and_no_other(settings):
    ann = records.user("ann")
    names = []

    async def go(store: Store) -> None:
        await store.add_user(ann)
        for number in range(3):  # three services, as of three state folders
            Path(settings.home, "service-id").unlink(missing_ok=True)
            async with open_store(settings) as other:
                await other.note_service(now_s=NOW_S + number)
                names.append(other.service_id)
                own = records.session(ann.id), records.approval(ann.id)
                assert await other.add_session(own[0], max_live=9)
                assert await other.add_approval(own[1])
                made.append(own)
        async with open_store(settings) as last:
            assert last.service_id == names[2] != names[1]
            assert await last.count_other_services(seen_since_s=NOW_S) == 2
            assert await last.count_other_services(seen_since_s=NOW_S + 1) == 1
            await last.end_all_sessions(now_s=NOW_S + 5)
            await last.end_all_approvals(answer="restarted", now_s=NOW_S + 5)
            assert await live(last) == [True, True, False]
            end = partial(last.end_for_unseen_services, answer="restarted", now_s=NOW_S + 6)
            assert await end(unseen_since_s=NOW_S + 1) == 2  # a session and a question
            assert await live(last) == [False, True, False]
            assert await end(unseen_since_s=NOW_S + 1) == 0
            await last.forget_service()
            assert await last.count_other_services(seen_since_s=NOW_S) == 2

    async def live(store: Store) -> list[bool]:
        found = []
        for session, approval in made:
            one = await store.find_session(session.id, user_id=ann.id, teams=frozenset())
            two = await store.find_approval(approval.id, seen_by=records.viewer(ann.id))
            assert one is not None
            assert two is not None
            assert (one.ended_s is None) == (two.answered_s is None)
            found.append(one.ended_s is None)
        return found

    made: list[tuple[Any, Any]] = []
    in_store(settings, go)


def test_the_limit_of_live_sessions_holds_for_many_at_once(settings):
    ann = records.user()

    async def go(store: Store) -> None:
        await store.add_user(ann)
        calls = [
            partial(store.add_session, records.session(ann.id), max_live=2) for _ in range(RACERS)
        ]
        assert sorted(await race(calls)) == [False] * 2 + [True] * 2

    in_store(settings, go)


@pytest.mark.requirement("SRV-4")
def test_a_question_ends_once_and_open_ones_end_with_a_restart(settings):
    ann = records.user("ann")

    async def go(store: Store) -> None:
        await store.add_user(ann)
        first, second = records.approval(ann.id), records.approval(ann.id)
        for each in (first, second):
            assert await store.add_approval(each)
        assert not await store.add_approval(records.approval("usr_gone"))
        end = partial(store.end_approval, first.id, answer="once", answered_by=ann.id, now_s=NOW_S)
        assert sorted(await race([end] * RACERS)) == [False] * (RACERS - 1) + [True]
        assert await store.end_all_approvals(answer="restarted", now_s=NOW_S + 9) == 1
        assert await store.end_all_approvals(answer="restarted", now_s=NOW_S + 10) == 0
        seen_by = records.viewer(ann.id)
        ended = replace(first, answer="once", answered_by=ann.id, answered_s=NOW_S)
        lost = replace(second, answer="restarted", answered_s=NOW_S + 9)
        assert await store.find_approval(first.id, seen_by=seen_by) == ended
        assert await store.find_approval(second.id, seen_by=seen_by) == lost
        await store.purge(now_s=NOW_S + 29 * 86_400)
        assert len(await store.list_ended_approvals(seen_by=seen_by)) == 2
        await store.purge(now_s=NOW_S + 31 * 86_400)
        assert await store.list_ended_approvals(seen_by=seen_by) == ()

    in_store(settings, go)


@pytest.mark.requirement("SRV-4", "RBAC-3")
def test_ended_questions_are_shown_to_the_asker_the_team_and_who_sees_all(settings):
    ann, bob = records.user("ann"), records.user("bob")
    blue = records.team("blue")

    async def go(store: Store) -> None:
        for each in (ann, bob):
            await store.add_user(each)
        await store.add_team(blue)
        shared = records.session(ann.id, blue.id)
        assert await store.add_session(shared, max_live=9)
        times = [NOW_S, NOW_S, NOW_S + 1, NOW_S + 2]
        own = [records.approval(ann.id, asked_s=at, expires_s=at + 9) for at in times]
        in_team = records.approval(ann.id, session_id=shared.id)
        for each in (*own, in_team):
            await store.add_approval(each)
        anns, bobs = records.viewer(ann.id), records.viewer(bob.id)
        assert await store.list_ended_approvals(seen_by=anns) == ()  # open ones are not listed
        await store.end_all_approvals(answer="restarted", now_s=NOW_S)
        seen, before = [], ""
        while page := await store.list_ended_approvals(seen_by=anns, before=before, limit=2):
            seen += [each.id for each in page]
            before = page[-1].id
        newest = sorted([*own, in_team], key=lambda each: (each.asked_s, each.id), reverse=True)
        assert seen == [each.id for each in newest]
        assert await store.list_ended_approvals(seen_by=bobs) == ()
        assert await store.find_approval(own[0].id, seen_by=bobs) is None
        member = records.viewer(bob.id, blue.id)
        assert [each.id for each in await store.list_ended_approvals(seen_by=member)] == [
            in_team.id
        ]
        # A cursor tells nothing about foreign ids.
        for cursor in (own[3].id, "apr_unknown"):
            assert await store.list_ended_approvals(seen_by=member, before=cursor) == ()
        everything = records.viewer(bob.id, sees_all=True)
        assert len(await store.list_ended_approvals(seen_by=everything)) == 5

    in_store(settings, go)


@pytest.mark.requirement("RBAC-4")
def test_a_budget_is_never_exceeded_and_a_refused_charge_counts_nowhere(settings):
    runs, cpu = Meter("user", "usr_1", "runs"), Meter("user", "usr_1", "cpu_s")
    budget = Budget(meter=runs, limit=3.0, period_s=3600.0)
    one = Charge(budget=budget, amount=1.0, period_start_s=NOW_S)
    other = Charge(budget=replace(budget, meter=cpu, limit=9.0), amount=0.5, period_start_s=NOW_S)

    async def go(store: Store) -> None:
        before = await store.revision()
        await store.set_budget(replace(budget, limit=1.0))
        await store.set_budget(budget)
        assert await store.revision() > before  # every process forgets the old one
        assert await store.budgets([runs, cpu]) == (budget,)
        assert await store.budgets([]) == ()
        found = await race([lambda: store.reserve([other, one]) for _ in range(RACERS)])
        assert found.count(None) == 3
        assert found.count(one) == RACERS - 3
        assert await store.usage(runs, period_start_s=NOW_S) == 3.0
        assert await store.usage(cpu, period_start_s=NOW_S) == 1.5
        assert await store.usage(runs, period_start_s=NOW_S + 3600) == 0.0
        assert await store.reserve([replace(one, period_start_s=NOW_S + 3600)]) is None
        for odd in (-1.0, float("nan"), float("inf")):
            with pytest.raises(ValueError):
                await store.reserve([replace(one, amount=odd)])
        assert await store.remove_budget(runs)
        assert not await store.remove_budget(runs)

    in_store(settings, go)


@pytest.mark.requirement("RBAC-4")
def test_what_was_used_is_settled_and_may_exceed_the_budget_which_then_is_used_up(settings):
    cpu = Meter("team", "team_1", "cpu_s")
    nothing = Charge(
        budget=Budget(meter=cpu, limit=1.0, period_s=60.0), amount=0.0, period_start_s=NOW_S
    )

    async def go(store: Store) -> None:
        assert await store.reserve([nothing]) is None
        assert await store.reserve([nothing]) is None  # under way at once
        await race([lambda: store.settle([replace(nothing, amount=0.75)]) for _ in range(2)])
        assert await store.usage(cpu, period_start_s=NOW_S) == 1.5
        assert await store.reserve([nothing]) == nothing
        await store.settle([replace(nothing, amount=-1.0)])
        assert await store.reserve([nothing]) is None
        await store.settle([replace(nothing, amount=-9.0)])  # never below zero
        assert await store.usage(cpu, period_start_s=NOW_S) == 0.0

    in_store(settings, go)


def test_another_connection_sees_a_revocation_at_once(settings):
    ann = records.user()

    async def go(store: Store) -> None:
        await store.add_user(ann)
        async with open_store(settings) as other:
            before = await other.revision()
            await store.revoke_user(ann.id)
            assert await other.revision() == before + 1

    in_store(settings, go)

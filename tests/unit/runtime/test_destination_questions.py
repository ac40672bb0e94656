"""Questions about unknown destinations: shared, bounded, withdrawn with their action (NET-9)."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from cellwall.core.errors import EgressRefused
from cellwall.core.network import EgressContext
from cellwall.core.outcomes import Outcome, Status
from cellwall.core.types import Action, Principal, ReachHost, RunCommand
from cellwall.runtime.destination_questions import (
    MAX_CONNECTIONS,
    MAX_QUESTIONS,
    DestinationQuestions,
)

pytestmark = pytest.mark.requirement("NET-9")

RUN = Action(
    principal=Principal("ann", "sdk"), operation=RunCommand(("true",)), asks_destinations=True
)
CONTEXT = EgressContext(action_id=RUN.id, principal="ann", interface="sdk")


class Person:
    """Performs the action of each question; a yes waits until it is given."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.says_yes = asyncio.Event()

    async def perform(self, action: Action) -> Outcome:
        assert isinstance(action.operation, ReachHost)
        self.asked.append(action.operation.destination)
        await self.says_yes.wait()
        return Outcome(status=Status.OK, action_id=action.id)


async def deny(action: Action) -> Outcome:
    return Outcome(status=Status.DENIED, action_id=action.id)


withdrawn_ids: list[str] = []


def withdraw(action_id: str) -> Future[None]:
    withdrawn_ids.append(action_id)
    done: Future[None] = Future()
    done.set_result(None)
    return done


def reach(questions: DestinationQuestions, host: str = "a.example") -> Any:
    asking = questions.ask(CONTEXT, host=host, port=443, method="CONNECT", withdraw=withdraw)
    return asyncio.create_task(asking)


async def reasons(tasks: list[Any]) -> list[str]:
    found = await asyncio.gather(*tasks, return_exceptions=True)
    return [each.message if isinstance(each, EgressRefused) else repr(each) for each in found]


def test_connections_share_a_question_and_those_over_the_bound_are_refused_at_once():
    async def go() -> None:
        questions, person = DestinationQuestions(60.0), Person()
        async with questions.open(RUN, person.perform):
            tasks = [reach(questions) for _ in range(MAX_CONNECTIONS)]
            await asyncio.sleep(0)
            (over,) = await reasons([reach(questions)])
            assert over.endswith("too many connections wait for a person's answer")
            person.says_yes.set()
            assert await reasons(tasks) == ["None"] * MAX_CONNECTIONS
            assert await reasons([reach(questions)]) == ["None"]
            withdrawn_ids.clear()
        assert person.asked == ["a.example:443"]
        assert withdrawn_ids == [RUN.id]  # once, however many connections there were

    asyncio.run(go())


def test_denials_are_counted_and_not_asked_again():
    async def go() -> None:
        questions = DestinationQuestions(60.0)
        async with questions.open(RUN, deny):
            hosts = [f"{number}.example" for number in range(MAX_QUESTIONS)]
            for host in (*hosts, *hosts):
                (why,) = await reasons([reach(questions, host)])
                assert why.endswith("no person has allowed it")
            (why,) = await reasons([reach(questions, "one-more.example")])
            assert why.endswith("this session has asked about too many destinations")

    asyncio.run(go())


def test_without_an_action_or_an_answer_in_time_it_is_refused():
    async def go() -> None:
        questions, person = DestinationQuestions(-4.9), Person()  # 0.1 s with the margin
        (before,) = await reasons([reach(questions)])
        assert before.endswith("no action is under way for which a person could be asked")
        async with questions.open(RUN, person.perform):
            (late,) = await reasons([reach(questions)])
            assert late.endswith("no person answered in time")
            waiting = reach(questions, "b.example")
            await asyncio.sleep(0)
        assert (await reasons([waiting]))[0].endswith(("the action has ended", "allowed it"))
        (after,) = await reasons([reach(questions)])
        assert after == before

    asyncio.run(go())

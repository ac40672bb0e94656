"""The board: answers of users of the service, each once and within the role (POL-8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from cellwall.core.approvals import Answer, AnswerKind, Question
from cellwall.core.errors import BadInput, CellwallError, Denied
from cellwall.core.types import Permission, Principal
from cellwall.runtime.approval_board import VIA, ApprovalBoard
from cellwall.runtime.approvals import ApprovalBroker, CallbackApprover
from unit.runtime.questions_for_tests import ME, broker_for, question_for, said

BOSS = Principal("boss", "http", "administrator")
MEMBER = Principal("member", "http", "user")


class NothingKept:
    def opened(self, question: Question) -> None: ...

    def ended(self, question: Question, final: Answer | None) -> None: ...


def given(kind: AnswerKind = AnswerKind.ONCE, by: Principal = BOSS) -> Answer:
    return Answer(kind=kind, by=by, via=VIA)


def ask_with(
    broker: ApprovalBroker,
    question: Question,
    answer: Callable[[ApprovalBoard], Awaitable[None]],
    near: CallbackApprover | None = None,
) -> Answer:
    found: list[Answer] = []

    async def run() -> None:
        async def ask() -> None:
            found.append(await broker.ask(question, near=near))

        with broker.board.served(NothingKept()), anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask)
                while not broker.board.waiting() and not found:
                    await anyio.lowlevel.checkpoint()
                await answer(broker.board)

    anyio.run(run)
    return found[0]


@pytest.mark.requirement("POL-8")
def test_an_answer_counts_as_far_as_the_role_of_its_giver_permits() -> None:
    narrow = Principal("boss", "http", "administrator", frozenset({Permission.FILES_READ}))
    for by, kind in ((BOSS, AnswerKind.ONCE), (MEMBER, AnswerKind.DENY), (narrow, AnswerKind.DENY)):
        assert answered_by(by).kind is kind


def answered_by(by: Principal) -> Answer:
    """The answer that counts; the one who gave it is told the same."""
    question, told = question_for(), []

    async def answer(board: ApprovalBoard) -> None:
        told.append(await board.answer(question.id, given(by=by)))

    found = ask_with(broker_for(channels=("http", "callback")), question, answer)
    assert [each.kind for each in told] == [found.kind]
    return found


@pytest.mark.requirement("POL-8")
def test_a_second_answer_is_refused_and_none_is_taken_after_the_end() -> None:
    question, refused = question_for(), []

    async def answer(board: ApprovalBoard) -> None:
        async def once(kind: AnswerKind) -> None:
            try:
                await board.answer(question.id, given(kind))
            except BadInput as error:
                refused.append(error.code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(once, AnswerKind.ONCE)
            tasks.start_soon(once, AnswerKind.DENY)
        with pytest.raises(BadInput):
            await board.answer(question.id, given())

    ask_with(broker_for(channels=("http", "callback")), question, answer)
    assert refused == ["CW-APPROVAL-TAKEN"]


@pytest.mark.requirement("POL-8")
def test_an_answer_of_another_channel_that_was_first_counts_alone() -> None:
    question, said_before = question_for(), []

    async def say(_: Question) -> Answer:
        said_before.append(said(AnswerKind.ONCE))
        return said_before[0]

    async def answer(board: ApprovalBoard) -> None:
        while not said_before:
            await anyio.lowlevel.checkpoint()
        with pytest.raises(CellwallError) as late:
            await board.answer(question.id, given(AnswerKind.DENY))
        assert late.value.code in {"CW-APPROVAL-TAKEN", "CW-NO-QUESTION"}

    near = CallbackApprover(say)
    counted = ask_with(broker_for(channels=("http", "callback")), question, answer, near)
    assert (counted.kind, counted.by) == (AnswerKind.ONCE, ME)


@pytest.mark.requirement("POL-8")
def test_without_a_service_no_question_waits_here() -> None:
    broker = broker_for(channels=("http", "callback"))

    async def run() -> Answer:
        return await broker.ask(question_for())

    assert anyio.run(run).reason == "no person could be asked"


def test_where_an_approver_has_a_key_only_a_denial_is_taken() -> None:
    board, question = ApprovalBoard(), question_for()
    with board.served(NothingKept()), board.posted(question, needs_signature=True) as posted:
        with pytest.raises(Denied):
            board._claim(question.id, given())
        assert posted is not None
        assert board._claim(question.id, given(AnswerKind.DENY)) is posted

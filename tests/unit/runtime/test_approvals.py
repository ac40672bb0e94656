"""The broker: no answer is a no, the first answer counts, and each is on record (POL-8)."""

from __future__ import annotations

import hashlib
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from cellwall.accounts.roles import Roles
from cellwall.core.approvals import Answer, AnswerKind, Question
from cellwall.core.errors import AuditFailed, CellwallError
from cellwall.core.outcomes import EventKind
from cellwall.core.types import Principal
from cellwall.core.verdict import Verdict
from cellwall.runtime import approvals
from cellwall.runtime.approval_queue import ApprovalQueue
from cellwall.runtime.approvals import ApprovalBroker, CallbackApprover, decision_after_answer
from cellwall.runtime.home import local_principal
from unit.runtime.questions_for_tests import (
    ASK,
    ME,
    SESSION,
    Record,
    broker_for,
    question_for,
    said,
)

ONCE, FOR_SESSION, RULE, DENY = (
    AnswerKind.ONCE,
    AnswerKind.SESSION,
    AnswerKind.RULE,
    AnswerKind.DENY,
)
PUSH = "Bash(git push)"


def ask(
    broker: ApprovalBroker, question: Question, function: Callable[[Question], object] | None = None
) -> Answer:
    near = None if function is None else CallbackApprover(function)  # type: ignore[arg-type]  # also wrong ones

    async def run() -> Answer:
        return await broker.ask(question, near=near)

    return anyio.run(run)


def always(kind: AnswerKind, rule: str = "", by: Principal = ME) -> Callable[[Question], Answer]:
    return lambda _: said(kind, rule, by)


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize("kind", [ONCE, DENY])
def test_an_answer_is_recorded_with_who_how_and_what_they_saw(kind: AnswerKind) -> None:
    record, question = Record(), question_for("git", "push", session_id=SESSION)
    answer = ask(broker_for(record=record), question, always(kind))
    assert (answer.kind, answer.by, answer.via) == (kind, ME, "callback")
    (event,) = record.events
    assert (event.kind, event.action_id, event.session_id) == (
        EventKind.APPROVAL, question.action_id, SESSION,
    )  # fmt: skip
    assert (event.principal, event.interface) == ("agent", "sdk")
    body = event.body
    assert (body["question"], body["verdict"], body["answer"], body["by"], body["via"]) == (
        question.id, "allow" if kind is ONCE else "deny", kind.value, "me", "callback",
    )  # fmt: skip
    shown = body["shown"]
    assert isinstance(shown, list)
    assert "".join(f"{line}\n" for line in shown) == question.shown
    assert body["shown_sha256"] == hashlib.sha256(question.shown.encode()).hexdigest()


@pytest.mark.requirement("POL-8")
def test_no_answer_in_time_is_a_no(state_home: str) -> None:
    record = Record()
    broker = broker_for(state_home, record=record, timeout_s=0.2)
    answer = ask(broker, question_for(timeout_s=0.2))
    assert (answer.kind, answer.reason) == (DENY, "no answer within 0.2 s")
    assert record.told() == [("deny", "deny", "nobody", "nobody", "answered")]


@pytest.mark.requirement("POL-8")
def test_a_channel_that_never_ends_does_not_hold_anything_up() -> None:
    async def for_ever(_: Question) -> Answer:
        await anyio.sleep_forever()
        raise AssertionError

    answer = ask(broker_for(timeout_s=0.2), question_for(timeout_s=0.2), for_ever)
    assert answer.reason == "no answer within 0.2 s"
    blocked = threading.Event()
    answer = ask(broker_for(timeout_s=0.2), question_for(timeout_s=0.2), lambda _: blocked.wait(20))
    assert answer.reason == "no answer within 0.2 s"
    blocked.set()


@pytest.mark.requirement("OBS-1")
def test_a_question_is_counted_as_waiting_until_its_answer_or_until_its_caller_is_gone() -> None:
    broker = broker_for()
    seen: list[int] = []

    def count(_: Question) -> Answer:
        seen.append(broker.waiting_count)
        return said(ONCE, "", ME)

    ask(broker, question_for(), count)
    assert (seen, broker.waiting_count) == ([1], 0)

    async def leave() -> None:
        with anyio.CancelScope() as scope:

            async def cancel(_: Question) -> Answer:
                seen.append(broker.waiting_count)
                scope.cancel()
                await anyio.sleep_forever()
                raise AssertionError

            await broker.ask(question_for(), near=CallbackApprover(cancel))

    anyio.run(leave)
    assert (seen, broker.waiting_count) == ([1, 1], 0)


@pytest.mark.requirement("POL-8")
def test_nobody_to_ask_is_a_no_at_once() -> None:
    for broker in (broker_for(), broker_for(channels=())):
        assert ask(broker, question_for()).reason == "no person could be asked"
    answer = ask(broker_for(channels=("queue",)), question_for(), always(ONCE))
    assert answer.reason == "no person could be asked"


def broken(_: Question) -> Answer:
    raise ZeroDivisionError("/etc/secret")


def refusing(_: Question) -> Answer:
    raise CellwallError("nobody is at a terminal")


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize(
    ("function", "told"),
    [
        (broken, "it failed (ZeroDivisionError)"),
        (refusing, "nobody is at a terminal"),
        (lambda _: None, "the channel gave no answer"),
        (lambda _: True, "the channel gave no answer"),
        (lambda _: "allow", "the channel gave no answer"),
    ],
)
def test_a_broken_channel_is_a_no_with_its_reason(
    function: Callable[[Question], object], told: str
) -> None:
    answer = ask(broker_for(), question_for(), function)
    assert (answer.kind, answer.reason) == (DENY, f"no person could be asked (callback: {told})")


@pytest.mark.parametrize(
    "answer", [said(FOR_SESSION), said(RULE, "Bash(*)"), said(RULE), said(ONCE, PUSH)]
)
def test_an_answer_that_was_not_offered_is_a_no(answer: Answer) -> None:
    found = ask(broker_for(), question_for("git", "push"), lambda _: answer)
    assert (found.kind, found.reason) == (DENY, "the answer was not among those offered")


@pytest.mark.requirement("POL-8")
def test_another_process_can_answer_while_the_near_channel_waits(state_home: str) -> None:
    question, queue = question_for(), ApprovalQueue(state_home)

    async def near(_: Question) -> Answer:
        await anyio.to_thread.run_sync(queue.answer, question, said(ONCE))
        await anyio.sleep_forever()
        raise AssertionError

    assert ask(broker_for(state_home), question, near) == said(ONCE, by=local_principal("cli"))


@pytest.mark.requirement("POL-8")
def test_the_queue_is_there_before_the_near_channel_is_asked_and_gone_after(
    state_home: str,
) -> None:
    question, queue = question_for(), ApprovalQueue(state_home)
    seen: list[str] = []

    def near(_: Question) -> Answer:
        seen.extend(each.id for each in queue.list_waiting())
        return said(ONCE)

    assert ask(broker_for(state_home), question, near).via == "callback"
    assert seen == [question.id]
    with pytest.raises(CellwallError) as refused:
        queue.answer(question, said(DENY))
    assert refused.value.code == "CW-APPROVAL-TAKEN"


@pytest.mark.requirement("POL-8")
def test_who_was_told_that_the_answer_counts_was_told_the_truth(state_home: str) -> None:
    # Another process answers between the near channel's answer and the end of waiting.
    question, queue = question_for(), ApprovalQueue(state_home)

    def near(_: Question) -> Answer:
        queue.answer(question, said(DENY))
        return said(ONCE)

    assert ask(broker_for(state_home), question, near) == said(DENY, by=local_principal("cli"))


def test_a_forged_answer_in_the_queue_is_a_no(state_home: str) -> None:
    question = question_for()

    def near(_: Question) -> Answer:
        Path(state_home, "approvals", f"{question.id}.answer").write_text("{}")
        raise ZeroDivisionError

    answer = ask(broker_for(state_home), question, near)
    assert answer.kind is DENY
    assert answer.reason.startswith("the answer could not be used")


def test_without_a_usable_queue_the_near_channel_still_counts(state_home: str) -> None:
    Path(state_home, "approvals").touch()
    assert ask(broker_for(state_home), question_for(), always(ONCE)).kind is ONCE
    answer = ask(broker_for(state_home), question_for())
    assert (
        answer.reason
        == "no person could be asked (queue: the approval queue holds a foreign or malformed file)"
    )


@pytest.mark.requirement("POL-8")
def test_a_hundred_questions_at_once(state_home: str) -> None:
    queue, record = ApprovalQueue(state_home), Record()
    broker = broker_for(state_home, record=record)
    questions = [question_for("echo", str(number)) for number in range(100)]
    kinds: dict[int, AnswerKind] = {}

    async def one(number: int) -> None:
        kinds[number] = (await broker.ask(questions[number])).kind

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(one, number)
            while len(queue.list_waiting()) < 100:
                await anyio.sleep(0.01)
            for number, question in enumerate(questions):
                queue.answer(question, said(ONCE if number % 2 else DENY))

    anyio.run(main)
    assert kinds == {number: ONCE if number % 2 else DENY for number in range(100)}
    assert len(record.events) == 100


# The session


@pytest.mark.requirement("POL-8")
def test_allowed_for_the_session_is_not_asked_again_for_exactly_that_call() -> None:
    record, asked = Record(), []
    broker = broker_for(record=record)

    def person(question: Question) -> Answer:
        asked.append(question.text)
        return said(FOR_SESSION)

    for _ in range(3):
        assert ask(broker, question_for("git", "push", session_id=SESSION), person).allows
    assert asked == ["git push"]
    assert [told[-1] for told in record.told()] == ["answered", "remembered", "remembered"]
    ask(broker, question_for("git", "push", "-f", session_id=SESSION), person)
    ask(broker, question_for("git", "push", session_id="sbx_" + "b" * 26), person)
    ask(broker, question_for("git", "push", session_id=SESSION, env={"A": "1"}), person)
    assert len(asked) == 4


def test_what_was_allowed_for_a_session_ends_with_it_and_is_of_this_broker_alone() -> None:
    broker = broker_for()
    question = question_for("git", "push", session_id=SESSION)
    ask(broker, question, always(FOR_SESSION))
    assert ask(broker, question).allows
    assert not ask(broker_for(), question).allows
    broker.forget(SESSION)
    assert not ask(broker, question).allows


def test_once_and_no_are_not_remembered() -> None:
    broker = broker_for()
    question = question_for("git", "push", session_id=SESSION)
    for kind in (ONCE, DENY):
        ask(broker, question, always(kind))
        assert not ask(broker, question).allows


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approvals, "_MAX_REMEMBERED", 3)
    broker = broker_for()
    questions = [question_for("echo", str(n), session_id=SESSION) for n in range(5)]
    for question in questions:
        ask(broker, question, always(FOR_SESSION))
    assert [ask(broker, question).allows for question in questions] == [False] * 2 + [True] * 3


# Rules


@pytest.mark.requirement("POL-8")
def test_a_rule_is_written_after_the_answer_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    record = Record()
    broker = broker_for(record=record, policy_path=str(path))
    question = question_for("git", "push")
    answer = ask(broker, question, always(RULE, PUSH))
    assert (answer.kind, answer.rule) == (RULE, PUSH)
    (rule,) = tomllib.loads(path.read_text())["rule"]
    assert rule == {
        "verdict": "allow",
        "rule": PUSH,
        "reason": f"allowed by me at {question.id}",
        "answers": question.rule,
    }
    assert record.told() == [("allow", "rule", "me", "callback", "answered")]


def test_a_rule_that_cannot_be_written_allows_this_once_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text("not toml")
    record = Record()
    broker = broker_for(record=record, policy_path=str(tmp_path / "policy.toml"))
    answer = ask(broker, question_for("git", "push"), always(RULE, PUSH))
    assert (answer.kind, answer.rule) == (ONCE, "")
    assert [told[-1] for told in record.told()] == ["answered", "rule not written"]


# The record


@pytest.mark.requirement("POL-8", "AUD-1")
@pytest.mark.parametrize("kind", [ONCE, FOR_SESSION, RULE])
def test_an_answer_that_cannot_be_recorded_allows_nothing(kind: AnswerKind, tmp_path: Path) -> None:
    record = Record(failure=AuditFailed("the disk is full"))
    path = tmp_path / "policy.toml"
    broker = broker_for(record=record, policy_path=str(path))
    question = question_for("git", "push", session_id=SESSION)
    with pytest.raises(AuditFailed):
        ask(broker, question, always(kind, PUSH if kind is RULE else ""))
    assert not path.exists()
    record.failure = None
    assert not ask(broker, question).allows  # nothing was remembered


def test_a_remembered_answer_that_cannot_be_recorded_allows_nothing() -> None:
    record = Record(failure=AuditFailed("the disk is full"), good=1)
    broker = broker_for(record=record)
    question = question_for("git", "push", session_id=SESSION)
    ask(broker, question, always(FOR_SESSION))
    with pytest.raises(AuditFailed):
        ask(broker, question)


@pytest.mark.requirement("POL-8")
@pytest.mark.parametrize("failure", [None, AuditFailed("full")])
def test_who_does_not_wait_has_it_denied_on_the_record(
    failure: Exception | None, state_home: str
) -> None:
    record = Record(failure=failure)
    broker = broker_for(state_home, record=record)

    async def main() -> bool:
        with anyio.move_on_after(0.1) as scope:
            await broker.ask(question_for())
        return scope.cancelled_caught

    assert anyio.run(main)
    if failure is None:
        assert record.told() == [("deny", "deny", "nobody", "nobody", "interrupted")]
    assert ApprovalQueue(state_home).list_waiting() == []


# Roles


@pytest.mark.requirement("RBAC-2")
def test_a_yes_counts_only_from_somebody_who_may_say_it() -> None:
    record = Record()
    roles = Roles(users={"me": "user", "boss": "power-user"})
    broker = broker_for(record=record, roles=roles)
    answer = ask(broker, question_for("git", "push"), always(ONCE))
    assert (answer.kind, answer.reason) == (
        DENY,
        "me has the role user, which lacks approvals:answer",
    )
    assert record.told()[0][:2] == ("deny", "deny")
    boss = Principal("boss", "cli")
    assert ask(broker, question_for("git", "push"), always(ONCE, by=boss)).allows
    assert not ask(broker, question_for("git", "push"), always(RULE, PUSH, by=boss)).allows
    assert ask(broker, question_for("git", "push"), always(DENY)).reason == ""


# What becomes of it


@pytest.mark.parametrize(
    ("answer", "verdict", "begin"),
    [
        (said(ONCE), Verdict.ALLOW, "me (queue) allowed it this once; asked because: "),
        (said(FOR_SESSION), Verdict.ALLOW, "me (queue) allowed it for this session"),
        (
            said(RULE, PUSH),
            Verdict.ALLOW,
            "me (queue) allowed it and wrote the rule Bash(git push)",
        ),
        (said(DENY), Verdict.DENY, "me (queue) denied it; asked because: pushes"),
    ],
)
def test_the_decision_tells_who_made_it(answer: Answer, verdict: Verdict, begin: str) -> None:
    decision = decision_after_answer(ASK, answer)
    assert (decision.verdict, decision.rule, decision.source) == (verdict, ASK.rule, ASK.source)
    assert decision.reason.startswith(begin)

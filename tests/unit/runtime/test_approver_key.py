"""A yes that needs a passphrase: no process can give it without, whatever it writes (POL-13)."""

from __future__ import annotations

import time
from dataclasses import replace

import anyio
import pytest

from cellwall.core.approvals import Answer, AnswerKind
from cellwall.core.errors import BadInput, ConfigError
from cellwall.runtime import approver_key
from cellwall.runtime.approval_queue import ApprovalQueue
from cellwall.runtime.approver_key import ApproverKey
from unit.runtime.questions_for_tests import SESSION, anybody, broker_for, question_for, said

pytestmark = pytest.mark.requirement("POL-13")

ONCE, FOR_SESSION, DENY = AnswerKind.ONCE, AnswerKind.SESSION, AnswerKind.DENY
PASSPHRASE = b"correct horse battery"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approver_key, "_MEMORY_KIB", 64)
    monkeypatch.setattr(approver_key, "_PASSES", 1)


@pytest.fixture
def key() -> ApproverKey:
    return ApproverKey.make(bytearray(PASSPHRASE))


def taken(queue: ApprovalQueue, answer: Answer, **question: object) -> Answer:
    asked = question_for(**question)

    async def ask() -> Answer:
        with queue.waiting(asked) as waiting:
            signed = answer
            if answer.signature == "sign" and queue.key is not None:
                made = queue.key.sign(bytearray(PASSPHRASE), asked, answer)
                signed = replace(answer, signature=made)
            queue.answer(asked, signed)
            return await waiting.answered()

    return anyio.run(ask)


def test_a_signed_yes_counts_and_another_does_not(state_home: str, key: ApproverKey) -> None:
    queue = ApprovalQueue(state_home, check_process=anybody, key=key)
    assert taken(queue, replace(said(ONCE), signature="sign")).allows
    for signature in ("", "AAAA", "A" * 86, "not base64 !"):
        refused = taken(queue, replace(said(ONCE), signature=signature))
        assert (refused.allows, "the approver's signature is missing" in refused.reason) == (
            False,
            True,
        )
    assert not taken(queue, said(DENY)).reason  # a no needs none
    without = ApprovalQueue(state_home, check_process=anybody)
    assert taken(without, said(ONCE)).allows  # the control


def test_a_signature_holds_for_one_question_one_answer_and_one_key(key: ApproverKey) -> None:
    first, second = question_for(session_id=SESSION), question_for("ls", session_id=SESSION)
    made = key.sign(bytearray(PASSPHRASE), first, said(ONCE))
    assert key.has_signed(first, replace(said(ONCE), signature=made))
    assert not key.has_signed(second, replace(said(ONCE), signature=made))
    assert not key.has_signed(first, replace(said(FOR_SESSION), signature=made))
    other = ApproverKey.make(bytearray(PASSPHRASE))
    assert not other.has_signed(first, replace(said(ONCE), signature=made))
    assert ApproverKey.parse(str(key)) == key


def test_a_wrong_or_short_passphrase_and_a_broken_key_are_refused(key: ApproverKey) -> None:
    with pytest.raises(BadInput, match="wrong passphrase"):
        key.sign(bytearray(b"another passphrase"), question_for(), said(ONCE))
    with pytest.raises(BadInput, match="fewer than 12"):
        ApproverKey.make(bytearray(b"short"))
    for text in ("x", str(key)[:-1], f"{key}x", str(key).replace(".", "")):
        with pytest.raises(ConfigError):
            ApproverKey.parse(text)


def test_the_prompt_of_the_run_is_not_asked_where_a_key_is_set(
    state_home: str, key: ApproverKey
) -> None:
    class Terminal:
        name = "terminal"

        async def ask(self, _: object) -> Answer:
            return said(ONCE, via="terminal")

    question = question_for(timeout_s=0.2)
    plain = broker_for(home=state_home, timeout_s=0.2)
    assert anyio.run(lambda: plain.ask(question, near=Terminal())).allows
    signed = replace(plain, queue=ApprovalQueue(state_home, key=key))
    asked = replace(question, id=question_for().id, deadline_s=time.time() + 0.2)
    assert not anyio.run(lambda: signed.ask(asked, near=Terminal())).allows

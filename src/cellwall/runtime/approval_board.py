"""Questions of this process, for the users of the service that it runs (POL-8).

Unlike the queue, the answers come from authenticated users, each with a role of its own. Of several
answers the first counts, also beside the other channels: `answer` returns only after the broker has
settled the question, and raises if another answer was first.

Questions and answers may be of different event loops, so both sides look from time to time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import anyio

from cellwall.core.approvals import Answer, Question
from cellwall.core.errors import Denied
from cellwall.runtime.approval_files import already_answered, not_waiting, too_late
from cellwall.runtime.approval_queue import not_offered

VIA = "http"
_LOOK_EVERY_S = 0.05
_SETTLED_WITHIN_S = 30.0


class PostedQuestion:
    """One question on the board."""

    def __init__(self, question: Question, *, needs_signature: bool) -> None:
        self.question = question
        self.needs_signature = needs_signature
        self.answer: Answer | None = None
        self.final: Answer | None = None
        self.is_over = False

    async def answered(self) -> Answer:
        """Wait for the answer of a user."""
        while self.answer is None:  # noqa: ASYNC110  # set by another thread
            await anyio.sleep(_LOOK_EVERY_S)
        return self.answer


class QuestionRecords(Protocol):
    """Told of each question on the board. Called from any thread; returns at once."""

    def opened(self, question: Question) -> None: ...

    def ended(self, question: Question, final: Answer | None) -> None:
        """`final` is None where the caller did not wait for the answer."""


class ApprovalBoard:
    """The open questions of one runtime; empty unless a service shows them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._posted: dict[str, PostedQuestion] = {}
        self._records: QuestionRecords | None = None

    @contextmanager
    def served(self, records: QuestionRecords) -> Iterator[None]:
        """While the block lasts, users can answer; else no question waits here."""
        self._records = records
        try:
            yield
        finally:
            self._records = None

    @contextmanager
    def posted(
        self, question: Question, *, needs_signature: bool
    ) -> Iterator[PostedQuestion | None]:
        """Show a question for as long as the block lasts; None: no user could see it."""
        records = self._records
        if records is None:
            yield None
            return
        posted = PostedQuestion(question, needs_signature=needs_signature)
        with self._lock:
            self._posted[question.id] = posted
        records.opened(question)
        try:
            yield posted
        finally:
            records.ended(question, posted.final)
            with self._lock:
                del self._posted[question.id]
                posted.is_over = True

    def waiting(self) -> list[Question]:
        """The questions without an answer, the oldest first."""
        with self._lock:
            found = [each.question for each in self._posted.values() if each.answer is None]
        return sorted(found, key=lambda question: question.asked_s)

    def find(self, question_id: str) -> Question | None:
        """A question that waits, or was answered a moment ago."""
        with self._lock:
            posted = self._posted.get(question_id)
        return None if posted is None else posted.question

    async def answer(self, question_id: str, answer: Answer) -> Answer:
        """Answer once; returns the answer that counts, which the role of its giver may have made a
        denial. Raises `BadInput` if another answer was first."""
        posted = self._claim(question_id, answer)
        with anyio.move_on_after(_SETTLED_WITHIN_S):
            while not posted.is_over:  # noqa: ASYNC110  # set by another thread
                await anyio.sleep(_LOOK_EVERY_S)
        if posted.final is None:
            raise not_waiting(question_id)
        if posted.final.via != VIA or posted.final.by != answer.by:
            raise already_answered(posted.final)
        return posted.final

    def _claim(self, question_id: str, answer: Answer) -> PostedQuestion:
        with self._lock:
            posted = self._posted.get(question_id)
            if posted is None:
                raise not_waiting("")
            _check(posted, answer)
            posted.answer = answer
            return posted


def _check(posted: PostedQuestion, answer: Answer) -> None:
    if posted.answer is not None:
        raise already_answered(posted.answer)
    if not posted.question.takes(answer.kind, answer.rule):
        raise not_offered(posted.question, answer.kind)
    if time.time() > posted.question.deadline_s:
        raise too_late(posted.question.id)
    if posted.needs_signature and answer.allows:
        raise Denied(
            "an approval needs the passphrase of the approver",
            hint=f"On the machine of the service: cellwall approvals allow {posted.question.id}",
        )

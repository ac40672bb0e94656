"""A person answers questions of other processes of the same user, within the role (POL-8)."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from cellwall.config.load import load_settings
from cellwall.core.approvals import Answer, AnswerKind, Question
from cellwall.core.errors import Denied
from cellwall.core.types import Permission, Principal
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.approval_queue import (
    ApprovalQueue,
    ApproverKey,
    approver_key,
    chosen_rule,
    not_offered,
)
from cellwall.runtime.home import state_home
from cellwall.runtime.judging import roles_of

__all__ = ["Answer", "AnswerKind", "ApprovalInbox", "Question", "chosen_rule"]


class ApprovalInbox:
    """The open questions of one state folder, for one person."""

    def __init__(
        self, who: Principal, *, config: str | None = None, profile: str | None = None
    ) -> None:
        self._who = who
        self._settings = load_settings(file=config, profile=profile, environ=os.environ)
        self._roles = roles_of(self._settings)
        self._key = approver_key(self._settings)
        self._queue = ApprovalQueue(state_home(os.environ), key=self._key)

    def waiting(self) -> list[Question]:
        return self._queue.list_waiting()

    def read(self, question_id: str) -> Question:
        return self._queue.read(question_id)

    def answer(
        self,
        question: Question,
        kind: AnswerKind,
        *,
        rule: str = "",
        via: str = "queue",
        ask: Callable[[], bytearray] | None = None,
    ) -> Answer:
        """Answer a question. Checked here for a clear error, and again by the asking process."""
        self.check(question, kind, rule=rule)
        answer = Answer(kind=kind, by=self._who, via=via, rule=rule)
        if self._key is not None and answer.allows:
            answer = replace(answer, signature=self._sign(self._key, question, answer, ask))
        self._queue.answer(question, answer).until_taken()
        return answer

    def _sign(
        self,
        key: ApproverKey,
        question: Question,
        answer: Answer,
        ask: Callable[[], bytearray] | None,
    ) -> str:
        if ask is None:
            raise Denied(
                "an approval needs the passphrase of the approver",
                hint=f"In a terminal: cellwall approvals allow {question.id}",
            )
        passphrase = ask()
        try:
            return key.sign(passphrase, question, answer)
        finally:
            passphrase[:] = bytes(len(passphrase))

    def check(self, question: Question, kind: AnswerKind, *, rule: str = "") -> None:
        """Raise for an answer that would be refused, before the person confirms it."""
        if "queue" not in self._settings.approvals.channels:
            raise Denied(
                "the configuration accepts no answers from other processes",
                hint='Add "queue" to approvals.channels.',
            )
        if kind is not AnswerKind.DENY:
            refuse_agents("an approval")
            self._roles.require(self._who, Permission.APPROVALS_ANSWER)
        if kind is AnswerKind.RULE:
            self._roles.require(self._who, Permission.POLICY_WRITE)
        if not question.takes(kind, rule):
            raise not_offered(question, kind)

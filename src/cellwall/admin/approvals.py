"""A person answers questions of other processes of the same user, within the role (POL-8)."""

from __future__ import annotations

import os
from dataclasses import replace

from cellwall.config.load import load_settings
from cellwall.core.approvals import Answer, AnswerKind, Question
from cellwall.core.errors import Denied
from cellwall.core.keys import SigningKey
from cellwall.core.types import Permission, Principal
from cellwall.policy.policy_file import PolicyFile, parse_policy
from cellwall.policy.rules import Layer
from cellwall.runtime.agent_processes import refuse_agents
from cellwall.runtime.approval_files import user_name
from cellwall.runtime.approval_queue import (
    ApprovalQueue,
    chosen_rule,
    not_offered,
    sign_answer,
)
from cellwall.runtime.approvals import rule_reason
from cellwall.runtime.approver_key import AskPassphrase, approver_key
from cellwall.runtime.home import state_home
from cellwall.runtime.judging import roles_of
from cellwall.runtime.policies import approved_rules_place, check_signed, policy_grants
from cellwall.runtime.policy_file import draft_rule
from cellwall.runtime.signed_grants import signed_grants

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
        self._home = state_home(os.environ)
        self._queue = ApprovalQueue(self._home, key=self._key)

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
        ask: AskPassphrase | None = None,
    ) -> Answer:
        """Answer a question. Checked here for a clear error, and again by the asking process."""
        self.check(question, kind, rule=rule)
        answer = Answer(kind=kind, by=self._who, via=via, rule=rule)
        if self._key is not None and answer.allows:
            command = f"cellwall approvals allow {question.id}"
            signer = self._key.ask_for("an approval", ask, command=command)
            answer = replace(answer, signature=sign_answer(signer, question, answer))
            if kind is AnswerKind.RULE:
                self._sign_rule(question, rule, signer)
        self._queue.answer(question, answer).until_taken()
        return answer

    def _sign_rule(self, question: Question, rule: str, signer: SigningKey) -> None:
        """Sign the policy file as it will be with the rule. Only a content that was signed before:
        the person has seen the rule, and not the rest of the file."""
        place = approved_rules_place(self._settings.policy.files, os.environ)
        reason = rule_reason(user_name(os.geteuid()), question)
        draft = draft_rule(place.path, rule, reason=reason, answers=question.rule)
        grants = signed_grants(self._home, self._settings)
        if grants is None:
            return
        before, after = (_parsed(place.path, text) for text in (draft.before, draft.after))
        check_signed(place.path, before, grants)
        grants.sign(policy_grants(place.path, after.sha256)[:1], signer)

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


def _parsed(path: str, text: str) -> PolicyFile:
    name = os.path.basename(path)
    return parse_policy(text, file=path, name=name, layer=Layer.USER, folder="/")

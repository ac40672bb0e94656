"""The broker: where the policy asks, a person decides, and the answer is on record (POL-8).

   (1) the same call in the same session, allowed for it before: nobody is asked again
   (2) lay the question into the queue, ask the interface's own person: whoever is first decides
   (3) no answer in time, nobody to ask, a broken channel: denied, with the reason
   (4) an answer counts only as far as the role of who gave it goes (RBAC-2)
   (5) write the answer and what was shown to the record; a failed write refuses (AUD-1)
   (6) only now remember it for the session, or write the rule

While it waits nothing is leased: steps 1 to 6 of an action hold no slot and no workspace.
"""

# ruff: noqa: PLC0415  # late imports: the policy parser loads only when a person asks for a rule

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace

import anyio

from cellwall.core.approvals import Answer, AnswerKind, Question, denial
from cellwall.core.errors import AuditFailed, CellwallError
from cellwall.core.events import Event, EventKind
from cellwall.core.ports import ApproverPort, AuditPort, RolesPort
from cellwall.core.roles import Permission
from cellwall.core.types import Json
from cellwall.core.verdict import Decision, Verdict
from cellwall.runtime.approval_queue import ApprovalQueue, Waiting

_MAX_REMEMBERED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalBroker:
    """Keeps `BrokerPort`."""

    audit: AuditPort
    roles: RolesPort
    timeout_s: float
    channels: tuple[str, ...]
    queue: ApprovalQueue | None
    """None where no other process can answer."""
    policy_path: str
    """Where rules are written to."""
    _remembered: dict[tuple[str, str], Answer] = field(default_factory=dict, init=False)

    async def ask(self, question: Question, *, near: ApproverPort | None = None) -> Answer:
        """A person's answer, or a denial that says why there is none; recorded in any case.

        Raises `AuditFailed` if it cannot be recorded, and then nothing is allowed.
        """
        before = self._remembered.get((question.session_id, question.call_sha256))  # (1)
        if before is not None and question.takes(AnswerKind.SESSION):
            await self._record(question, before, how="remembered")
            return before
        try:
            answer = await self._answered(question, near)  # (2) (3)
        except BaseException:
            # Cancelled, most likely: whoever waited for it is gone, and that is a no.
            gone = denial("who asked did not wait for the answer")
            with anyio.CancelScope(shield=True), suppress(AuditFailed):
                await self._record(question, gone, how="interrupted")
            raise
        answer = self._within_role(answer)  # (4)
        await self._record(question, answer, how="answered")  # (5)
        return await self._carry_out(question, answer)  # (6)

    def forget(self, session_id: str) -> None:
        """The session has ended."""
        for key in [key for key in list(self._remembered) if key[0] == session_id]:
            self._remembered.pop(key, None)

    async def _answered(self, question: Question, near: ApproverPort | None) -> Answer:
        near = near if near is not None and near.name in self.channels else None
        is_signed = self.queue is not None and self.queue.key is not None
        if near is not None and near.name == "terminal" and is_signed:
            near = None  # nothing is signed there
        troubles: list[str] = []
        with ExitStack() as stack:
            waiting = self._laid_down(question, stack, troubles)
            if near is None and waiting is None:
                return denial(_nobody(troubles))
            found = await self._first(question, near, waiting, troubles)
            if found is None and time.time() < question.deadline_s:
                found = denial(_nobody(troubles))
            elif found is None:
                found = denial(f"nobody answered within {self.timeout_s:g} s")
            if waiting is None:
                return found
            try:
                return waiting.settle(found)
            except (CellwallError, OSError) as error:
                return denial(f"the answer could not be used: {_told(error)}")

    def _laid_down(
        self, question: Question, stack: ExitStack, troubles: list[str]
    ) -> Waiting | None:
        if self.queue is None or "queue" not in self.channels:
            return None
        try:
            return stack.enter_context(self.queue.waiting(question))
        except (CellwallError, OSError) as error:
            troubles.append(f"queue: {_told(error)}")
            return None

    async def _first(
        self,
        question: Question,
        near: ApproverPort | None,
        waiting: Waiting | None,
        troubles: list[str],
    ) -> Answer | None:
        """The first answer of any channel; None when time is over or every channel has failed."""
        answers: list[Answer] = []

        async def listen(name: str, ask: Callable[[], Awaitable[Answer]]) -> None:
            try:
                answer = await ask()
                if not question.takes(answer.kind, answer.rule):
                    answer = denial("the answer is none that was offered")
                answers.append(answer)
                tasks.cancel_scope.cancel()
            except Exception as error:  # noqa: BLE001  # a broken channel is no answer, whatever broke
                troubles.append(f"{name}: {_told(error)}")

        left_s = max(0.0, question.deadline_s - time.time())
        with anyio.move_on_after(min(left_s, self.timeout_s)):
            async with anyio.create_task_group() as tasks:
                if waiting is not None:
                    tasks.start_soon(listen, "queue", waiting.answered)
                if near is not None:
                    tasks.start_soon(listen, near.name, lambda: near.ask(question))
        return answers[0] if answers else None

    def _within_role(self, answer: Answer) -> Answer:
        if not answer.allows:
            return answer
        needs = {Permission.APPROVALS_ANSWER}
        if answer.kind is AnswerKind.RULE:
            needs.add(Permission.POLICY_WRITE)
        role = self.roles.role_of(answer.by)
        lacking = needs - role.permissions
        if not lacking:
            return answer
        names = " and ".join(sorted(permission.value for permission in lacking))
        reason = f"{answer.by.name} has the role {role.name}, which lacks {names}"
        return replace(answer, kind=AnswerKind.DENY, rule="", reason=reason)

    async def _carry_out(self, question: Question, answer: Answer) -> Answer:
        if answer.kind is AnswerKind.SESSION:
            while len(self._remembered) >= _MAX_REMEMBERED:
                self._remembered.pop(next(iter(self._remembered)), None)
            self._remembered[question.session_id, question.call_sha256] = answer
        if answer.kind is AnswerKind.RULE:
            from cellwall.runtime.policy_file import add_rule

            reason = f"allowed by {answer.by.name} at {question.id}"
            try:
                await anyio.to_thread.run_sync(
                    lambda: add_rule(
                        self.policy_path, answer.rule, reason=reason, answers=question.rule
                    )
                )
            except CellwallError as error:
                # Less than was allowed, never more: this once, and no rule.
                answer = replace(answer, kind=AnswerKind.ONCE, rule="", reason=error.message)
                await self._record(question, answer, how="rule not written")
        return answer

    async def _record(self, question: Question, answer: Answer, *, how: str) -> None:
        verdict = "allow" if answer.allows else "deny"
        told = f"{verdict} ({answer.kind.value}) by {answer.by.name} ({answer.via}), {how}"
        body: dict[str, Json] = {
            "question": question.id,
            "verdict": verdict,
            "message": f"{told}: {answer.reason}" if answer.reason else told,
            "how": how,
            **answer.to_json(),
            "asked_because": question.reason,
            "asked_rule": question.rule,
            "call_sha256": question.call_sha256,
            "shown_sha256": question.shown_sha256,
            # By lines, since the record cuts long texts and a list of short ones stays whole.
            "shown": question.shown.splitlines(),
        }
        who = question.principal
        event = Event(
            EventKind.APPROVAL,
            question.action_id,
            who.name,
            who.interface,
            body,
            question.session_id,
        )
        await self.audit.record(event)


def decision_after_answer(decision: Decision, answer: Answer) -> Decision:
    """The policy's decision after a person was asked."""
    who = f"{answer.by.name} ({answer.via})"
    if answer.allows:
        told = {
            AnswerKind.ONCE: "this once",
            AnswerKind.SESSION: "for this session",
            AnswerKind.RULE: f"and wrote the rule {answer.rule}",
        }[answer.kind]
        reason = f"{who} allowed it {told}; asked because: {decision.reason}"
        return replace(decision, verdict=Verdict.ALLOW, reason=reason)
    why = answer.reason or f"{who} denied it"
    return replace(
        decision, verdict=Verdict.DENY, reason=f"{why}; asked because: {decision.reason}"
    )


class CallbackApprover:
    """A plain or asynchronous function as a channel: it gets the question and returns the answer.

    Returning None, or raising, is no answer.
    """

    def __init__(
        self,
        function: Callable[[Question], Answer | Awaitable[Answer | None] | None],
        *,
        name: str = "callback",
    ) -> None:
        self.name = name
        self._function = function

    async def ask(self, question: Question) -> Answer:
        found: Answer | Awaitable[Answer | None] | None
        if inspect.iscoroutinefunction(self._function):
            found = self._function(question)
        else:  # it may wait for a person, and the others must not wait with it
            found = await anyio.to_thread.run_sync(
                lambda: self._function(question),
                abandon_on_cancel=True,
                limiter=anyio.CapacityLimiter(1),
            )
        answer = await found if inspect.isawaitable(found) else found
        if not isinstance(answer, Answer):
            raise CellwallError("it gave no answer", code="CW-NO-ANSWER")
        return replace(answer, via=self.name)


def _nobody(troubles: Sequence[str]) -> str:
    return "nobody could be asked" + (f" ({'; '.join(troubles)})" if troubles else "")


def _told(error: Exception) -> str:
    # An error of others may hold anything; only our own sentences are told (ERR-1).
    return (
        error.message if isinstance(error, CellwallError) else f"it broke ({type(error).__name__})"
    )

"""Approval broker: where the policy asks, a person decides, and the answer is logged (POL-8).

   (1) the same call, allowed before for this session: no question
   (2) put the question into the queue and ask the interface's own user: the first answer decides
   (3) no answer in time, no channel, a broken channel: denied, with the reason
   (4) an answer counts only as far as the role of its giver permits (RBAC-2)
   (5) log the answer and the text that was shown; a failed write refuses (AUD-1)
   (6) only then remember it for the session, or write the rule

While a question waits nothing is leased: steps 1 to 6 of an action hold no slot and no workspace.
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
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.ports import ApproverPort, AuditPort, RolesPort
from cellwall.core.types import Json, Permission
from cellwall.core.verdict import Decision, Verdict
from cellwall.runtime.approval_board import ApprovalBoard, PostedQuestion
from cellwall.runtime.approval_queue import ApprovalQueue, OpenQuestion

_MAX_REMEMBERED = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalBroker:
    """Implements `BrokerPort`."""

    audit: AuditPort
    roles: RolesPort
    timeout_s: float
    channels: tuple[str, ...]
    queue: ApprovalQueue | None
    """None: no other process can answer."""
    policy_path: str
    """The policy file to which rules are added."""
    board: ApprovalBoard = field(default_factory=ApprovalBoard)
    """For the users of a service; empty in every other process."""
    _remembered: dict[tuple[str, str], Answer] = field(default_factory=dict, init=False)
    _waiting: set[str] = field(default_factory=set, init=False)

    @property
    def waiting_count(self) -> int:
        """Questions of this process that wait for an answer."""
        return len(self._waiting)

    async def ask(self, question: Question, *, near: ApproverPort | None = None) -> Answer:
        """A person's answer, or a denial with the reason why there is none; logged in any case.

        Raises `AuditFailed` if the answer cannot be logged; then nothing is allowed.
        """
        before = self._remembered.get((question.session_id, question.call_sha256))  # (1)
        if before is not None and question.takes(AnswerKind.SESSION):
            await self._record(question, before, how="remembered")
            return before
        self._waiting.add(question.id)
        try:
            answer = await self._collect_answer(question, near)  # (2) (3)
        except BaseException:
            # Cancelled, most likely: the caller is gone, which denies.
            gone = denial("the caller did not wait for the answer")
            with anyio.CancelScope(shield=True), suppress(AuditFailed):
                await self._record(question, gone, how="interrupted")
            raise
        finally:
            self._waiting.discard(question.id)
        answer = self._within_role(answer)  # (4)
        await self._record(question, answer, how="answered")  # (5)
        return await self._carry_out(question, answer)  # (6)

    def forget(self, session_id: str) -> None:
        """The session has ended."""
        for key in [key for key in list(self._remembered) if key[0] == session_id]:
            self._remembered.pop(key, None)

    async def _collect_answer(self, question: Question, near: ApproverPort | None) -> Answer:
        near = near if near is not None and near.name in self.channels else None
        is_signed = self.queue is not None and self.queue.key is not None
        if is_signed:
            near = None  # only the queue takes a signature with the answer
        problems: list[str] = []
        with ExitStack() as stack:
            waiting = self._enqueue(question, stack, problems)
            posted = None
            if "http" in self.channels:
                shown = self.board.posted(question, needs_signature=is_signed)
                posted = stack.enter_context(shown)
            if near is None and waiting is None and posted is None:
                return denial(_unasked_reason(problems))
            found = await self._first_answer(question, near, waiting, posted, problems)
            if found is None and time.time() < question.deadline_s:
                found = denial(_unasked_reason(problems))
            elif found is None:
                found = denial(f"no answer within {self.timeout_s:g} s")
            if waiting is not None:
                try:
                    found = waiting.settle(found)
                except (CellwallError, OSError) as error:
                    found = denial(f"the answer could not be used: {_message_of(error)}")
            if posted is not None:
                posted.final = self._within_role(found)
            return found

    def _enqueue(
        self, question: Question, stack: ExitStack, problems: list[str]
    ) -> OpenQuestion | None:
        if self.queue is None or "queue" not in self.channels:
            return None
        try:
            return stack.enter_context(self.queue.waiting(question))
        except (CellwallError, OSError) as error:
            problems.append(f"queue: {_message_of(error)}")
            return None

    async def _first_answer(
        self,
        question: Question,
        near: ApproverPort | None,
        waiting: OpenQuestion | None,
        posted: PostedQuestion | None,
        problems: list[str],
    ) -> Answer | None:
        """The first answer of any channel; None after the timeout or if every channel failed."""
        answers: list[Answer] = []

        async def listen(name: str, ask: Callable[[], Awaitable[Answer]]) -> None:
            try:
                answer = await ask()
                if not question.takes(answer.kind, answer.rule):
                    answer = denial("the answer was not among those offered")
                answers.append(answer)
                tasks.cancel_scope.cancel()
            except Exception as error:  # noqa: BLE001  # any exception means no answer
                problems.append(f"{name}: {_message_of(error)}")

        left_s = max(0.0, question.deadline_s - time.time())
        with anyio.move_on_after(min(left_s, self.timeout_s)):
            async with anyio.create_task_group() as tasks:
                if waiting is not None:
                    tasks.start_soon(listen, "queue", waiting.answered)
                if posted is not None:
                    tasks.start_soon(listen, "http", posted.answered)
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

            reason = rule_reason(answer.by.name, question)
            try:
                await anyio.to_thread.run_sync(
                    lambda: add_rule(
                        self.policy_path, answer.rule, reason=reason, answers=question.rule
                    )
                )
            except CellwallError as error:
                # Less than the person allowed, never more: once, and no rule.
                answer = replace(answer, kind=AnswerKind.ONCE, rule="", reason=error.message)
                await self._record(question, answer, how="rule not written")
        return answer

    async def _record(self, question: Question, answer: Answer, *, how: str) -> None:
        verdict = "allow" if answer.allows else "deny"
        message = f"{verdict} ({answer.kind.value}) by {answer.by.name} ({answer.via}), {how}"
        body: dict[str, Json] = {
            "question": question.id,
            "verdict": verdict,
            "message": f"{message}: {answer.reason}" if answer.reason else message,
            "how": how,
            **answer.to_json(),
            "asked_because": question.reason,
            "asked_rule": question.rule,
            "call_sha256": question.call_sha256,
            "shown_sha256": question.shown_sha256,
            # As lines: the log truncates long texts, and keeps a list of short ones whole.
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


def rule_reason(name: str, question: Question) -> str:
    """The reason of an approved rule in the policy file. The approver signs the file with it."""
    return f"allowed by {name} at {question.id}"


def decision_after_answer(decision: Decision, answer: Answer) -> Decision:
    """The decision after a person has answered."""
    who = f"{answer.by.name} ({answer.via})"
    if answer.allows:
        extent = {
            AnswerKind.ONCE: "this once",
            AnswerKind.SESSION: "for this session",
            AnswerKind.RULE: f"and wrote the rule {answer.rule}",
        }[answer.kind]
        reason = f"{who} allowed it {extent}; asked because: {decision.reason}"
        return replace(decision, verdict=Verdict.ALLOW, reason=reason)
    why = answer.reason or f"{who} denied it"
    return replace(
        decision, verdict=Verdict.DENY, reason=f"{why}; asked because: {decision.reason}"
    )


Reply = Answer | AnswerKind | str | None
"""The reply of a function: "once", "session" or "deny"; None is no answer."""
AnswerQuestion = Callable[[Question], Reply | Awaitable[Reply]]


class CallbackApprover:
    """A plain or async function of the embedding program as a channel.

    An unknown reply or an exception is no answer. The principal of the action answers: the
    embedding program acts for that principal.
    """

    name = "callback"

    def __init__(self, function: AnswerQuestion) -> None:
        self._function = function

    async def ask(self, question: Question) -> Answer:
        found: Reply | Awaitable[Reply]
        if inspect.iscoroutinefunction(self._function):
            found = self._function(question)
        else:  # it may block on a person, so it gets a thread
            found = await anyio.to_thread.run_sync(
                lambda: self._function(question),
                abandon_on_cancel=True,
                limiter=anyio.CapacityLimiter(1),
            )
        reply = await found if inspect.isawaitable(found) else found
        if isinstance(reply, Answer):
            return replace(reply, via=self.name)
        return Answer(kind=_answer_kind(reply), by=question.principal, via=self.name)


def _answer_kind(reply: object) -> AnswerKind:
    try:
        return AnswerKind(str(reply))
    except ValueError:
        raise CellwallError("the channel gave no answer", code="CW-NO-ANSWER") from None


def _unasked_reason(problems: Sequence[str]) -> str:
    return "no person could be asked" + (f" ({'; '.join(problems)})" if problems else "")


def _message_of(error: Exception) -> str:
    # A foreign exception may quote anything; only our own messages are shown (ERR-1).
    return (
        error.message if isinstance(error, CellwallError) else f"it failed ({type(error).__name__})"
    )

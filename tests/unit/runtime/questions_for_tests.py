"""Questions and brokers as tests need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cellwall.accounts.roles import Roles
from cellwall.core.approvals import Answer, AnswerKind, Question
from cellwall.core.outcomes import Event
from cellwall.core.types import Action, Principal, RunCommand
from cellwall.core.verdict import Decision, Verdict
from cellwall.runtime.approval_queue import ApprovalQueue
from cellwall.runtime.approvals import ApprovalBroker
from cellwall.runtime.questions import question_about

ME = Principal("me", "cli")
ASK = Decision(Verdict.ASK, "Bash(git push *)", "pushes are seen by others", "policy.toml:3")
SESSION = "sbx_" + "a" * 26


def action_for(*argv: str, **changes: object) -> Action:
    wanted = Action(
        principal=Principal("agent", "sdk"), operation=RunCommand(argv or ("git", "push"))
    )
    return replace(wanted, **changes)


def question_for(*argv: str, timeout_s: float = 30.0, **changes: object) -> Question:
    return question_about(action_for(*argv, **changes), ASK, timeout_s=timeout_s)


def said(kind: AnswerKind, rule: str = "", by: Principal = ME, via: str = "queue") -> Answer:
    return Answer(kind=kind, by=by, via=via, rule=rule)


@dataclass
class Record:
    """Keeps `AuditPort`; fails from the n-th event on if told to."""

    events: list[Event] = field(default_factory=list)
    failure: Exception | None = None
    good: int = 0

    def write(self, event: Event) -> str:
        if self.failure is not None and len(self.events) >= self.good:
            raise self.failure
        self.events.append(event)
        return f"aud_{len(self.events)}"

    async def record(self, event: Event) -> str:
        return self.write(event)

    def told(self) -> list[tuple[object, ...]]:
        keys = ("verdict", "answer", "by", "via", "how")
        return [tuple(event.body[key] for key in keys) for event in self.events]


def anybody(_: int | None) -> None:
    """Takes an answer from any process: tests ask and answer in one."""


def broker_for(
    home: str | None = None,
    *,
    record: Record | None = None,
    roles: Roles | None = None,
    timeout_s: float = 30.0,
    channels: Sequence[str] = ("terminal", "queue", "callback"),
    policy_path: str = "/nonexistent/policy.toml",
) -> ApprovalBroker:
    return ApprovalBroker(
        audit=record or Record(),
        roles=roles or Roles(),
        timeout_s=timeout_s,
        channels=tuple(channels),
        queue=None if home is None else ApprovalQueue(home, check_process=anybody),
        policy_path=policy_path,
    )

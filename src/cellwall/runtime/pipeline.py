"""The one path of every action. Whoever reads this file sees all that can happen to one.

   (1) bound and parse      (6) verify skills, write the intent; a failure of either denies
   (2) who asks             (7) lease what it needs: a slot, a workspace, secrets, a way out
   (3) guard the input      (8) run
   (4) judge                (9) guard and clean the output
   (5) ask a person        (10) write the outcome, give every lease back

A failure of any step ends here as a value: denied or error, with a code, and recorded. Only a bug
or a cancellation leaves as an exception, and the leases are given back then, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial

import anyio

from cellwall.core.errors import AuditFailed, BadInput, CellwallError, ConfigError, Denied
from cellwall.core.events import EventKind
from cellwall.core.outcomes import ErrorInfo, Finding, Outcome, RunResult, Status
from cellwall.core.ports import (
    ApproverPort,
    AuditPort,
    BrokerPort,
    EgressPort,
    GovernorPort,
    GuardPort,
    PolicyPort,
    RolesPort,
    SandboxPort,
    SkillsPort,
    ToolsPort,
    VaultPort,
    WorkspacePort,
)
from cellwall.core.roles import Role
from cellwall.core.types import (
    Action,
    CallTool,
    FetchUrl,
    FileOperation,
    Json,
    OutputSink,
    ProcessOperation,
    RunCode,
    RunCommand,
    SetDomains,
    Skill,
    ToolResult,
    UseTool,
)
from cellwall.core.verdict import Decision, Verdict
from cellwall.runtime.approvals import decision_of
from cellwall.runtime.bounds import Bounds, check_room
from cellwall.runtime.cell_io import CleanedOutput, Listener, called, tool_caller
from cellwall.runtime.egress import open_egress, with_configured_domains
from cellwall.runtime.guarding import withheld
from cellwall.runtime.outcomes import (
    allowed,
    asked_outside,
    denial,
    denied,
    ended,
    host_failure,
    intent,
    outcome_of,
    received,
    summary,
    unasked,
    unread,
    without_network,
)
from cellwall.runtime.permissions import beyond
from cellwall.runtime.questions import question_of, showing_question
from cellwall.runtime.recording import Recorder

_SMALL_BYTES = 4 * 1024
"""What is scanned at once: the worst text of this length takes 50 ms. More is scanned in a thread,
while others go on."""
_MIN_CLEANING_S = 10.0
"""Time to clean what came back, however little of its own time a run has left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The parts, met in the one place where they meet."""

    bounds: Bounds
    roles: RolesPort
    policy: PolicyPort
    approvals: BrokerPort
    guard: GuardPort
    audit: AuditPort
    governor: GovernorPort
    sandbox: SandboxPort
    workspaces: WorkspacePort
    skills: SkillsPort
    vault: VaultPort
    egress: EgressPort
    domains: tuple[str, ...] = ()
    """What every sandbox may reach whose user may use the network at all."""
    recorder: Recorder = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "recorder", Recorder(self.audit))

    async def perform(
        self,
        action: Action,
        *,
        sink: OutputSink | None = None,
        tools: ToolsPort | None = None,
        ask: ApproverPort | None = None,
    ) -> Outcome:
        """Carry one action through all steps. A refusal is a value.

        `tools` are what the host offers to code inside; each call of one is an action of its own.
        `ask` is the interface's own way to a person.
        """
        self.recorder.traffic.count += 1
        try:
            if isinstance(action.operation, ToolResult):
                return await self._receive(action, action.operation)
            outcome = await self._perform(action, sink=sink, tools=tools, ask=ask)
            return outcome if outcome.error is None else self._told(action, outcome, outcome.error)
        finally:
            self.recorder.traffic.count -= 1
            self.sandbox.tidy_up()

    async def check(self, action: Action) -> None:
        """Raises for what no action of a sandbox can be given: a name that nobody knows, a file
        that cannot be read. Nothing runs and nothing is lent; each action is judged by itself."""
        self.bounds.check(action)
        self.policy.judge(action, ())  # reads the files
        await self._verified(action)
        await self.vault.check(action)

    def _told(self, action: Action, outcome: Outcome, error: ErrorInfo) -> Outcome:
        """A sentence of ours may name a file, a host or a type that somebody else has chosen."""
        try:
            message = self.guard.redact(error.message)
            shown = self.guard.tell(action, message) if action.audience == "model" else ""
        except (
            ConfigError
        ):  # its own rules cannot be read: so nothing ran, and that is what is told
            return outcome
        except CellwallError:  # of the guard itself: then without the sentence
            message, shown = "it failed, and why cannot be told", ""
        return replace(outcome, error=replace(error, message=message), shown=shown)

    async def _receive(self, action: Action, operation: ToolResult) -> Outcome:
        """Steps 1, 2, 9 and 10, for what was judged when the agent asked for it and ran outside."""
        decision = Decision(Verdict.DENY, reason="not judged: it has happened")
        try:
            self.bounds.check(action)
            if not action.principal.name:
                raise BadInput("nobody is named as the one who asks")
            result = await self._cleaned(action, RunResult(None, value=operation.response), None)
            body = received(operation, result)
            audit_id = await self.recorder.record(action, EventKind.OUTCOME, body)
        except CellwallError as error:
            return self._refused(action, decision, (), "", error)
        return outcome_of(action, decision, audit_id, result, None)

    async def _perform(
        self,
        action: Action,
        *,
        sink: OutputSink | None,
        tools: ToolsPort | None,
        ask: ApproverPort | None,
    ) -> Outcome:
        decision = Decision(Verdict.DENY, reason="refused before it was judged")
        findings: Sequence[Finding] = ()
        audit_id = ""
        try:
            # (1) Sizes, ids, encodings: nothing below sees an unbounded value.
            self.bounds.check(action)
            # (2) Who, and what their role may do at most. It stands before all that can allow: no
            # rule, no answer and no wall gives what a role lacks (RBAC-2).
            role = self._role(action)
            action = _as(role, action)
            lacking = beyond(role, action)
            if lacking is None:
                # (3) A signal for the judge, never the wall.
                findings = await self._screened(action)
                # (4) Pure; no match is DENY.
                decision = await self._judged(action, findings)
            else:
                decision = lacking
            if decision.verdict is Verdict.ASK and _host_asks(action):
                # (5) The agent's host asks its own person; before that, the question is on record.
                return await self._asked_outside(action, decision, findings)
            # (5) Nothing is leased yet, so a question can wait. No answer is a no (POL-8).
            if decision.verdict is Verdict.ASK:
                decision = await self._asked(action, decision, ask)
            if decision.verdict is not Verdict.ALLOW:
                audit_id = await self.recorder.record(
                    action, EventKind.DENIAL, denial(action, decision)
                )
                error = denied(action, decision, by_role=lacking is not None)
                return ended(action, Status.DENIED, decision, findings, audit_id, error)
            action = with_configured_domains(action, role, self.domains)
            # (6) Skills are verified now, so that the record names what the cell will hold (SKL-1).
            # Durable before the effect, or there is no effect (AUD-1).
            skills = await self._verified(action)
            audit_id = await self.recorder.record(
                action, EventKind.INTENT, intent(action, decision, skills)
            )
            if isinstance(action.operation, UseTool):
                # (8) Its host carries it out; what comes of it arrives as a `ToolResult`.
                return allowed(action, decision, findings, audit_id)
        except CellwallError as error:
            return self._refused(action, decision, findings, audit_id, error)
        listener = None if sink is None else Listener(sink)
        clean = None if listener is None else CleanedOutput(self.guard, listener)
        try:
            outcome = await self._carry_out(action, decision, audit_id, clean, tools, ask, skills)
        except CellwallError as error:
            return self._refused(action, decision, findings, audit_id, error)
        except OSError as error:  # a full disk, no descriptor left: the host's, not a bug of ours
            if listener is not None and error is listener.error:
                self.recorder.quietly(action, {"status": "interrupted"})
                raise
            return self._refused(action, decision, findings, audit_id, host_failure(error))
        except BaseException:  # cancelled, or a bug: the record says that it did not end well
            self.recorder.quietly(action, {"status": "interrupted"})
            raise
        # (10) The outcome; every lease was given back on the way out of `_carry_out`.
        try:
            await self.recorder.record(action, EventKind.OUTCOME, summary(outcome))
        except AuditFailed as error:
            return ended(action, Status.ERROR, decision, findings, audit_id, ErrorInfo.of(error))
        return replace(outcome, findings=(*findings, *outcome.findings))

    async def _carry_out(
        self,
        action: Action,
        decision: Decision,
        audit_id: str,
        sink: CleanedOutput | None,
        tools: ToolsPort | None,
        ask: ApproverPort | None,
        skills: Sequence[Skill],
    ) -> Outcome:
        if isinstance(action.operation, FileOperation):
            # (7)+(8) A file operation needs no sandbox: it works on descriptors beneath the root.
            payload = await anyio.to_thread.run_sync(self.workspaces.operate, action)
            result = await self._cleaned(action, RunResult(None, payload=payload), ask)
            return outcome_of(action, decision, audit_id, result, None)
        if isinstance(action.operation, CallTool):
            # (8) Runs outside, in the host's own function, with what the policy has seen.
            value = await called(tools, action.operation)
            return Outcome(
                status=Status.OK,
                action_id=action.id,
                decision=decision,
                audit_id=audit_id,
                value=value,
            )
        if isinstance(action.operation, ProcessOperation):
            # (8) What it is about has its place already. (9) What it brings back is untrusted.
            result = await self._cleaned(action, await self.sandbox.steer(action), ask)
            return outcome_of(action, decision, audit_id, result, None)
        if isinstance(action.operation, SetDomains):
            # (8) Judged like a new run with them; holds for connections from now on.
            self.egress.allow(_session(action), action.allow_domains)
            return allowed(action, decision, (), audit_id)
        if isinstance(action.operation, FetchUrl):
            # (7), (8) Runs outside as well, by the rules of the way out (NET-4).
            async with self.vault.lease(action) as secrets:
                page = await self.egress.fetch(action, secrets)
            # (9)
            result = RunResult(None, text=page.text, payload=page)
            result = await self._cleaned(action, result, ask)
            return outcome_of(action, decision, audit_id, result, None)
        # (7) Given back in any case, cancellation included: all are context managers.
        async with (
            self.governor.lease(memory_bytes=action.limits.memory_bytes) as slot,
            self.workspaces.lease(action) as workspace,
        ):
            # (8) Inside the walls. Settled whatever happened: what code left behind in a given
            # directory does not become harmless because its run was cancelled (FS-4).
            try:
                # Its way out ends before the files are looked at: what it had open then is gone.
                async with open_egress(self.vault, self.egress, action) as (network, env):
                    run = partial(
                        self.sandbox.run,
                        replace(action, env=env),
                        slot=slot,
                        workspace=workspace,
                        sink=sink,
                        tools=tool_caller(
                            action, tools, partial(self.perform, tools=tools, ask=ask)
                        ),
                        skills=skills,
                        network=network,
                    )
                    result = await (run() if sink is None else sink.beside(run))
                noticed = network.noticed() if network is not None else without_network(result)
            finally:
                with anyio.CancelScope(shield=True):
                    settled = await workspace.settle()
            # (9) What comes back is untrusted.
            if sink is not None:
                await sink.end()
            # What was seen at its border and on its way out names what code has chosen as well.
            result = replace(result, findings=(*result.findings, *noticed, *settled))
            result = await self._cleaned(action, result, ask)
            return outcome_of(action, decision, audit_id, result, workspace.id)

    async def _cleaned(
        self, action: Action, result: RunResult, ask: ApproverPort | None
    ) -> RunResult:
        """Much text takes its time to be read, too. What a person must agree to see, they are
        asked for first; without a yes a model does not see it (GRD-3)."""
        if _is_small(result):
            cleaned = self.guard.clean(action, result)
        else:
            cleaned = await self._cleaned_in_time(action, result)
        if not cleaned.withheld:
            return cleaned
        # Another question than whether it may run, and never answered by the answer to that.
        question = showing_question(action, cleaned.withheld, timeout_s=self.approvals.timeout_s)
        if (await self.approvals.ask(question, near=ask)).allows:
            return cleaned
        return replace(cleaned, shown=withheld(cleaned.withheld), results=())

    async def _cleaned_in_time(self, action: Action, result: RunResult) -> RunResult:
        """In a thread, for others go on meanwhile; within what the run has left of its own time.
        What could not be read in that time is not handed on (LIM-2, GRD-11)."""
        if not isinstance(action.operation, RunCode | RunCommand):
            return await anyio.to_thread.run_sync(self.guard.clean, action, result)
        left_s = action.limits.wall_s - result.usage.wall_s
        with anyio.move_on_after(max(left_s, _MIN_CLEANING_S)):
            return await anyio.to_thread.run_sync(
                self.guard.clean, action, result, abandon_on_cancel=True
            )
        return unread(result)

    async def _screened(self, action: Action) -> Sequence[Finding]:
        if _text_length(action) < _SMALL_BYTES:
            return self.guard.screen(action)
        return await anyio.to_thread.run_sync(self.guard.screen, action)

    async def _judged(self, action: Action, findings: Sequence[Finding]) -> Decision:
        """What an agent writes can take its time to be read; others go on meanwhile."""
        if isinstance(action.operation, UseTool):
            return await anyio.to_thread.run_sync(self.policy.judge, action, findings)
        return self.policy.judge(action, findings)

    def _role(self, action: Action) -> Role:
        """The role that is in force; nobody unnamed has one."""
        if not action.principal.name:
            raise BadInput("nobody is named as the one who asks")
        return self.roles.role_of(action.principal)

    async def _asked_outside(
        self, action: Action, decision: Decision, findings: Sequence[Finding]
    ) -> Outcome:
        """No yes of ours: whoever does not know how to ask has been denied."""
        body = intent(action, decision, ())
        audit_id = await self.recorder.record(action, EventKind.INTENT, body)
        error = asked_outside(action, decision)
        return ended(action, Status.DENIED, decision, findings, audit_id, error)

    async def _asked(
        self, action: Action, decision: Decision, ask: ApproverPort | None
    ) -> Decision:
        """What a person made of it; whoever stops waiting has it denied, on the record."""
        if isinstance(action.operation, UseTool):
            # Its host waits for us for some seconds, in which no person answers.
            return unasked(decision)
        question = question_of(action, decision, timeout_s=self.approvals.timeout_s)
        try:
            answer = await self.approvals.ask(question, near=ask)
        except CellwallError:
            raise
        except BaseException:
            self.recorder.quietly(action, {"status": "interrupted", "question": question.id})
            raise
        return decision_of(decision, answer)

    async def _verified(self, action: Action) -> tuple[Skill, ...]:
        if not action.skills:
            return ()
        skills = await anyio.to_thread.run_sync(self.skills.load, action.skills)
        check_room(skills, action.limits)
        return skills

    def _refused(
        self,
        action: Action,
        decision: Decision,
        findings: Sequence[Finding],
        audit_id: str,
        error: CellwallError,
    ) -> Outcome:
        """The one place where a failed step becomes an answer."""
        status = Status.DENIED if isinstance(error, Denied) else Status.ERROR
        body: dict[str, Json] = {
            "status": status.value,
            "code": error.code,
            "message": error.message,
            "detail": error.detail,
        }
        if not isinstance(error, AuditFailed):
            kind = EventKind.DENIAL if status is Status.DENIED else EventKind.OUTCOME
            audit_id = self.recorder.quietly(action, body, kind) or audit_id
        return ended(action, status, decision, findings, audit_id, ErrorInfo.of(error))


def _as(role: Role, action: Action) -> Action:
    """What the action leads to, such as a call of a tool, is bound by the same role."""
    who = action.principal
    if who.role == role.name:
        return action
    return replace(action, principal=replace(who, role=role.name))


def _session(action: Action) -> str:
    if action.session_id is None:
        raise BadInput("only a live sandbox has a way out that can be changed")
    return action.session_id


def _is_small(result: RunResult) -> bool:
    """Whether it can be read at once; what is made of many parts is taken for large."""
    if result.results or result.payload is not None or isinstance(result.value, list | dict):
        return False
    texts = (result.stdout, result.stderr, result.text or "", str(result.value or ""))
    return sum(map(len, texts)) < _SMALL_BYTES


def _text_length(action: Action) -> int:
    """Of all texts in it; of what is nested, as it is written."""
    parts = (getattr(action.operation, each.name) for each in fields(action.operation))
    return sum(
        len(part) if isinstance(part, str | bytes) else len(str(part))
        for part in parts
        if part is not None and not isinstance(part, int | float)
    )


def _host_asks(action: Action) -> bool:
    return isinstance(action.operation, UseTool) and action.operation.host_asks

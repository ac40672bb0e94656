"""The one path of every action: each step that an action takes is in this file.

   (1) bound and parse      (6) verify skills, write the intent; a failure of either denies
   (2) who asks, and pays   (7) lease a slot, a workspace, secrets, egress
   (3) guard the input      (8) run
   (4) judge                (9) guard and redact the output
   (5) ask a person        (10) book the usage, write the outcome, release every lease

A failure of any step becomes a value here: status `denied` or `error`, with a code, logged. Only a
bug or a cancellation leaves as an exception, and the leases are released then as well. Each step
tells the action's `ActionWatch` that it begins, which ends the step before (OBS-1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import anyio

from cellwall.core.errors import AuditFailed, BadInput, CellwallError
from cellwall.core.labels import ActionLabelsPort
from cellwall.core.outcomes import ErrorInfo, EventKind, Finding, Outcome, RunResult, Status
from cellwall.core.packages import InstallPackages
from cellwall.core.port_connections import ConnectPort
from cellwall.core.ports import ApproverPort, Reservation, ToolServersPort, ToolsPort
from cellwall.core.skills import Skill
from cellwall.core.snapshots import RestoreSnapshot
from cellwall.core.telemetry import ActionWatch, Step
from cellwall.core.tool_servers import RunServer
from cellwall.core.types import (
    Action,
    CallTool,
    OutputSink,
    ReachHost,
    Role,
    RunCode,
    SetDomains,
    ToolResult,
    UseTool,
)
from cellwall.core.verdict import Decision, Verdict
from cellwall.runtime.bounds import check_skill_size
from cellwall.runtime.cell_io import (
    CleanedOutput,
    Listener,
    call_tool,
    cleaned_output,
    screen_input,
    tool_caller,
)
from cellwall.runtime.cell_runs import CellRunner
from cellwall.runtime.connections import resolve_account
from cellwall.runtime.early_cells import open_early
from cellwall.runtime.egress import with_configuration
from cellwall.runtime.event_bodies import intent_body, outcome_body, tool_result_body
from cellwall.runtime.judges import judge
from cellwall.runtime.judging import effective_role, missing_permissions, with_role
from cellwall.runtime.outcomes import allowed_outcome, failed_outcome, host_failure, run_outcome
from cellwall.runtime.parts import RuntimeParts

_NO_CODE = RunCode("python", b"")
_NOT_JUDGED = Decision(Verdict.DENY, reason="refused before the policy judged the action")


class Runtime(RuntimeParts):
    """Carries actions through the steps."""

    __slots__ = ()

    async def perform(
        self,
        action: Action,
        *,
        sink: OutputSink | None = None,
        tools: ToolsPort | None = None,
        servers: ToolServersPort | None = None,
        ask: ApproverPort | None = None,
    ) -> Outcome:
        """Carry one action through all steps. A refusal is a value.

        `tools` are host functions that code inside may call; each call is an action of its own.
        `servers` are the other MCP servers of the client.
        `ask` is the interface's own channel to a person.
        """
        # A server or a connection that lasts for hours does not share its flushes with others.
        weight = 0 if isinstance(action.operation, RunServer | ConnectPort) else 1
        self.recorder.traffic.count += weight
        watch = self.telemetry.watch(action)
        outcome: Outcome | None = None
        try:
            if isinstance(action.operation, ToolResult):
                outcome = await self._receive(action, action.operation, watch)
                return outcome
            outcome = await self._perform(
                action, watch, sink=sink, tools=tools, servers=servers, ask=ask
            )
            if outcome.error is None:
                return outcome
            return self._endings.redact(action, outcome, outcome.error)
        finally:
            self.recorder.traffic.count -= weight
            self.sandbox.tidy_up()
            watch.end(outcome)

    async def check(self, action: Action) -> None:
        """Raise for settings that would fail every action: an unknown name, an unreadable file.

        Nothing runs and nothing is leased; each action is still judged by itself.
        """
        self.bounds.check(action)
        # Reads the policy files. Code is judged by its language; a command would be parsed.
        self.policy.judge(replace(action, operation=_NO_CODE), ())
        await self._verify_skills(action)
        await self.vault.check(action)

    async def open_early(self, action: Action) -> None:
        """Open the live cell of a session before its first action, where that is allowed."""
        await open_early(self, action)

    async def _receive(self, action: Action, operation: ToolResult, watch: ActionWatch) -> Outcome:
        """Steps 1, 2, 9 and 10, for a tool call that was judged before and ran on the host."""
        decision = Decision(Verdict.DENY, reason="not judged: the tool has already run")
        try:
            watch.step(Step.BOUND)
            self.bounds.check(action)
            watch.step(Step.WHO)
            if not action.principal.name:
                raise BadInput("the action names no principal")
            response = RunResult(None, value=operation.response)
            labels = self.labels.begin(action)
            result = await self._people.clean(action, watch, response, None)
            watch.step(Step.OUTCOME)
            body = tool_result_body(operation, result, labels.receive(result.findings))
            audit_id = await self.recorder.record(action, EventKind.OUTCOME, body)
        except CellwallError as error:
            return self._endings.refuse(action, watch, decision, (), "", error)
        return run_outcome(action, decision, audit_id, result, None)

    async def _perform(
        self,
        action: Action,
        watch: ActionWatch,
        *,
        sink: OutputSink | None,
        tools: ToolsPort | None,
        servers: ToolServersPort | None,
        ask: ApproverPort | None,
    ) -> Outcome:
        try:
            # (1) Nothing begins during an emergency stop (OBS-3). Sizes, ids, encodings: nothing
            # below sees an unbounded value.
            watch.step(Step.BOUND)
            self.stop.check()
            self.bounds.check(action)
            # (2) The principal and the most that its role permits. Checked before all that can
            # allow: no rule, answer or isolation layer grants what a role lacks (RBAC-2).
            watch.step(Step.WHO)
            role = effective_role(self.roles, action)
            action = with_role(role, action)
            # An account is its owner's; another one answers as if there were none (RBAC-3).
            action = resolve_account(self.connections, action)
            # Its rates are counted, and what it will cost is reserved (RBAC-4).
            held = await self.quota.reserve(action)
        except CellwallError as error:
            return self._endings.refuse(action, watch, _NOT_JUDGED, (), "", error)
        outcome = None
        labels = self.labels.begin(action)
        try:
            outcome = await self._judge_and_run(
                action, watch, role, held, labels, sink=sink, tools=tools, servers=servers, ask=ask
            )
        finally:
            labels.end(outcome)
            await held.settle(outcome)
        return outcome

    async def _judge_and_run(
        self,
        action: Action,
        watch: ActionWatch,
        role: Role,
        held: Reservation,
        labels: ActionLabelsPort,
        *,
        sink: OutputSink | None,
        tools: ToolsPort | None,
        servers: ToolServersPort | None,
        ask: ApproverPort | None,
    ) -> Outcome:
        decision = _NOT_JUDGED
        findings: Sequence[Finding] = ()
        audit_id = ""
        try:
            lacking = missing_permissions(role, action)
            if lacking is None:
                # (3) A signal for the policy, never the boundary.
                watch.step(Step.GUARD_INPUT)
                findings = await screen_input(self.guard, action)
                # (4) Pure; no match is DENY. Labels of the session can only make it stricter.
                watch.step(Step.JUDGE)
                decision = await judge(
                    action,
                    findings,
                    policy=self.policy,
                    installer=self.installer,
                    servers=servers,
                    labels=labels,
                    effective=with_configuration(action, role, self.reach),
                )
            else:
                decision = lacking
            use = action.operation if isinstance(action.operation, UseTool) else None
            if decision.verdict is Verdict.ASK and use is not None and use.host_asks:
                # (5) The agent's host asks its own user; the question is logged before that.
                watch.step(Step.ASK)
                # Its answer is not told, and a failed tool has no result: it counts as a yes.
                return await self._endings.leave_to_host(
                    action, decision, findings, labels.commit()
                )
            # (5) Nothing is leased yet, so a question can wait. No answer denies (POL-8).
            if decision.verdict is Verdict.ASK:
                watch.step(Step.ASK)
                decision = await self._people.ask_about(action, decision, ask, labels)
            if decision.verdict is not Verdict.ALLOW:
                return await self._endings.deny(
                    action, watch, decision, findings, by_role=lacking is not None
                )
            action = labels.narrow(with_configuration(action, role, self.reach))
            # (6) Skills are verified now, so the log names what the cell will hold (SKL-1). The
            # intent is durable before the effect, or there is no effect (AUD-1).
            watch.step(Step.INTENT)
            skills = await self._verify_skills(action)
            body = intent_body(action, decision, skills, labels.commit())
            audit_id = await self.recorder.record(action, EventKind.INTENT, body)
            if use is not None:
                # (8) The agent's host runs the tool; the result arrives as a `ToolResult`.
                return allowed_outcome(action, decision, findings, audit_id)
        except CellwallError as error:
            return self._endings.refuse(action, watch, decision, findings, audit_id, error)
        held.start()
        listener = None if sink is None else Listener(sink)
        clean = cleaned_output(self.guard, action, listener)
        try:
            # Each unknown destination of its code is an action of its own (NET-9).
            async with self.destinations.open(action, partial(self.perform, ask=ask)):
                outcome = await self._carry_out(
                    action,
                    watch,
                    decision,
                    audit_id,
                    held,
                    labels,
                    clean,
                    tools,
                    servers,
                    ask,
                    skills,
                )
        except (CellwallError, OSError) as error:
            if listener is not None and error is listener.error:  # the caller's own
                self.recorder.quietly(action, {"status": "interrupted"})
                raise
            cause = self._cause_of(error)
            return self._endings.refuse(action, watch, decision, findings, audit_id, cause)
        except BaseException:  # cancelled, or a bug: logged as interrupted
            self.recorder.quietly(action, {"status": "interrupted"})
            raise
        # (10) The usage and the outcome; `_carry_out` has released every lease.
        watch.step(Step.OUTCOME)
        await held.settle(outcome)
        try:
            await self.recorder.record(action, EventKind.OUTCOME, outcome_body(outcome))
        except AuditFailed as error:
            watch.fail(error.code)
            info = ErrorInfo.of(error)
            return failed_outcome(action, Status.ERROR, decision, findings, audit_id, info)
        every = (*findings, *outcome.findings)
        return replace(outcome, findings=every) if findings else outcome

    async def _carry_out(
        self,
        action: Action,
        watch: ActionWatch,
        decision: Decision,
        audit_id: str,
        held: Reservation,
        labels: ActionLabelsPort,
        sink: CleanedOutput | None,
        tools: ToolsPort | None,
        servers: ToolServersPort | None,
        ask: ApproverPort | None,
        skills: Sequence[Skill],
    ) -> Outcome:
        self.stop.check()  # again: the action may have waited for a person since step 1
        if isinstance(action.operation, CallTool):
            # (8) Runs on the host, in its own function, with the arguments that were judged.
            watch.step(Step.RUN)
            value = await call_tool(tools, action.operation)
            return replace(allowed_outcome(action, decision, (), audit_id), value=value)
        if isinstance(action.operation, ReachHost | RestoreSnapshot):
            # (8) The proxy waits for this outcome, and then connects; the interface, and then makes
            # the session.
            watch.step(Step.RUN)
            return allowed_outcome(action, decision, (), audit_id)
        if isinstance(action.operation, SetDomains):
            # (8) Judged like a new run with these domains; applies to new connections.
            watch.step(Step.RUN)
            self.egress.allow(_session_id(action), action.allow_domains)
            return allowed_outcome(action, decision, (), audit_id)
        # (7), (8) Without a cell: files, pages, messages, accounts, tools of other servers.
        done = await self._host.run(action, watch, servers)
        if done is not None:
            # (9)
            result = await self._people.clean(action, watch, done, ask)
            return run_outcome(action, decision, audit_id, result, None)
        # (7) A template is shared and older than this action: its packages are judged again.
        watch.step(Step.LEASE)
        if self.templates is not None:
            await self.templates.check(action)
        # Context managers: released in any case, cancellation included.
        async with (
            self.governor.lease(memory_bytes=action.limits.memory_bytes) as slot,
            self.workspaces.lease(action) as workspace,
        ):
            labels.keep_with(workspace.id)
            cell = CellRunner(
                vault=self.vault,
                egress=self.egress,
                sandbox=self.sandbox,
                slot=slot,
                workspace=workspace,
                workspaces=self.workspaces,
                sink=sink,
                tools=tool_caller(action, tools, partial(self.perform, tools=tools, ask=ask)),
                skills=skills,
                packages=self.packages,
                near=ask,
                watch=watch,
                meter=self.meter,
                held=held,
            )
            # (8) Inside the sandbox. The workspace is settled whatever happened: files that code
            # left in a given directory stay dangerous when the run was cancelled (FS-4).
            try:
                if action.registries:
                    await self.installer.prepare(action, cell)
                # Egress ends before the files are inspected: no connection is open by then.
                if isinstance(action.operation, InstallPackages):
                    watch.step(Step.RUN)
                    result = await self.installer.install(action, cell)
                else:
                    result = await cell.run(action)
            finally:
                settled = await workspace.settle()  # shielded
            # (9) The result is untrusted.
            watch.step(Step.GUARD_OUTPUT)
            if sink is not None:
                await sink.end()
                result = sink.show(result)
            # Findings of egress and workspace quote names that the code has chosen: redact them.
            result = result.with_findings(settled)
            result = await self._people.clean(action, watch, result, ask)
            outcome = run_outcome(action, decision, audit_id, result, workspace.id)
            if not (action.registries or isinstance(action.operation, InstallPackages)):
                return outcome
            return replace(outcome, packages=self.egress.take_packages(action.id))

    def _cause_of(self, error: CellwallError | OSError) -> CellwallError:
        if isinstance(error, OSError):  # a full disk, no free descriptor: the host's, not a bug
            return host_failure(error)
        return self.stop.cause_of(error)

    async def _verify_skills(self, action: Action) -> tuple[Skill, ...]:
        if not action.skills:
            return ()
        skills = await anyio.to_thread.run_sync(self.skills.load, action.skills)
        check_skill_size(skills, action.limits)
        return skills


def _session_id(action: Action) -> str:
    if action.session_id is None:
        raise BadInput("only a live sandbox has egress domains that can be changed")
    return action.session_id

"""Step (10) of an action that did not run: each refusal becomes an outcome and a record here.

An error text is redacted here as well, before an interface gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cellwall.core.errors import AuditFailed, CellwallError, ConfigError, Denied, LimitExceeded
from cellwall.core.outcomes import ErrorInfo, EventKind, Finding, Outcome, Status
from cellwall.core.ports import GuardPort
from cellwall.core.telemetry import ActionWatch, Step
from cellwall.core.types import Action, Json
from cellwall.core.verdict import Decision
from cellwall.runtime.event_bodies import denial_body, intent_body
from cellwall.runtime.outcomes import (
    denial_error,
    failed_outcome,
    host_question_error,
    name_program,
)
from cellwall.runtime.recording import Recorder


@dataclass(frozen=True, slots=True)
class Endings:
    """Outcomes of actions that were refused."""

    _recorder: Recorder
    _guard: GuardPort

    def refuse(
        self,
        action: Action,
        watch: ActionWatch,
        decision: Decision,
        findings: Sequence[Finding],
        audit_id: str,
        error: CellwallError,
    ) -> Outcome:
        """The one place where a failed step becomes an outcome."""
        error = name_program(action, error)
        watch.fail(error.code)
        watch.step(Step.OUTCOME)
        status = Status.DENIED if isinstance(error, Denied) else Status.ERROR
        body: dict[str, Json] = {
            "status": status.value,
            "code": error.code,
            "error_code": error.code,
            "message": error.message,
            "detail": error.detail,
        }
        is_repeated = isinstance(error, LimitExceeded) and error.is_repeated
        if not isinstance(error, AuditFailed) and not is_repeated:
            kind = EventKind.DENIAL if status is Status.DENIED else EventKind.OUTCOME
            audit_id = self._recorder.quietly(action, body, kind) or audit_id
        return failed_outcome(action, status, decision, findings, audit_id, ErrorInfo.of(error))

    async def deny(
        self,
        action: Action,
        watch: ActionWatch,
        decision: Decision,
        findings: Sequence[Finding],
        *,
        by_role: bool,
    ) -> Outcome:
        """Step 10 of an action that its role, the policy or a person has denied."""
        watch.step(Step.OUTCOME)
        body = denial_body(action, decision)
        audit_id = await self._recorder.record(action, EventKind.DENIAL, body)
        error = denial_error(action, decision, by_role=by_role)
        return failed_outcome(action, Status.DENIED, decision, findings, audit_id, error)

    async def leave_to_host(
        self,
        action: Action,
        decision: Decision,
        findings: Sequence[Finding],
        labels: dict[str, Json],
    ) -> Outcome:
        """The status is `denied`, so a host that cannot ask its user denies."""
        body = intent_body(action, decision, (), labels)
        audit_id = await self._recorder.record(action, EventKind.INTENT, body)
        error = host_question_error(action, decision)
        return failed_outcome(action, Status.DENIED, decision, findings, audit_id, error)

    def redact(self, action: Action, outcome: Outcome, error: ErrorInfo) -> Outcome:
        """Redact an error message: it may quote a file, host or type name chosen by an attacker."""
        try:
            message = self._guard.redact(error.message)
            shown = self._guard.tell(action, message) if action.audience == "model" else ""
        except ConfigError:  # the guard's rules are unreadable: nothing ran, and the error says so
            return outcome
        except CellwallError:  # the guard failed: drop the message rather than show it unredacted
            message, shown = "the action failed, and its error message could not be redacted", ""
        return replace(outcome, error=replace(error, message=message), shown=shown)

"""Where a person decides: on an action (5), on a result that no model may see unasked (9)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cellwall.core.approvals import AnswerKind
from cellwall.core.errors import CellwallError
from cellwall.core.labels import ActionLabelsPort
from cellwall.core.outcomes import RunResult
from cellwall.core.packages import InstallPackages
from cellwall.core.ports import ApproverPort, BrokerPort, GuardPort, InstallerPort
from cellwall.core.telemetry import ActionWatch, Step
from cellwall.core.types import Action, UseTool
from cellwall.core.verdict import Decision
from cellwall.runtime.approvals import decision_after_answer
from cellwall.runtime.cell_io import clean_result
from cellwall.runtime.guarding import withheld
from cellwall.runtime.outcomes import deny_unasked
from cellwall.runtime.questions import disclosure_question, question_about
from cellwall.runtime.recording import Recorder


@dataclass(frozen=True, slots=True)
class Consents:
    """Asks people, and waits for their answers."""

    _guard: GuardPort
    _approvals: BrokerPort
    _recorder: Recorder
    _installer: InstallerPort

    async def ask_about(
        self,
        action: Action,
        decision: Decision,
        ask: ApproverPort | None,
        labels: ActionLabelsPort,
    ) -> Decision:
        """The decision after a person was asked; a caller that stops waiting is denied."""
        if isinstance(action.operation, UseTool):
            # The agent's host waits only seconds for a hook, too short for a person.
            return deny_unasked(decision)
        question = question_about(action, decision, timeout_s=self._approvals.timeout_s)
        try:
            answer = await self._approvals.ask(question, near=ask)
        except CellwallError:
            raise
        except BaseException:
            self._recorder.quietly(action, {"status": "interrupted", "question": question.id})
            raise
        if answer.kind is AnswerKind.SESSION:
            labels.admit_for_session()
        if answer.allows and isinstance(action.operation, InstallPackages):
            self._installer.consent(action, action.operation, answer)
        return decision_after_answer(decision, answer)

    async def clean(
        self, action: Action, watch: ActionWatch, result: RunResult, ask: ApproverPort | None
    ) -> RunResult:
        """Guard and redact a result. Content that needs consent is shown to a model only after a
        person has agreed (GRD-3)."""
        watch.step(Step.GUARD_OUTPUT)
        cleaned = await clean_result(self._guard, action, result)
        if not cleaned.withheld:
            return cleaned
        # A question of its own: an answer that allowed the action does not answer this one.
        question = disclosure_question(
            action, cleaned.withheld, timeout_s=self._approvals.timeout_s
        )
        if (await self._approvals.ask(question, near=ask)).allows:
            return cleaned
        return replace(cleaned, shown=withheld(cleaned.withheld), results=())

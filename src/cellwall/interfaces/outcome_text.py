"""An outcome as lines for a person, beside the program's own output; local runs and runs in the
supervisor share them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from cellwall.core.errors import CellwallError
from cellwall.core.limits import LimitName, Limits
from cellwall.core.outcomes import ErrorInfo, Finding, Outcome, Status
from cellwall.core.types import Action, WorkspaceMode
from cellwall.core.verdict import Decision, Verdict
from cellwall.interfaces import REFUSED
from cellwall.interfaces.terminal import one_line

if TYPE_CHECKING:
    from cellwall.runtime.app import App

_MAX_FINDINGS = 20
# For each limit: the option that raises it, its field in `Limits`, and how the value is written.
_LIMIT_OPTIONS = {
    LimitName.WALL: ("--timeout", "wall_s", "{:g} s"),
    LimitName.CPU: ("--timeout", "cpu_s", "{:g} s of processor time"),
    LimitName.MEMORY: ("--memory", "memory_bytes", "{} bytes"),
    LimitName.PROCESSES: ("--processes", "processes", "{}"),
    LimitName.DISK: ("--disk", "disk_bytes", "{} bytes"),
    LimitName.FILE_SIZE: ("--file-size", "file_size_bytes", "{} bytes"),
    LimitName.OUTPUT: ("--output", "output_bytes", "{} bytes"),
    LimitName.OPEN_FILES: ("--open-files", "open_files", "{}"),
}


def exit_code(outcome: Outcome) -> int:
    """The program's own exit code where the program ended by itself; see CONTRACT for the rest."""
    if outcome.status in {Status.DENIED, Status.ERROR} or outcome.exit_code is None:
        return REFUSED
    return outcome.exit_code


def notes_of(action: Action, outcome: Outcome) -> list[str]:
    """Findings, the limit, the error and the id of kept changes; one entry each."""
    notes = finding_lines(outcome.findings)
    if outcome.limit is not None:
        notes.append(limit_line(outcome.limit, action.limits))
    if outcome.error is not None:
        notes.append(error_line(outcome.error))
    if action.workspace.mode is WorkspaceMode.COPY_ON_WRITE and outcome.workspace_id is not None:
        notes.append(kept_line(outcome.workspace_id))
    return notes


def error_line(error: ErrorInfo) -> str:
    """An error and its hint."""
    hint = f"\n  hint: {one_line(error.hint)}" if error.hint else ""
    return f"{error.message} [{error.code}]{hint}"


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """Findings, one line each. The guard's findings of low severity are only in `--json`."""
    shown = [finding for finding in findings if not finding.rule or finding.severity != "low"]
    lines = [
        one_line(f"{finding.message} [{finding.category}, {finding.severity}]")
        for finding in shown[:_MAX_FINDINGS]
    ]
    more = len(shown) - len(lines)
    return [*lines, f"{more} more findings; --json lists all"] if more else lines


def limit_line(limit: LimitName, limits: Limits | None = None) -> str:
    """The limit that ended the run, its value where known, and the option that raises it."""
    option, field, form = _LIMIT_OPTIONS[limit]
    value = "" if limits is None else f" ({form.format(getattr(limits, field))})"
    name = limit.value.replace("_", " ")
    return f"ended by the {name} limit{value}; raise it with {option}"


def kept_line(workspace_id: str) -> str:
    """The id of the changes that a copy-on-write run left."""
    return f"changes kept as {workspace_id}; see them with: cellwall diff {workspace_id}"


def failed(error: ErrorInfo, *, workspace_id: str | None = None) -> Outcome:
    """An outcome for a command that ended before the runtime returned one."""
    undecided = Decision(Verdict.DENY, reason="the command ended before a decision was made")
    return Outcome(
        status=Status.ERROR,
        action_id="",
        decision=undecided,
        error=error,
        workspace_id=workspace_id,
    )


def kept_changes(app: App, action: Action) -> str | None:
    """The id of the changes that a copy-on-write action has left; None: it has left none."""
    if action.workspace.mode is WorkspaceMode.COPY_ON_WRITE:
        with suppress(CellwallError):  # ended before there was a workspace
            return app.store.session(action.id).id
    return None

"""Probes of how long things are kept: what a trial host has is looked at from a later day."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import anyio

from cellwall.admin.ability import Ability
from cellwall.admin.blast_radius import ProbeResult, ProbeState
from cellwall.admin.radius_probes import Unprobed, ending, raised_limits
from cellwall.admin.redteam.trial_host import TrialHost, changed_settings
from cellwall.audit.log import AuditLog
from cellwall.audit.retention import maintain_segments
from cellwall.config.models import Settings
from cellwall.core.errors import CellwallError
from cellwall.core.outcomes import Event, EventKind, Outcome, Status
from cellwall.core.types import Action, RunCode, WorkspaceMode, WorkspaceRequest
from cellwall.runtime.recording import log_settings
from cellwall.runtime.session_data import enforce_retention
from cellwall.runtime.wiring import sweep_state

_DAY_S = 86_400.0
_LATE_DAYS = 36_500.0
"""When data without a limit must still be there."""
_SLACK_DAYS = 2.0
"""A key serves for some hours, and lives as long as the youngest data under it."""
_WRITES = RunCode("python", b"open('/workspace/kept', 'w').write('kept')")


async def _probe_changes(host: TrialHost, user: Settings, line: Ability) -> ProbeResult:
    del user  # the trial host has this setting
    folder = host.new_folder("changed")
    request = WorkspaceRequest(WorkspaceMode.COPY_ON_WRITE, folder)
    outcome = await _perform(host, request=request)
    if outcome.workspace_id is None:
        raise Unprobed("the probe failed: the run left no changes")
    return await _sweep_twice(host, outcome.workspace_id, line)


async def _probe_sessions(host: TrialHost, user: Settings, line: Ability) -> ProbeResult:
    del user  # the trial host has this setting
    with host.app.session(WorkspaceRequest(), host.who) as session_id:
        await _perform(host, session_id=session_id)
        host.app.store.keep(session_id, keeper="probe")
    return await _sweep_twice(host, session_id, line)


async def _sweep_twice(host: TrialHost, session_id: str, line: Ability) -> ProbeResult:
    if not _is_kept(host, session_id):
        raise Unprobed("the probe failed: nothing was kept")
    is_kept = []
    for days in (line.number - 0.5, line.number + 0.5):
        now_s = time.time() + days * _DAY_S
        await anyio.to_thread.run_sync(partial(sweep_state, host.app, now_s=now_s))
        is_kept.append(_is_kept(host, session_id))
    return _result(is_kept=is_kept[0], is_gone=not is_kept[1], days=line.number)


def _is_kept(host: TrialHost, session_id: str) -> bool:
    try:
        host.app.store.session(session_id)
    except CellwallError:
        return False
    return True


async def _probe_keys(host: TrialHost, user: Settings, line: Ability) -> ProbeResult:
    await _perform(host)
    app = host.app

    def expire(after_days: float, limit: int | None) -> bool:
        settings = changed_settings(app.settings, retention={"session_days": limit})
        now_s = time.time() + after_days * _DAY_S
        expired = enforce_retention(
            settings, app.audit, app.store, app.ledger, app.keys, is_forced=True, now_s=now_s
        )
        return expired.keys > 0

    limit = user.retention.session_days
    return await anyio.to_thread.run_sync(_remove_twice, expire, limit, line)


async def _probe_records(host: TrialHost, user: Settings, line: Ability) -> ProbeResult:
    return await anyio.to_thread.run_sync(_delete_records, host, user.audit.keep_days, line)


def _delete_records(host: TrialHost, limit: int | None, line: Ability) -> ProbeResult:
    """A log of its own, with the settings of the user's."""
    folder = os.path.join(host.folder, "records", "audit")
    os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
    event = Event(EventKind.SESSION, "", host.who.name, host.who.interface, {})
    with AuditLog.open(folder, settings=log_settings(host.app.settings)) as log:
        for _ in range(2):
            log.write(event)
            log.seal()
        log.write(event)

        def delete(after_days: float, days: int | None) -> bool:
            changed = changed_settings(host.app.settings, audit={"keep_days": days})
            now_s = time.time() + after_days * _DAY_S
            rules = log_settings(changed)
            return bool(maintain_segments(folder, rules, log.write, log.notary, now_s=now_s))

        return _remove_twice(delete, limit, line)


def _remove_twice(
    remove: Callable[[float, int | None], bool], limit: int | None, line: Ability
) -> ProbeResult:
    """`remove(after_days, limit)` says whether something was removed."""
    first_word = line.bound.partition(" ")[0]
    if first_word.isdecimal():
        days = int(first_word)
        is_early = remove(days - 1.0, limit)
        return _result(is_kept=not is_early, is_gone=remove(days + _SLACK_DAYS, limit), days=days)
    is_kept = not remove(_LATE_DAYS, limit)
    if is_kept and not remove(_LATE_DAYS, 1):
        raise Unprobed("the control failed: a limit of one day removes nothing either")
    told = "still there, seen from a century later; with a limit of one day, gone"
    return ProbeResult(
        ProbeState.CONFIRMED if is_kept else ProbeState.CONTRADICTED,
        told if is_kept else "removed, though there is no limit",
    )


async def _perform(
    host: TrialHost, *, request: WorkspaceRequest | None = None, session_id: str | None = None
) -> Outcome:
    action = Action(
        principal=host.who,
        operation=_WRITES,
        workspace=request or WorkspaceRequest(),
        session_id=session_id,
        limits=raised_limits(host.app.limits, frozenset()),
    )
    outcome = await host.app.runtime.perform(action)
    if outcome.status is not Status.OK:
        raise Unprobed(f"the probe failed: {ending(outcome)}")
    return outcome


def _result(*, is_kept: bool, is_gone: bool, days: float) -> ProbeResult:
    told = f"seen from later days: there before {days:g} days, gone after"
    if not is_kept:
        told = f"gone before {days:g} days have passed"
    elif not is_gone:
        told = f"still there after {days:g} days"
    return ProbeResult(
        ProbeState.CONFIRMED if is_kept and is_gone else ProbeState.CONTRADICTED, told
    )


RETENTION: Mapping[str, Callable[[TrialHost, Settings, Ability], Awaitable[ProbeResult]]] = {
    "keep.changes": _probe_changes,
    "keep.sessions": _probe_sessions,
    "keep.records": _probe_records,
    "keep.keys": _probe_keys,
}
"""By line. The keys come last: without them, nothing of the trial host can be read."""

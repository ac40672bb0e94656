"""The emergency stop: every sandbox of a state folder ends at once, and no new one starts (OBS-3).

   (1) set the flag, which every action checks       (3) write the record
   (2) end or freeze all cells, until none is left   (4) revoke tokens, where asked

In this order: no disk, lock, database or configuration can delay (1) and (2), and none of them can
keep a person from stopping. A record that could not be written is reported after the cells have
ended; the flag itself names who stopped, when and why. On this machine, the user who owns the state
folder may stop; to lift the stop takes a role.
"""

# ruff: noqa: PLC0415  # late imports: the configuration and the log load after the cells have ended

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from cellwall.core.errors import BadInput, CellwallError, Denied, SandboxFailed
from cellwall.core.types import Json, Permission, Principal
from cellwall.runtime.home import state_home
from cellwall.sandbox.linux.cell_ending import (
    end_cells,
    freeze_cells,
    highest_priority,
    is_frozen,
    is_held,
    thaw_cells,
)
from cellwall.sandbox.linux.cell_search import CellSearch
from cellwall.sandbox.run_ledger import cell_tag
from cellwall.sandbox.stop_flag import StopFlag

if TYPE_CHECKING:
    from cellwall.audit.log import AuditLog
    from cellwall.config.models import Settings

_WITHIN_S = 10.0
_MAX_REASON_CHARACTERS = 500
_MAX_LISTED = 1000


@dataclass(frozen=True, slots=True)
class StopReport:
    """What a stop has done."""

    cells: tuple[str, ...]
    processes: int
    is_frozen: bool
    left: tuple[str, ...]
    """Cells with a process that did not end: one that is stuck in the kernel."""
    took_s: float
    problems: tuple[str, ...] = ()
    """Failures that did not keep the cells from ending."""

    @property
    def is_complete(self) -> bool:
        return not self.left and not self.problems


@dataclass(frozen=True, slots=True)
class StopStatus:
    """Whether a stop is in effect, and what is alive."""

    is_stopped: bool
    by: str
    reason: str
    since_s: float
    cells: int
    frozen: int


class EmergencyStop:
    """The stop of one state folder."""

    def __init__(
        self,
        home: str,
        settings: Callable[[], Settings],
        principal: Principal,
        *,
        audit: AuditLog | None = None,
    ) -> None:
        """`settings` may raise `ConfigError`. `audit`: that of the running service."""
        self._home, self._settings, self._who, self._audit = home, settings, principal, audit
        self._flag = StopFlag(home)

    @classmethod
    def configured(
        cls, principal: Principal, *, config: str | None = None, profile: str | None = None
    ) -> Self:
        """The stop of the environment's state folder, also with a broken configuration."""

        def load() -> Settings:
            from cellwall.config.load import load_settings

            return load_settings(file=config, profile=profile, environ=os.environ)

        return cls(state_home(os.environ), load, principal)

    def stop(self, *, reason: str, freeze: bool = False) -> StopReport:
        """End or freeze every cell."""
        reason = _check_reason(reason)
        if self._audit is not None:  # a caller over the network
            self._require_role()
        content: Mapping[str, Json] = {
            "by": self._who.name,
            "interface": self._who.interface,
            "reason": reason,
            "since_s": time.time(),
        }
        problems: list[str] = []
        act = freeze_cells if freeze else end_cells
        with self._flag.held():
            # (1) Again before each search: a lift that was under way has no effect on this stop.
            set_flag = functools.partial(self._set_flag, content, problems)
            set_flag()
            # (2)
            with highest_priority(), self._search() as search:
                done = act(search, within_s=_WITHIN_S, before_each=set_flag)
            self._flag.make_durable()
            # (3)
            report = StopReport(
                cells=done.ids,
                processes=done.processes,
                is_frozen=freeze,
                left=done.left,
                took_s=round(done.took_s, 3),
                problems=tuple(dict.fromkeys(problems)),
            )
            return self._recorded("freeze" if freeze else "stop", reason, report)

    def _set_flag(self, content: Mapping[str, Json], problems: list[str]) -> None:
        try:
            self._flag.set(content)
        except SandboxFailed as error:
            problems.append(error.message)

    def thaw(self) -> tuple[str, ...]:
        """Continue frozen cells; returns their ids. The stop stays in effect."""
        self._require_person("the continuation of frozen sandboxes")
        self._write({"change": "thaw"})
        with self._search() as search:
            return thaw_cells(search)

    def lift(self, *, reason: str) -> bool:
        """New runs are accepted again; whether a stop was in effect. Recorded first: what lowers a
        protection has no effect without a record (AUD-1)."""
        self._require_person("the end of an emergency stop")
        seen, found = self._flag.mark(), self._flag.read()
        if found is None:
            return False
        with self._search() as search:
            is_any_held = any(map(is_held, search.find()))
        if is_any_held:
            # Nothing is cleaned up around frozen cells as long as the flag is set, and only then.
            raise Denied(
                "sandboxes are suspended, so the stop is not lifted",
                hint="Continue them with `cellwall stop --thaw`, or end them with --all.",
                code="CW-STOP-FROZEN",
            )
        self._write({"change": "lift", "reason": _check_reason(reason), "stopped": found})
        return self._flag.lift(seen=seen)

    def status(self) -> StopStatus:
        with self._search() as search:
            found, cells = self._flag.read(), search.find(is_detailed=True)
        known = found or {}
        since = known.get("since_s")
        return StopStatus(
            is_stopped=found is not None,
            by=str(known.get("by", "")),
            reason=str(known.get("reason", "")),
            since_s=float(since) if isinstance(since, int | float) else 0.0,
            cells=sum(max(1, len(each.inner)) for each in cells),
            frozen=sum(max(1, len(each.inner)) for each in cells if is_frozen(each)),
        )

    def _search(self) -> CellSearch:
        ledger = os.path.join(self._home, "runs")
        return CellSearch(ledger, cell_tag(ledger))

    def _require_person(self, deed: str) -> None:
        """What ends the protection needs the permission, and is not for an agent (POL-13)."""
        from cellwall.runtime.agent_processes import refuse_agents

        if self._audit is None:  # not over the network, where a token tells who asks
            refuse_agents(deed)
        self._require_role()

    def _require_role(self) -> None:
        from cellwall.runtime.judging import require

        require(self._settings(), self._who, Permission.SANDBOX_STOP)

    def _recorded(self, change: str, reason: str, report: StopReport) -> StopReport:
        body: dict[str, Json] = {
            "change": change,
            "reason": reason,
            "cells": list(report.cells[:_MAX_LISTED]),
            "cell_count": len(report.cells),
            "processes": report.processes,
            "left": list(report.left[:_MAX_LISTED]),
            "took_s": report.took_s,
        }
        try:
            self._write(body)
        except CellwallError as error:
            problem = f"the record was not written: {error.message}"
            return StopReport(
                cells=report.cells,
                processes=report.processes,
                is_frozen=report.is_frozen,
                left=report.left,
                took_s=report.took_s,
                problems=(*report.problems, problem),
            )
        return report

    def _write(self, body: dict[str, Json]) -> None:
        from cellwall.core.outcomes import Event, EventKind
        from cellwall.runtime.recording import open_record

        who = self._who
        # `message` is what `cellwall audit tail` shows.
        message = f"{body['change']} everything"
        event = Event(EventKind.STOP, "", who.name, who.interface, {**body, "message": message})
        if self._audit is not None:
            self._audit.write(event)
            return
        with open_record(self._home, self._settings()) as audit:
            audit.write(event)


def _check_reason(reason: str) -> str:
    if len(reason) > _MAX_REASON_CHARACTERS:
        raise BadInput(
            f"a reason has at most {_MAX_REASON_CHARACTERS} characters", hint="Shorten it."
        )
    return reason

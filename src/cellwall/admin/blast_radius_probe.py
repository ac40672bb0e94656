"""Confirms the lines of a blast radius by trying them in cells, through the steps of every run.

What a line says to be possible is done, what it says to be impossible is tried and must fail, and
a control shows that the probe itself works. A line that cannot be tried is marked with the reason.
The runs are recorded like all others.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from cellwall.admin.ability import Ability
from cellwall.admin.audit_queries import Query, everything
from cellwall.admin.blast_radius import BlastRadius, ProbeResult, ProbeState
from cellwall.admin.probe_facts import PROTECTED, ProbeFacts, probe_facts
from cellwall.admin.radius_probes import FACTS, LimitProbe, ProbeProgram, radius_probes
from cellwall.core.errors import CellwallError
from cellwall.core.limits import MIB, Limits, size_text
from cellwall.core.outcomes import EventKind, Outcome, Status
from cellwall.core.scratch import scratch_folder
from cellwall.core.types import (
    Action,
    Permission,
    Principal,
    RunCode,
    UseTool,
    WorkspaceMode,
    WorkspaceRequest,
)
from cellwall.core.verdict import Verdict
from cellwall.runtime.app import App
from cellwall.sandbox.governor import HostMemory

_MAX_WAIT_S = 60.0
_SPARE_BYTES = 192 * MIB
"""For the interpreter beside the amount that a probe uses."""
_MIN_LIMITS = {
    "wall_s": _MAX_WAIT_S,
    "cpu_s": _MAX_WAIT_S,
    "cpus": 0.5,
    "memory_bytes": _SPARE_BYTES,
    "processes": 32,
    "open_files": 128,
    "file_size_bytes": 16 * MIB,
    "disk_bytes": 16 * MIB,
    "file_count": 256,
    "output_bytes": MIB,
}
"""What a probe itself needs, also on a busy host: a configuration may allow less to a run."""
_REFUSED = re.compile(r"^(?:[A-Za-z]*Error: \[Errno|MemoryError)", re.MULTILINE)
"""How the kernel's refusal ends a program, unlike a mistake in it."""
_MAX_CHECKED_RECORDS = 5
_MAX_TOLD = 5
_PERMISSIONS = {
    "reach.hosts": Permission.NETWORK_USE,
    "reach.registries": Permission.PACKAGES_INSTALL,
}


class _Unprobed(Exception):
    """Nothing could be tried, or the trial proves nothing."""


async def probe_radius(
    app: App, radius: BlastRadius, *, who: Principal, on_progress: Callable[[str], None]
) -> dict[str, ProbeResult]:
    """The result for each line. Raises where no sandbox runs here at all."""
    with (
        probe_facts(app.settings) as facts,
        scratch_folder("cellwall-probe-") as folder,
    ):
        prober = _Prober(app, who, facts, folder)
        await prober.check_sandbox()
        return await prober.probe_all(radius, on_progress)


class _Prober:
    def __init__(self, app: App, who: Principal, facts: ProbeFacts, folder: str) -> None:
        self._app = app
        self._who = who
        self._facts = facts
        self._folder = folder
        self._ran: list[str] = []

    async def check_sandbox(self) -> None:
        """Raise the refusal of a plain run: it would be that of every probe."""
        with suppress(_Unprobed):  # by the policy: each line tells
            (await self._perform(RunCode("python", b"1"))).raise_for_status()

    async def probe_all(
        self, radius: BlastRadius, on_progress: Callable[[str], None]
    ) -> dict[str, ProbeResult]:
        """Lines that need waiting run beside the others."""
        found: dict[str, ProbeResult] = {}
        probes, total = radius_probes(), len(radius.abilities)

        async def probe(line: Ability) -> None:
            found[line.id] = await self._probe(line)
            on_progress(f"probed {len(found)} of {total} lines")

        async with anyio.create_task_group() as tasks:
            others = []
            for line in radius.abilities:
                limit = probes.limits.get(line.id)
                if limit is not None and limit.is_waited_for:
                    tasks.start_soon(probe, line)
                elif line.id != "keep.unrecorded":
                    others.append(line)
            for line in others:
                await probe(line)
            on_progress(f"probed {len(found)} of {total} lines; limits of time are waited for")
        for line in radius.abilities:
            if line.id == "keep.unrecorded":  # the last one: it looks for the records of the others
                await probe(line)
        return {line.id: found[line.id] for line in radius.abilities}

    async def _probe(self, line: Ability) -> ProbeResult:
        probes = radius_probes()
        try:
            if line.id == "execute.unmatched-calls":
                return await self._judge_unmatched(line)
            if line.id == "keep.unrecorded":
                return await anyio.to_thread.run_sync(self._find_records)
            if line.id in probes.limits:
                return await self._exceed(line, probes.limits[line.id])
            if line.id in probes.programs:
                return await self._run(line, probes.programs[line.id])
            raise _Unprobed(probes.unprobed.get(line.id, "there is no probe for this line"))
        except _Unprobed as reason:
            return ProbeResult(ProbeState.NOT_PROBED, str(reason))
        except CellwallError as error:
            return ProbeResult(ProbeState.NOT_PROBED, f"{error.message} [{error.code}]")

    # Programs

    def _check_role(self, line: Ability) -> None:
        """Configured hosts and registries are only for roles that have the permission."""
        needed = _PERMISSIONS.get(line.id)
        role = self._app.runtime.roles.role_of(self._who)
        if line.is_possible and needed is not None and needed not in role.permissions:
            raise _Unprobed(f"your role {role.name} lacks {needed.value}")

    async def _run(self, line: Ability, program: ProbeProgram) -> ProbeResult:
        self._check_role(line)
        facts = {**self._facts.facts, "possible": line.is_possible, "members": list(line.members)}
        env = {FACTS: json.dumps(facts)}
        workspace = self._workspace(line.id, program.workspace)
        domains = tuple(f"{host}:{port}" for host, port in facts.get(program.domains, ()))  # type: ignore[misc,union-attr]  # a list of pairs
        if program.before is not None:
            first = _read_report(await self._perform(program.before, env=env))
            if first["wrong"] or first["broken"]:
                raise _Unprobed(f"what runs before failed: {_told(first['wrong'])}")
        outcome = await self._perform(program.code, env=env, workspace=workspace, domains=domains)
        if outcome.workspace_id is not None:
            self._app.store.remove(outcome.workspace_id)
        report = _read_report(outcome)
        if report["broken"]:
            raise _Unprobed(f"the control failed: {_told(report['broken'])}")
        if not report["tried"]:
            raise _Unprobed(self._facts.lacking.get(program.needs, "there was nothing to try"))
        wrong = list(report["wrong"])
        if program.after is not None:
            wrong += _OUTSIDE[program.after](workspace.directory or "", self._facts.token)
        if wrong:
            return ProbeResult(ProbeState.CONTRADICTED, _told(wrong))
        return ProbeResult(ProbeState.CONFIRMED, program.tried)

    def _workspace(self, name: str, mode: WorkspaceMode) -> WorkspaceRequest:
        """A new directory with a plain file and protected ones, in this mode."""
        if mode is WorkspaceMode.PRIVATE:
            return WorkspaceRequest()
        place = Path(self._folder, name)
        for file in ("plain.txt", *PROTECTED):
            path = place / file
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.write_text(self._facts.token, encoding="ascii")
        return WorkspaceRequest(mode, str(place))

    # Limits

    async def _exceed(self, line: Ability, probe: LimitProbe) -> ProbeResult:
        amount = line.amount
        assert amount is not None  # noqa: S101  # each line with a limit has a number
        limits = self._affordable(amount, probe)
        within, beyond = _within(amount, probe), _beyond(amount, probe)
        used = await self._perform(probe.to_code(within), limits=limits)
        if used.status is Status.LIMIT and probe.is_waited_for:
            raise _Unprobed("here even an idle run does not end within the limit")
        if used.status is Status.FAILED and not _REFUSED.search(used.stderr):
            raise _Unprobed(f"the probe failed: {_ending(used)}")
        if used.status is not Status.OK:
            told = f"half of the amount already ended the run: {_ending(used)}"
            return ProbeResult(ProbeState.CONTRADICTED, told)
        ended = await self._perform(probe.to_code(beyond), limits=limits)
        told = f"a part of it was used; a run that used more was ended by its {probe.limit} limit"
        if ended.status is Status.FAILED and _REFUSED.search(ended.stderr):
            told = f"a part of it was used; more was refused: {_ending(ended)}"
        elif ended.limit is not probe.limit:
            told = f"the limit did not end a run that used more: {_ending(ended)}"
            return ProbeResult(ProbeState.CONTRADICTED, told)
        return ProbeResult(ProbeState.CONFIRMED, told)

    def _affordable(self, amount: float, probe: LimitProbe) -> Limits:
        """The limits of the run; raises where the trial costs too much here."""
        limits = _raised(self._app.limits, probe.of)
        if probe.is_waited_for:
            if amount > _MAX_WAIT_S:
                raise _Unprobed(f"{amount:g} s are not waited for")
            # Time on the clock for a run that may have to share its processor.
            spare_s = limits.wall_s if "wall_s" in probe.of else 10 * amount + _MAX_WAIT_S
            return replace(limits, wall_s=spare_s)
        if probe.max_amount is not None and amount > probe.max_amount:
            raise _Unprobed("as much is not tried on a host that others use as well")
        if probe.in_memory:
            is_count = "file_count" in probe.of and "disk_bytes" not in probe.of
            needed = _SPARE_BYTES + (0 if is_count else int(amount))
            if amount == self._app.limits.memory_bytes:
                raise _Unprobed("it lies in the memory of the run, whose limit is not larger")
            limits = replace(limits, memory_bytes=max(limits.memory_bytes, needed))
        if probe.in_memory or "memory_bytes" in probe.of:
            available = HostMemory().available_bytes() or 0
            if 2 * limits.memory_bytes > available:
                needed_text = size_text(limits.memory_bytes)
                raise _Unprobed(f"{needed_text} are more than half of the available memory")
        return limits

    # Policy and record

    async def _judge_unmatched(self, line: Ability) -> ProbeResult:
        """A call of an agent's own tool: judged and recorded, and not run."""
        tool = f"mcp__cellwall_probe__{self._facts.token}"
        operation = UseTool(tool, {}, os.getcwd(), is_inside=True)
        agent = replace(self._who, interface="hook")
        outcome = await self._app.runtime.perform(Action(principal=agent, operation=operation))
        self._ran.append(outcome.action_id)
        is_allowed = outcome.decision.verdict is Verdict.ALLOW
        if is_allowed and not line.is_possible and outcome.decision.rule:
            raise _Unprobed(f"the rule {outcome.decision.rule} allows every tool")
        state = ProbeState.CONFIRMED if is_allowed == line.is_possible else ProbeState.CONTRADICTED
        word = "allowed" if is_allowed else "denied"
        return ProbeResult(state, f"a call of an unknown tool was {word}")

    def _find_records(self) -> ProbeResult:
        """Each run of the probes has its intent and its outcome in the audit log."""
        for action_id in self._ran[:_MAX_CHECKED_RECORDS]:
            kinds = {each.record["kind"] for each in everything(Query(action_id=action_id))}
            if not kinds & {EventKind.INTENT.value, EventKind.DENIAL.value}:
                return ProbeResult(ProbeState.CONTRADICTED, f"{action_id} is not in the audit log")
        count = min(len(self._ran), _MAX_CHECKED_RECORDS)
        if count == 0:
            raise _Unprobed("no probe ran")
        return ProbeResult(ProbeState.CONFIRMED, f"{count} of the runs above are in the audit log")

    async def _perform(
        self,
        code: RunCode,
        *,
        env: Mapping[str, str] | None = None,
        workspace: WorkspaceRequest | None = None,
        limits: Limits | None = None,
        domains: tuple[str, ...] = (),
    ) -> Outcome:
        """One run. A question of the policy is not put to a person: it counts as a refusal."""
        action = Action(
            principal=self._who,
            operation=code,
            workspace=workspace or WorkspaceRequest(),
            limits=limits or _raised(self._app.limits, frozenset()),
            env=env or {FACTS: "{}"},
            allow_domains=domains,
        )
        decision = self._app.runtime.policy.judge(action, ())
        if decision.verdict is not Verdict.ALLOW:
            raise _Unprobed(f"the policy does not allow the probe: {decision.reason}")
        outcome = await self._app.runtime.perform(action)
        self._ran.append(outcome.action_id)
        if outcome.error is not None:
            raise outcome.error.to_exception()
        return outcome


def _raised(limits: Limits, kept: frozenset[str]) -> Limits:
    """At least what a probe itself needs, but for the limits that are probed."""
    least = {name: max(getattr(limits, name), value) for name, value in _MIN_LIMITS.items()}
    return replace(limits, **{name: value for name, value in least.items() if name not in kept})


def _within(amount: float, probe: LimitProbe) -> float:
    if probe.is_waited_for:
        return min(amount / 4, 0.1)
    return max(int(amount) // 2, 1)


def _beyond(amount: float, probe: LimitProbe) -> float:
    if probe.is_waited_for:
        return 3 * amount + 5
    return int(amount) + max(int(amount) // 4, 64)


def _read_report(outcome: Outcome) -> dict[str, list[str]]:
    value: Any = outcome.value
    if outcome.status is not Status.OK or not isinstance(value, dict):
        raise _Unprobed(f"the probe failed: {_ending(outcome)}")
    return {
        name: [str(each) for each in value.get(name, ())] for name in ("tried", "wrong", "broken")
    }


def _ending(outcome: Outcome) -> str:
    limit = f" ({outcome.limit})" if outcome.limit else ""
    last = (outcome.stderr.strip().splitlines() or [""])[-1][:200]
    return f"{outcome.status.value}{limit} {last}".strip()


def _told(lines: list[str]) -> str:
    more = f" and {len(lines) - _MAX_TOLD} more" if len(lines) > _MAX_TOLD else ""
    return "; ".join(lines[:_MAX_TOLD]) + more


# Checks outside, after a run: what is wrong.


def _is_written(folder: str, token: str) -> list[str]:
    path = Path(folder, "written.txt")
    is_there = path.is_file() and path.read_text(encoding="utf-8") == token
    return [] if is_there else ["outside, the file is not there"]


def _is_unchanged(folder: str, token: str) -> list[str]:
    names = sorted(os.listdir(folder))
    wrong = [] if "written.txt" not in names else ["outside, a new file is there"]
    is_same = Path(folder, "plain.txt").read_text(encoding="utf-8") == token
    return wrong if is_same else [*wrong, "outside, a file has another content"]


def _has_ended(_: str, token: str) -> list[str]:
    own, found = Path("/proc/self/cmdline").read_bytes(), []
    is_seen = False
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:  # gone, or of another user
            continue
        is_seen = is_seen or words == own
        if token.encode() in words:
            found.append(f"process {pid} is left")
    if not is_seen:
        raise _Unprobed("the control failed: this process is not in /proc")
    return found


_OUTSIDE = {"is_written": _is_written, "is_unchanged": _is_unchanged, "has_ended": _has_ended}

"""Confirms the lines of a blast radius by trying them in cells, through the steps of every run.

What a line says to be possible is done, what it says to be impossible is tried and must fail, and
a control shows that the probe itself works. A line that cannot be tried is marked with the reason.
The runs are recorded like all others; those of a trial host (admin/radius_trials.py) in its log.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from cellwall.admin.ability import Ability
from cellwall.admin.audit_queries import Query, everything
from cellwall.admin.blast_radius import BlastRadius, ProbeResult, ProbeState
from cellwall.admin.probe_facts import PROTECTED, ProbeFacts, probe_facts
from cellwall.admin.radius_limits import LimitProber
from cellwall.admin.radius_probes import (
    FACTS,
    ProbeProgram,
    Unprobed,
    ending,
    radius_probes,
    raised_limits,
)
from cellwall.admin.radius_trials import TRIED, RadiusTrials
from cellwall.core.errors import CellwallError
from cellwall.core.limits import Limits
from cellwall.core.outcomes import EventKind, Outcome, Status
from cellwall.core.scratch import scratch_folder
from cellwall.core.types import (
    Action,
    Permission,
    Principal,
    RunCode,
    RunCommand,
    UseTool,
    WorkspaceMode,
    WorkspaceRequest,
)
from cellwall.core.users_inside import NO_SECOND_USER, SECOND_USER
from cellwall.core.verdict import Verdict
from cellwall.runtime.app import App
from cellwall.sandbox.linux.layers import HostLayers

_MAX_CHECKED_RECORDS = 5
_LAST = ("spend.cpus", "keep.unrecorded")
"""A share of processors is measured beside no other probe; records are those of the others."""
_WITHOUT = "execute.without-"
_MAX_TOLD = 5
_CAPABILITY_SETS = 5
_PERMISSIONS = {
    "reach.hosts": Permission.NETWORK_USE,
    "reach.registries": Permission.PACKAGES_INSTALL,
}


async def probe_radius(
    app: App, radius: BlastRadius, *, who: Principal, on_progress: Callable[[str], None]
) -> dict[str, ProbeResult]:
    """The result for each line. Raises where no sandbox runs here at all."""
    with (
        probe_facts(app.settings) as facts,
        scratch_folder("cellwall-probe-") as folder,
    ):
        async with AsyncExitStack() as stack:
            prober = _Prober(app, who, facts, folder)
            await prober.check_sandbox()
            if any(line.id in TRIED for line in radius.abilities):
                prober.trials = RadiusTrials.open(stack, app.settings, facts.token)
            return await prober.probe_all(radius, on_progress)


class _Prober:
    def __init__(self, app: App, who: Principal, facts: ProbeFacts, folder: str) -> None:
        self._app = app
        self._who = who
        self._facts = facts
        self._folder = folder
        self._ran: list[str] = []
        self._limits = LimitProber(app.limits, self._perform)
        self.trials: RadiusTrials | None = None
        self._own: Mapping[str, Callable[[Ability], Awaitable[ProbeResult]]] = {
            "execute.unmatched-calls": self._judge_unmatched,
            "execute.second-user": self._try_second_user,
            "spend.cpus": self._limits.spin,
        }

    async def check_sandbox(self) -> None:
        """Raise the refusal of a plain run: it would be that of every probe."""
        with suppress(Unprobed):  # by the policy: each line tells
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
                elif line.id not in _LAST:
                    others.append(line)
            for line in others:
                await probe(line)
            on_progress(f"probed {len(found)} of {total} lines; limits of time are waited for")
        for line in radius.abilities:
            if line.id in _LAST:
                await probe(line)
        return {line.id: found[line.id] for line in radius.abilities}

    async def _probe(self, line: Ability) -> ProbeResult:
        probes = radius_probes()
        try:
            if line.id in self._own:
                return await self._own[line.id](line)
            if line.id == "keep.unrecorded":
                return await anyio.to_thread.run_sync(self._find_records)
            if line.id.startswith(_WITHOUT):
                return self._find_layer(line)
            if line.id in probes.limits:
                return await self._limits.exceed(line, probes.limits[line.id])
            return await self._try(line)
        except Unprobed as reason:
            return ProbeResult(ProbeState.NOT_PROBED, str(reason))
        except CellwallError as error:
            return ProbeResult(ProbeState.NOT_PROBED, f"{error.message} [{error.code}]")

    async def _try(self, line: Ability) -> ProbeResult:
        probes = radius_probes()
        if self.trials is not None and line.id in TRIED:
            return await self.trials.probe(line)
        if line.id in probes.programs:
            return await self._run(line, probes.programs[line.id])
        raise Unprobed(probes.unprobed.get(line.id, "there is no probe for this line"))

    # Programs

    def _check_role(self, line: Ability) -> None:
        """Configured hosts and registries are only for roles that have the permission."""
        needed = _PERMISSIONS.get(line.id)
        role = self._app.runtime.roles.role_of(self._who)
        if line.is_possible and needed is not None and needed not in role.permissions:
            raise Unprobed(f"your role {role.name} lacks {needed.value}")

    async def _run(self, line: Ability, program: ProbeProgram) -> ProbeResult:
        self._check_role(line)
        facts = {**self._facts.facts, "possible": line.is_possible, "members": list(line.members)}
        env = {FACTS: json.dumps(facts)}
        workspace = self._workspace(line.id, program.workspace)
        domains = tuple(f"{host}:{port}" for host, port in facts.get(program.domains, ()))  # type: ignore[misc,union-attr]  # a list of pairs
        if program.before is not None:
            first = _read_report(await self._perform(program.before, env=env))
            if first["wrong"] or first["broken"]:
                raise Unprobed(f"what runs before failed: {_told(first['wrong'])}")
        outcome = await self._perform(program.code, env=env, workspace=workspace, domains=domains)
        if outcome.workspace_id is not None:
            self._app.store.remove(outcome.workspace_id)
        report = _read_report(outcome)
        if report["broken"]:
            raise Unprobed(f"the control failed: {_told(report['broken'])}")
        if not report["tried"]:
            raise Unprobed(self._facts.lacking.get(program.needs, "there was nothing to try"))
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

    # Layers, policy and record

    def _find_layer(self, line: Ability) -> ProbeResult:
        """The runs of the other probes went without a layer that this host lacks."""
        layers = HostLayers.detect()
        lacking = {"cgroup": layers.cgroup.way == "none", "landlock": layers.landlock_abi == 0}
        name = line.id.removeprefix(_WITHOUT)
        if name not in lacking:
            raise Unprobed("only the engine knows whether its containers have the layer")
        if not lacking[name]:
            raise Unprobed("this host has the layer, so that no run here goes without it")
        return ProbeResult(ProbeState.CONFIRMED, f"{len(self._ran)} probes ran without it")

    async def _judge_unmatched(self, line: Ability) -> ProbeResult:
        """A call of an agent's own tool: judged and recorded, and not run."""
        tool = f"mcp__cellwall_probe__{self._facts.token}"
        operation = UseTool(tool, {}, os.getcwd(), is_inside=True)
        agent = replace(self._who, interface="hook")
        outcome = await self._app.runtime.perform(Action(principal=agent, operation=operation))
        self._ran.append(outcome.action_id)
        is_allowed = outcome.decision.verdict is Verdict.ALLOW
        if is_allowed and not line.is_possible and outcome.decision.rule:
            raise Unprobed(f"the rule {outcome.decision.rule} allows every tool")
        state = ProbeState.CONFIRMED if is_allowed == line.is_possible else ProbeState.CONTRADICTED
        word = "allowed" if is_allowed else "denied"
        return ProbeResult(state, f"a call of an unknown tool was {word}")

    async def _try_second_user(self, line: Ability) -> ProbeResult:
        """A program as the second user, or the refusal of a sandbox with one."""
        shows = RunCommand(("grep", "-E", "^(Uid|Cap)", "/proc/self/status"), user=SECOND_USER)
        try:
            outcome = await self._perform(shows, second_user=True)
        except CellwallError as error:
            if line.is_possible or error.code not in NO_SECOND_USER:
                raise
            return ProbeResult(ProbeState.CONFIRMED, f"a run that asked for one: {error.code}")
        words = outcome.stdout.split()
        is_bare = words.count("0" * 16) == _CAPABILITY_SETS
        state = ProbeState.CONFIRMED if line.is_possible and is_bare else ProbeState.CONTRADICTED
        capabilities = "no capability" if is_bare else "capabilities"
        return ProbeResult(state, f"a program ran with uid {words[1]} and {capabilities}")

    def _find_records(self) -> ProbeResult:
        """Each run of the probes has its intent and its outcome in the audit log."""
        for action_id in self._ran[:_MAX_CHECKED_RECORDS]:
            kinds = {each.record["kind"] for each in everything(Query(action_id=action_id))}
            if not kinds & {EventKind.INTENT.value, EventKind.DENIAL.value}:
                return ProbeResult(ProbeState.CONTRADICTED, f"{action_id} is not in the audit log")
        count = min(len(self._ran), _MAX_CHECKED_RECORDS)
        if count == 0:
            raise Unprobed("no probe ran")
        return ProbeResult(ProbeState.CONFIRMED, f"{count} of the runs above are in the audit log")

    async def _perform(
        self,
        code: RunCode | RunCommand,
        *,
        env: Mapping[str, str] | None = None,
        workspace: WorkspaceRequest | None = None,
        limits: Limits | None = None,
        domains: tuple[str, ...] = (),
        second_user: bool = False,
    ) -> Outcome:
        """One run. A question of the policy is not put to a person: it counts as a refusal."""
        action = Action(
            principal=self._who,
            operation=code,
            workspace=workspace or WorkspaceRequest(),
            limits=limits or raised_limits(self._app.limits, frozenset()),
            env=env or {FACTS: "{}"},
            allow_domains=domains,
            second_user=second_user,
        )
        decision = self._app.runtime.policy.judge(action, ())
        if decision.verdict is not Verdict.ALLOW:
            raise Unprobed(f"the policy does not allow the probe: {decision.reason}")
        outcome = await self._app.runtime.perform(action)
        self._ran.append(outcome.action_id)
        if outcome.error is not None:
            raise outcome.error.to_exception()
        return outcome


def _read_report(outcome: Outcome) -> dict[str, list[str]]:
    value: Any = outcome.value
    if outcome.status is not Status.OK or not isinstance(value, dict):
        raise Unprobed(f"the probe failed: {ending(outcome)}")
    return {
        name: [str(each) for each in value.get(name, ())] for name in ("tried", "wrong", "broken")
    }


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
        raise Unprobed("the control failed: this process is not in /proc")
    return found


_OUTSIDE = {"is_written": _is_written, "is_unchanged": _is_unchanged, "has_ended": _has_ended}

"""The layers isolation, files and network: one program tries many attacks in one cell.

Each program runs outside first, as the control of all its attacks, then inside. Afterwards the host
is looked at: an effect there counts more than any report.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeAlias

import anyio

from cellwall.admin.redteam import egress_attacks
from cellwall.admin.redteam.blocking import in_thread
from cellwall.admin.redteam.cell_programs import (
    describe,
    facts_for,
    run_code,
    run_inside,
    run_watched,
)
from cellwall.admin.redteam.host_targets import HostFiles, HostServers
from cellwall.admin.redteam.process_witness import ProcessWitness
from cellwall.admin.redteam.trial_host import TrialHost
from cellwall.core.types import WorkspaceRequest
from cellwall.redteam.attack import NOT_TRIED, Attack, AttackResult, Observation, judge
from cellwall.redteam.catalog import program_text
from cellwall.redteam.outside import (
    COPY_OF_THE_HOST,
    holding,
    new_mark,
    run_outside,
    throwaway_namespaces,
)

Observations: TypeAlias = Mapping[str, Observation]
Attacks: TypeAlias = Sequence[Attack]
_NO_NAMESPACES = Observation("lacks", "unshare of util-linux, for the control")
_UNSEEN = Observation("broken", "its process was not seen from outside")
_KILLED = "SIGSYS"
_READY_WITHIN_S = 60.0
_EGRESS_DOMAIN = "example.org"
_PLANTED = ("/planted", "/usr/planted", "/etc/planted")


async def run(host: TrialHost, attacks: Attacks) -> list[AttackResult]:
    """All attacks that are tried by a program, program by program."""
    results: list[AttackResult] = []
    for program in dict.fromkeys(attack.program for attack in attacks):
        chosen = [attack for attack in attacks if attack.program == program]
        results += await _TRIALS[program](host, chosen)
    return results


def _present(*paths: str) -> list[str]:
    return [path for path in paths if os.path.lexists(path)]


def _judge_all(
    attacks: Attacks, control: Observations, attempt: Observations, effects: Sequence[str] = ()
) -> list[AttackResult]:
    # An effect without an attack that reports it is unexplained: then no report is believed.
    is_explained = any(each.kind == "through" for each in attempt.values())
    return [
        judge(
            attack,
            control=control.get(attack.key, NOT_TRIED),
            attempt=attempt.get(attack.key, NOT_TRIED),
            effects=() if is_explained else effects,
        )
        for attack in attacks
    ]


async def _control(
    program: str,
    facts: Mapping[str, Any],
    *,
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> dict[str, Observation]:
    return await in_thread(partial(run_outside, program, facts, prefix=prefix, env=env))


async def _disposable(
    attacks: Attacks, program: str, *, copy: bool = False, network: bool = False, hosts: str = ""
) -> Observations:
    """The control of a program that would harm the host on which its attacks succeed."""
    prefix = throwaway_namespaces(network=network)
    if prefix is None:
        return {attack.key: _NO_NAMESPACES for attack in attacks}
    if copy:
        prefix = (*prefix, "sh", "-c", COPY_OF_THE_HOST, "sh")
    facts = facts_for(attacks, disposable=True, hosts=hosts)
    return await _control(program, facts, prefix=prefix)


async def _kernel_calls(host: TrialHost, attacks: Attacks) -> list[AttackResult]:
    control = await _disposable(attacks, "kernel_calls")
    before, witness = os.uname().nodename, ProcessWitness()
    attempt = await run_watched(host, "kernel_calls", facts_for(attacks), witness)
    effects = [] if os.uname().nodename == before else ["the host has another name"]
    if not witness.can_see:  # a host that hides processes from their own user
        return _judge_all(attacks, control, attempt, effects)
    results = []
    for attack in attacks:
        seen = attempt.get(attack.key, NOT_TRIED)
        changed: list[str] = list(effects)
        if witness.sees(attack.key):
            changed += witness.effects(attack.key)
            if attack.key.startswith("clone") and witness.has_child(attack.key):
                changed.append("a child in another namespace")
        elif seen.words != _KILLED:
            seen = _UNSEEN
        results.append(
            judge(
                attack,
                control=control.get(attack.key, NOT_TRIED),
                attempt=seen,
                effects=changed,
            )
        )
    return results


async def _set_id(host: TrialHost, attacks: Attacks) -> list[AttackResult]:
    control = await _disposable(attacks, "set_id")
    folder = host.new_folder("set-id")
    facts = facts_for(attacks, directory="/workspace")
    attempt = await run_inside(host, "set_id", facts, read_write=folder)
    left = [(entry.name, entry.stat(follow_symlinks=False)) for entry in os.scandir(folder)]
    effects = [
        f"{name} has mode {oct(info.st_mode)}"
        for name, info in left
        if info.st_mode & 0o6000 or stat.S_ISCHR(info.st_mode) or stat.S_ISBLK(info.st_mode)
    ]
    return _judge_all(attacks, control, attempt, effects)


async def _processes(host: TrialHost, attacks: Attacks) -> list[AttackResult]:
    async with AsyncExitStack() as stack:
        shared, made = await _hold_targets(host, stack)
        if not made:
            return _judge_all(attacks, {}, {})
        facts = facts_for(attacks, **shared, **made)
        control = await _control("processes", {**facts, "target": made["victim"]})
        attempt = await run_inside(host, "processes", {**facts, "target": 1})
        effects = [] if _present(f"/proc/{made['victim']}") else ["a host process ended"]
    return _judge_all(attacks, control, attempt, effects)


async def _hold_targets(
    host: TrialHost, stack: AsyncExitStack
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the program `host_targets` was told, and what it made; it ends with the stack."""
    shared = {
        "mark": new_mark(),
        "ipc_key": 0x48000000 | secrets.randbits(24),
        "workspace": host.new_folder("targets"),
    }
    made = await in_thread(
        partial(stack.enter_context, holding("host_targets", facts_for((), **shared)))
    )
    return shared, made


async def _neighbours(host: TrialHost, attacks: Attacks) -> list[AttackResult]:
    async with AsyncExitStack() as stack:
        shared, made = await _hold_targets(host, stack)
        facts = facts_for(attacks, **shared, **made)
        control = await _control("neighbours", facts) if made else {}
    inside = {**shared, "port": made.get("port", 0)}
    del inside["workspace"]
    ready = anyio.Event()
    ended: list[str] = []  # how the neighbour ended, if it did
    attempt: Observations = {}
    with host.app.session(WorkspaceRequest(), host.who) as session_id:
        async with anyio.create_task_group() as tasks:

            async def hold() -> None:
                outcome = await run_code(
                    host,
                    program_text("holder"),
                    facts=facts_for((), **inside) | {"cell": True},
                    session_id=session_id,
                    sink=lambda name, _data: ready.set() if name == "stdout" else None,
                )
                ended.append(describe(outcome))
                ready.set()

            tasks.start_soon(hold)
            with anyio.move_on_after(_READY_WITHIN_S):
                await ready.wait()
                attempt = await run_inside(host, "neighbours", facts_for(attacks, **inside))
            if ended or not ready.is_set():  # there was nothing to find
                why = Observation("broken", f"no neighbour ran: {(ended or ['too slow'])[0]}")
                attempt = dict.fromkeys((attack.key for attack in attacks), why)
            tasks.cancel_scope.cancel()
    return _judge_all(attacks, control, attempt)


async def _files(host: TrialHost, attacks: Attacks) -> list[AttackResult]:
    with HostFiles(host.new_folder("control")) as unguarded:
        facts = facts_for(attacks, **unguarded.facts, workspace=unguarded.workspace)
        control = await _control(
            "files",
            {**facts, "control": True, "parent": os.getpid()},
            env={"SSH_AUTH_SOCK": unguarded.socket_path},
        )
    with HostFiles(host.new_folder("attacked")) as targets:
        facts = facts_for(attacks, **targets.facts)
        attempt = await run_inside(host, "files", facts, read_write=targets.workspace)
        effects = targets.effects()
    return _judge_all(attacks, control, attempt, effects)


async def _writes(host: TrialHost, attacks: Attacks) -> list[AttackResult]:
    control = await _disposable(attacks, "writes", copy=True)
    if not control and os.geteuid() != 0:
        # No overlay for this user, who cannot write to files of the host without one either.
        control = await _disposable(attacks, "writes")
    before = _present(*_PLANTED)
    attempt = await run_inside(host, "writes", facts_for(attacks))
    effects = [f"{path} was written" for path in _present(*_PLANTED) if path not in before]
    return _judge_all(attacks, control, attempt, effects)


async def _network(host: TrialHost, attacks: Attacks) -> list[AttackResult]:
    with HostServers() as servers:
        facts = facts_for(attacks, **servers.facts)
        control = await _control("network", {**facts, "control": True})
        control |= await _with_own_network(attacks, control)
        before = servers.contacts
        attempt = await run_inside(host, "network", facts)
        count = servers.contacts - before
    effects = [f"{count} contacts with servers of the host"] if count else []
    return _judge_all(attacks, control, attempt, effects)


async def _with_own_network(attacks: Attacks, control: Observations) -> Observations:
    """The control of sockets that only root of a network namespace may open, for other users."""
    raw = [
        attack
        for attack in attacks
        if attack.key.startswith(("socket-", "bring-"))
        and control.get(attack.key, NOT_TRIED).kind == "refused"
    ]
    if not raw or os.geteuid() == 0:
        return {}
    return await _disposable(raw, "network", network=True)


async def _own_network(host: TrialHost, attacks: Attacks) -> list[AttackResult]:
    hosts = os.readlink("/proc/self/ns/net")
    control = await _disposable(attacks, "own_network", network=True, hosts=hosts)
    attempt = await run_inside(
        host,
        "own_network",
        facts_for(attacks, hosts=hosts),
        allow_domains=(_EGRESS_DOMAIN,),
    )
    return _judge_all(attacks, control, attempt)


_TRIALS: Mapping[str, Callable[[TrialHost, Attacks], Awaitable[list[AttackResult]]]] = {
    "kernel_calls": _kernel_calls,
    "set_id": _set_id,
    "processes": _processes,
    "neighbours": _neighbours,
    "files": _files,
    "writes": _writes,
    "network": _network,
    "own_network": _own_network,
    "egress": egress_attacks.run,
    "": egress_attacks.run_fetches,
}

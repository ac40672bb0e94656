"""Deno's attacks: those of the catalog that JavaScript can try, and as control without a wall."""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cellwall.admin.redteam.host_targets import HostServers
from cellwall.admin.redteam.trial_host import system_calls
from cellwall.redteam.attack import NOT_TRIED, Observation
from cellwall.redteam.outside import holding
from peers.attack_choice import Choice
from peers.attack_programs import read_report
from peers.deno import DenoUnrestricted
from peers.job import Job
from peers.peer import Peer
from peers.trials import Observations, host_files
from peers.work import new_workspace
from peers.worker_env import TOKEN_PREFIX

_PROGRAM = Path(__file__).with_name("deno_attacks.js").read_text("utf-8")
_WITHIN_S = 60.0
_LAYER_OF_NAME = {
    "set-id-chmod": "isolation",
    "signal-a-process-of-the-host": "isolation",
    "read-the-environment-of-a-process-of-the-host": "isolation",
    "posix-shared-memory-of-the-host": "isolation",
    "see-interfaces-of-the-host": "network",
    "listen-where-the-host-can-reach-it": "network",
    "environment": "secrets",
    "environment-of-init": "secrets",
}


def _identity(name: str) -> str:
    if name.startswith("neighbour-"):
        return f"isolation/{name}"
    layer = "network" if name.startswith("tcp-") else "files"
    return f"{_LAYER_OF_NAME.get(name, layer)}/{name}"


_NAMES = [
    *re.findall(r'attacks\["([^"]+)"\]', _PROGRAM),
    *(
        f"read-proc-{name}"
        for name in ("kcore", "kallsyms", "keys", "key-users", "cmdline", "interrupts")
    ),
    "read-proc-timer_list",
    *(f"tcp-{name}" for name in ("loopback", "loopback-elsewhere", "zero", "ipv6-loopback")),
    "tcp-every-other-address-of-the-host",
]
DENO_KEYS = frozenset(_identity(name) for name in _NAMES)


def run_deno(
    peer: Peer, choices: Sequence[Choice], folder: str
) -> tuple[Observations, Observations]:
    """What the attacks get, and what the same program gets with all permissions; by id."""
    free = DenoUnrestricted(peer.place)
    free.open(peer.env)
    attempts, controls = _observe(peer, folder), _observe(free, folder)
    known = [choice.attack.id for choice in choices if choice.attack.id in DENO_KEYS]
    return (
        {each: attempts.get(each, NOT_TRIED) for each in known},
        {each: controls.get(each, NOT_TRIED) for each in known},
    )


def _observe(peer: Peer, folder: str) -> dict[str, Observation]:
    place = tempfile.mkdtemp(prefix="project-", dir=folder)
    with host_files(place) as targets, HostServers() as servers:
        told = {
            "mark": targets.facts["mark"],
            "ipc_key": 0x48000000 | secrets.randbits(24),
            "workspace": new_workspace(folder),
            "calls": dict(system_calls()),
        }
        with holding("host_targets", told) as made:
            facts = {
                **made,
                **servers.facts,
                **targets.facts,
                "workspace": targets.workspace,
                "prefix": TOKEN_PREFIX,
            }
            text = f"const GIVEN = {json.dumps(facts)};\n{_PROGRAM}"
            ended = peer.run(Job(workspace=targets.workspace, javascript=text), _WITHIN_S)
    report = read_report(ended.stdout) or {}
    found = {_identity(name): seen for name, seen in report.items()}
    key = "files/make-a-file-beside-the-workspace"
    if key in found and not os.path.exists(os.path.join(place, "planted")):
        found[key] = Observation("refused", "no file of the host was made")
    return found

"""Each program of the catalog with its targets: the control on the bare host, then each peer."""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from cellwall.admin.redteam.host_targets import HostFiles, HostServers
from cellwall.admin.redteam.trial_host import system_calls
from cellwall.redteam.attack import Observation
from cellwall.redteam.outside import holding, new_mark
from peers.attack_programs import run_program
from peers.bare import Bare, BareNamespaces
from peers.job import Job
from peers.peer import Peer
from peers.work import new_workspace
from peers.worker_env import TOKEN_PREFIX

Observations: TypeAlias = dict[str, Observation]
_ELSEWHERE = Observation("refused", "only in a file system of its own")


class Trials:
    """Runs programs in peers; the targets are new for each run."""

    def __init__(self, folder: str, home: str, bare: Bare, namespaces: BareNamespaces) -> None:
        self._folder = folder
        self._home = home
        self._bare = bare
        self._namespaces = namespaces

    def control(self, program: str, keys: Sequence[str]) -> Observations:
        """What the user gets without a sandbox, and in namespaces in which the user is root."""
        found = self._attempt(self._bare, program, keys, {"control": True})
        again = [key for key in keys if found[key].kind != "through"]
        if program in ("kernel_calls", "set_id", "network") and again:
            facts = {"disposable": True}
            more = self._attempt(self._namespaces, program, again, facts)
            found |= {key: seen for key, seen in more.items() if seen.kind == "through"}
        return found

    def attempt(self, peer: Peer, program: str, keys: Sequence[str]) -> Observations:
        return self._attempt(peer, program, keys, {"cell": True})

    def _attempt(
        self, peer: Peer, program: str, keys: Sequence[str], facts: Mapping[str, Any]
    ) -> Observations:
        return _TRIALS[program](self, peer, keys, facts)

    def plain(
        self, program: str, peer: Peer, keys: Sequence[str], facts: Mapping[str, Any]
    ) -> Observations:
        space = new_workspace(self._folder)
        return run_program(peer, program, keys, facts, workspace=space)

    def set_id(self, peer: Peer, keys: Sequence[str], facts: Mapping[str, Any]) -> Observations:
        space = new_workspace(self._folder)
        inside = {**facts, "directory": _inside(peer, space)}
        found = run_program(peer, "set_id", keys, inside, workspace=space)
        return found if _has_special_files(space) else _not_on_the_host(found)

    def files(self, peer: Peer, keys: Sequence[str], facts: Mapping[str, Any]) -> Observations:
        with host_files(tempfile.mkdtemp(prefix="project-", dir=self._folder)) as targets:
            more = {**facts, **targets.facts}
            if "control" in facts:
                more["parent"] = os.getpid()
            found = run_program(peer, "files", keys, more, workspace=targets.workspace)
            beside = os.path.join(os.path.dirname(targets.workspace), "planted")
        key = "make-a-file-beside-the-workspace"
        if key in found and found[key].kind == "through" and not os.path.exists(beside):
            found[key] = _ELSEWHERE
        return found

    def read_ssh_key(self, peer: Peer) -> Observation:
        """Whether a file in ~/.ssh can be read, which some peers protect by name."""
        home = os.path.join(self._home, ".ssh")
        os.makedirs(home, mode=0o700, exist_ok=True)
        with host_files(tempfile.mkdtemp(prefix="key-", dir=home)) as targets:
            key = "read-by-its-path"
            space = new_workspace(self._folder)
            return run_program(peer, "files", [key], targets.facts, workspace=space)[key]

    def with_targets(
        self, program: str, peer: Peer, keys: Sequence[str], facts: Mapping[str, Any]
    ) -> Observations:
        shared = {"mark": new_mark(), "ipc_key": 0x48000000 | secrets.randbits(24)}
        place = {**shared, "workspace": new_workspace(self._folder)}
        with holding("host_targets", {**place, "calls": dict(system_calls())}) as made:
            space = new_workspace(self._folder)
            return run_program(peer, program, keys, {**facts, **shared, **made}, workspace=space)

    def network(self, peer: Peer, keys: Sequence[str], facts: Mapping[str, Any]) -> Observations:
        with HostServers() as servers:
            space = new_workspace(self._folder)
            more = {**facts, **servers.facts}
            return run_program(peer, "network", keys, more, workspace=space)

    def search(self, peer: Peer, keys: Sequence[str], facts: Mapping[str, Any]) -> Observations:
        more = {**facts, "prefix": TOKEN_PREFIX}
        return self.plain("secret_search", peer, keys, more)


Trial: TypeAlias = Callable[[Trials, Peer, Sequence[str], Mapping[str, Any]], Observations]
_TRIALS: Mapping[str, Trial] = {
    "kernel_calls": lambda trials, *rest: trials.plain("kernel_calls", *rest),
    "set_id": Trials.set_id,
    "processes": lambda trials, *rest: trials.with_targets("processes", *rest),
    "neighbours": lambda trials, *rest: trials.with_targets("neighbours", *rest),
    "files": Trials.files,
    "network": Trials.network,
    "secret_search": Trials.search,
}


@contextmanager
def host_files(folder: str) -> Iterator[HostFiles]:
    """A secret of the user, and a workspace and a socket beside it."""
    os.chmod(folder, 0o755)
    with HostFiles(folder) as targets:
        os.chmod(targets.workspace, 0o777)
        yield targets


def _inside(peer: Peer, workspace: str) -> str:
    return peer.inside(Job(workspace=workspace))


def _has_special_files(folder: str) -> bool:
    modes = [entry.stat(follow_symlinks=False).st_mode for entry in os.scandir(folder)]
    return any(mode & 0o6000 or stat.S_ISCHR(mode) or stat.S_ISBLK(mode) for mode in modes)


def _not_on_the_host(found: Observations) -> Observations:
    return {key: _ELSEWHERE if seen.kind == "through" else seen for key, seen in found.items()}

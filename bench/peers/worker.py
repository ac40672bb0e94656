"""Runs as the ordinary user: opens the peers, measures times, tries attacks, prints JSON."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from host import describe_host

from peers.attack_choice import chosen
from peers.bare import Bare, BareNamespaces
from peers.figures import Grouped
from peers.install import read_failures
from peers.job import Place
from peers.judging import Judging
from peers.peer import Peer, PeerMissing
from peers.registry import peers
from peers.trials import Trials
from peers.work import WorkFailed, check_work, measure_throughput, measure_times
from peers.worker_env import caller_environment, ssh_agent

_AT_ONCE = 3
"""Peers that are attacked at once: most of the time an attack waits."""


def tell(text: str) -> None:
    print(f"peers: {text}", file=sys.stderr, flush=True)


def open_peers(
    place: Place, only: str | None, folder: str, stack: ExitStack
) -> tuple[list[Peer], dict[str, str]]:
    """Those that do the work here, and why the others do not."""
    usable: list[Peer] = []
    missing: dict[str, str] = {}
    failures = read_failures(place)
    for peer in peers(place, only):
        tell(f"opening {peer.name}")
        try:
            version = peer.version()
            peer.open(caller_environment(place))
            stack.callback(peer.close)
            check_work(peer, folder)
            usable.append(peer)
        except PeerMissing as reason:
            missing[peer.name] = failures.get(peer.product) or str(reason)
        except WorkFailed as reason:
            missing[peer.name] = f"{version}: {reason}"
    return usable, missing


def measure(
    place: Place, *, only: str | None, rounds: int, parts: frozenset[str]
) -> dict[str, Any]:
    """The whole run."""
    found: dict[str, Any] = {"host": describe_host()}
    with ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(dir=place.home, ignore_cleanup_errors=True)
        )
        os.chmod(folder, 0o755)
        stack.enter_context(ssh_agent(place))
        usable, found["missing"] = open_peers(place, only, folder, stack)
        found["peers"] = {
            peer.name: {
                "product": peer.product,
                "version": peer.version(),
                "settings": peer.settings,
                "runs_as": peer.runs_as,
                "limits": sorted(peer.limits),
            }
            for peer in usable
        }
        if "times" in parts:
            found["times"] = measure_times(usable, rounds, folder=folder, tell=tell)
            found["throughput"] = measure_throughput(usable, folder=folder, tell=tell)
        if "attacks" in parts:
            found["controls"], found["attacks"] = _attack(place, usable, folder)
    return found


def _attack(place: Place, usable: list[Peer], folder: str) -> tuple[dict[str, int], dict[str, Any]]:
    (bare,) = [peer for peer in usable if isinstance(peer, Bare)]
    namespaces = BareNamespaces(place)
    namespaces.open(bare.env)
    trials = Trials(folder, place.home, bare, namespaces)
    judging = Judging(chosen(), trials, folder)
    tell("controls on the bare host")
    controls = judging.run_controls()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = pool.map(lambda peer: _judge(judging, peer), usable)
        attacks = {peer.name: verdicts for peer, verdicts in zip(usable, found, strict=True)}
    return controls, attacks


def _judge(judging: Judging, peer: Peer) -> Grouped:
    began = time.monotonic()
    verdicts = judging.verdicts(peer)
    tell(f"attacks on {peer.name} took {time.monotonic() - began:.0f} s")
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("home")
    parser.add_argument("--only")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--parts", default="times,attacks")
    options = parser.parse_args()
    parts = frozenset(options.parts.split(","))
    place = Place(options.root, options.home)
    print(json.dumps(measure(place, only=options.only, rounds=options.rounds, parts=parts)))


if __name__ == "__main__":
    main()

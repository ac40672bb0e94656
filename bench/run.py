"""`./dev bench NAME|all [--json]`: speed as ratios against a bare process or a peer in one run."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from catalogue import read_catalogue
from changes import Direction, compare, report
from plan import choose
from stored_run import FIGURES, StoredRun
from whole_run import OneBench, run_all

# The module of each bench; it is imported when it is asked for, since some need more than others.
BENCHES = {
    "accounts": "accounts",
    "audit": "audit",
    "cells": "cells",
    "dashboard": "dashboard",
    "e2b": "e2b_sdk",
    "egress": "egress",
    "families": "guard_families",
    "fleet": "fleet",
    "fleet-sim": "fleet_sim",
    "flow": "flow",
    "gateway": "gateway",
    "guard": "guard",
    "http": "http_service",
    "incident": "incident",
    "packages": "packages",
    "peers": "peers.bench",
    "policy": "policy",
    "providers": "providers_over_sdk",
    "scaling": "scaling",
    "search": "audit_search",
    "snapshots": "snapshots",
    "soak": "soak",
    "start": "start",
    "telemetry": "telemetry",
    "workspaces": "workspaces",
}
# Sessions, runs at once, seconds: where nothing is given.
_LOADS = {"http": (20, 8, 15.0), "fleet": (1000, 50, 20.0)}
_OWN_RECORDS = {"fleet-sim", "peers"}  # benches with files of their own for their results
_FAILED, _WORSE = 1, 3


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("name", choices=sorted([*BENCHES, "all"]))
    parser.add_argument("--json", action="store_true", help="one object of named figures")
    parser.add_argument(
        "--data", help="families, guard, packages: folder with the development data"
    )
    parser.add_argument("--rounds", type=int, default=60, help="interleaved rounds")
    parser.add_argument("--sessions", type=int, help="http, fleet: live sandboxes under load")
    parser.add_argument("--concurrent", type=int, help="http, fleet: runs at once")
    parser.add_argument("--seconds", type=float, help="http, fleet: how long")
    parser.add_argument(
        "--only", metavar="NAMES", help="all: these benches, by commas; peers: one peer"
    )
    parser.add_argument("--minutes", type=float, default=14.0, help="all, soak: how long at most")
    parser.add_argument(
        "--compare",
        metavar="FILE",
        nargs="?",
        const=str(FIGURES),
        help="all: what got better or worse against a stored run; the recorded one without FILE",
    )
    parser.add_argument(
        "--fail-on-worse", action="store_true", help=f"all: exit status {_WORSE} on a worse figure"
    )
    parser.add_argument(
        "--record", action="store_true", help="keep the results for the documentation"
    )
    parser.add_argument(
        "--share", type=float, default=1.0, help="fleet-sim: of 1,000 hosts and their sessions"
    )
    parser.add_argument("--install", action="store_true", help="peers: install them again")
    parser.add_argument("--parts", default="times,attacks", help="peers: times, attacks or both")
    return parser.parse_args()


def main() -> None:
    options = parse()
    signal.signal(signal.SIGTERM, _exit)  # servers, sandboxes and folders are removed then, too
    if options.data:
        os.environ["CELLWALL_GUARD_DATA"] = options.data
    if options.name == "all":
        sys.exit(_measure_all(options))
    one = OneBench(options.name, options.rounds)
    figures = _measure_one(options)
    if options.record and options.name not in _OWN_RECORDS:
        _stored_run().merged(one.stored(figures)).write(FIGURES)
        _tell(f"wrote {FIGURES}; `./dev docs` renews the page")
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:44} {value}")


def _exit(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _measure_one(options: argparse.Namespace) -> dict[str, Any]:
    measure: Callable[..., dict[str, Any]] = import_module(BENCHES[options.name]).measure
    with tempfile.TemporaryDirectory(prefix="cellwall-bench-") as home:
        os.environ["CELLWALL_HOME"] = home
        more: dict[str, Any] = {}
        if options.name in _LOADS:
            given = options.sessions, options.concurrent, options.seconds
            pairs = zip(given, _LOADS[options.name], strict=True)
            load = [default if value is None else value for value, default in pairs]
            more = {"load": import_module("http_service").Load(*load)}
        if options.name == "peers":
            more |= {"only": options.only, "is_record": options.record}
            more |= {"is_install": options.install, "parts": options.parts}
        if options.name == "soak":
            more = {"minutes": options.minutes}
        if options.name == "fleet-sim":
            more |= {"share": options.share, "is_record": options.record}
        return measure(options.rounds, quiet=options.json, **more)


def _stored_run() -> StoredRun:
    return StoredRun.read(FIGURES) if FIGURES.exists() else StoredRun()


def _measure_all(options: argparse.Namespace) -> int:
    """Runs, keeps, compares; the exit status."""
    benches = choose(options.only)
    # Read before anything is recorded: the file may be the same one.
    before = StoredRun.read(Path(options.compare)) if options.compare else None
    kept = _stored_run() if options.record else StoredRun()

    def keep(newer: StoredRun) -> None:
        if options.record:
            kept.merged(newer).write(FIGURES)

    found = run_all(benches, minutes=options.minutes, on_progress=_tell, on_bench=keep)
    keep(found)
    if options.record:
        _tell(f"wrote {FIGURES}; `./dev docs` renews the page and its plots")
    if options.json:
        print(found.text(), end="")
    elif before is None:
        _print_figures(found)
    is_worse = False
    if before is not None:
        changes, left_out = compare(before, found, read_catalogue())
        # With --json the object alone is on the standard output.
        print(report(changes, left_out), file=sys.stderr if options.json else sys.stdout)
        is_worse = any(each.direction is Direction.WORSE for each in changes)
    for name, reason in found.failed.items():
        _tell(f"no figures of {name}: {reason}")
    if found.failed:
        return _FAILED
    return _WORSE if is_worse and options.fail_on_worse else 0


def _print_figures(found: StoredRun) -> None:
    for bench, measured in found.benches.items():
        for name, values in measured.figures.items():
            print(f"{bench + ' ' + name:64} {' '.join(map(str, values))}")


def _tell(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()

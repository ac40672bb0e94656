"""`./dev bench NAME [--json]`: speed as ratios against a bare process or a peer of the same run."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile

import accounts
import audit
import cells
import dashboard
import e2b_sdk
import egress
import flow
import gateway
import guard
import guard_families
import http_service
import incident
import packages
import policy
import providers_over_sdk
import snapshots
import telemetry
import workspaces
from peers import bench as peers

BENCHES = {
    "accounts": accounts.measure,
    "audit": audit.measure,
    "cells": cells.measure,
    "dashboard": dashboard.measure,
    "e2b": e2b_sdk.measure,
    "egress": egress.measure,
    "families": guard_families.measure,
    "flow": flow.measure,
    "gateway": gateway.measure,
    "guard": guard.measure,
    "http": http_service.measure,
    "incident": incident.measure,
    "packages": packages.measure,
    "peers": peers.measure,
    "policy": policy.measure,
    "providers": providers_over_sdk.measure,
    "snapshots": snapshots.measure,
    "telemetry": telemetry.measure,
    "workspaces": workspaces.measure,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("name", choices=sorted(BENCHES))
    parser.add_argument("--json", action="store_true", help="one object of named figures")
    parser.add_argument(
        "--data", help="families, guard, packages: folder with the development data"
    )
    parser.add_argument("--rounds", type=int, default=60, help="interleaved rounds")
    parser.add_argument("--sessions", type=int, default=20, help="http: live sandboxes under load")
    parser.add_argument("--concurrent", type=int, default=8, help="http: runs at once")
    parser.add_argument("--seconds", type=float, default=15.0, help="http: how long")
    parser.add_argument("--only", metavar="PEER", help="peers: one peer, beside the bare process")
    parser.add_argument("--record", action="store_true", help="peers: keep the results")
    parser.add_argument("--install", action="store_true", help="peers: install them again")
    parser.add_argument("--parts", default="times,attacks", help="peers: times, attacks or both")
    options = parser.parse_args()
    if options.data:
        os.environ["CELLWALL_GUARD_DATA"] = options.data
    with tempfile.TemporaryDirectory(prefix="cellwall-bench-") as home:
        os.environ["CELLWALL_HOME"] = home
        more = {}
        if options.name == "http":
            load = options.sessions, options.concurrent, options.seconds
            more["load"] = http_service.Load(*load)
        if options.name == "peers":
            more |= {"only": options.only, "is_record": options.record}
            more |= {"is_install": options.install, "parts": options.parts}
        figures = BENCHES[options.name](options.rounds, quiet=options.json, **more)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, value in figures.items():
        print(f"{name:44} {value}")


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(__file__))
    main()

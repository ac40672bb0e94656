"""`./dev bench peers`: prepares the host, runs the worker as an ordinary user, keeps results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from peers import install
from peers.figures import as_lines, count_verdicts, ratio
from peers.host import SCRATCH, User, prepared
from peers.job import Place
from peers.registry import NAMES
from peers.resident import BENCH

RESULTS = Path(__file__).with_name("results.json")
_WORKER_WITHIN_S = 1500.0
_MAX_ROUNDS = 24


def measure(
    rounds: int,
    *,
    quiet: bool,
    only: str | None = None,
    is_install: bool = False,
    is_record: bool = False,
    parts: str = "times,attacks",
) -> dict[str, Any]:
    """The whole object for a program, or one line for each figure for a person."""
    signal.signal(signal.SIGTERM, _end)  # daemons and the account are removed then, too
    place = Place(SCRATCH, "")
    if is_install or not os.path.exists(install.failures_file(place)):
        install.install(place, lambda text: print(f"peers: {text}", file=sys.stderr))
    with prepared(with_daemons=True) as (place, user):
        found = _work(place, user, rounds=min(rounds, _MAX_ROUNDS), only=only, parts=parts)
    if is_record:
        _record(found)
    return found if quiet else dict(_lines(found))


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _work(place: Place, user: User, *, rounds: int, only: str | None, parts: str) -> dict[str, Any]:
    words = [sys.executable, "-m", "peers.worker", place.root, place.home]
    words += ["--rounds", str(rounds), "--parts", parts, *(["--only", only] if only else [])]
    is_root = os.geteuid() == 0
    done = subprocess.run(
        words,
        env={"PATH": os.environ["PATH"], "HOME": place.home, "PYTHONPATH": BENCH},
        stdout=subprocess.PIPE,
        cwd="/",
        check=False,
        timeout=_WORKER_WITHIN_S,
        **({"user": user.uid, "group": user.gid, "extra_groups": []} if is_root else {}),
    )
    if done.returncode != 0:
        raise SystemExit(
            f"the worker ended with {done.returncode}: the repository and its environment must be "
            f"readable to the user {user.name}"
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _record(found: dict[str, Any]) -> None:
    """Keep what was measured; parts or peers that this run left out stay as they were."""
    kept = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    for name, value in found.items():
        is_partial = isinstance(value, dict) and isinstance(kept.get(name), dict)
        kept[name] = {**kept[name], **value} if is_partial and name != "host" else value
    for name in found["peers"]:
        kept["missing"].pop(name, None)
    kept["peers"] = {name: kept["peers"][name] for name in NAMES if name in kept["peers"]}
    RESULTS.write_text(as_lines(kept), "utf-8")
    print(f"peers: wrote {RESULTS}; `./dev docs` renews the page", file=sys.stderr)


def _lines(found: dict[str, Any]) -> list[tuple[str, str]]:
    lines = []
    for peer, works in found.get("times", {}).items():
        for work, figures in works.items():
            over = ratio(found["times"], peer, work)
            lines.append((f"{peer} {work}", f"{figures['p50_ms']} ms, {over or 0:.2f}x bare"))
    for peer, figures in found.get("throughput", {}).items():
        share = figures["per_s"] / figures["bare_per_s"]
        lines.append((f"{peer} throughput", f"{figures['per_s']}/s, {share:.2f}x bare"))
    for peer, verdicts in found.get("attacks", {}).items():
        for layer, counts in count_verdicts(verdicts).items():
            text = f"{counts['held']} held, {counts['through']} through, {counts['n/a']} n/a"
            lines.append((f"{peer}, attacks on {layer}", text))
    lines += [(f"{peer} is missing", reason) for peer, reason in found["missing"].items()]
    return lines

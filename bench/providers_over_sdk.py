"""What an agent framework's call costs over the same call of the SDK, each in its environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from providers.run import NAMES, environment  # noqa: E402  # tests/ is on the path from here on


def measure(rounds: int, *, quiet: bool) -> dict[str, float]:
    figures = {}
    with tempfile.TemporaryDirectory(prefix="cellwall-bench-") as home:
        variables = {**os.environ, "CELLWALL_HOME": home}
        try:
            for name in NAMES:
                if not quiet:
                    print(f"{name} …", file=sys.stderr)
                found = _figures(environment(name), name, rounds, variables)
                figures |= {f"{name}_{figure}": value for figure, value in found.items()}
        finally:
            stop = [Path(sys.executable).with_name("cellwall"), "supervisor", "stop"]
            subprocess.run(stop, env=variables, capture_output=True, timeout=60, check=False)
    over = [value for name, value in figures.items() if name.endswith("_over_sdk_p50_ms")]
    return {**figures, "most_over_sdk_p50_ms": max(over)}


def _figures(folder: Path, name: str, rounds: int, variables: dict[str, str]) -> dict[str, float]:
    program = Path(__file__).with_name("provider_call.py")
    command = [folder / "bin/python", program, name, str(rounds)]
    done = subprocess.run(
        command, env=variables, stdout=subprocess.PIPE, text=True, timeout=600, check=True
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found

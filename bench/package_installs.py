"""The second install of a tree of 20 packages in a sandbox, beside uv from its own warm cache."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import cellwall

ROOT = Path(__file__).parents[1]
UV = ROOT / ".tools/uv/bin/uv"
PACKAGES = 20


def measure_installs(rounds: int) -> dict[str, Any]:
    """Empty where there is no uv."""
    if not UV.exists():
        return {}
    sys.path.insert(0, str(ROOT / "tests"))
    from registries import serve_registries  # noqa: PLC0415  # of the tests

    with (
        tempfile.TemporaryDirectory(prefix="cellwall-installs-") as folder,
        serve_registries() as served,
    ):
        names = [f"zebra-part-{number}" for number in range(PACKAGES)]
        served.add_wheel("zebra-tree", "1.0", requires=names[1:])
        for name in names[1:]:
            module = {f"{name.replace('-', '_')}/m{n}.py": "x = 1\n" * 200 for n in range(20)}
            served.add_wheel(name, "1.0", module)
        direct = [_install_directly(folder, served.base) for _ in range(rounds + 1)][1:]
        inside = _install_inside(folder, served.base, rounds)
    return {
        "install_20_direct_warm_ms": round(statistics.median(direct) * 1000),
        "install_20_second_ms": round(statistics.median(inside) * 1000),
        "install_20_second_over_direct": round(
            statistics.median(inside) / statistics.median(direct), 2
        ),
    }


def _install_directly(folder: str, base: str) -> float:
    target = tempfile.mkdtemp(dir=folder)
    command = [UV, "pip", "install", "-q", "--target", target, "--cache-dir", f"{folder}/cache"]
    index = ["--index-url", f"{base}/simple", "--no-config", "zebra-tree"]
    started = time.perf_counter()
    subprocess.run([*command, *index], check=True)
    return time.perf_counter() - started


_SCRIPT = """
export UV_CACHE_DIR=/tmp/cache; cd /tmp; s=$(date +%s%N)
/workspace/uv pip install -q --system --target /tmp/t zebra-tree || exit 1
echo $(( $(date +%s%N) - s ))
"""


def _install_inside(folder: str, base: str, rounds: int) -> list[float]:
    """Each time in a new sandbox, which has nothing but the registry proxy."""
    path = os.path.join(folder, "config.toml")
    with open(path, "w") as written:
        written.write(
            f'[packages]\nwithout_feed = "allow"\npypi_url = "{base}"\npypi_file_urls = []\n'
        )
    os.chmod(path, 0o600)
    taken = []
    for _ in range(rounds + 1):
        found = cellwall.run_command(
            ["sh", "-c", _SCRIPT],
            registries=["pypi"],
            config=path,
            workspace=f"{UV.parent}:ro",
            timeout=120,
        )
        found.outcome.raise_for_status()
        taken.append(int(found.stdout) / 1e9)
    return taken[1:]

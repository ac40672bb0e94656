"""`./dev test --providers [--types] [NAME…]`: each integration beside its framework.

The frameworks need versions of packages that exclude one another, so each has an environment of its
own below `.tools/providers`, with the versions of uv.lock. With `--types`, mypy checks the
integration against the types of its framework as well.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUITES = Path(__file__).parent / "suites"
INTEGRATIONS = ROOT / "src/cellwall/integrations"
NAMES = sorted(
    path.stem.replace("_", "-") for path in INTEGRATIONS.glob("*.py") if path.stem != "__init__"
)
_UV = Path(sys.executable).with_name("uv")
_TESTS = "provider-tests"


def environment(name: str) -> Path:
    """Its folder; made, or brought up to date with uv.lock."""
    folder = ROOT / ".tools/providers" / name
    known = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]
    groups = [group for group in (_TESTS, f"{_TESTS}-{name}") if group in known]
    command = [_UV, "sync", "--locked", "--quiet", "--no-default-groups", "--extra", name]
    subprocess.run(
        [*command, "--python", sys.executable, *(f"--group={group}" for group in groups)],
        cwd=ROOT,
        env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder)},
        check=True,
    )
    return folder


def run_suite(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The tests of one integration, in the environment of its framework."""
    python = environment(name) / "bin/python"
    suite = SUITES / f"{name.replace('-', '_')}_suite.py"
    command = [python, "-m", "pytest", "-c", SUITES / "pytest.ini", "-p", "no:cacheprovider"]
    return subprocess.run([*command, suite, *arguments], cwd=ROOT, check=False, text=True)


def check_types(name: str) -> bool:
    """Whether mypy finds no mistake beside the framework."""
    python = ROOT / ".tools/providers" / name / "bin/python"
    module = INTEGRATIONS / f"{name.replace('-', '_')}.py"
    command = [sys.executable, "-m", "mypy", "--python-executable", python]
    cache = ROOT / ".mypy_cache" / f"provider-{name}"
    return subprocess.run([*command, "--cache-dir", cache, module], cwd=ROOT).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev test --providers")
    parser.add_argument("--types", action="store_true", help="mypy beside the framework as well")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"no integration {', '.join(sorted(unknown))}; there are: {', '.join(NAMES)}")
    failed = []
    for name in options.names or NAMES:
        print(f"== {name}", flush=True)
        is_good = run_suite(name, "-q").returncode == 0
        if options.types and not check_types(name):
            is_good = False
        if not is_good:
            failed.append(name)
    print(f"failed: {', '.join(failed)}" if failed else "all passed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())

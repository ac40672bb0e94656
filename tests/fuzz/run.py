"""`./dev fuzz TARGET --minutes N [--seed S]`: generated input against the real thing, for as long as told.

Exit 0: no difference. 1: a difference; the shortest one found is printed last. The same seed gives
the same input.
"""

from __future__ import annotations

import argparse
import atexit
import os
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def policy(seed: str, seconds: float) -> int:
    """shell texts: what is read and judged against what bash, in a cell, starts and opens"""
    return _compare("bash", seed, seconds)


def zsh(seed: str, seconds: float) -> int:
    """the same texts in zsh: what is allowed starts and opens nothing that is denied"""
    return _compare("zsh", seed, seconds)


def dash(seed: str, seconds: float) -> int:
    """the same texts behind `sh -c` in dash"""
    return _compare("dash", seed, seconds)


def _compare(shell: str, seed: str, seconds: float) -> int:
    from fuzz.shell import campaign  # noqa: PLC0415  only these targets need a cell

    tally = campaign.run(
        seed, shell=shell, seconds=seconds, report=lambda line: print(line, flush=True)
    )
    print(f"seed {seed}: {tally.line()}")
    if not tally.found:
        return 0
    shortest = tally.found[0]
    print(f"shortest difference: {shortest.what}\n    {shortest.text!r}")
    return 1


def guard(seed: str, seconds: float) -> int:
    """near-misses of every scanner's rules: work that grows faster than the text"""
    from fuzz import guard_sweep  # noqa: PLC0415  loads every rule of the guard

    number = zlib.crc32(seed.encode())
    return guard_sweep.main(["--minutes", str(seconds / 60), "--seed", str(number)])


TARGETS: dict[str, Callable[[str, float], int]] = {
    "guard": guard,
    "policy": policy,
    "zsh": zsh,
    "dash": dash,
}


def main() -> int:
    """Reads the arguments."""
    listed = "\n".join(f"  {name:10} {target.__doc__}" for name, target in TARGETS.items())
    parser = argparse.ArgumentParser(
        prog="./dev fuzz",
        description=__doc__,
        epilog=f"targets:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("target", choices=sorted(TARGETS), metavar="TARGET")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default: 1)")
    parser.add_argument("--seed", default="1", help="any text (default: 1)")
    options = parser.parse_args()
    home = tempfile.TemporaryDirectory(prefix="cellwall-fuzz-")
    atexit.register(home.cleanup)  # before cellwall's own, and so run behind it
    os.environ["CELLWALL_HOME"] = home.name
    return TARGETS[options.target](options.seed, options.minutes * 60)


if __name__ == "__main__":
    sys.exit(main())

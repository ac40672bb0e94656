"""Searches that are not guided by coverage: generated shell texts against real shells in a cell,
and near-misses of the guard's rules."""

from __future__ import annotations

import zlib
from collections.abc import Callable


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
    from fuzz.shell import campaign  # noqa: PLC0415  # only these targets need a cell

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
    from fuzz import guard_sweep  # noqa: PLC0415  # loads every rule of the guard

    number = zlib.crc32(seed.encode())
    return guard_sweep.main(["--minutes", str(seconds / 60), "--seed", str(number)])


CAMPAIGNS: dict[str, Callable[[str, float], int]] = {
    "guard": guard,
    "policy": policy,
    "zsh": zsh,
    "dash": dash,
}

"""`./dev fuzz TARGET… --minutes N`: generated input against parsers, or `all` of them, in turn.

Exit 0: no finding. 1: findings; each is saved as a file, with the command that repeats it. 130:
interrupted, with the figures so far. `--list` shows the targets. What the search has learnt stays in `.fuzz/`, so that a later run goes on from
there; `--keep` adds the inputs that reach code which the kept ones do not to tests/fuzz/corpora.
"""

from __future__ import annotations

import argparse
import atexit
import os
import signal
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz import engine
from fuzz.campaigns import CAMPAIGNS

ALL = "all"
_MEMORY = "/dev/shm"  # a folder of its own below it


def main() -> int:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(
        prog="./dev fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="of --list, or `all`")
    parser.add_argument("--list", action="store_true", help="the targets, and what each one reads")
    parser.add_argument(
        "--minutes",
        type=float,
        default=1.0,
        help="the total of all targets and jobs; 60 with --jobs 2 take half an hour (default: 1)",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="targets that run at the same time (default: 1)"
    )
    parser.add_argument("--seed", default="1", help="any text (default: 1)")
    parser.add_argument("--replay", metavar="FILE", help="one input instead of generated ones")
    parser.add_argument("--keep", action="store_true", help="add what was learnt to the corpora")
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write the figures; `./dev docs` shows those of tests/fuzz/figures.json",
    )
    return _search(parser, parser.parse_args())


def _search(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    known = {**engine.described(), **{name: each.__doc__ for name, each in CAMPAIGNS.items()}}
    if options.list or not options.targets:
        for name, says in known.items():
            print(f"{name:18} {says}")
        return 0 if options.list else 2
    unknown = set(options.targets) - {*known, ALL}
    if unknown:
        parser.error(f"there is no target {min(unknown)}; see --list")
    first = options.targets[0]
    if len(options.targets) > 1 and (options.replay or CAMPAIGNS.keys() & set(options.targets)):
        parser.error("--replay, guard, policy, zsh and dash take one target at a time")
    if options.replay:
        if first not in engine.described():
            parser.error(f"{first} has no single inputs; name a target of one parser")
        _use_own_home()
        return engine.replay(first, options.replay)
    names = list(engine.described()) if ALL in options.targets else options.targets
    if not options.minutes * 60 >= engine.MIN_SECONDS * len(names):  # not a number: refused too
        least = engine.MIN_SECONDS * len(names) / 60
        parser.error(f"--minutes is too short for {len(names)} targets: at least {least:.2f}")
    if options.jobs < 1 or (options.jobs > 1 and first in CAMPAIGNS):
        parser.error("--jobs is at least 1; guard, policy, zsh and dash run as one")
    _use_own_home()
    if first in CAMPAIGNS:
        return CAMPAIGNS[first](options.seed, options.minutes * 60)
    return engine.fuzz(
        names,
        seconds=options.minutes * 60,
        seed=options.seed,
        keeps=options.keep,
        path=options.json,
        jobs=min(options.jobs, len(names)),
    )


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _use_own_home() -> None:
    # In memory: targets that read files write one for each input.
    folder = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    home = tempfile.TemporaryDirectory(prefix="cellwall-fuzz-", dir=folder)
    atexit.register(home.cleanup)  # before cellwall's own, and so run behind it
    os.environ["CELLWALL_HOME"] = home.name
    os.environ["TMPDIR"] = home.name  # also what a killed process leaves is removed


if __name__ == "__main__":
    # The processes of a search are in sessions of their own: no such signal reaches them.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(engine.INTERRUPTED)

"""How long a decision takes, with a parse that is known and with one that is not."""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import time
import tomllib
from collections.abc import Callable, Iterable
from typing import Any

import hook

from cellwall.policy.calls import ToolCall
from cellwall.policy.engine import Policy

_DATA = os.path.join(os.path.dirname(__file__), "..", "tests", "contract", "policy")
_MANY = 200


def measure(rounds: int, *, quiet: bool) -> dict[str, Any]:
    policy = Policy.load(os.path.join(_DATA, "ordinary.toml"))
    with open(os.path.join(_DATA, "everyday.toml"), "rb") as file:
        commands = _commands(tomllib.load(file))
    calls = [ToolCall("Bash", {"command": each}, "/tmp", "/root") for each in commands]
    _say("everyday commands", quiet=quiet)
    first = [_timed(lambda each=each: policy.check(each)) for each in calls]
    known = [
        _timed(lambda each=each: policy.check(each))
        for _ in range(max(3, rounds // 20))
        for each in calls
    ]
    long_one = f"ls {'x' * 10_000}"
    many = "; ".join(f"ls {number}" for number in range(_MANY))
    figures = {
        "commands": len(calls),
        **_spread("cached_us", known, 1e6),
        **_spread("uncached_ms", first, 1e3),
        "long_10000_ms": _first_and_again(policy, long_one),
        f"sub_commands_{_MANY}_ms": _first_and_again(policy, many),
    }
    _say("hooks", quiet=quiet)
    return {**figures, **hook.measure(rounds)}


def _commands(data: Any) -> list[str]:
    """Wherever they stand in the data."""
    if isinstance(data, dict):
        own = [data["command"]] if isinstance(data.get("command"), str) else []
        return own + list(itertools.chain.from_iterable(map(_commands, data.values())))
    return (
        list(itertools.chain.from_iterable(map(_commands, data))) if isinstance(data, list) else []
    )


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _first_and_again(policy: Policy, command: str) -> list[float]:
    call = ToolCall("Bash", {"command": command}, "/tmp", "/root")
    return [round(_timed(lambda: policy.check(call)) * 1e3, 2) for _ in range(2)]


def _spread(name: str, times: Iterable[float], unit: float) -> dict[str, float]:
    ordered = sorted(times)
    return {
        f"{name}_p50": round(statistics.median(ordered) * unit, 1),
        f"{name}_p99": round(ordered[int(len(ordered) * 0.99)] * unit, 1),
    }


def _say(text: str, *, quiet: bool) -> None:
    if not quiet:
        print(f"... {text}", file=sys.stderr)

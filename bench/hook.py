"""`cellwall hook` with a warm supervisor against an empty Python, interleaved in one run."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

_PROGRAM = os.path.join(os.path.dirname(sys.executable), "cellwall")
_QUESTION = json.dumps(
    {
        "session_id": "bench",
        "transcript_path": "/dev/null",
        "cwd": "/tmp",
        "permission_mode": "default",
        "hook_event_name": "PreToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "git status --short", "description": "Look"},
        "tool_use_id": "toolu_bench",
    }
).encode()


def measure(rounds: int) -> dict[str, Any]:
    """Milliseconds from the start of the process to its end, and their ratio."""
    _ended([_PROGRAM, "supervisor", "start"])
    ways = {
        "python": [sys.executable, "-c", "pass"],
        "hook": [_PROGRAM, "hook"],
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    try:
        for words in ways.values():
            _ended(words)
        for _ in range(rounds):
            for name, words in ways.items():
                took[name].append(_ended(words))
    finally:
        _ended([_PROGRAM, "supervisor", "stop"])
    middle = {name: statistics.median(times) for name, times in took.items()}
    return {
        "hook_python_p50_ms": round(middle["python"] * 1e3, 2),
        "hook_p50_ms": round(middle["hook"] * 1e3, 2),
        "hook_p95_ms": round(sorted(took["hook"])[int(rounds * 0.95)] * 1e3, 2),
        "hook_ratio": round(middle["hook"] / middle["python"], 3),
    }


def _ended(words: list[str]) -> float:
    begun = time.perf_counter()
    done = subprocess.run(words, input=_QUESTION, capture_output=True, check=False)
    took = time.perf_counter() - begun
    if done.returncode != 0:
        raise SystemExit(f"{words} ended with {done.returncode}: {done.stderr.decode()}")
    return took

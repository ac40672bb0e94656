"""The result of a run that has ended, or the error in its place.

Init's report of the end and the counters of the cgroup are believed; the report of the code is
bounded output.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Literal

from cellwall.core.errors import BadInput, CellwallError, SandboxFailed, WorkspaceError
from cellwall.core.limits import MIB, LimitName, Limits
from cellwall.core.outcomes import Finding, RunResult, Usage
from cellwall.sandbox.linux.run_cgroup import Counters
from cellwall.sandbox.linux.run_io import RunIO


def build_result(
    words: list[str],
    *,
    limit: LimitName | None,
    limits: Limits,
    counters: Counters,
    run_io: RunIO,
    wall_s: float,
    failure: Callable[[str], CellwallError],
    path: str = "cold",
    state: Literal["kept", "lost"] | None = None,
) -> RunResult:
    """A failure of the sandbox raises instead, and is never shown as output (ERR-2)."""
    cpu_s, peak_bytes = 0.0, 0
    exit_code: int | None = None
    match words:
        case ["exit", _task, kind, number, limit_word, cpu_us, peak_kib]:
            exit_code = int(number) + (128 if kind == "signal" else 0)
            cpu_s, peak_bytes = int(cpu_us) / 1e6, int(peak_kib) * 1024
            if limit_word != "-":
                limit = limit or LimitName(limit_word)
            is_late = counters.is_sampled and peak_bytes > _unseen_bytes(limits)
            if is_late and limit is None and exit_code:
                # RLIMIT_DATA refused memory before a sample was taken.
                limit, exit_code = LimitName.MEMORY, 128 + signal.SIGKILL
        case ["noexec", _task, number]:
            raise start_failure(int(number))
        case ["fail", "protect-open", *_]:
            raise WorkspaceError(
                "the workspace changed while it was made ready",
                hint="Another program or run is moving its files about; try again.",
                code="CW-WORKSPACE-CHANGED",
            )
        case ["fail", step, *rest]:
            raise failure(" ".join([step, *rest]))
    if exit_code is None and limit is None:
        raise failure("ended-without-a-word")
    report = run_io.report or {}
    results = report.get("results")
    text = report.get("text")
    return RunResult(
        exit_code=exit_code,
        stdout=bytes(run_io.streams["stdout"]),
        stderr=bytes(run_io.streams["stderr"]),
        truncated=limit is LimitName.OUTPUT,
        limit=limit,
        value=report.get("value"),
        text=text if isinstance(text, str) else None,
        results=tuple(results) if isinstance(results, list) else (),
        code_error=report.get("error"),
        findings=tuple(_findings_of_cuts(run_io)),
        path=path,
        state=state,
        usage=Usage(
            wall_s=wall_s,
            cpu_s=counters.cpu_s if counters.cpu_s is not None else cpu_s,
            memory_peak=counters.memory_peak if counters.memory_peak is not None else peak_bytes,
            io_bytes=counters.io_bytes,
        ),
    )


def _unseen_bytes(limits: Limits) -> int:
    """A peak that only a process over its limit has. ru_maxrss counts mapped files as well."""
    return limits.memory_bytes * 3 // 2 + 32 * MIB


def _findings_of_cuts(run_io: RunIO) -> Iterator[Finding]:
    """The caller would otherwise take the result for complete."""
    if (run_io.report or {}).get("cut"):
        yield Finding(
            "cut",
            "low",
            "the result is larger than a result may be (16,000 texts, 100,000 "
            "entries, 64 KiB of text): the rest is left out. Return less, or write the data to a "
            "file and read the file.",
            where="value",
        )
    if run_io.is_malformed:
        yield Finding(
            "cut",
            "low",
            "the report of the code is malformed or holds too many values: value, "
            "results and error are left out",
            where="value",
        )


def exceeded_limit(counters: Counters, limits: Limits) -> LimitName | None:
    """The limit that was reached, by the counters of the cgroup."""
    if counters.out_of_memory:
        return LimitName.MEMORY
    if counters.forks_refused:
        return LimitName.PROCESSES
    if counters.cpu_s is not None and counters.cpu_s > limits.cpu_s:
        return LimitName.CPU
    return None


_NO_DIRECTORY = 10_000
"""Added by spawn.c to the errno of chdir."""


def start_failure(number: int) -> BadInput:
    """The error for a program that init could not start; `number` comes from init."""
    if number > _NO_DIRECTORY:
        return BadInput(
            f"the working directory cannot be entered: {os.strerror(number - _NO_DIRECTORY)}",
            hint="Name a directory inside the sandbox: /workspace, a directory below it, or /tmp.",
            code="CW-CWD-NOT-FOUND",
        )
    match number:
        case 2:
            return BadInput(
                "no such program inside the sandbox",
                hint="Programs of the host's /usr are there; check the name, install the program "
                "on the host, or give the directory that holds it as the workspace. A .venv needs "
                "the Python that it was made from: where that is not below /usr (pyenv, conda, "
                "uv), name its directory in sandbox.extra_read_only_paths of the configuration.",
                code="CW-COMMAND-NOT-FOUND",
            )
        case 13:
            return BadInput(
                "the program may not be executed",
                hint="Check that the file is executable for everybody (chmod a+rx).",
                code="CW-COMMAND-NOT-EXECUTABLE",
            )
        case 7:
            return BadInput(
                "the arguments are too long for the kernel",
                hint="Give long data through a file or standard input.",
                code="CW-ARGUMENTS-TOO-LONG",
            )
        case _:
            return BadInput(
                f"the kernel could not start the program ({os.strerror(number)})",
                hint="Check that the file is a program for this machine.",
                code="CW-COMMAND-NOT-STARTED",
            )


def unkillable_process(limit: LimitName | None = None) -> SandboxFailed:
    """A process in uninterruptible sleep. `limit`: because of which the run was to end."""
    after = "" if limit is None else f" after the run had reached its limit ({limit.value})"
    return SandboxFailed(
        f"a process of the run could not be ended{after}",
        hint="It hangs inside the kernel; look at the host's storage.",
        code="CW-LEFTOVER",
    )

"""Runs libFuzzer over the targets: atheris for Python, clang for C; keeps findings and figures.

Each target runs in a process of its own, which a finding ends: it is saved, and the search goes on
with another seed for the time that is left.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from fuzz import corpus, native
from fuzz.figures import SearchFigures, TargetFigures
from fuzz.processes import FuzzerProcesses
from fuzz.targets import Target, all_targets

ROOT = Path(__file__).resolve().parents[2]
STATE = ROOT / ".fuzz"
FINDINGS = STATE / "findings"
_MAX_INPUT_S = 20
_MAX_MEMORY_MB = 3072
_MAX_FINDINGS = 5
_GRACE_S = 120
_END_WITHIN_S = 30
_MERGE_S = 600
INTERRUPTED = 130
"""Exit code, as that of a shell for SIGINT."""
MIN_SECONDS = 5.0
"""Of one target: a Python process needs seconds to start, and a search of none finds nothing."""
_EXECUTIONS = re.compile(r"stat::number_of_executed_units: (\d+)")
_PROGRESS = re.compile(r"^#(\d+)\s.*cov: (\d+)")
_SHOW_EVERY_S = 30.0
_LOOK_EVERY_S = 0.5
"""The kernel may give Ctrl-C to another thread, which does not end the wait of the main one."""


class SearchEnded(Exception):
    """A search did not start, or ended by something else than its time or a finding."""


def described() -> dict[str, str]:
    """Every target with what it reads."""
    return {
        **{name: each.says for name, each in all_targets().items()},
        **{name: each.says for name, each in native.TARGETS.items()},
    }


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """What every target of a search is run with."""

    seconds: float
    """Of one target."""
    seed: int
    keeps: bool = False
    """Whether inputs that reach more are added to the corpora."""


def fuzz(
    names: Sequence[str],
    *,
    seconds: float,
    seed: str,
    keeps: bool,
    path: str | None,
    jobs: int = 1,
) -> int:
    """All of them, `jobs` at a time, each for an equal share of the time; figures go to `path`."""
    options = SearchOptions(seconds / len(names), zlib.crc32(seed.encode()), keeps)
    done = SearchFigures(jobs)
    processes = FuzzerProcesses()
    is_stopped = False
    with ThreadPoolExecutor(jobs) as pool:
        # From here on an interrupt must stop the processes: the end of the pool waits for its threads.
        try:
            waiting = {pool.submit(_search, name, options, processes) for name in names}
            count = 0
            while waiting:
                ended, waiting = wait(waiting, _LOOK_EVERY_S, FIRST_COMPLETED)
                for each in ended:
                    count += 1
                    print(f"[{count}/{len(names)}] {_collect(each, done)}", flush=True)
                    if path:
                        done.write(Path(path))
        except KeyboardInterrupt:
            is_stopped = True
        finally:
            # A second Ctrl-C would end the wait for the processes that the first one ends.
            handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
            pool.shutdown(wait=False, cancel_futures=True)
            processes.stop()
            pool.shutdown()
            signal.signal(signal.SIGINT, handler)
    print(f"\n{done.summary()}")
    if is_stopped:
        print(f"interrupted: {len(names) - len(done.targets)} of {len(names)} targets not run")
        return INTERRUPTED
    return 1 if done.findings or done.failed else 0


def _search(name: str, options: SearchOptions, processes: FuzzerProcesses) -> TargetFigures:
    print(f"{name}: {options.seconds:.0f} s", flush=True)
    found = _fuzz_one(name, options, processes)
    if options.keeps:
        print(f"kept {_keep(name, processes)} more inputs of {name}", flush=True)
    return found


def _collect(search: Future[TargetFigures], done: SearchFigures) -> str:
    try:
        done.targets.append(search.result())
    except SearchEnded as error:  # the others are still searched
        done.failed.append(str(error))
        return str(error)
    return done.targets[-1].line()


def replay(name: str, path: str) -> int:
    """One input; the exception of a finding is shown."""
    if not Path(path).is_file():
        raise SystemExit(f"there is no file {path}")
    if name in native.TARGETS:
        program = native.build(name, STATE)
        return subprocess.run([program, path], check=False).returncode
    all_targets()[name].run(Path(path).read_bytes())
    print("no finding")
    return 0


def _fuzz_one(name: str, options: SearchOptions, processes: FuzzerProcesses) -> TargetFigures:
    figures = TargetFigures(name)
    folder = _corpus_folder(name)
    seconds, start = options.seconds, time.monotonic()
    while seconds - figures.seconds >= 1 and len(figures.findings) < _MAX_FINDINGS:
        left = int(seconds - figures.seconds)
        flags = [
            f"-max_total_time={left}",
            f"-seed={options.seed + len(figures.findings) or 1}",
            f"-timeout={_MAX_INPUT_S}",
            f"-rss_limit_mb={_MAX_MEMORY_MB}",
            "-print_final_stats=1",
        ]
        # A folder of this search alone: an input that an earlier one has found is found again.
        with tempfile.TemporaryDirectory(dir=STATE) as found:
            flags.append(f"-artifact_prefix={found}/{name}-")
            command = [*_command(name), *flags, str(folder)]
            exit_code = _run(command, left, figures, processes)
            new = [FINDINGS / each.name for each in sorted(Path(found).iterdir())]
            for each in new:
                shutil.move(Path(found) / each.name, each)
        figures.seconds = time.monotonic() - start
        if not new and (exit_code != 0 or not figures.executions):
            raise SearchEnded(f"{name} could not be run; see {STATE / f'{name}.log'}")
        for each in new:
            shown = each.relative_to(ROOT)
            figures.findings.append(f"./dev fuzz {name} --replay {shown}")
            print(f"finding: {figures.findings[-1]}", flush=True)
        if not new:
            break
    figures.inputs = sum(1 for _ in folder.iterdir())
    return figures


def _run(
    command: Sequence[str], seconds: float, figures: TargetFigures, processes: FuzzerProcesses
) -> int:
    """Ends with the time or with a finding; shows progress. Returns the exit code; 0 also for a
    search that was ended here because its time was over."""
    name, done = figures.target, 0
    shown_s = time.monotonic()
    end = shown_s + seconds + _GRACE_S
    with (
        (STATE / f"{name}.log").open("w", encoding="utf-8") as kept,
        processes.run(command, environment=_environment(), timeout_s=seconds + _GRACE_S) as process,
    ):
        assert process.stderr is not None
        for line in process.stderr:
            kept.write(line)
            if (found := _PROGRESS.match(line)) is not None:
                done, figures.branches = int(found[1]), max(figures.branches, int(found[2]))
                if time.monotonic() - shown_s >= _SHOW_EVERY_S:
                    shown_s = time.monotonic()
                    print(f"  {name}: {done:,} executions", flush=True)
            elif (stated := _EXECUTIONS.search(line)) is not None:
                done = int(stated[1])
        exit_code = process.wait(_END_WITHIN_S)  # its output has ended: so does the process
    figures.executions += done
    return 0 if time.monotonic() >= end else exit_code


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT / "tests"),
        # Leaks are those of a process that is to be ended; the sanitisers abort on all else.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    }


def _command(name: str) -> list[str]:
    if name in native.TARGETS:
        try:
            return [native.build(name, STATE)]
        except subprocess.CalledProcessError as error:
            raise SearchEnded(f"{name} could not be compiled ({error.returncode})") from None
    target = all_targets()[name]
    words = STATE / f"{name}.dict"
    lines = (_quoted(each) for each in target.tokens)
    words.write_text("".join(f'"{line}"\n' for line in lines), encoding="ascii")
    guided = str(Path(__file__).with_name("guided.py"))
    covers = ",".join(target.covers)
    return [sys.executable, guided, name, covers, f"-max_len={target.max_bytes}", f"-dict={words}"]


def _quoted(token: bytes) -> str:
    """As libFuzzer reads a word of a dictionary."""
    plain = range(0x20, 0x7F)
    return "".join(
        chr(each) if each in plain and each not in b'"\\' else f"\\x{each:02x}" for each in token
    )


def _corpus_folder(name: str) -> Path:
    folder = STATE / "corpora" / name
    folder.mkdir(parents=True, exist_ok=True)
    FINDINGS.mkdir(parents=True, exist_ok=True)
    for data in corpus.read(name):
        _write_input(folder, data)
    return folder


def _write_input(folder: Path, data: bytes) -> None:
    (folder / f"{zlib.crc32(data):08x}-{len(data)}").write_bytes(data)


def _keep(name: str, processes: FuzzerProcesses) -> int:
    """Adds what reaches more than the kept inputs do, the shortest ones that libFuzzer chooses."""
    old, small = STATE / "kept" / name, STATE / "merged" / name
    for folder in (old, small):
        folder.mkdir(parents=True, exist_ok=True)
        for each in folder.iterdir():
            each.unlink()
    for data in corpus.read(name):
        _write_input(old, data)
        _write_input(small, data)
    before = {each.read_bytes() for each in small.iterdir()}
    command = [*_command(name), "-merge=1", str(small), str(_corpus_folder(name))]
    with processes.run(command, environment=_environment(), timeout_s=_MERGE_S) as process:
        process.communicate()
    found = [data for each in small.iterdir() if (data := each.read_bytes()) not in before]
    return corpus.add(name, _shortest(found))


_MAX_KEPT = 40
_MAX_KEPT_BYTES = 600


def _shortest(inputs: Sequence[bytes]) -> Iterator[bytes]:
    short = sorted((each for each in inputs if len(each) <= _MAX_KEPT_BYTES), key=len)
    yield from short[:_MAX_KEPT]


def by_name() -> Mapping[str, Target]:
    """The Python targets, for the replay of their corpora."""
    return all_targets()

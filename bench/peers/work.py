"""The same work for every peer, round by round in turn, and throughput with eight callers."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peers.bare import Bare
from peers.figures import summary
from peers.job import Job
from peers.peer import Peer

CALLERS = 8
_RUN_WITHIN_S = 30.0
_SLOW = ((0.5, 6), (0.12, 3))
"""A peer whose runs take longer, in seconds, takes part in every sixth or third round only."""
_THROUGHPUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work, in both languages; `expected` is what it prints."""

    title: str
    argv: tuple[str, ...] = ()
    python: str = ""
    javascript: str = ""
    expected: bytes = b""

    def job(self, workspace: str) -> Job:
        return Job(
            workspace=workspace,
            argv=self.argv,
            python=self.python,
            javascript=self.javascript,
            needs_workspace=False,
        )


_FILES = """
import os
for n in range(200):
    with open(f'f{n}', 'w') as file: file.write('x' * 100)
print(sum(len(open(f'f{n}').read()) for n in range(200)))
for n in range(200): os.remove(f'f{n}')
"""
_FILES_JS = """
let total = 0;
const at = (n) => new URL(`./f${n}`, import.meta.url);
for (let n = 0; n < 200; n++) Deno.writeTextFileSync(at(n), 'x'.repeat(100));
for (let n = 0; n < 200; n++) total += Deno.readTextFileSync(at(n)).length;
for (let n = 0; n < 200; n++) Deno.removeSync(at(n));
console.log(total);
"""
WORKS = {
    "true": Work("`/bin/true`", argv=("/bin/true",)),
    "print": Work(
        "`python3 -I -S -c 'print(1)'`",
        python="print(1)",
        javascript="console.log(1)",
        expected=b"1",
    ),
    "cpu": Work(
        "a sum of 300,000 squares",
        python="print(sum(n * n for n in range(300_000)))",
        javascript="let s = 0n; for (let n = 0n; n < 300000n; n++) s += n * n; console.log(`${s}`)",
        expected=b"8999955000050000",
    ),
    "files": Work(
        "200 small files written, read and removed",
        python=_FILES,
        javascript=_FILES_JS,
        expected=b"20000",
    ),
}


class WorkFailed(Exception):
    """The peer did not do the work; the text is its own."""


def runs_work(peer: Peer, work: Work) -> bool:
    return peer.language == "python" or bool(work.javascript)


def perform(peer: Peer, work: Work, workspace: str) -> float:
    """Seconds of one run, whose output is checked."""
    job = work.job(workspace)
    began = time.perf_counter()
    ended = peer.run(job, _RUN_WITHIN_S)
    taken_s = time.perf_counter() - began
    if not ended.is_ok or work.expected not in ended.stdout:
        raise WorkFailed(f"{peer.name}: {ended.reason()}")
    return taken_s


def measure_times(
    peers: Sequence[Peer], rounds: int, *, folder: str, tell: Callable[[str], None]
) -> dict[str, dict[str, dict[str, float]]]:
    """By peer and work: median and p95 in milliseconds, and how many runs."""
    spaces = {peer.name: new_workspace(folder) for peer in peers}
    times = {
        peer.name: {name: [] for name, work in WORKS.items() if runs_work(peer, work)}
        for peer in peers
    }
    every = {peer.name: _rounds_between(peer, spaces[peer.name]) for peer in peers}
    for number in range(rounds):
        tell(f"round {number + 1} of {rounds}")
        for name, work in WORKS.items():
            for peer in peers:
                if name in times[peer.name] and number % every[peer.name] == 0:
                    try:
                        times[peer.name][name].append(perform(peer, work, spaces[peer.name]))
                    except WorkFailed as failure:  # one run of many, which has no time
                        tell(f"failed: {failure}")
    return {
        peer: {name: summary(taken) for name, taken in works.items() if taken}
        for peer, works in times.items()
    }


def _rounds_between(peer: Peer, workspace: str) -> int:
    """By one run of the shortest work; `check_work` has filled caches before."""
    try:
        taken_s = perform(peer, WORKS["print"], workspace)
    except WorkFailed:  # the rounds will tell
        return 1
    return next((count for bound_s, count in _SLOW if taken_s > bound_s), 1)


def measure_throughput(
    peers: Sequence[Peer], *, folder: str, tell: Callable[[str], None]
) -> dict[str, dict[str, float]]:
    """Runs of `print` in a second with eight callers, each beside a bare figure of its own."""
    (bare,) = [peer for peer in peers if isinstance(peer, Bare)]
    found = {}
    before = _per_second(bare, folder)
    for peer in peers:
        if peer is not bare:
            tell(f"throughput of {peer.name}")
            try:
                figure = _per_second(peer, folder)
            except WorkFailed as failure:
                tell(f"failed: {failure}")
                continue
            after = _per_second(bare, folder)
            around = round((before + after) / 2, 1)
            found[peer.name] = {"per_s": round(figure, 1), "bare_per_s": around}
            before = after
    return found


def _per_second(peer: Peer, folder: str) -> float:
    spaces = [new_workspace(folder) for _ in range(CALLERS)]
    counts = [0] * CALLERS
    failures: list[str] = []
    is_bare = isinstance(peer, Bare)
    deadline = time.monotonic() + (_THROUGHPUT_S / 2 if is_bare else _THROUGHPUT_S)

    def call(number: int) -> None:
        try:
            while time.monotonic() < deadline:
                perform(peer, WORKS["print"], spaces[number])
                counts[number] += 1
        except WorkFailed as failure:
            failures.append(str(failure))

    began = time.perf_counter()
    threads = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise WorkFailed(failures[0])
    return sum(counts) / (time.perf_counter() - began)


def new_workspace(folder: str) -> str:
    path = tempfile.mkdtemp(prefix="workspace-", dir=folder)
    os.chmod(path, 0o777)  # root of a container or of a user namespace writes there as well
    return path


def check_work(peer: Peer, folder: str) -> None:
    """Raises `WorkFailed` with the peer's own words where it cannot do the work."""
    for work in WORKS.values():
        if runs_work(peer, work):
            perform(peer, work, new_workspace(folder))

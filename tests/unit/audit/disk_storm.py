"""Run as a program on a small disk of its own: 64 writers in four processes, killed at random while
the disk fills up and is freed again. Prints what was seen, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from cellwall.audit.files import LogSettings
from cellwall.audit.log import AuditLog
from cellwall.core.errors import AuditFailed
from unit.audit.audit_logs import all_records, event, forked

SETTINGS = LogSettings(segment_bytes=60_000, checkpoint_events=40, checkpoint_s=0.05)
PROCESSES = 4
WRITERS = 8
"""Threads, and as many tasks, of each process."""
ROUNDS = 12
ROUND_S = 0.25


def hammer(folder: str, into: int, number: int) -> None:
    """Write until killed, and tell the outcome of each event."""
    log = AuditLog.open(folder, settings=SETTINGS)
    chance = random.Random(number)

    def tell(outcome: str, name: str) -> None:
        os.write(into, f"{outcome} {name}\n".encode())

    def text() -> str:
        return "x" * chance.choice((0, 30, 900))

    def thread(writer: int) -> None:
        for turn in range(1 << 40):
            name = f"{number}-{writer}-{turn}"
            try:
                log.write(event(turn, name=name, text=text()))
                tell("written", name)
            except AuditFailed as refused:
                tell(refused.detail or "?", name)
                time.sleep(0.01)

    async def task(writer: int) -> None:
        for turn in range(1 << 40):
            name = f"{number}-{writer}-{turn}"
            try:
                await log.record(event(turn, name=name, text=text()))
                tell("written", name)
            except AuditFailed as refused:
                tell(refused.detail or "?", name)
                await asyncio.sleep(0.01)

    async def tasks() -> None:
        await asyncio.gather(*map(task, range(WRITERS, 2 * WRITERS)))

    for writer in range(WRITERS):
        threading.Thread(target=thread, args=(writer,), daemon=True).start()
    asyncio.run(tasks())


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        for size in (65_536, 512):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass


class Storm:
    def __init__(self, disk: Path) -> None:
        self.folder = disk / "audit"
        self.folder.mkdir(mode=0o700)
        self._out, self._into = os.pipe()
        self._count = 0
        self._told = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.pids: list[int] = []

    def _read(self) -> None:
        while data := os.read(self._out, 65_536):
            self._told += data

    def start(self) -> None:
        self._count += 1
        number = self._count
        self.pids.append(forked(lambda: hammer(str(self.folder), self._into, number)))

    def kill(self, pid: int) -> None:
        self.pids.remove(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)

    def outcomes(self) -> list[list[str]]:
        return [line.split() for line in self._told.decode().splitlines()]

    def end(self) -> None:
        for pid in tuple(self.pids):
            self.kill(pid)
        os.close(self._into)
        self._reader.join()


def settled_records(folder: Path) -> list[dict]:
    """A closed segment may still be packed, so that its name changes between the list and the read."""
    until = time.monotonic() + 20
    while True:
        try:
            return all_records(folder)
        except FileNotFoundError:
            if time.monotonic() > until:
                raise


def main(disk: Path) -> dict[str, object]:
    storm, chance, ballast = Storm(disk), random.Random(7), disk / "ballast"
    AuditLog.open(str(storm.folder), settings=SETTINGS).close()  # the key, and all imports
    for _ in range(PROCESSES):
        storm.start()
    descriptors = []
    for turn in range(ROUNDS):
        time.sleep(ROUND_S)
        descriptors += [len(os.listdir(f"/proc/{pid}/fd")) for pid in storm.pids]
        storm.kill(chance.choice(storm.pids))
        storm.start()
        if turn % 4 == 1:
            fill(ballast)
        elif turn % 4 == 3:
            ballast.unlink()
    ballast.unlink(missing_ok=True)
    before, latest = len(storm.outcomes()), time.monotonic() + 20
    while time.monotonic() < latest:  # there is space again: writers that live go on
        time.sleep(0.05)
        if any(outcome == "written" for outcome, _ in storm.outcomes()[before:]):
            break
    has_recovered = time.monotonic() < latest
    storm.end()
    with AuditLog.open(str(storm.folder), settings=SETTINGS) as log:
        log.write(event(0))
        report = log.verify()
    records = settled_records(storm.folder)
    names = Counter(each["body"]["name"] for each in records if "name" in each["body"])
    seen = Counter(outcome for outcome, _ in storm.outcomes())
    return {
        "verified": report.ok and report.records == len(records),
        "reason": report.reason,
        "in_order": [each["seq"] for each in records] == list(range(1, len(records) + 1)),
        "lost": [
            name for outcome, name in storm.outcomes() if outcome == "written" and not names[name]
        ],
        "refused_but_there": sum(
            names[name] for outcome, name in storm.outcomes() if outcome == "ENOSPC"
        ),
        "twice": [name for name, count in names.items() if count > 1],
        "written": seen["written"],
        "refused": seen["ENOSPC"],
        "has_recovered": has_recovered,
        "max_descriptors": max(descriptors),
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))

"""What the tests of the log share: how to write one, and how to forge one."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

import zstandard

from cellwall.audit.files import LogSettings
from cellwall.audit.log import AuditLog
from cellwall.audit.merkle import Checkpoint, Frontier, leaf_hash, sign_checkpoint
from cellwall.audit.segments import CHECKPOINTS, PACKED, PREALLOCATION_BYTES, RECORDS, segment_name
from cellwall.core.keys import SigningKey, load_key
from cellwall.core.notes import PublicKey
from cellwall.core.outcomes import Event, EventKind
from cellwall.core.types import Principal

ANN = Principal("ann", "cli")
NEVER = LogSettings(checkpoint_events=10**9, checkpoint_s=10**6)
"""Signed when the log is opened first, when a test asks for it, and at the end."""


def tree_hash(leaves: Iterable[bytes]) -> bytes:
    frontier = Frontier()
    for leaf in leaves:
        frontier.push(leaf)
    return frontier.root()


def event(number: int = 0, **body) -> Event:
    return Event(EventKind.INTENT, f"act_{number}", "ann", "sdk", {"n": number, **body})


def sign(log: AuditLog) -> Checkpoint | None:
    return log.notary.sign_now(timeout_s=10.0)


def records_path(folder: Path, first: int = 1) -> Path:
    return folder / segment_name(first, RECORDS)


def packed_path(folder: Path, first: int = 1) -> Path:
    return folder / segment_name(first, PACKED)


def notes_path(folder: Path, first: int = 1) -> Path:
    return folder / segment_name(first, CHECKPOINTS)


def lines_of(folder: Path, first: int = 1) -> list[bytes]:
    return records_path(folder, first).read_bytes().splitlines()


def put_lines(folder: Path, lines: Iterable[bytes], first: int = 1) -> None:
    records_path(folder, first).write_bytes(b"".join(line + b"\n" for line in lines))


def all_records(folder: Path) -> list[dict]:
    """As they stand in the files, the oldest first, without any of our own reading code."""

    found = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue  # a draft of something that was killed
        if path.suffix == ".zst" and path.with_suffix("").exists():
            continue  # killed before the original went
        if path.name.endswith(".jsonl.zst"):
            unpacker = zstandard.ZstdDecompressor()
            data = unpacker.stream_reader(path.read_bytes(), read_across_frames=True).read()
        elif path.name.endswith(".jsonl"):
            data = without_preallocation(path.read_bytes())
        else:
            continue
        found += [json.loads(line) for line in data.splitlines()]
    return found


def without_preallocation(data: bytes) -> bytes:
    """Of a segment that a writer has prepared and not closed."""
    return data if len(data) % PREALLOCATION_BYTES else data.rstrip(b"\0")


def trusted(folder: Path) -> list[PublicKey]:
    text = (folder / "trusted-keys").read_text()
    return [PublicKey.parse(line) for line in text.splitlines()]


def private_key(folder: Path) -> SigningKey:
    return load_key(str(folder.parent / "keys" / "audit.pem"), "cellwall-audit")


def relinked(lines: Iterable[bytes], *, start: int = 1, prev: str = "0" * 64) -> list[bytes]:
    """The records numbered and linked anew: what anybody can do who knows the format."""
    done = []
    for seq, line in enumerate(lines, start=start):
        record = json.loads(line) | {"seq": seq, "prev": prev}
        done.append(json.dumps(record, sort_keys=True, separators=(",", ":")).encode())
        prev = leaf_hash(done[-1]).hex()
    return done


def note_over(folder: Path, lines: list[bytes], *keys: SigningKey) -> bytes:
    """What only the holder of a key can make: a checkpoint over these records."""
    origin = (folder / "origin").read_text().strip()
    root = tree_hash(map(leaf_hash, lines))
    return sign_checkpoint(Checkpoint(origin, len(lines), root), *keys)


def aged(monkeypatch, folder: Path, days: float, *firsts: int) -> None:
    """So many days later, when only these packed files were not touched meanwhile."""
    then = time.time() + days * 86_400
    monkeypatch.setattr(time, "time", lambda: then)
    old = {packed_path(folder, first) for first in firsts}
    for path in set(folder.glob("*.zst")) - old:
        os.utime(path, (then, then))


def forked(work) -> int:
    """Run it in a child; the exit status of that is returned by `os.waitpid` later."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)  # never back into the test run

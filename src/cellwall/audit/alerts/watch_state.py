"""The state of the evaluation: one private file, replaced atomically.

Bookmark, counts, alerts and unsent messages change together, so a crash at any moment leaves a
state from which evaluation goes on: no record is counted twice, no message is lost, and one that
was sent is at most sent once more, with the same id. A digest of the rest stands first: a block
that a disk has damaged may still be JSON, with values at which every later evaluation would fail.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from cellwall.audit.alerts.outbox import Outbox
from cellwall.audit.files import (
    closing_fd,
    make_folder,
    open_folder,
    open_private,
    replace_file,
)

NO_LEAF = "0" * 64
_STATE = "state.json"
_LOCK = "lock"
_VERSION = 2
_MAX_BYTES = 64 << 20


class BrokenState(Exception):
    """The file is not one of ours, or was altered."""


class WatchedElsewhere(Exception):
    """Another process evaluates this log."""


@dataclass(slots=True)
class LogPosition:
    """The bookmark: the last record that was read."""

    origin: str = ""
    """A digest of the log's own name: another one is another log."""
    seq: int = 0
    leaf: str = NO_LEAF
    """The hash of that record."""
    trouble_s: float = 0.0
    """When a log that cannot be read was last reported, in seconds since 1970."""


@dataclass(slots=True)
class WatchState:
    """Where evaluation stands. Times are in seconds since 1970."""

    position: LogPosition = field(default_factory=LogPosition)
    verified_s: float = 0.0
    saved_s: float = 0.0
    sent: int = 0
    """Numbers the messages."""
    engine: dict[str, Any] = field(default_factory=dict)
    outboxes: dict[str, Outbox] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__}
        outboxes = {name: each.to_json() for name, each in self.outboxes.items()}
        position = asdict(self.position)
        return {"version": _VERSION, **fields, "position": position, "outboxes": outboxes}


@contextmanager
def watching(folder: str) -> Iterator[int]:
    """The folder, while no other process evaluates; raises `WatchedElsewhere`."""
    make_folder(folder)
    with (
        closing_fd(open_folder(folder)) as opened,
        closing_fd(open_private(_LOCK, os.O_RDWR | os.O_CREAT, opened)) as file,
    ):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WatchedElsewhere from None
        yield opened


def is_watched(folder: str) -> bool:
    """Whether a process evaluates now."""
    if not os.path.isdir(folder):
        return False
    try:
        with watching(folder):
            return False
    except WatchedElsewhere:
        return True
    except OSError:
        return False


def save_state(state: WatchState, folder: int) -> None:
    """Durable when it returns."""
    rest = json.dumps(state.to_json(), separators=(",", ":")).encode("ascii")[1:]
    replace_file(_STATE, _head(rest) + rest, folder)


def _head(rest: bytes) -> bytes:
    return b'{"sha256":"%s",' % hashlib.sha256(rest).hexdigest().encode("ascii")


def read_state(path: str) -> WatchState | None:
    """The stored state; None if there is none. Raises `BrokenState` or `OSError`."""
    with suppress(FileNotFoundError), closing_fd(open_folder(path)) as folder:
        with (
            closing_fd(open_private(_STATE, os.O_RDONLY, folder)) as file,
            os.fdopen(os.dup(file), "rb") as stream,
        ):
            raw = stream.read(_MAX_BYTES)
        return _parse(raw)
    return None


def _parse(raw: bytes) -> WatchState:
    length = len(_head(b""))
    if raw[:length] != _head(raw[length:]):
        raise BrokenState
    try:
        fields = json.loads(raw)
        if fields.pop("version") != _VERSION:
            raise BrokenState
        fields.pop("sha256")
        outboxes = {name: Outbox.of(each) for name, each in fields.pop("outboxes").items()}
        position = LogPosition(**fields.pop("position"))
        return WatchState(**fields, position=position, outboxes=outboxes)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise BrokenState from None

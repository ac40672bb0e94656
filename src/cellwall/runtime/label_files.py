"""Labels on disk (POL-9): of sessions, of conversations of agents, of directories of the host.

  workspaces/ID/labels.json     of a session; stays with a workspace that is kept or not yet applied
  labels/DIGEST.json            of a conversation of an agent, by the digest of its name
  labels/directories.json       untrusted content in directories of the host

Labels only grow: a line is appended to the file of a session or a conversation, and the last line
about a source counts. Several processes write the files below `labels`, under one lock. A file that
cannot be read, or whose last line is torn, counts as all three labels. A directory is known by its
path and by its inode: one that was renamed, or is mounted elsewhere, keeps its label.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from cellwall.core.errors import SandboxFailed
from cellwall.core.labels import MORE_SOURCES, Label, LabelKey, LabelSource
from cellwall.core.types import Json
from cellwall.sandbox.files.descriptors import closing_fd

LABELS_FILE = "labels.json"
_FOLDER = "labels"
_DIRECTORIES = "directories.json"
_LOCK = "lock"
_MAX_BYTES = 1024 * 1024
_MAX_LIST_BYTES = 16 * 1024 * 1024
_MAX_NAMED = 8
"""Sources of one directory; those beyond them have one name together."""
_MAX_CACHED = 1024
_KEEP_S = 30 * 86_400.0
"""Conversations that were not continued for so long are forgotten."""
_TOUCH_AFTER_NS = 86_400 * 1_000_000_000
_UNREADABLE = "labels that cannot be read"

Stored = dict[LabelKey, tuple[LabelSource, bool]]
"""Each source, and whether it needs no consent any more."""


def read_labels(path: str) -> Stored:
    """The labels of a file; none without a file."""
    try:
        with open(path, "rb") as file:
            lines = file.read(_MAX_BYTES).splitlines()
        listed = [each for line in lines or [b""] for each in json.loads(line)["sources"]]
        sources = [(_source(each), each.get("admitted") is True) for each in listed]
        return {source.key: (source, is_admitted) for source, is_admitted in sources}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {(label, _UNREADABLE): (LabelSource(label, _UNREADABLE), False) for label in Label}


def write_labels(path: str, stored: Stored) -> None:
    """Replace the file; raises `SandboxFailed`, which refuses the action."""
    _replace(path, _listed(stored))


def append_labels(path: str, changed: Stored) -> None:
    """Add to the file in one write, which another process sees whole or not at all; raises
    `SandboxFailed`."""
    line = json.dumps(_listed(changed)).encode("ascii") + b"\n"
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with closing_fd(os.open(path, flags, 0o600)) as descriptor:
            if os.write(descriptor, line) != len(line):
                raise OSError(errno.ENOSPC, "a part was written")
    except OSError as error:
        raise _unwritable(error) from error


def _listed(stored: Stored) -> dict[str, Json]:
    fields: list[Json] = [
        {**_fields(source), "admitted": is_admitted} for source, is_admitted in stored.values()
    ]
    return {"sources": fields}


Stamp = tuple[int, int, int]


def stamp_of(path: str) -> Stamp | None:
    """It changes with the file; None without one."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


Identity = tuple[int, int]
"""Device and inode."""


@dataclass(frozen=True, slots=True)
class _Labelled:
    """A directory of the host with untrusted content."""

    sources: tuple[LabelSource, ...]
    identity: Identity | None


class LabelFolder:
    """The folder `labels` of a state folder."""

    def __init__(self, home: str) -> None:
        self._folder = os.path.join(home, _FOLDER)
        self._directories = os.path.join(self._folder, _DIRECTORIES)
        self._stamp: Stamp | None = None
        self._known: dict[str, _Labelled] = {}
        self._content: dict[tuple[str, Identity | None], tuple[LabelSource, ...]] = {}

    def path_of(self, context: str) -> str:
        """The file of a conversation, whose name is untrusted."""
        digest = hashlib.sha256(context.encode("utf-8", "surrogatepass")).hexdigest()
        return os.path.join(self._folder, f"{digest[:32]}.json")

    def append_to_context(self, path: str, changed: Stored) -> None:
        """Under the lock of `locked`."""
        if not os.path.lexists(path):
            self._forget_old()
        append_labels(path, changed)

    def remove(self, path: str) -> None:
        with suppress(OSError):
            os.unlink(path)

    def tainted(self) -> Mapping[str, tuple[LabelSource, ...]]:
        """The directories with untrusted content, and where that came from."""
        return {path: each.sources for path, each in self._current().items()}

    def _current(self) -> dict[str, _Labelled]:
        stamp = stamp_of(self._directories)
        if stamp != self._stamp:
            self._known, self._stamp = self._read(), stamp
            self._content.clear()
        return self._known

    @property
    def stamp(self) -> Stamp | None:
        """It changes with the list of directories; as of the last look at it."""
        return self._stamp

    def content_in(self, directory: str) -> tuple[LabelSource, ...]:
        """The untrusted content in this directory or file, also in one below or above it."""
        known = self._current()
        if not known:
            return ()
        key = directory, _identity_of(directory)
        content = self._content.get(key)
        if content is None:
            around = {_identity_of(each) for each in _with_parents(directory)} - {None}
            found: dict[LabelSource, None] = {}
            for path, each in known.items():
                is_same = each.identity in around
                if is_same or is_below(path, directory) or is_below(directory, path):
                    found |= dict.fromkeys(each.sources)
            if len(self._content) >= _MAX_CACHED:
                self._content.clear()
            content = self._content[key] = tuple(found)
        return content

    def content_in_all(self, directories: Sequence[str]) -> tuple[LabelSource, ...]:
        """Of one directory, as nearly always, the same object as long as nothing has changed."""
        if len(directories) == 1:
            return self.content_in(directories[0])
        return tuple(each for place in directories for each in self.content_in(place))

    def taint(self, directory: str, sources: Iterable[LabelSource]) -> None:
        """Sessions that read this directory from now on read this content as well."""
        brought = tuple(sources)
        if not brought:
            return
        identity = _identity_of(directory)
        before = self._current().get(directory)
        if before is not None and before.identity == identity and _has_all(before, brought):
            return
        with self.locked():
            known = self._read()
            old = known.get(directory, _Labelled((), None)).sources
            merged = tuple(dict.fromkeys((*old, *brought)))
            if len(merged) > _MAX_NAMED:
                merged = (*merged[:_MAX_NAMED], LabelSource(Label.UNTRUSTED, MORE_SOURCES))
            self._write({**known, directory: _Labelled(merged, identity)})

    def clear(self, directory: str) -> tuple[LabelSource, ...]:
        """Forget the content of a directory and of those below it; returns what was known."""
        with self.locked():
            known = self._read()
            gone = self._at(directory, known)
            self._write({path: each for path, each in known.items() if path not in gone})
        return tuple(dict.fromkeys(source for path in gone for source in known[path].sources))

    def labelled_at(self, directory: str) -> list[str]:
        """The labelled directories that `clear` would clear: this one, and those below it."""
        return self._at(directory, self._current())

    def _at(self, directory: str, known: Mapping[str, _Labelled]) -> list[str]:
        identity = _identity_of(directory)
        return [
            path
            for path, each in known.items()
            if is_below(path, directory) or (identity is not None and each.identity == identity)
        ]

    def _read(self) -> dict[str, _Labelled]:
        try:
            with open(self._directories, "rb") as file:
                whole = json.loads(file.read(_MAX_LIST_BYTES))
            identities = whole.get("identities", {})
            return {
                str(path): _Labelled(tuple(map(_source, sources)), _identity(identities.get(path)))
                for path, sources in whole["directories"].items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {"/": _Labelled((LabelSource(Label.UNTRUSTED, _UNREADABLE),), None)}

    def _write(self, known: Mapping[str, _Labelled]) -> None:
        listed: dict[str, Json] = {
            path: [_fields(source) for source in each.sources] for path, each in known.items()
        }
        identities: dict[str, Json] = {
            path: list(each.identity) for path, each in known.items() if each.identity is not None
        }
        _replace(self._directories, {"directories": listed, "identities": identities})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other process changes a file of this folder."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.path.join(self._folder, _LOCK)
        try:
            try:
                descriptor = os.open(lock, flags, 0o600)
            except FileNotFoundError:
                os.makedirs(self._folder, mode=0o700, exist_ok=True)
                descriptor = os.open(lock, flags, 0o600)
        except OSError as error:
            raise _unwritable(error) from error
        with closing_fd(descriptor):
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # held for one read and one write
            yield

    def touch(self, path: str, stamp: Stamp | None) -> None:
        """The conversation is continued: it is not forgotten."""
        if stamp is not None and time.time_ns() - stamp[0] > _TOUCH_AFTER_NS:
            with suppress(OSError):
                os.utime(path)

    def _forget_old(self) -> None:
        oldest = time.time() - _KEEP_S
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                is_context = entry.name.endswith(".json") and entry.name != _DIRECTORIES
                if is_context and entry.stat().st_mtime < oldest:
                    self.remove(entry.path)


def is_below(path: str, directory: str) -> bool:
    """Whether the path is the directory, or in it."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _has_all(known: _Labelled, brought: Iterable[LabelSource]) -> bool:
    is_full = len(known.sources) > _MAX_NAMED
    return is_full or set(brought) <= set(known.sources)


def _with_parents(directory: str) -> Iterator[str]:
    yield directory
    while (parent := os.path.dirname(directory)) != directory:
        directory = parent
        yield directory


def _identity_of(path: str) -> Identity | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _identity(stored: object) -> Identity | None:
    match stored:
        case [int(device), int(inode)]:
            return device, inode
        case _:
            return None


def _source(fields: Mapping[str, str]) -> LabelSource:
    return LabelSource(Label(fields["label"]), str(fields["source"]), str(fields["action"]))


def _fields(source: LabelSource) -> dict[str, Json]:
    return {"label": source.label.value, "source": source.name, "action": source.action_id}


def _replace(path: str, fields: dict[str, Json]) -> None:
    draft = f"{path}.{os.getpid()}.draft"
    data = memoryview(json.dumps(fields).encode("ascii") + b"\n")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with closing_fd(os.open(draft, flags, 0o600)) as descriptor:
            while data:
                data = data[os.write(descriptor, data) :]
        os.rename(draft, path)
    except OSError as error:
        raise _unwritable(error) from error


def _unwritable(error: OSError) -> SandboxFailed:
    return SandboxFailed(
        "the labels of the session cannot be written",
        hint="Check space and permissions of the Cellwall state folder.",
        code="CW-STATE",
        detail=str(error),
    )

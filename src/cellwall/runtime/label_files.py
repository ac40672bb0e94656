"""Labels on disk (POL-9): of sessions, of conversations of agents, of directories of the host.

  workspaces/ID/labels.json     of a session; stays with a workspace that is kept or not yet applied
  labels/DIGEST.json            of a conversation of an agent, by the digest of its name
  labels/directories.json       untrusted content in directories of the host

Each file is replaced as a whole. Several processes write the files below `labels`, under one lock.
A file that cannot be read counts as all three labels.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress

from cellwall.core.errors import SandboxFailed
from cellwall.core.labels import MAX_SOURCES, Label, LabelKey, LabelSource
from cellwall.core.types import Json
from cellwall.sandbox.files.descriptors import closing_fd

LABELS_FILE = "labels.json"
_FOLDER = "labels"
_DIRECTORIES = "directories.json"
_LOCK = "lock"
_MAX_BYTES = 1024 * 1024
_KEEP_S = 30 * 86_400.0
"""Conversations that were not continued for so long are forgotten."""
_UNREADABLE = "labels that cannot be read"

Stored = dict[LabelKey, tuple[LabelSource, bool]]
"""Each source, and whether it needs no consent any more."""


def read_labels(path: str) -> Stored:
    """The labels of a file; none without a file."""
    try:
        with open(path, "rb") as file:
            listed = json.loads(file.read(_MAX_BYTES))["sources"]
        sources = [(_source(each), each.get("admitted") is True) for each in listed]
        return {source.key: (source, is_admitted) for source, is_admitted in sources}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {(label, _UNREADABLE): (LabelSource(label, _UNREADABLE), False) for label in Label}


def write_labels(path: str, stored: Stored) -> None:
    """Replace the file; raises `SandboxFailed`, which refuses the action."""
    fields: list[Json] = [
        {**_fields(source), "admitted": is_admitted} for source, is_admitted in stored.values()
    ]
    _replace(path, {"sources": fields})


Stamp = tuple[int, int, int]


def stamp_of(path: str) -> Stamp | None:
    """It changes with the file; None without one."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


class LabelFolder:
    """The folder `labels` of a state folder."""

    def __init__(self, home: str) -> None:
        self._folder = os.path.join(home, _FOLDER)
        self._directories = os.path.join(self._folder, _DIRECTORIES)
        self._stamp: Stamp | None = None
        self._known: dict[str, tuple[LabelSource, ...]] = {}
        self._content: dict[str, tuple[LabelSource, ...]] = {}

    def path_of(self, context: str) -> str:
        """The file of a conversation, whose name is untrusted."""
        digest = hashlib.sha256(context.encode("utf-8", "surrogatepass")).hexdigest()
        return os.path.join(self._folder, f"{digest[:32]}.json")

    def merge(self, path: str, changed: Stored) -> Stored:
        """Change a file; returns all of it. Another process may have changed it, too."""
        with self._locked():
            both = {**read_labels(path), **changed}
            if not os.path.lexists(path):
                self._forget_old()
            write_labels(path, both)
        return both

    def remove(self, path: str) -> None:
        with suppress(OSError):
            os.unlink(path)

    def tainted(self) -> Mapping[str, tuple[LabelSource, ...]]:
        """The directories with untrusted content, and where that came from."""
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
        """The untrusted content in this directory, also in one below or above it."""
        known = self.tainted()
        content = self._content.get(directory)
        if content is None:
            found: dict[LabelSource, None] = {}
            for path, sources in known.items():
                if _is_below(path, directory) or _is_below(directory, path):
                    found |= dict.fromkeys(sources)
            content = self._content[directory] = tuple(found)
        return content

    def taint(self, directory: str, sources: Iterable[LabelSource]) -> None:
        """Sessions that read this directory from now on read this content as well."""
        brought = tuple(sources)
        if not brought or set(brought) <= set(self.tainted().get(directory, ())):
            return
        with self._locked():
            known = self._read()
            merged = dict.fromkeys((*known.get(directory, ()), *brought))
            self._write({**known, directory: tuple(merged)[:MAX_SOURCES]})

    def clear(self, directory: str) -> tuple[LabelSource, ...]:
        """Forget the content of a directory and of those below it; returns what was known."""
        with self._locked():
            known = self._read()
            gone = [path for path in known if _is_below(path, directory)]
            self._write({path: each for path, each in known.items() if path not in gone})
        return tuple(dict.fromkeys(source for path in gone for source in known[path]))

    def _read(self) -> dict[str, tuple[LabelSource, ...]]:
        try:
            with open(self._directories, "rb") as file:
                listed = json.loads(file.read(_MAX_BYTES))["directories"]
            return {str(path): tuple(map(_source, sources)) for path, sources in listed.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {"/": (LabelSource(Label.UNTRUSTED, _UNREADABLE),)}

    def _write(self, known: Mapping[str, tuple[LabelSource, ...]]) -> None:
        listed: dict[str, Json] = {
            path: [_fields(each) for each in sources] for path, sources in known.items()
        }
        _replace(self._directories, {"directories": listed})

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            os.makedirs(self._folder, mode=0o700, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(os.path.join(self._folder, _LOCK), flags, 0o600)
        except OSError as error:
            raise _unwritable(error) from error
        with closing_fd(descriptor):
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # held for one read and one write
            yield

    def _forget_old(self) -> None:
        oldest = time.time() - _KEEP_S
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                is_context = entry.name.endswith(".json") and entry.name != _DIRECTORIES
                if is_context and entry.stat().st_mtime < oldest:
                    self.remove(entry.path)


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _source(fields: Mapping[str, str]) -> LabelSource:
    return LabelSource(Label(fields["label"]), str(fields["source"]), str(fields["action"]))


def _fields(source: LabelSource) -> dict[str, Json]:
    return {"label": source.label.value, "source": source.name, "action": source.action_id}


def _replace(path: str, fields: dict[str, Json]) -> None:
    draft = f"{path}.{os.getpid()}.draft"
    try:
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(fields, file)
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

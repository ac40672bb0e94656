"""Snapshots in the state folder.

$CELLWALL_HOME/snapshots, mode 0700:
  lock                  shared while layers are made or taken into use, exclusive while they are
                        removed
  records.lock          exclusive while a snapshot is stored
  layers/ID/files       a read-only tree; `layer.json` beside it has its size, and is written last
  ID/snapshot.json      name, owner, times, and the layers from the top
  ID/state.json         variables of the interpreter, if any

A layer is in use if a snapshot or a workspace names it. Nothing counts references: they are read
where they are, under the exclusive lock, and a layer that nothing names is removed. So a kill at
any point leaves at most a layer without a name, which the next collection removes.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from cellwall.core.errors import BadInput, CellwallError, WorkspaceError
from cellwall.core.ids import check_id, new_id
from cellwall.core.snapshots import WorkspaceSnapshot, no_such_snapshot
from cellwall.sandbox.files.descriptors import closing_fd, remove_tree
from cellwall.sandbox.snapshots.layer_files import MAX_LAYER_ENTRIES, TreeSize

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RECORD, _STATE, _LAYER = "snapshot.json", "state.json", "layer.json"
_DRAFT = "draft."
_BRIEF_NS = 600 * 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRecord:
    """One snapshot on disk."""

    id: str
    name: str
    owner: str
    session: str
    template: str
    created_ns: int
    expires_ns: int
    layers: tuple[str, ...]
    """From the top; empty: the workspace was empty."""
    size_bytes: int
    files: int
    variables: tuple[str, ...] = ()

    @property
    def is_expired(self) -> bool:
        return time.time_ns() >= self.expires_ns

    @property
    def is_lasting(self) -> bool:
        """Whether it is worth a flush of the disk; the snapshot behind a fork is not."""
        return self.expires_ns - self.created_ns > _BRIEF_NS

    def describe(self) -> WorkspaceSnapshot:
        return WorkspaceSnapshot(
            id=self.id,
            name=self.name,
            session=self.session,
            template=self.template,
            owner=self.owner,
            created_s=self.created_ns / 1e9,
            expires_s=self.expires_ns / 1e9,
            size_bytes=self.size_bytes,
            files=self.files,
            layers=len(self.layers),
            variables=self.variables,
        )


class SnapshotStore:
    """Creates, finds and removes snapshots and their layers."""

    def __init__(self, home: str) -> None:
        self._folder = os.path.join(home, "snapshots")
        self._layers = os.path.join(self._folder, "layers")

    # --- layers

    def layer_path(self, layer_id: str) -> str:
        return os.path.join(self._layers, check_id(layer_id), "files")

    def layer_size(self, layer_id: str) -> TreeSize:
        path = os.path.join(self._layers, check_id(layer_id), _LAYER)
        try:
            with open(path, encoding="utf-8") as file:
                record = json.load(file)
            return TreeSize(int(record["bytes"]), int(record["files"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _damaged(layer_id) from error

    def size_of(self, layers: Collection[str]) -> TreeSize:
        """Of all these layers together."""
        sizes = [self.layer_size(each) for each in layers]
        return TreeSize(sum(each.size_bytes for each in sizes), sum(each.files for each in sizes))

    @contextmanager
    def building(self) -> Iterator[None]:
        """No layer is removed during the block."""
        for folder in (self._folder, self._layers):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextmanager
    def recording(self) -> Iterator[None]:
        """No other snapshot is stored during the block. Within `building`."""
        with self._locked(fcntl.LOCK_EX, name="records.lock"):
            yield

    @contextmanager
    def _locked(self, kind: int, *, name: str = "lock") -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        # Opened anew each time: a lock does not exclude threads that share a descriptor.
        with closing_fd(os.open(os.path.join(self._folder, name), flags, 0o600)) as lock:
            fcntl.flock(lock, kind)
            yield

    def add_layer(self, fill: Callable[[str], TreeSize]) -> str:
        """A new layer: `fill` makes the tree at the path it gets, where nothing is yet. Within
        `building`."""
        layer_id = new_id("lay")
        folder = os.path.join(self._layers, layer_id)
        os.mkdir(folder, 0o700)
        try:
            size = fill(f"{folder}/files")
            _write_json(f"{folder}/{_LAYER}", {"bytes": size.size_bytes, "files": size.files})
        except BaseException:
            with suppress(OSError):
                self._remove(self._layers, layer_id)
            raise
        return layer_id

    def adopt_layer(self, tree: str, size: TreeSize) -> str:
        """A new layer of an existing tree, by a rename, the last step. Within `building`."""
        layer_id = new_id("lay")
        folder = os.path.join(self._layers, layer_id)
        os.mkdir(folder, 0o700)
        try:
            _write_json(f"{folder}/{_LAYER}", {"bytes": size.size_bytes, "files": size.files})
            os.rename(tree, f"{folder}/files")
        except BaseException:
            with suppress(OSError):
                self._remove(self._layers, layer_id)
            raise
        return layer_id

    def forget_layer(self, layer_id: str) -> None:
        """A layer that was never in use. Within `building`."""
        with suppress(OSError):
            self._remove(self._layers, layer_id)

    # --- snapshots

    def save(
        self, record: SnapshotRecord, *, state: bytes, complete: Callable[[str], None]
    ) -> SnapshotRecord:
        """Store a snapshot. `complete` writes what else belongs to it into its folder,
        before anybody can find it. Within `building`."""
        draft = os.path.join(self._folder, f"{_DRAFT}{record.id}")
        os.mkdir(draft, 0o700)
        try:
            complete(draft)
            if state:
                _write_json(f"{draft}/{_STATE}", json.loads(state))
            body = {name: getattr(record, name) for name in record.__slots__ if name != "id"}
            _write_json(f"{draft}/{_RECORD}", body, is_durable=record.is_lasting)
            os.rename(draft, self.folder_of(record.id))
            if record.is_lasting:
                with closing_fd(os.open(self._folder, _FOLDER)) as folder:
                    os.fsync(folder)
        except BaseException:
            with suppress(OSError):
                self._remove(self._folder, f"{_DRAFT}{record.id}")
            raise
        return record

    def folder_of(self, snapshot_id: str) -> str:
        return os.path.join(self._folder, check_id(snapshot_id))

    def find(self, snapshot_id: str, *, owner: str | None) -> SnapshotRecord:
        """`owner`: whose it must be; None: whose ever. Another user's is as absent as none."""
        try:
            found = self._read(check_id(snapshot_id))
        except (CellwallError, OSError):
            raise no_such_snapshot() from None
        if found.is_expired or owner not in (None, found.owner):
            raise no_such_snapshot()
        return found

    def state_of(self, snapshot_id: str) -> bytes:
        """The variables of the interpreter, as JSON; empty: none."""
        path = os.path.join(self.folder_of(snapshot_id), _STATE)
        with suppress(FileNotFoundError), open(path, "rb") as file:
            return file.read()
        return b""

    def all(self, *, owner: str | None) -> list[SnapshotRecord]:
        """The snapshots of one owner, or of all, the newest first."""
        found: list[SnapshotRecord] = []
        for name in self._names():
            with suppress(CellwallError, OSError):
                found.append(self.find(name, owner=owner))
        return sorted(found, key=lambda each: (-each.created_ns, each.id))

    def used_by(self, owner: str, *, beside: Collection[str] = ()) -> tuple[int, int]:
        """How many snapshots an owner has, and the bytes of their layers and of those `beside`
        them, each counted once."""
        own = self.all(owner=owner)
        layers = {layer for each in own for layer in each.layers} | set(beside)
        return len(own), self.size_of(layers).size_bytes

    def remove(self, snapshot_id: str) -> None:
        """Its layers stay until `collect`."""
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.folder_of(snapshot_id), _RECORD))
        with suppress(FileNotFoundError):
            self._remove(self._folder, check_id(snapshot_id))

    def expired(self) -> list[str]:
        """The ids of snapshots whose time is over."""
        found = []
        for name in self._names():
            with suppress(CellwallError, OSError):
                if self._read(name).is_expired:
                    found.append(name)
        return found

    def collect(self, in_use: Callable[[], Collection[str]]) -> None:
        """Remove layers that no snapshot and no workspace (`in_use`) names, and what killed
        processes left. Does nothing while layers are made; the next call does it then."""
        if not os.path.isdir(self._layers):
            return
        with suppress(BlockingIOError), self._locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
            self._collect_layers(in_use)
            for name in os.listdir(self._folder):
                is_left = name.startswith("snp_") and not os.path.exists(
                    os.path.join(self._folder, name, _RECORD)
                )
                if is_left or name.startswith(_DRAFT):
                    self._remove(self._folder, name)

    def _collect_layers(self, in_use: Callable[[], Collection[str]]) -> None:
        layers = os.listdir(self._layers)
        if not layers:
            return
        named = set(in_use())
        try:
            for name in self._names():
                named.update(self._read(name).layers)
        except WorkspaceError:
            return  # the layers of a damaged record are not known: all stay until it is deleted
        for name in layers:
            if name not in named:
                self._remove(self._layers, name)

    def has(self, snapshot_id: str) -> bool:
        """Whether there is a record, be it expired or damaged."""
        return check_id(snapshot_id) in self._names()

    def _names(self) -> list[str]:
        """Of complete snapshots."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return [
            name
            for name in names
            if name.startswith("snp_") and os.path.exists(os.path.join(self._folder, name, _RECORD))
        ]

    def _read(self, snapshot_id: str) -> SnapshotRecord:
        try:
            with open(os.path.join(self._folder, snapshot_id, _RECORD), encoding="utf-8") as file:
                record = json.load(file)
            layers = tuple(check_id(each) for each in record.pop("layers"))
            variables = tuple(map(str, record.pop("variables")))
            return SnapshotRecord(id=snapshot_id, layers=layers, variables=variables, **record)
        except (ValueError, KeyError, TypeError, BadInput) as error:
            raise _damaged(snapshot_id) from error

    def _remove(self, parent: str, name: str) -> None:
        with closing_fd(os.open(parent, _FOLDER)) as folder, suppress(FileNotFoundError):
            remove_tree(folder, name, max_entries=MAX_LAYER_ENTRIES)


def _write_json(path: str, value: object, *, is_durable: bool = False) -> None:
    with open(path, "x", encoding="utf-8") as file:
        json.dump(value, file)
        if is_durable:
            file.flush()
            os.fsync(file.fileno())


def _damaged(name: str) -> WorkspaceError:
    return WorkspaceError(
        f"the record of {name} was changed or is damaged",
        hint="Delete the snapshot: cellwall snapshot delete.",
        code="CW-SNAPSHOT-DAMAGED",
    )

"""The wheels that Cellwall has built from source archives, by the hash of the source (PKG-3).

FOLDER/SOURCE_SHA256-WHEEL_NAME.json    the hash and the size of the wheel

The bytes are in the store of artifacts, under their own hash. An entry appears by one rename, after
the wheel was inspected and the build was recorded: a build that was killed leaves no entry.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from cellwall.packages.registry.artifacts import ArtifactStore

_ENTRY = re.compile(r"([0-9a-f]{64})-([A-Za-z0-9._!+~-]{1,150}\.whl)\.json")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_ENTRY_BYTES = 4096


@dataclass(frozen=True, slots=True)
class BuiltWheel:
    """One wheel."""

    filename: str
    sha256: str
    size: int


BuiltBySource = Mapping[str, tuple[BuiltWheel, ...]]
"""By the SHA-256 of the source archive."""


class BuiltWheels:
    """One folder of entries. Safe for threads and processes."""

    def __init__(self, folder: str, store: ArtifactStore) -> None:
        self._folder = folder
        self._store = store

    @property
    def revision(self) -> int:
        """Changes with every build; 0 where nothing was built."""
        try:
            return os.stat(self._folder).st_mtime_ns
        except FileNotFoundError:
            return 0

    def by_source(self) -> BuiltBySource:
        """All wheels whose bytes the store still has."""
        found: dict[str, tuple[BuiltWheel, ...]] = {}
        try:
            names = sorted(os.listdir(self._folder))
        except FileNotFoundError:
            return found
        for name in names:
            if (entry := _ENTRY.fullmatch(name)) is None:
                continue
            wheel = self._read(name, entry[2])
            if wheel is not None and self._store.has("sha256", wheel.sha256):
                found[entry[1]] = (*found.get(entry[1], ()), wheel)
        return found

    def add(self, source_sha256: str, wheel: BuiltWheel) -> None:
        """A later build of the same source replaces the wheel of the same name."""
        name = f"{source_sha256}-{wheel.filename}.json"
        if _ENTRY.fullmatch(name) is None:
            raise ValueError("not the name of a wheel")
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        draft = os.path.join(self._folder, f".draft-{secrets.token_hex(8)}")
        try:
            with open(draft, "x", encoding="ascii") as file:
                json.dump({"sha256": wheel.sha256, "size": wheel.size}, file)
            os.replace(draft, os.path.join(self._folder, name))
        finally:
            with suppress(FileNotFoundError):
                os.unlink(draft)

    def _read(self, name: str, filename: str) -> BuiltWheel | None:
        """The entry; a damaged one counts as missing, so the wheel is built again."""
        try:
            with open(os.path.join(self._folder, name), "rb") as file:
                entry = json.loads(file.read(_MAX_ENTRY_BYTES))
            sha256, size = str(entry["sha256"]), int(entry["size"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        is_hash = _SHA256.fullmatch(sha256) is not None
        return BuiltWheel(filename, sha256, size) if is_hash else None

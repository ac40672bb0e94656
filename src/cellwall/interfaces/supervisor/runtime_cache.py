"""The runtimes that a supervisor keeps, one for each configuration of its clients."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio

from cellwall.core.telemetry import Lifetime
from cellwall.runtime.app import App
from cellwall.runtime.wiring import open_app, settings_files

_MAX_RUNTIMES = 8
Key = tuple[object, ...]


@dataclass(slots=True)
class _CachedRuntime:
    app: App
    rules: tuple[object, ...]
    """The state of the guard's own rule files when the runtime was opened: it reads them once."""
    users: int = 0
    is_retired: bool = False


class RuntimeCache:
    """Runtimes by configuration: a changed, added or removed configuration file makes a new one,
    and so does a file of rules for the guard.

    Every `take` is followed by a `give_back`: a runtime with a run or a sandbox in it is never
    closed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_key: dict[Key, _CachedRuntime] = {}
        self._by_app: dict[int, _CachedRuntime] = {}

    @asynccontextmanager
    async def lease(
        self, config: str | None, profile: str | None, shaping: Mapping[Any, Any]
    ) -> AsyncIterator[App]:
        """The runtime for a block."""
        app = await self.take(config, profile, shaping)
        try:
            yield app
        finally:
            self.give_back(app)

    async def take(
        self, config: str | None, profile: str | None, shaping: Mapping[Any, Any]
    ) -> App:
        """The runtime for this configuration; `shaping` comes from a client."""
        texts = {str(name): str(value) for name, value in shaping.items()}
        return await anyio.to_thread.run_sync(self._take, config, profile, texts)

    def _take(self, config: str | None, profile: str | None, shaping: Mapping[str, str]) -> App:
        files = tuple(_fingerprint(path) for path in settings_files(config, shaping))
        key: Key = (config, profile, tuple(sorted(shaping.items())), files)
        # Under the lock: clients that arrive meanwhile wait for this runtime and open no second.
        with self._lock:
            entry = self._by_key.pop(key, None)
            if entry is not None and entry.rules != _rule_files(entry.app):
                self._retire(entry)
                entry = None
            if entry is None:
                app = open_app(
                    config=config,
                    profile=profile,
                    environ=shaping,
                    lifetime=Lifetime.SERVICE,
                )
                entry = _CachedRuntime(app, _rule_files(app))
                app.warm_up()
                self._by_app[id(entry.app)] = entry
                while len(self._by_key) >= _MAX_RUNTIMES:
                    self._retire(self._by_key.pop(next(iter(self._by_key))))
            self._by_key[key] = entry  # at the end: the least recently used one is evicted first
            entry.users += 1
            return entry.app

    def give_back(self, app: App) -> None:
        with self._lock:
            entry = self._by_app[id(app)]
            entry.users -= 1
            if entry.is_retired:
                self._retire(entry)

    def _retire(self, entry: _CachedRuntime) -> None:
        entry.is_retired = True
        if not entry.users:
            del self._by_app[id(entry.app)]
            # In a thread: closing takes a moment, and the caller must not wait for it.
            threading.Thread(target=entry.app.close, name="cellwall-close", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            entries, self._by_app, self._by_key = list(self._by_app.values()), {}, {}
        for entry in entries:
            entry.app.close()


def _rule_files(app: App) -> tuple[object, ...]:
    guard = app.settings.guard
    return tuple(map(_fingerprint, (*guard.rule_files, *guard.secret_rule_files)))


def _fingerprint(path: str) -> tuple[object, ...]:
    try:
        info = os.stat(path)
    except OSError:
        return (path, None)
    # Attack: the modification time can be set back; the time of the change cannot.
    return (path, info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_size)

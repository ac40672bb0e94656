"""`filesystem.Filesystem` of envd: entries of the workspace, and watches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from starlette.routing import Route

from cellwall.core.errors import BadInput, NotFound
from cellwall.core.files import FileEntry, FileOperation
from cellwall.core.ids import new_id
from cellwall.interfaces.e2b.access import SandboxAccess
from cellwall.interfaces.e2b.bodies import (
    ListRequest,
    MoveRequest,
    PathRequest,
    WatcherRequest,
    WatchRequest,
)
from cellwall.interfaces.e2b.callers import Message
from cellwall.interfaces.e2b.connect_rpc import method_routes, server_stream, unary
from cellwall.interfaces.e2b.paths import entry_json
from cellwall.interfaces.e2b.problems import DeadlinePassed
from cellwall.interfaces.e2b.watchers import MAX_WATCHES, PolledWatch, WatchEvents

MAX_ENTRIES = 20_000
"""Of one listing with a depth."""


async def stat(access: SandboxAccess, body: PathRequest) -> Message:
    """Of a link, not of its target."""
    return {"entry": await _entry(access, body.path)}


async def list_dir(access: SandboxAccess, body: ListRequest) -> Message:
    """The entries of a directory, and with a depth those of its directories; links are not
    followed."""
    found: list[FileEntry] = []
    waiting = [(body.path, max(body.depth, 1))]
    while waiting:
        path, depth = waiting.pop(0)
        entries: tuple[FileEntry, ...] = (await access.perform(FileOperation("list", path))).payload
        found += sorted(entries, key=lambda each: each.name)
        if len(found) > MAX_ENTRIES:
            raise BadInput(
                f"more than {MAX_ENTRIES} entries",
                hint="List a smaller depth.",
                code="CW-TOO-LARGE",
            )
        if depth > 1:
            waiting += [(each.path, depth - 1) for each in entries if each.kind == "dir"]
    return {"entries": [entry_json(each) for each in found]}


async def make_dir(access: SandboxAccess, body: PathRequest) -> Message:
    """With its parents; one that exists is an error, which the SDK turns into False."""
    async with access.sandbox.writing:
        if (await access.perform(FileOperation("exists", body.path))).payload:
            raise BadInput("the path exists already", code="CW-ALREADY-EXISTS")
        await access.perform(FileOperation("make_dir", body.path))
    return {"entry": await _entry(access, body.path)}


async def move(access: SandboxAccess, body: MoveRequest) -> Message:
    """A file or a directory; a file at the new path is replaced."""
    async with access.sandbox.writing:
        await access.perform(FileOperation("move", body.source, target=body.destination))
    return {"entry": await _entry(access, body.destination)}


async def remove(access: SandboxAccess, body: PathRequest) -> Message:
    """A file, or a directory with its content."""
    async with access.sandbox.writing:
        await access.perform(FileOperation("remove", body.path))
    return {}


async def watch_dir(
    access: SandboxAccess, body: WatchRequest, deadline: float | None
) -> AsyncIterator[Message]:
    """Changes as they happen."""
    events = WatchEvents(access, body)
    try:
        await events.open()
        yield {"start": {}}
        async for found in events.until(deadline):
            yield {"keepalive": {}} if found is None else {"filesystem": found}
    finally:
        events.close()
    if deadline is not None:
        raise DeadlinePassed


async def create_watcher(access: SandboxAccess, body: WatchRequest) -> Message:
    """A watch whose events are fetched."""
    watches = access.facts.watches
    if len(watches) >= MAX_WATCHES:
        raise BadInput(f"a sandbox has at most {MAX_WATCHES} watchers", code="CW-TOO-MANY-WAITING")
    name, watch = new_id("wat"), PolledWatch(access.grant.identity.user_id, access, body)
    watches[name] = watch  # no await since the count: concurrent requests cannot exceed it
    try:
        await watch.open()
    except BaseException:
        watches.pop(name, None)
        raise
    return {"watcherId": name}


async def get_events(access: SandboxAccess, body: WatcherRequest) -> Message:
    """Those since the last call."""
    watch = _watch(access, body)
    return {"events": await watch.take(await access.principal())}


async def remove_watcher(access: SandboxAccess, body: WatcherRequest) -> Message:
    """Its events end."""
    _watch(access, body).close()
    del access.facts.watches[body.watcher_id]
    return {}


def _watch(access: SandboxAccess, body: WatcherRequest) -> PolledWatch:
    found = access.facts.watches.get(body.watcher_id)
    if found is None or found.user_id != access.grant.identity.user_id:
        raise NotFound("there is no such watcher")
    return found


async def _entry(access: SandboxAccess, path: str) -> dict[str, Any]:
    found = (await access.perform(FileOperation("stat", path))).payload
    if not isinstance(found, FileEntry):
        raise NotFound(
            "there is no such file or directory", hint="Paths are below /workspace or /tmp."
        )
    return entry_json(found)


def filesystem_routes() -> list[Route]:
    """Below the prefix of the endpoints."""
    methods = {
        "Stat": unary(PathRequest, stat),
        "ListDir": unary(ListRequest, list_dir),
        "MakeDir": unary(PathRequest, make_dir),
        "Move": unary(MoveRequest, move),
        "Remove": unary(PathRequest, remove),
        "WatchDir": server_stream(WatchRequest, watch_dir),
        "CreateWatcher": unary(WatchRequest, create_watcher),
        "GetWatcherEvents": unary(WatcherRequest, get_events),
        "RemoveWatcher": unary(WatcherRequest, remove_watcher),
    }
    return method_routes("filesystem.Filesystem", methods)

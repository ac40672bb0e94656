"""The configured MCP servers and what a person has decided about their tools (SRV-7).

$CELLWALL_HOME/gateway/NAME.json     one private file for each server, replaced atomically

The file holds the server's settings, the accepted definitions, and the last ones that differed from
them. A definition is stored whole and its digest is computed again on each load: a file that is
damaged, or that another user could have written, refuses the server. Where `approvals.key` is
configured, what the approver has not signed counts as not accepted (POL-13).
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime
from typing import Any

from cellwall.audit.files import (
    closing_fd,
    locked,
    make_folder,
    open_folder,
    open_private,
    replace_file,
)
from cellwall.core.errors import BadInput, CellwallError, ServerFailed
from cellwall.core.standing_grants import GrantsPort
from cellwall.core.tool_servers import check_server_name, is_tool_name
from cellwall.core.types import Json
from cellwall.egress.destinations.hostnames import domain_of
from cellwall.mcp_servers.definitions import Definition, ToolSet, tool_set
from cellwall.mcp_servers.pins import AcceptedTool, Pins, to_json
from cellwall.runtime.server_entries import ServerEntry, ServerSettings
from cellwall.runtime.server_grants import signed_part

FOLDER = "gateway"
MAX_SERVERS = 64
_MAX_FILE_BYTES = 4 * 1024 * 1024
_SUFFIX = ".json"
_FILE_CLOCK_TICK_S = 0.02
"""The granularity of file timestamps."""
_FORMAT = 1


_Stamp = tuple[tuple[int, ...], tuple[int, ...]]


def _stamp_of(status: os.stat_result) -> tuple[int, ...]:
    """Identity, owner, permissions and times; the last change of any of them is the ctime."""
    return (
        status.st_dev,
        status.st_ino,
        status.st_mode,
        status.st_uid,
        status.st_gid,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


class ServerCatalog:
    """The servers of one state folder. Safe for threads and processes."""

    def __init__(self, home: str, grants: GrantsPort | None) -> None:
        self._path = os.path.join(home, FOLDER)
        self._grants = grants
        self._cached: dict[str, tuple[_Stamp, ServerEntry]] = {}
        self._believed: dict[str, tuple[ServerEntry, object, ServerEntry]] = {}
        """The entry in the file, the state of the signatures, and what counts of the entry."""
        self._names: tuple[tuple[int, ...], list[str]] | None = None

    def names(self) -> list[str]:
        """The servers, sorted; the folder is listed again only after a change."""
        names = self._names
        try:
            folder = os.lstat(self._path)
            stamp = _stamp_of(folder)
            if names is not None and names[0] == stamp:
                return names[1]
            found = os.listdir(self._path)
        except FileNotFoundError:
            return []
        listed = sorted(
            name.removesuffix(_SUFFIX)
            for name in found
            if name.endswith(_SUFFIX) and not name.startswith(".")
        )
        # A folder that has just changed may change again without another time.
        is_settled = time.time() - folder.st_ctime > _FILE_CLOCK_TICK_S
        self._names = (stamp, listed) if is_settled else None
        return listed

    def version(self) -> object:
        """Differs after each change of a server by Cellwall, which replaces files; None if that is
        not known. An entry that was edited in place is noticed by `read`."""
        if self._grants is not None:
            return None  # a withdrawal changes no file here
        names = self._names
        try:
            is_known = names is not None and names[0] == _stamp_of(os.lstat(self._path))
        except OSError:
            return None
        return names if is_known else None

    def entries(self) -> list[ServerEntry]:
        """All servers; raises for the first that cannot be read."""
        return [self.read(name) for name in self.names()]

    def read(self, name: str) -> ServerEntry:
        """One server, with what counts of it."""
        stored = self.read_stored(name)
        if self._grants is None:
            return stored
        before, stamp = self._believed.get(name), self._grants.stamp
        if before is not None and before[0] is stored and before[1] == stamp:
            return before[2]
        counting = self.counting_part(stored)
        self._believed[name] = (stored, stamp, counting)
        return counting

    def counting_part(self, entry: ServerEntry) -> ServerEntry:
        """What counts of an entry as stored."""
        return entry if self._grants is None else signed_part(entry, self._grants)

    def read_stored(self, name: str) -> ServerEntry:
        """One server as in its file, which is read again only after a change."""
        check_server_name(name)
        cached = self._cached.get(name)
        try:
            if cached is not None and cached[0] == self._stamp(name):
                return cached[1]
            with (
                closing_fd(open_folder(self._path)) as folder,
                closing_fd(open_private(name + _SUFFIX, os.O_RDONLY, folder)) as descriptor,
            ):
                stamp = (_stamp_of(os.fstat(folder)), _stamp_of(os.fstat(descriptor)))
                with os.fdopen(os.dup(descriptor), "rb") as file:
                    data = file.read(_MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            raise _unknown(name) from None
        except OSError as error:
            raise _damaged(name, str(error)) from None
        entry = _decode(name, data)
        self._cached[name] = (stamp, entry)
        return entry

    def _stamp(self, name: str) -> _Stamp:
        """Of the folder and the file, without opening them: for each call of a tool. Equal stamps
        have equal owners and permissions, which were checked when the file was read."""
        folder = os.lstat(self._path)
        return _stamp_of(folder), _stamp_of(os.lstat(f"{self._path}/{name}{_SUFFIX}"))

    def add(self, settings: ServerSettings) -> ServerEntry:
        """Add a server; nothing of it is accepted yet."""
        check_server_name(settings.name)
        with self._change() as folder:
            names = self.names()
            if settings.name in names:
                raise BadInput(
                    f"there is already an MCP server {settings.name}",
                    hint=f"Remove it first: cellwall mcp gateway remove {settings.name}",
                    code="CW-MCP-NAME",
                )
            if len(names) >= MAX_SERVERS:
                raise BadInput(f"there are {MAX_SERVERS} MCP servers already", code="CW-MCP-NAME")
            entry = ServerEntry(settings=settings)
            replace_file(settings.name + _SUFFIX, _encode(entry), folder)
        return entry

    def update(self, name: str, change: Callable[[ServerEntry], ServerEntry]) -> ServerEntry:
        """Change an entry under the lock, as it is now."""
        with self._change() as folder:
            entry = change(self.read_stored(name))
            replace_file(name + _SUFFIX, _encode(entry), folder)
        return entry

    def note_seen(self, name: str, seen: ToolSet) -> ServerEntry:
        """Keep the definitions that the server has now, for a person's review."""
        entry = self.read(name)
        if entry.seen is not None and entry.seen.sha256 == seen.sha256:
            return entry
        when = datetime.now(UTC).isoformat(timespec="seconds")
        self.update(name, lambda each: replace(each, seen=seen, seen_at=when))
        return self.read(name)

    def remove(self, name: str) -> None:
        """Remove a server, also one whose file is damaged."""
        check_server_name(name)
        with self._change() as folder:
            try:
                os.unlink(name + _SUFFIX, dir_fd=folder)
            except FileNotFoundError:
                raise _unknown(name) from None
        self._cached.pop(name, None)

    @contextmanager
    def _change(self) -> Iterator[int]:
        try:
            make_folder(self._path)
            with closing_fd(open_folder(self._path)) as folder, locked(folder):
                yield folder
        except OSError as error:
            raise CellwallError(
                "the list of MCP servers cannot be written",
                hint="Check the space and the permissions of the state folder.",
                code="CW-STATE",
                detail=str(error),
            ) from None


def _encode(entry: ServerEntry) -> bytes:
    pins = entry.pins
    accepted: dict[str, Json] = {
        name: {
            "definition": dict(each.definition.fields),
            "despite": each.despite_findings,
            "as": each.offered_as,
        }
        for name, each in pins.tools.items()
    }
    whole: dict[str, Json] = {
        "format": _FORMAT,
        "server": asdict(entry.settings),
        "identity": None if pins.identity is None else dict(pins.identity.fields),
        "accepted": accepted,
        "digests": {name: each.definition.sha256 for name, each in pins.tools.items()},
        "rejected": dict(pins.rejected),
        "together": pins.together,
        "seen": None if entry.seen is None else to_json(entry.seen),
        "seen_at": entry.seen_at,
    }
    # Compact: indented, many small values would exceed the bound with which the file is read.
    return json.dumps(whole, separators=(",", ":"), ensure_ascii=True).encode("ascii")


def _decode(name: str, data: bytes) -> ServerEntry:
    try:
        if len(data) > _MAX_FILE_BYTES:
            raise ValueError("too large")
        whole = json.loads(data)
        if whole["format"] != _FORMAT:
            raise ValueError("unknown format")
        settings = _settings(whole["server"])
        if settings.name != name:
            raise ValueError("the file of another server")
        tools = {
            tool: AcceptedTool(
                Definition.of(each["definition"]), each["despite"] is True, _alias(each["as"])
            )
            for tool, each in whole["accepted"].items()
        }
        if {tool: each.definition.sha256 for tool, each in tools.items()} != whole["digests"]:
            raise ValueError("a definition differs from its digest")
        identity = whole["identity"]
        pins = Pins(
            None if identity is None else Definition.of(identity),
            tools,
            dict(whole["rejected"]),
            str(whole.get("together", "")),  # missing in files of older versions
        )
        seen = None if whole["seen"] is None else _seen(whole["seen"])
        return ServerEntry(settings=settings, pins=pins, seen=seen, seen_at=str(whole["seen_at"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(name, str(error)) from None


def _alias(name: str) -> str:
    if name and not is_tool_name(name):
        raise ValueError("not a name for a tool")
    return name


def _seen(stored: Mapping[str, Any]) -> ToolSet:
    found = tool_set(stored["identity"], stored["tools"].values())
    return replace(found, refused={**found.refused, **stored["refused"]})


def _settings(stored: Mapping[str, Any]) -> ServerSettings:
    known = {each.name for each in fields(ServerSettings)}
    if stored.keys() != known:
        raise ValueError("unknown settings")
    lists = {key: tuple(map(str, stored[key])) for key in ("argv", "headers", "domains", "secrets")}
    return ServerSettings(**{**stored, **lists})


def _unknown(name: str) -> BadInput:
    return BadInput(
        f"there is no MCP server {name}",
        hint="`cellwall mcp gateway list` shows them.",
        code="CW-MCP-UNKNOWN",
    )


def _damaged(name: str, detail: str) -> ServerFailed:
    return ServerFailed(
        f"the entry of the MCP server {name} is damaged or open to other users",
        hint=f"Remove it and add it again: cellwall mcp gateway remove {name}",
        code="CW-MCP-DAMAGED",
        detail=detail,
    )


_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}:[ \t]*[\x21-\x7e][\x20-\x7e]{0,1023}")
_OURS = frozenset(
    {"host", "content-length", "content-type", "transfer-encoding", "connection", "accept"}
)


def check_header(text: str) -> str:
    """A header for a remote server; raises `BadInput` for one that cannot be sent."""
    name = text.partition(":")[0].lower()
    if _HEADER.fullmatch(text) is None or name in _OURS or name.startswith("mcp-"):
        raise BadInput(
            "this is not a header that can be added",
            hint="Write for example 'Authorization: Bearer ${NAME}', and --secret NAME.",
            code="CW-MCP-HEADER",
        )
    return text


def describe(entry: ServerEntry) -> Mapping[str, Json]:
    """The settings of a server for people: no value of a variable."""
    settings = entry.settings
    return {
        "name": settings.name,
        "kind": "remote" if settings.url else "local",
        "command": list(settings.argv),
        "url": settings.url,
        "domains": list(settings.domains),
        "secrets": list(settings.secrets),
        "env_names": sorted(settings.env),
        "workspace": f"{settings.directory}:{settings.mode}" if settings.directory else "",
        "template": settings.template,
        "elicitation": settings.may_elicit,
        "labels_together": entry.is_named_together,
    }


def labels_together(settings: ServerSettings) -> str:
    """Why a call of this server alone brings all three labels (POL-9); empty if it does not."""
    private = [f"secret {name}" for name in settings.secrets]
    private += [f"files of {settings.directory}"] if settings.directory else []
    egress = [domain_of(settings.url)] if settings.url else list(settings.domains)
    if not (private and egress):
        return ""
    return (
        "untrusted content (its results), "
        f"private data ({', '.join(private)}) and egress ({', '.join(egress)})"
    )

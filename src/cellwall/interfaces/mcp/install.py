"""Writes us into a client's configuration as one of its MCP servers, and takes us out again.

1. Find the client's file.   2. Read and merge; what cannot be read is left alone.
3. Keep the bytes that were there beside it.   4. Replace it at once, if it is still the one read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cellwall.core.errors import BadInput
from cellwall.interfaces.edited_file import Change, EditedFile
from cellwall.interfaces.hooks.command import isolated, pins
from cellwall.interfaces.hooks.settings_text import START
from cellwall.interfaces.mcp.servers_text import Servers

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Place:
    """A client's file, and how it is written."""

    file: str
    key: str
    names_kind: bool
    """Whether an entry says that it is started, and not reached by HTTP."""
    comments: bool = False


def place_of(
    client: str, *, scope: str | None, path: str | None, environ: Mapping[str, str], cwd: str
) -> Place:
    """Where the client looks for servers; `path` is that file itself."""
    # The folders themselves may be reached by links, which are the user's own.
    home = os.path.realpath(os.path.expanduser("~"))
    here = os.path.realpath(cwd)
    told = environ.get("XDG_CONFIG_HOME", "")
    config = os.path.realpath(told if os.path.isabs(told) else os.path.join(home, ".config"))
    theirs = environ.get("CLAUDE_CONFIG_DIR", "")
    places = {
        ("claude-code", "project"): (here, ".mcp.json"),
        ("claude-code", "user"): (os.path.realpath(theirs) if theirs else home, ".claude.json"),
        ("claude-desktop", "user"): (config, "Claude/claude_desktop_config.json"),
        ("cursor", "project"): (here, ".cursor/mcp.json"),
        ("cursor", "user"): (home, ".cursor/mcp.json"),
        ("vscode", "project"): (here, ".vscode/mcp.json"),
        ("vscode", "user"): (config, "Code/User/mcp.json"),
    }
    usual = "user" if client == "claude-desktop" else "project"
    found = places.get((client, scope or usual))
    if found is None:
        raise BadInput(
            f"{client} has no configuration for a {scope}",
            hint="Leave --scope out, or name the file with --path.",
            code="CW-USAGE",
        )
    return Place(
        file=os.path.abspath(path) if path else os.path.join(*found),
        key="servers" if client == "vscode" else "mcpServers",
        names_kind=client != "claude-desktop",
        comments=client in {"vscode", "cursor"},
    )


def entry_of(options: Sequence[str], *, environ: Mapping[str, str]) -> dict[str, Any]:
    """How we are started: this very Python, isolated, with the places that are in force now.

    A client's environment is also made by the project's own settings, and its PATH is whoever's.
    """
    command, *words = isolated()
    return {"command": command, "args": [*words, "mcp", *options], "env": pins(environ)}


def install(place: Place, name: str, entry: Mapping[str, Any], *, is_dry: bool) -> Change:
    """Add our server, or bring the one that is there up to date."""
    _check_name(name)
    wanted = {"type": "stdio", **entry} if place.names_kind else dict(entry)
    with _edited(place).opened(makes=not is_dry) as folder:
        found = None if folder is None else folder.read()
        before = b"" if found is None else found.data
        servers = Servers.of(before, key=place.key, comments=place.comments)
        _check_ours(servers.entry(name), name)
        after = servers.with_entry(name, wanted)
        if after == before or is_dry or folder is None:
            return Change(place.file, after != before, None, after)
        backup = None if found is None else folder.keep(before)
        folder.replace(after, found)
        return Change(place.file, True, backup, after)


def remove(place: Place, name: str, *, is_dry: bool) -> Change:
    """Take our server out, and nothing else; a file that we made stays, with no server in it."""
    _check_name(name)
    with _edited(place).opened(makes=False) as folder:
        found = None if folder is None else folder.read()
        if found is None or folder is None:
            return Change(place.file, is_changed=False)
        servers = Servers.of(found.data, key=place.key, comments=place.comments)
        entry = servers.entry(name)
        _check_ours(entry, name)
        after = servers.without_entry(name)
        if entry is None or is_dry:
            return Change(place.file, after != found.data, None, after)
        backup = folder.keep(found.data)
        folder.replace(after, found)
        return Change(place.file, True, backup, after)


def is_ours(entry: Mapping[str, Any]) -> bool:
    """By what it starts: our entry with `mcp`, or `…/cellwall mcp`, with any options."""
    command, words = entry.get("command"), entry.get("args")
    if not isinstance(command, str) or not isinstance(words, list):
        return False
    if os.path.basename(command) == "cellwall":
        return words[:1] == ["mcp"]
    return words[: len(START) + 1] == [*START, "mcp"]


def _check_ours(entry: Mapping[str, Any] | None, name: str) -> None:
    if entry is not None and not is_ours(entry):
        raise BadInput(
            f"{name} is the name of another server there; nothing was changed",
            hint="Choose another one with --name.",
            code="CW-MCP-NAME",
        )


def _check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise BadInput(
            "the name of a server has letters, digits, - and _, at most 64",
            hint="Write for example --name cellwall.",
            code="CW-MCP-NAME",
        )


def _edited(place: Place) -> EditedFile:
    hint = "Name the file itself with --path, and look at what is there."
    return EditedFile(place.file, code="CW-MCP-SETTINGS", hint=hint)

"""Adds Cellwall to a client's list of MCP servers, and removes it.

1. Find the client's file.   2. Parse and merge; an unreadable file is left alone.
3. Back up the old content beside it.   4. Replace it atomically, if it has not changed since.

Only our entry is edited; every other character of the file stays, see `json_text`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cellwall.core.errors import BadInput
from cellwall.interfaces.edited_file import EditedFile, SettingsChange
from cellwall.interfaces.hooks.command_lines import isolated_command, pinned_environment
from cellwall.interfaces.hooks.settings_text import START
from cellwall.interfaces.json_text import InvalidJson, JsonText

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """A client's configuration file and its format."""

    file: str
    key: str
    names_kind: bool
    """Whether an entry has a `type`."""
    comments: bool = False


def place_of(
    client: str, *, scope: str | None, path: str | None, environ: Mapping[str, str], cwd: str
) -> ClientConfig:
    """The client's configuration file; `path` overrides its location."""
    # Links in the path of the folders are the user's own.
    home = os.path.realpath(os.path.expanduser("~"))
    here = os.path.realpath(cwd)
    chosen = environ.get("XDG_CONFIG_HOME", "")
    config = os.path.realpath(chosen if os.path.isabs(chosen) else os.path.join(home, ".config"))
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
    folder_and_file = places.get((client, scope or usual))
    if folder_and_file is None:
        raise BadInput(
            f"{client} has no configuration for a {scope}",
            hint="Leave --scope out, or name the file with --path.",
            code="CW-USAGE",
        )
    return ClientConfig(
        file=os.path.abspath(path) if path else os.path.join(*folder_and_file),
        key="servers" if client == "vscode" else "mcpServers",
        names_kind=client != "claude-desktop",
        comments=client in {"vscode", "cursor"},
    )


def entry_of(options: Sequence[str], *, environ: Mapping[str, str]) -> dict[str, Any]:
    """The entry that starts the server: this Python, isolated, with the paths in force now.

    The project's settings can set the client's environment, including PATH.
    """
    command, *words = isolated_command()
    return {
        "command": command,
        "args": [*words, "mcp", *options],
        "env": pinned_environment(environ),
    }


def install(
    place: ClientConfig, name: str, entry: Mapping[str, Any], *, is_dry: bool
) -> SettingsChange:
    """Add our server, or update it."""
    _check_name(name)
    wanted = {"type": "stdio", **entry} if place.names_kind else dict(entry)
    with _config_file(place).open(makes=not is_dry) as folder:
        old = None if folder is None else folder.read()
        before = b"" if old is None else old.data
        servers = ServerList.of(before, key=place.key, comments=place.comments)
        _check_ours(servers.entry(name), name)
        after = servers.with_entry(name, wanted)
        if after == before or is_dry or folder is None:
            return SettingsChange(place.file, after != before, None, after)
        backup = None if old is None else folder.back_up(before)
        folder.replace(after, old)
        return SettingsChange(place.file, True, backup, after)


def remove(place: ClientConfig, name: str, *, is_dry: bool) -> SettingsChange:
    """Remove our server and nothing else; an empty file stays."""
    _check_name(name)
    with _config_file(place).open(makes=False) as folder:
        old = None if folder is None else folder.read()
        if old is None or folder is None:
            return SettingsChange(place.file, is_changed=False)
        servers = ServerList.of(old.data, key=place.key, comments=place.comments)
        entry = servers.entry(name)
        _check_ours(entry, name)
        after = servers.without_entry(name)
        if entry is None or is_dry:
            return SettingsChange(place.file, after != old.data, None, after)
        backup = folder.back_up(old.data)
        folder.replace(after, old)
        return SettingsChange(place.file, True, backup, after)


def is_ours(entry: Mapping[str, Any]) -> bool:
    """Whether an entry starts our entry point with `mcp`, or `…/cellwall mcp`."""
    command, words = entry.get("command"), entry.get("args")
    if not isinstance(command, str) or not isinstance(words, list):
        return False
    if os.path.basename(command) == "cellwall":
        return words[:1] == ["mcp"]
    return words[: len(START) + 1] == [*START, "mcp"]


def _check_ours(entry: Mapping[str, Any] | None, name: str) -> None:
    if entry is not None and not is_ours(entry):
        raise BadInput(
            f"another server is named {name}; nothing was changed",
            hint="Choose another one with --name.",
            code="CW-MCP-NAME",
        )


def _check_name(name: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise BadInput(
            "a server name has at most 64 letters, digits, - and _",
            hint="Write for example --name cellwall.",
            code="CW-MCP-NAME",
        )


def _config_file(place: ClientConfig) -> EditedFile:
    hint = "Inspect the file, or name another one with --path."
    return EditedFile(place.file, code="CW-MCP-SETTINGS", hint=hint)


@dataclass(frozen=True, slots=True)
class ServerList:
    """A configuration text; `key` holds the servers."""

    json_text: JsonText
    key: str

    @classmethod
    def of(cls, data: bytes, *, key: str, comments: bool = False) -> ServerList:
        """Raises `BadInput`: an unreadable file must not be overwritten."""
        try:
            servers = cls(JsonText.decode(data, comments=comments), key)
            entries = servers.settings().get(key, {})
        except InvalidJson as problem:
            raise _unusable(str(problem)) from None
        if not isinstance(entries, dict) or not all(isinstance(e, dict) for e in entries.values()):
            raise _unusable(f'has a "{key}" that is not an object of servers')
        return servers

    def settings(self) -> dict[str, Any]:
        """The parsed settings."""
        return self.json_text.value()

    def entry(self, name: str) -> dict[str, Any] | None:
        entry = self.settings().get(self.key, {}).get(name)
        return entry if isinstance(entry, dict) else None

    def with_entry(self, name: str, entry: Mapping[str, Any]) -> bytes:
        """The text with this server; unchanged if the entry exists."""
        settings = self.settings()
        servers = settings.setdefault(self.key, {})
        if servers.get(name) == entry:
            return self.json_text.text.encode("utf-8")
        servers[name] = dict(entry)
        return self._change_to(settings)

    def without_entry(self, name: str) -> bytes:
        """The text without this server; the enclosing object stays."""
        settings = self.settings()
        if settings.get(self.key, {}).pop(name, None) is None:
            return self.json_text.text.encode("utf-8")
        return self._change_to(settings)

    def _change_to(self, settings: Mapping[str, Any]) -> bytes:
        try:
            return self.json_text.change_to(settings)
        except InvalidJson as problem:
            raise _unusable(str(problem)) from None


def _unusable(problem: str) -> BadInput:
    return BadInput(
        f"the client's configuration {problem}; nothing was changed",
        hint="Correct the file, then try again.",
        code="CW-MCP-SETTINGS",
    )

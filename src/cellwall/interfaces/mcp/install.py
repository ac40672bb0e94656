"""Adds Cellwall to a client's list of MCP servers, and removes it.

1. Find the client's file.   2. Parse and merge; an unreadable file is left alone.
3. Back up the old content beside it.   4. Replace it atomically, if it has not changed since.

Only our entry is edited; every other character of the file stays, including comments where the
client's JSON allows them. The result is parsed again and compared before it is used.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cellwall.core.errors import BadInput
from cellwall.interfaces.edited_file import EditedFile, SettingsChange
from cellwall.interfaces.hooks.command import isolated_command, pinned_environment
from cellwall.interfaces.hooks.settings_text import START

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
    return ClientConfig(
        file=os.path.abspath(path) if path else os.path.join(*found),
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
        found = None if folder is None else folder.read()
        before = b"" if found is None else found.data
        servers = ServerList.of(before, key=place.key, comments=place.comments)
        _check_ours(servers.entry(name), name)
        after = servers.with_entry(name, wanted)
        if after == before or is_dry or folder is None:
            return SettingsChange(place.file, after != before, None, after)
        backup = None if found is None else folder.back_up(before)
        folder.replace(after, found)
        return SettingsChange(place.file, True, backup, after)


def remove(place: ClientConfig, name: str, *, is_dry: bool) -> SettingsChange:
    """Remove our server and nothing else; an empty file stays."""
    _check_name(name)
    with _config_file(place).open(makes=False) as folder:
        found = None if folder is None else folder.read()
        if found is None or folder is None:
            return SettingsChange(place.file, is_changed=False)
        servers = ServerList.of(found.data, key=place.key, comments=place.comments)
        entry = servers.entry(name)
        _check_ours(entry, name)
        after = servers.without_entry(name)
        if entry is None or is_dry:
            return SettingsChange(place.file, after != found.data, None, after)
        backup = folder.back_up(found.data)
        folder.replace(after, found)
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


_BOM = "\ufeff"
_BLANK = " \t\r\n"
"""JSON's white space; Python's `strip` removes more."""
# An unclosed string or comment runs to the end and is not JSON: a retry from each quote or star
# would take quadratic time.
_STRING = r'"(?:[^"\\]++|\\.)*+"?'
_COMMENT = re.compile(rf"({_STRING})|//[^\r\n]*|/\*[\s\S]*?(?:\*/|\Z)")
_LAST_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])")
_NOT_BREAK = re.compile(r"[^\r\n]")
_SPACE = re.compile(r"[ \t\r\n]*")
_INDENT = re.compile(r"\n([ \t]+)\Z")
_DECODER = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class _Piece:
    """One key with its value, and their offsets."""

    key: str
    start: int
    at: int
    """Offset of the value."""
    end: int


@dataclass(frozen=True, slots=True)
class ServerList:
    """A configuration text. `key` holds the servers; `comments`: its JSON may contain comments."""

    text: str
    key: str
    comments: bool = False

    @classmethod
    def of(cls, data: bytes, *, key: str, comments: bool = False) -> ServerList:
        """Raises `BadInput`: an unreadable file must not be overwritten."""
        try:
            found = cls(data.decode("utf-8"), key, comments)
        except UnicodeDecodeError:
            raise _unusable("is no UTF-8 text") from None
        servers = found.settings().get(key, {})
        if not isinstance(servers, dict) or not all(isinstance(e, dict) for e in servers.values()):
            raise _unusable(f'has a "{key}" that is no object of servers')
        return found

    def settings(self) -> dict[str, Any]:
        """The parsed settings."""
        try:
            text = self._strict_json().removeprefix(_BOM)
            value = json.loads(text if text.strip(_BLANK) else "{}", object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            place = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
            raise _unusable(f"is no valid JSON{place}") from None
        if not isinstance(value, dict):
            raise _unusable("is no JSON object")
        return value

    def entry(self, name: str) -> dict[str, Any] | None:
        found = self.settings().get(self.key, {}).get(name)
        return found if isinstance(found, dict) else None

    def with_entry(self, name: str, entry: Mapping[str, Any]) -> bytes:
        """The text with this server; unchanged if the entry exists."""
        settings = self.settings()
        servers = settings.setdefault(self.key, {})
        if servers.get(name) == entry:
            return self.text.encode("utf-8")
        servers[name] = dict(entry)
        if not self._strict_json().strip(_BOM + _BLANK):
            begin = _BOM if self.text.startswith(_BOM) else ""
            return self._encode_checked(f"{begin}{json.dumps(settings, indent=2)}\n", settings)
        root = self._root()
        section = next((p for p in self._pieces(root) if p.key == self.key), None)
        if section is None:
            text = self._insert(root, self.key, {name: dict(entry)}, depth=1)
        else:
            ours = next((p for p in self._pieces(section.at) if p.key == name), None)
            if ours is None:
                text = self._insert(section.at, name, entry, depth=2)
            else:
                new = self._dump(entry, depth=2)
                text = self.text[: ours.at] + new + self.text[ours.end :]
        return self._encode_checked(text, settings)

    def without_entry(self, name: str) -> bytes:
        """The text without this server; the enclosing object stays."""
        settings = self.settings()
        if settings.get(self.key, {}).pop(name, None) is None:
            return self.text.encode("utf-8")
        section = next(p for p in self._pieces(self._root()) if p.key == self.key)
        pieces = self._pieces(section.at)
        at = next(i for i, piece in enumerate(pieces) if piece.key == name)
        start, end = pieces[at].start, pieces[at].end
        if at + 1 < len(pieces):
            end = pieces[at + 1].start
        elif at:
            start = pieces[at - 1].end
        else:  # the only entry: also remove a trailing comma
            end = self.text.index(",", end) + 1 if self._has_last_comma(end) else end
        before, after = self.text[:start], self.text[end:]
        if before.rstrip(_BLANK).endswith("{") and after.lstrip(_BLANK).startswith("}"):
            before, after = before.rstrip(_BLANK), after.lstrip(_BLANK)
        return self._encode_checked(before + after, settings)

    def _has_last_comma(self, end: int) -> bool:
        rest = _SPACE.match(self._without_comments(), end)
        return rest is not None and self._without_comments()[rest.end()] == ","

    def _root(self) -> int:
        return _after_space(self._strict_json(), 1 if self.text.startswith(_BOM) else 0)

    def _pieces(self, at: int) -> list[_Piece]:
        """The items of the object at this offset."""
        bare = self._strict_json()
        found = []
        at = _after_space(bare, at + 1)
        while bare[at] != "}":
            start = at
            key, at = _DECODER.raw_decode(bare, at)
            at = _after_space(bare, _after_space(bare, at) + 1)
            _, end = _DECODER.raw_decode(bare, at)
            found.append(_Piece(key, start, at, end))
            at = _after_space(bare, end)
            at = _after_space(bare, at + 1) if bare[at] == "," else at
        return found

    def _insert(self, at: int, key: str, value: Mapping[str, Any], *, depth: int) -> str:
        """Insert an item at the end of the object at this offset."""
        pieces = self._pieces(at)
        item = f"{json.dumps(key)}: {self._dump(value, depth=depth)}"
        if pieces:
            end = pieces[-1].end
            return f"{self.text[:end]},{self._gap(depth)}{item}{self.text[end:]}"
        inside = _after_space(self._strict_json(), at + 1)
        is_empty = not self.text[at + 1 : inside].strip()
        kept = "" if is_empty else self.text[at + 1 : inside].rstrip()  # a comment
        gap, last = self._gap(depth), self._gap(depth - 1)
        return f"{self.text[: at + 1]}{kept}{gap}{item}{last}{self.text[inside:]}"

    def _dump(self, value: object, *, depth: int) -> str:
        text = json.dumps(value, indent=self._indent(), ensure_ascii=False)
        return text.replace("\n", self._gap(depth))

    def _gap(self, depth: int) -> str:
        return ("\r\n" if "\r\n" in self.text else "\n") + self._indent() * depth

    def _indent(self) -> str:
        """The indentation of the first key, where it starts a line."""
        pieces = self._pieces(self._root())
        before = self.text[: pieces[0].start] if pieces else ""
        found = _INDENT.search(before)
        return found[1] if found else "  "

    def _strict_json(self) -> str:
        """Strict JSON with the same offsets."""
        if not self.comments:
            return self.text
        return _LAST_COMMA.sub(lambda found: found[1] or " ", self._without_comments())

    def _without_comments(self) -> str:
        if not self.comments:
            return self.text
        return _COMMENT.sub(_blank_comment, self.text)

    def _encode_checked(self, text: str, wanted: Mapping[str, Any]) -> bytes:
        # Proof instead of trust: the result parses to the expected value.
        try:
            is_right = ServerList(text, self.key, self.comments).settings() == wanted
            data = text.encode("utf-8")
        except (BadInput, UnicodeEncodeError):
            is_right, data = False, b""
        if not is_right:
            raise _unusable("cannot be written as it should be")
        return data


def _blank_comment(found: re.Match[str]) -> str:
    text = found[0]
    is_open = text.startswith("/*") and (len(text) < len("/**/") or not text.endswith("*/"))
    return text if found[1] or is_open else _NOT_BREAK.sub(" ", text)


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key twice")
    return found


def _unusable(problem: str) -> BadInput:
    return BadInput(
        f"the client's configuration {problem}; nothing was changed",
        hint="Correct the file, then try again.",
        code="CW-MCP-SETTINGS",
    )

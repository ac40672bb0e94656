"""Files and addresses in the input of a tool that no rule for files or addresses speaks of. Pure.

A rule allows a tool of an MCP server, or of an agent, by its name; what is denied to `Read`,
`Write` and `WebFetch` is denied to that tool as well. Keys tell what a value is: a text that only
mentions a path is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from cellwall.core.errors import BadInput
from cellwall.core.types import Json
from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.addresses import REASONS, forbidden_in_urls, kind_of
from cellwall.policy.calls import ToolCall
from cellwall.policy.domains import host_of
from cellwall.policy.reached import kind_fetched
from cellwall.policy.rulebook import RuleBook, denied
from cellwall.policy.subjects import Targets, look

_PATH_KEY: Final = re.compile(
    r"(?i)(?:path|paths|file|files|file[_-]?names?|dir|dirs|directory|folder|uri|uris|source"
    r"|destination|dest|src|dst|target|root|cwd|location|notebook|attachments?|glob|from|to)\Z"
)
_FOLDER_KEY: Final = re.compile(r"(?i)(?:path|dir|directory|folder|root|cwd|base|workspace)\Z")
_NAME_KEY: Final = re.compile(r"(?i)(?:name|names|pattern|glob|file|files|path|paths)\Z")
_ADDRESS_KEY: Final = re.compile(
    r"(?i)(?:url|urls|uri|uris|href|link|links|endpoint|host|hostname|server|origin|address)\Z"
)
_READING: Final = re.compile(
    r"(?i)(?:read|get|list|search|find|fetch|view|open|stat|show|query|describe|info|tree|exists"
    r"|head|tail|grep|glob|look|load|browse|navigate)"
)
_SCHEME: Final = re.compile(r"(?i)(?!file:)[A-Za-z][A-Za-z0-9+.-]*:/")
_WEB: Final = re.compile(r"(?i)\s*(?:https?|ftp|wss?):|//")
_MAX_VALUES: Final = 200


def denied_in_input(
    book: RuleBook, call: ToolCall, what: str, *, targets: Targets
) -> Decision | None:
    """The first denial of a file or an address that the input names."""
    tools = ("Read",) if _READING.search(call.tool.rpartition("__")[2]) else ("Read", "Write")
    for count, (key, value) in enumerate((*_texts(call.input), *_joined(call.input))):
        if count >= _MAX_VALUES:
            return denied("it names more files and addresses than can be judged in time", what)
        if _ADDRESS_KEY.search(key) and (trouble := _address_trouble(value)):
            return denied(trouble, what, "addresses")
        is_file = _PATH_KEY.search(key) or value.lower().startswith("file:")
        if not is_file or _SCHEME.match(value):
            continue
        for tool in tools:
            found = _denial(book, call, tool, value, what, targets)
            if found is not None:
                return found
    return None


def _texts(given: Json, key: str = "") -> Iterator[tuple[str, str]]:
    """Each text of the input under a key that may name a file or an address, with that key."""
    if isinstance(given, str):
        if given and (_PATH_KEY.search(key) or _ADDRESS_KEY.search(key)):
            yield key, given
    elif isinstance(given, dict):
        for name, value in given.items():
            yield from _texts(value, name)
    elif isinstance(given, list | tuple):
        for value in given:
            yield from _texts(value, key)


def _joined(given: Json) -> Iterator[tuple[str, str]]:
    """A name that a tool looks for in a folder, which another key of the same object gives."""
    if isinstance(given, list | tuple):
        for value in given:
            yield from _joined(value)
    if not isinstance(given, dict):
        return
    folders = [x for key, x in given.items() if _FOLDER_KEY.search(key) and isinstance(x, str)]
    for key, value in given.items():
        yield from _joined(value)
        names = value if isinstance(value, list | tuple) else [value]
        for name in names if _NAME_KEY.search(key) else ():
            for folder in folders:
                if isinstance(name, str) and name != folder and not name.startswith(("/", "~")):
                    yield "path", f"{folder.rstrip('/')}/{name}"


def _address_trouble(value: str) -> str | None:
    found = forbidden_in_urls(value)
    if found is not None:
        return f"{found[0][:60]} {REASONS[found[1]]}"
    host = value
    if _WEB.match(value):
        try:
            host = host_of(value)
        except BadInput as problem:
            return problem.message
    kind = kind_fetched(host) if host != value else kind_of(host)
    return None if kind in (None, "loopback") else f"{host[:60]} {REASONS[kind]}"


def _denial(
    book: RuleBook, call: ToolCall, tool: str, path: str, what: str, targets: Targets
) -> Decision | None:
    try:
        subject = look(ToolCall(tool, {"file_path": path}, call.cwd, call.home), targets=targets)
    except BadInput as problem:
        return denied(problem.message, what, "bad-call")
    found = book.forbids([subject], what)
    return found if found is not None and found.verdict is Verdict.DENY else None

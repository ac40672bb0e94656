"""Which machines a call reaches, as far as its own words tell (NET-3). Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from cellwall.core.errors import BadInput
from cellwall.core.types import Json
from cellwall.core.verdict import Decision, Verdict
from cellwall.parsing.shell.command import Command
from cellwall.parsing.shell.words import UNKNOWN
from cellwall.policy.addresses import (
    REASONS,
    Found,
    Kind,
    forbidden_in,
    forbidden_in_any,
    forbidden_in_code,
    forbidden_in_urls,
    kind_in_url,
    kind_of,
    normalised,
)
from cellwall.policy.calls import ToolCall
from cellwall.policy.commands.opened import CommandEffects
from cellwall.policy.domains import host_of
from cellwall.policy.rulebook import RuleBook, denied
from cellwall.policy.subjects import Targets, look

_CONNECTING = frozenset(
    {
        *("aria2c", "autossh", "axel", "curl", "curlie", "dbclient", "ftp", "http", "httpie"),
        *("https", "lftp", "lynx", "links", "elinks", "mosh", "nc", "nc.openbsd"),
        *("nc.traditional", "ncat", "netcat", "rsync", "scp", "sftp", "slogin", "socat", "ssh"),
        *("sshfs", "telnet", "tftp", "w3m", "websocat", "wget", "wget2", "xh"),
    }
)
"""Programs whose arguments name the machine that they connect to."""
_INERT = frozenset(
    {
        *("[", "[[", "ack", "ag", "alias", "awk", "base64", "basename", "bat", "batcat", "cat"),
        *("cd", "chgrp", "chmod", "chown", "cmp", "column", "comm", "cp", "cut", "date", "diff"),
        *("dirname", "echo", "egrep", "export", "expr", "fd", "fgrep", "file", "find", "fmt"),
        *("fold", "gawk", "git-grep", "grep", "head", "ipcalc", "jq", "join", "less", "ln"),
        *("local", "ls", "mawk", "mkdir", "more", "mv", "nl", "od", "paste", "printf", "pushd"),
        *("read", "readlink", "realpath", "rg", "rm", "rmdir", "sed", "seq", "set", "sleep"),
        *("sort", "stat", "strings", "tac", "tail", "tee", "test", "touch", "tr", "tree", "true"),
        *("truncate", "uniq", "wc", "xargs", "xxd", "yes", "yq", "zcat", "zgrep", "declare"),
        *("readonly", "typeset", "unset", "false", ":", "return", "exit", "md5sum", "sha256sum"),
    }
)
"""Programs that connect to nothing, whatever their arguments are; awk is searched for /inet."""
_RECORDING = frozenset(("git", "gh", "glab", "hg", "jj", "svn"))
"""Their texts with blanks are messages for people."""
_TEXT_LANGUAGES = frozenset(("awk", "sed", "jq"))
_GLOBBED_HOST = re.compile(r"(?:[A-Za-z][\w+.-]*:/{1,3})([^/?#\s]*@)?([^/?#\s]*[{}\[\]][^/?#\s]*)")
_GLOBBED_BARE = re.compile(
    r"(?:[^/?#\s@]*@)?([A-Za-z0-9.:,{}\[\]-]*[{\[][A-Za-z0-9.:,{}\[\]-]*)(?:/.*)?"
)
_IPV6 = re.compile(r"\[[0-9A-Fa-f:.]*(?:%[\w.%-]*)?\](?::[0-9]*)?")


def address_trouble(command: Command, opened: CommandEffects) -> str | None:
    """Why what a command connects to, or its code names, is denied."""
    program = posixpath.basename(command.words[0].text)
    words = tuple(_own_words(command, opened))
    found = None
    if program in _CONNECTING:
        if program == "curl" and (globbed := _globbed_host(words)):
            return f"curl makes other hosts of {globbed[:60]!r}; write each URL out"
        found = forbidden_in(words)
    elif program not in _INERT:
        found = _first_in(program, words)
    if found is None and command.stdin_text is not None and program not in _INERT:
        text = command.stdin_text.text
        if opened.reads_stdin_as is not None:
            found = forbidden_in_code(text)
        elif program not in _RECORDING:
            found = _first_in(program, re.split(r"[\s'\"]+", text))
    if found is not None:
        return _render_address(found)
    for code in opened.codes:
        if code.text is not None and (trouble := code_trouble(code.language, code.text.text)):
            return trouble
    return None


def code_trouble(language: str, text: str) -> str | None:
    """Why an address that code names is denied."""
    if language in _TEXT_LANGUAGES and "/inet" not in text:
        return None
    if language in _TEXT_LANGUAGES:
        found = forbidden_in(tuple(re.split(r"[\s'\"/]+", text)))
    else:
        found = forbidden_in_code(text)
    return None if found is None else _render_address(found)


def _render_address(found: Found) -> str:
    host, kind = found
    return f"{host.replace(UNKNOWN, '?')[:60]} {REASONS[kind]}"


def _own_words(command: Command, opened: CommandEffects) -> Iterator[str]:
    """The arguments, without those of the commands that it starts, which are judged themselves."""
    others = [word.text for inner in opened.inner for word in inner.words]
    others += [script.text.text for script in opened.scripts]
    others += [code.text.text for code in opened.codes if code.text is not None]
    for word in reversed(command.words[1:]):
        if word.text in others:
            others.remove(word.text)
        else:
            yield word.text


def _first_in(program: str, words: tuple[str, ...] | list[str]) -> Found | None:
    for word in words:
        is_message = (
            program in _RECORDING and re.match(r"\S+\s", word) and "://" not in word.split()[0]
        )
        if not is_message and (found := forbidden_in_any(word)) is not None:
            return found
    return None


def _globbed_host(words: tuple[str, ...]) -> str | None:
    """curl expands `{a,b}` and `[1-3]`, also in a host."""
    for word in words:
        for found in _GLOBBED_HOST.finditer(word):
            if not _IPV6.fullmatch(found[2]):
                return word
        bare = _GLOBBED_BARE.fullmatch(word)
        if bare is None or _IPV6.fullmatch(bare[1]):
            continue
        digits = re.sub(r"[^0-9]", "", bare[1])
        if "." in bare[1] or len(digits) >= 8 or any(map(kind_of, re.split(r"[{},\[\]]", bare[1]))):
            return word
    return None


def kind_fetched(host: str) -> Kind | None:
    """Of the host of a URL that is fetched: one without a dot is a machine of this network."""
    text = normalised(host)
    is_short = bool(text) and not {".", ":"} & set(text)
    return kind_in_url(host) or ("private" if is_short else None)


def judged_address(decision: Decision, host: str) -> Decision:
    """A fetch: denied for a private host; asked about this machine, unless a rule names it."""
    kind = kind_fetched(host)
    if kind is None or decision.verdict is Verdict.DENY:
        return decision
    if kind != "loopback":
        return denied(f"{host} {REASONS[kind]}", decision.subject, "addresses")
    is_named = "(" in decision.rule
    if decision.verdict is Verdict.ASK or is_named:
        return decision
    reason = f"{host} {REASONS[kind]}; only a rule that names it allows it"
    return replace(
        decision, verdict=Verdict.ASK, rule="addresses", reason=reason, source="built-in"
    )


# Files and addresses in the input of a tool that no rule for files or addresses speaks of.
#
# A rule allows a tool of an MCP server, or of an agent, by its name; what is denied to `Read`,
# `Write` and `WebFetch` is denied to that tool as well. Keys tell what a value is: a text that only
# mentions a path is none.

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
    for count, (key, value) in enumerate((*_texts(call.input), *_joined_paths(call.input))):
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


def _joined_paths(given: Json) -> Iterator[tuple[str, str]]:
    """A name that a tool looks for in a folder, which another key of the same object gives."""
    if isinstance(given, list | tuple):
        for value in given:
            yield from _joined_paths(value)
    if not isinstance(given, dict):
        return
    folders = [x for key, x in given.items() if _FOLDER_KEY.search(key) and isinstance(x, str)]
    for key, value in given.items():
        yield from _joined_paths(value)
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

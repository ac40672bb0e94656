"""The machines that a command or code reaches, as far as its words show (NET-3). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cellwall.parsing.shell.words import UNKNOWN, Command
from cellwall.policy.addresses import (
    REASONS,
    AddressFinding,
    forbidden_in,
    forbidden_in_any,
    forbidden_in_code,
    kind_of,
)
from cellwall.policy.commands.effects import CommandEffects

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
"""Programs that never connect; awk is searched for /inet."""
_RECORDING = frozenset(("git", "gh", "glab", "hg", "jj", "svn"))
"""Programs whose texts with blanks are messages for people."""
_TEXT_LANGUAGES = frozenset(("awk", "sed", "jq"))
_GLOBBED_HOST = re.compile(r"(?:[A-Za-z][\w+.-]*:/{1,3})([^/?#\s]*@)?([^/?#\s]*[{}\[\]][^/?#\s]*)")
_GLOBBED_BARE = re.compile(
    r"(?:[^/?#\s@]*@)?([A-Za-z0-9.:,{}\[\]-]*[{\[][A-Za-z0-9.:,{}\[\]-]*)(?:/.*)?"
)
_IPV6 = re.compile(r"\[[0-9A-Fa-f:.]*(?:%[\w.%-]*)?\](?::[0-9]*)?")


def address_trouble(command: Command, effects: CommandEffects) -> str | None:
    """Why an address of a command, or of its code, is denied."""
    program = command.program
    words = tuple(_own_words(command, effects))
    found = None
    if program in _CONNECTING:
        if program == "curl" and (globbed := _globbed_host(words)):
            return f"curl expands {globbed[:60]!r} to other hosts; write each URL"
        found = forbidden_in(words)
    elif program not in _INERT:
        found = _first_in(program, words)
    if found is None and command.stdin_text is not None and program not in _INERT:
        text = command.stdin_text.text
        if effects.reads_stdin_as is not None:
            found = forbidden_in_code(text)
        elif program not in _RECORDING:
            found = _first_in(program, re.split(r"[\s'\"]+", text))
    if found is not None:
        return _render_address(found)
    for code in effects.codes:
        if code.text is not None and (trouble := code_trouble(code.language, code.text.text)):
            return trouble
    return None


def code_trouble(language: str, text: str) -> str | None:
    """Why an address in code is denied."""
    if language in _TEXT_LANGUAGES and "/inet" not in text:
        return None
    if language in _TEXT_LANGUAGES:
        found = forbidden_in(tuple(re.split(r"[\s'\"/]+", text)))
    else:
        found = forbidden_in_code(text)
    return None if found is None else _render_address(found)


def _render_address(found: AddressFinding) -> str:
    host, kind = found
    return f"{host.replace(UNKNOWN, '?')[:60]} {REASONS[kind]}"


def _own_words(command: Command, effects: CommandEffects) -> Iterator[str]:
    """The arguments, without those of inner commands, which are judged by themselves."""
    others = [word.text for inner in effects.inner for word in inner.words]
    others += [script.text.text for script in effects.scripts]
    others += [code.text.text for code in effects.codes if code.text is not None]
    for word in reversed(command.words[1:]):
        if word.text in others:
            others.remove(word.text)
        else:
            yield word.text


def _first_in(program: str, words: tuple[str, ...] | list[str]) -> AddressFinding | None:
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

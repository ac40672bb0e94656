"""Which machines a call reaches, as far as its own words tell (NET-3). Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace

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
    kind_in_url,
    kind_of,
    normalised,
)
from cellwall.policy.commands.opened import Opened
from cellwall.policy.rulebook import denied

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


def address_trouble(command: Command, opened: Opened) -> str | None:
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
        return _told(found)
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
    return None if found is None else _told(found)


def _told(found: Found) -> str:
    host, kind = found
    return f"{host.replace(UNKNOWN, '?')[:60]} {REASONS[kind]}"


def _own_words(command: Command, opened: Opened) -> Iterator[str]:
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

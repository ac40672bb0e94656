"""Which machines a call reaches, as far as its own words tell (NET-3). Pure."""

from __future__ import annotations

import posixpath
from dataclasses import replace

from cellwall.core.verdict import Decision, Verdict
from cellwall.policy.addresses import REASONS, forbidden_in, forbidden_in_code, kind_of
from cellwall.policy.rulebook import denied
from cellwall.policy.shell.command import Command
from cellwall.policy.shell.opened import Opened
from cellwall.policy.shell.words import UNKNOWN

_CONNECTING = frozenset(
    {
        *("aria2c", "autossh", "axel", "curl", "curlie", "dbclient", "ftp", "http", "httpie"),
        *("https", "lftp", "lynx", "links", "elinks", "mosh", "nc", "nc.openbsd"),
        *("nc.traditional", "ncat", "netcat", "rsync", "scp", "sftp", "slogin", "socat", "ssh"),
        *("sshfs", "telnet", "tftp", "w3m", "websocat", "wget", "wget2", "xh"),
    }
)
"""Programs whose arguments name the machine that they connect to."""


def address_trouble(command: Command, opened: Opened) -> str | None:
    """Why what a command connects to, or its code names, is denied."""
    found = None
    if posixpath.basename(command.words[0].text) in _CONNECTING:
        found = forbidden_in(tuple(word.text for word in command.words[1:]))
    texts = [code.text.text for code in opened.codes if code.text is not None]
    if opened.reads_stdin_as is not None and command.stdin_text is not None:
        texts.append(command.stdin_text.text)
    for text in texts:
        found = found or forbidden_in_code(text)
    if found is None:
        return None
    host, kind = found
    return f"{host.replace(UNKNOWN, '?')[:60]} {REASONS[kind]}"


def judged_address(decision: Decision, host: str) -> Decision:
    """A fetch: denied for a private host; asked about this machine, unless a rule names it."""
    kind = kind_of(host)
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

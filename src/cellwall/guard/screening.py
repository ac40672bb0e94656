"""Screens the code and texts of an action before it runs (GRD-9).

Findings are advice and policy input. Code addresses an interpreter, not a model: a sentence that
would be an attack in a page is data here, and is reported but not acted on. Only rules named in
`[guard] denied_code` deny an action. If that setting names rules of a language, code of that
language that cannot be screened is denied as well; otherwise a comment would bypass the rule.
"""

# ruff: noqa: PLC0415  # late imports: the screeners are loaded with the first code
from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from cellwall.core.channel_messages import ReceiveMessage
from cellwall.core.connections import CalendarEvent, UseAccount
from cellwall.core.files import FileOperation
from cellwall.core.outcomes import Finding
from cellwall.core.tool_servers import CallServerTool
from cellwall.core.types import (
    Action,
    CallTool,
    Json,
    ProcessOperation,
    RunCode,
    RunCommand,
    UseTool,
)
from cellwall.guard.report import TextTreatment
from cellwall.guard.scanning import Scanner

_AGENTS = frozenset({"hook", "mcp", "http", "mcp-http"})
_UNSCREENED = {
    "code.text.too-long": "Run it in smaller pieces.",
    "code.text.not-finished": "Run it in smaller pieces, or write it more plainly.",
    "code.text.unparsable": "Fix the syntax, or write that part more plainly.",
}
"""Findings for code that was not screened, each with its hint."""
_INTERPRETERS = ("python", "pypy", "node", "perl", "ruby", "php")
_PROGRAMS = frozenset(
    {"sh", "bash", "dash", "zsh", "ash", "ksh", "mksh", "rbash", "yash", "fish", "bun", "deno",
     "tsx", "ts-node", "su", "runuser", "script", "flock", "sg", "env", "nc", "ncat", "netcat",
     "socat", "crontab", "at", "batch", "systemctl", "tee", "dd", "shred"}
)  # fmt: skip
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%~+=,#-]{0,64}")
_MAX_WORD = 1_000
_MAX_FINDINGS = 50
_MAX_CHARACTERS = 1 << 20
_INCOMPLETE = Finding(
    "unscanned",
    "low",
    "the text is longer, or has more or deeper encodings, than is looked at",
    rule="scan.not-complete",
)
"""What is not looked at is told, not taken for clean."""


def screen_action(
    action: Action,
    scanner: Scanner,
    denied_code: Sequence[str],
    code_patterns: Sequence[str] = (),
) -> Sequence[Finding]:
    """Findings in the code and texts of an action; severity `high` denies it."""
    found: list[Finding] = []
    for where, text, language in _code_parts(action):
        # The parsers are loaded with the first code.
        from cellwall.guard.code import PATTERN_RULE, parse_pattern, screen

        patterns = [parse_pattern(each) for each in code_patterns]
        for hit in screen(text, language, patterns=patterns):
            finding = hit.finding(where)
            is_denied = any(_rule_matches(rule, hit.rule) for rule in denied_code)
            # A pattern of the user's own with such a severity is meant to refuse the code.
            is_denied |= hit.rule == PATTERN_RULE and hit.severity in {"high", "critical"}
            if hit.rule in _UNSCREENED and (
                is_denied or _may_match_language(denied_code, language)
            ):
                found.append(_refuse_unscreened(finding))
            else:
                found.append(
                    replace(finding, severity="high") if is_denied else _cap_at_medium(finding)
                )
    if isinstance(action.operation, ReceiveMessage):
        found += _screen_message(action.operation, scanner)
    # Input of a person at the command line or of an embedding program is not read by a model.
    for where, text in _texts(action) if action.principal.interface in _AGENTS else ():
        report = scanner.scan(text[:_MAX_CHARACTERS], kind="input")
        found += [_cap_at_medium(replace(finding, where=where)) for finding in report.findings]
        if len(text) > _MAX_CHARACTERS or not report.is_complete:
            found.append(replace(_INCOMPLETE, where=where))
    # Denying findings come first, so that a flood of others cannot push them out of the list.
    found.sort(key=lambda finding: finding.severity != "high")
    return found[:_MAX_FINDINGS]


def _screen_message(message: ReceiveMessage, scanner: Scanner) -> list[Finding]:
    """Findings in a message that a model will read; a treatment stricter than NEUTRALISE denies.

    ASK denies as well: the person who could be asked is the sender.
    """
    report = scanner.scan(message.content, kind="input", channel=message.channel)
    treatments = scanner.settings.treatments("input")
    incomplete = () if report.is_complete else (_INCOMPLETE,)
    return [
        replace(finding, severity="high")
        if treatments[finding.severity].rank > TextTreatment.NEUTRALISE.rank
        else _cap_at_medium(finding)
        for finding in (*report.findings, *incomplete)
    ]


def _cap_at_medium(finding: Finding) -> Finding:
    """Reported only: no model reads the text here."""
    return finding if finding.severity == "low" else replace(finding, severity="medium")


def _refuse_unscreened(finding: Finding) -> Finding:
    why = f"{finding.message}, and [guard] denied_code refuses what could be in it"
    return replace(finding, severity="high", message=f"{why}. {_UNSCREENED[finding.rule]}")


def _may_match_language(denied_code: Sequence[str], language: str) -> bool:
    """Whether one of the rules can match code of this language. A shell command may contain code
    of any language."""
    from cellwall.guard.code import RULES, language_named

    name = language_named(language)
    kinds = {"javascript" if name == "typescript" else name}
    if name == "shell":
        kinds |= {"python", "javascript"}
    return any(
        _rule_matches(rule, known)
        for rule in denied_code
        for known in RULES
        if known.split(".")[1] in kinds
    )


def _rule_matches(rule: str, found: str) -> bool:
    return found.startswith(rule[:-1]) if rule.endswith("*") else found == rule


def _code_parts(action: Action) -> Iterator[tuple[str, str, str]]:
    """Location, code and language of each piece of code."""
    match action.operation:
        case RunCode(language, code):
            yield "code", code.decode("utf-8", "replace"), language
        case RunCommand(argv):
            yield from _command_parts(argv)
        case UseTool(tool="Bash", input=given):
            command = given.get("command")
            if isinstance(command, str):
                yield "command", command, "shell"
        case _:
            return


def _command_parts(argv: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Inline code in the arguments, then the command without that code."""
    if not any(_is_notable(word) for word in argv):
        return  # true of most commands, so no parser is loaded for them
    from cellwall.guard.code import code_in

    words = [word[:_MAX_WORD] for word in argv]
    for given in code_in(argv):
        # With implausibly many options `text` is None, and the words are screened unchanged.
        if given.text is not None:
            yield "command", given.text, given.language
            words[given.at] = ""
    yield "command", shlex.join(words), "shell"


def _is_notable(word: str) -> bool:
    """Whether the screening has rules for a program of this name or for such a path."""
    name = word.rpartition("/")[2]
    return name in _PROGRAMS or name.startswith(_INTERPRETERS) or "/dev/" in word


def _texts(action: Action) -> Iterator[tuple[str, str]]:
    match action.operation:
        case RunCode(_, code):
            yield "code", code.decode("utf-8", "replace")
        case RunCommand(argv):
            yield "command", "\n".join(argv)
        case FileOperation(content=content) if content:
            yield "content", content.decode("utf-8", "replace")
        case ProcessOperation(data=data) if data:
            yield "stdin", data.decode("utf-8", "replace")
        case UseTool(input=given):
            yield "input", "\n".join(strings(given))
        case UseAccount(event=CalendarEvent() as event):
            yield "event", f"{event.summary}\n{event.location}\n{event.description}"
        case CallServerTool(arguments=given):
            # Names, paths and numbers form no sentence.
            words = [each for each in strings(given) if _PLAIN.fullmatch(each) is None]
            if words:
                yield "arguments", "\n".join(words)
        case CallTool(args=args, kwargs=kwargs):
            yield "arguments", "\n".join([*strings(args), *strings(kwargs)])
        case _:
            return


def strings(value: Json) -> Iterator[str]:
    """All strings inside, keys included, however deep: a model reads all of them."""
    waiting: list[Json] = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            for key, each in reversed(item.items()):
                waiting += (each, str(key))
        elif isinstance(item, list | tuple):
            waiting.extend(reversed(item))

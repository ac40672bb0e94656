"""Finds attacks in the definition of a tool, which a model reads before any call (tool poisoning).

A definition describes one tool to a model. It has no reason to hide text, to tell what other tools
are to be used for, or to ask for files and conversations. Such a definition is not refused by
itself: a person sees the findings and decides. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from cellwall.core.outcomes import Finding, Severity
from cellwall.core.text import INVISIBLE
from cellwall.guard.scanning import Scanner

_MAX_FINDINGS = 50
_MAX_TEXT = 32 * 1024
# Identifiers and types form no sentence.
_PLAIN = re.compile(r"[A-Za-z0-9_.:/$#-]{0,48}")
_WORD = re.compile(r"[A-Za-z0-9_-]+")  # with more structure it would take quadratic time
# Parts of an emoji: a selector or joiner after a symbol.
_EMOJI_PARTS = re.compile("(?<=[\u2000-\u3300\U0001f000-\U0001faff])[\ufe0e\ufe0f\u200d]")

_TOOL = r"(?:tools?|functions?|servers?)"
_STEERING = re.compile(
    rf"(?ix)\b(?:before|prior\ to|instead\ of|rather\ than|after)\b[^.\n]{{0,30}}\b"
    rf"(?:any|every|each|all|other|another)\b[^.\n]{{0,20}}\b{_TOOL}\b"
    rf"|\b(?:always|must|first)\b[^.\n]{{0,40}}\b(?:call|use|run|invoke|execute)(?:ed|d)?\b"
    rf"[^.\n]{{0,20}}\bthis\ {_TOOL}\b"
    rf"|\bthis\ {_TOOL}\b[^.\n]{{0,20}}\b(?:must|has\ to|should\ always)\b[^.\n]{{0,20}}"
    rf"\b(?:first|before)\b"
    rf"|\bwhen(?:ever)?\ this\ {_TOOL}\ (?:is|was|has\ been)\ "
    rf"(?:available|present|installed|loaded|connected)\b"
    rf"|\b(?:do\ not|don't|never)\ (?:use|call|invoke)\b[^.\n]{{0,30}}\bother\b"
    rf"[^.\n]{{0,10}}{_TOOL}"
    rf"|\bthe\ [\w-]+\ {_TOOL}\ (?:must|has\ to|should\ always)\b"
)
_DISCLOSING = re.compile(
    r"(?ix)~/\.\w|\bid_(?:rsa|ed25519)\b|(?:^|[\s`'\"(/])\.env\b|\bmcp\.json\b|/etc/passwd"
    r"|\b(?:system\ prompt|chat\ history)\b"
    r"|\b(?:full|entire|whole|complete)\ (?:conversation|chat|context|prompt)\b"
    r"|\b(?:conversation|chat|message)\ history\b"
    r"|\bprivate\ keys?\b|\bssh\ keys?\b"
)


def screen_definition(
    scanner: Scanner, texts: Iterable[tuple[str, str]], *, foreign_tools: frozenset[str]
) -> tuple[Finding, ...]:
    """Findings in all texts of a definition; `foreign_tools` are names of tools of others."""
    found: list[Finding] = []
    for where, text in texts:
        if _PLAIN.fullmatch(text) is None or text in foreign_tools:
            place = where[:80]
            found += [replace(each, where=place) for each in _in_text(scanner, text, foreign_tools)]
        if len(found) >= _MAX_FINDINGS:
            break
    return tuple(found[:_MAX_FINDINGS])


def _in_text(scanner: Scanner, text: str, foreign_tools: frozenset[str]) -> Iterator[Finding]:
    if _has_invisible(text):
        yield _finding("high", "tool.invisible", "it holds characters that nobody sees")
    if len(text) > _MAX_TEXT:
        yield _finding("medium", "tool.long", "a text is too long to be read by a person")
        text = text[:_MAX_TEXT]
    yield from scanner.scan(text, kind="output").findings
    if _STEERING.search(text):
        yield _finding("medium", "tool.steers", "it says when other tools are to be used")
    if _DISCLOSING.search(text):
        yield _finding("medium", "tool.discloses", "it names secrets, files or the conversation")
    named = sorted(foreign_tools.intersection(_WORD.findall(text)))
    if named:
        yield _finding("medium", "tool.names-others", f"it names tools of others: {named[0]}")


def _has_invisible(text: str) -> bool:
    if text.isascii() and text.isprintable():
        return False
    rest = _EMOJI_PARTS.sub("", text)
    return INVISIBLE.search(rest) is not None or any(
        not char.isprintable() and char not in "\n\r\t" for char in rest
    )


def _finding(severity: Severity, rule: str, message: str) -> Finding:
    return Finding("tool-poisoning", severity, message, rule=rule)

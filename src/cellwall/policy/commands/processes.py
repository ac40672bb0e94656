"""kill and pkill: which processes they end. Pure.

Process -1 is every process of the caller, in whatever way the signal is given; a pattern without a
few letters of its own fits every process as well. No rule allows either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cellwall.parsing.shell.outputs import fits_everything
from cellwall.parsing.shell.words import UNKNOWN, Number, Origin, Word
from cellwall.policy.commands.arguments import Scan, scan
from cellwall.policy.commands.catalog import Model
from cellwall.policy.commands.interpret import Finds, interpret
from cellwall.policy.commands.opened import Opened

_FIRST_OR_GROUP = re.compile(r"\s*[-+]?0*[01]\s*\Z")
_ALL = re.compile(r"\s*-0*1\s*\Z")
_WITH_SIGNAL = frozenset(("-s", "-n", "-q", "--signal", "--queue", "--timeout"))
_EVERYTHING = "it ends every process there is"
_NOT_KNOWN = (
    "which process it ends is known only when it runs; write its number, `kill $!` or "
    "`pkill -F FILE`"
)
_NARROWS = ("-P", "--parent", "-t", "--terminal", "-g", "--pgroup", "-F", "--pidfile")


def open_kill(_model: Model, words: Sequence[Word]) -> Opened:
    """The first process and all of them are nobody's to end; which others, the kernel decides."""
    finds = Finds()
    for word in _processes(words):
        # `kill $?` is `kill 1` as soon as something has failed.
        is_own = word.is_operand and word.origin is Origin.ENVIRONMENT
        is_process = word.number in (Number.PROCESS, Number.PROCESSES) or is_own
        if _ALL.match(word.text):
            finds.danger("", _EVERYTHING)
        elif _FIRST_OR_GROUP.match(word.text):
            finds.danger(word.text, "it ends the first process, or every process there is")
        elif UNKNOWN in word.text and not is_process:
            finds.danger("", _NOT_KNOWN)
    return finds.opened()


def _processes(words: Sequence[Word]) -> Iterator[Word]:
    """The words behind the signal: `-9`, `-KILL`, `-s KILL`, `-n 9`, `--signal KILL`, `--`."""
    at, has_signal = 1, False
    while at < len(words):
        text = words[at].text
        if text == "--":
            yield from words[at + 1 :]
            return
        if text in _WITH_SIGNAL:
            has_signal, at = True, at + 1 + (text == "--timeout")
        elif text.startswith("-") and not has_signal and at + 1 < len(words):
            has_signal = True
        else:
            yield words[at]
        at += 1


def open_pkill(model: Model, words: Sequence[Word]) -> Opened:
    """As the data says, but for patterns that fit every process."""
    finds = Finds()
    opened = interpret(model, words)
    finds.merge(opened)
    found = scan(model, words[1:])
    if any(given.option.effect.kind == "query" for given in found.given) or len(words) == 1:
        return opened
    narrowed = found.has(*_NARROWS)
    if found.has("-v", "--inverse") or any(word.text.startswith("--inv") for word in found.strange):
        finds.danger("", _EVERYTHING)
    for word in found.operands:
        if not narrowed and fits_everything(word.text):
            finds.danger("", _EVERYTHING)
    if not found.operands and not narrowed and _ends_somebodys(found):
        finds.danger("", _EVERYTHING)
    return finds.opened()


def _ends_somebodys(found: Scan) -> bool:
    return found.has("-u", "--euid", "-U", "--uid", "-G", "--group")

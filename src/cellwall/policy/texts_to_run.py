"""Texts that a program without a model, or one that takes commands from a person, may run. Pure.

`pwsh -c TEXT`, `erl -eval TEXT`, `ed <<< '!TEXT'`: nobody reads these languages here. Where such a
text, or what stands between its quotes, is a shell command that rules deny, it is denied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from cellwall.policy.shell.command import Command
from cellwall.policy.shell.opened import Opened
from cellwall.policy.shell.started_scan import is_scanned

_OPTION: Final = re.compile(
    r"--?(?:e|E|c|C|g|x|eval|exec|execute|expr|command|commands|Command|run|batch-string)\Z"
)
_JOINED: Final = re.compile(
    r"--?(?:eval|exec|execute|expr|command|run|batch-string)=(.+)\Z", re.DOTALL
)
_SUB: Final = frozenset(("eval", "exec", "e", "--command"))
_ESCAPED: Final = re.compile(
    r"^[ \t]*(?:\\?!|\\!|\.(?:shell|system)\b|:!|shell\b|sh\b)[ \t]*(.+)$", re.MULTILINE
)
_BETWEEN: Final = re.compile(r"""(["'`])([^"'`\n]{2,300})\1|syscmd\(([^)\n]{2,300})\)""")
_MAX_TEXTS: Final = 64


def texts_to_run(command: Command, opened: Opened) -> Iterator[str]:
    """Each text of the command that may be run, and each text within it."""
    for count, text in enumerate(_whole_texts(command, opened)):
        if count >= _MAX_TEXTS:
            return
        yield text
        for found in list(_BETWEEN.finditer(text))[:_MAX_TEXTS]:
            yield found[2] or found[3]


def _whole_texts(command: Command, opened: Opened) -> Iterator[str]:
    words = [word.text for word in command.words]
    for code in opened.codes:
        if code.text is not None and not _is_read(code.language):
            yield code.text.text
            yield from (found[1] for found in _ESCAPED.finditer(code.text.text))
    if opened.is_unmodelled:
        for option, text in pairwise(words[1:]):
            if _OPTION.match(option) or (option in _SUB and option == words[1]):
                yield text
        for word in words[1:]:
            if (joined := _JOINED.match(word)) is not None:
                yield joined[1]
    typed = [each.text for each in (command.stdin_text, command.piped) if each is not None]
    language = opened.reads_stdin_as
    is_unread = language is not None and not _is_read(language)
    if opened.is_typed or opened.is_unmodelled or is_unread:
        for text in typed:
            yield from (found[1] for found in _ESCAPED.finditer(text))
            yield from (found[3] for found in _BETWEEN.finditer(text) if found[3])


def _is_read(language: str) -> bool:
    """Its code is judged elsewhere, by what it starts."""
    return language in ("python", "sh", "bash", "sed", "awk") or is_scanned(language)

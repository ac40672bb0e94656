"""Which variables a text gives values to that a script inside of it then uses. Pure.

`X=~/.ssh/id_rsa; eval 'cat "$X"'`: in the script alone X looks like a variable of the person's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from cellwall.parsing.shell.command import Command
from cellwall.parsing.shell.names import RUNNERS, SETTERS
from cellwall.policy.commands.models import open_known

ANY_NAME = "*"
"""Among the names: any variable may have been set."""
_find_names = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").findall
_BEHIND = frozenset(("command", "builtin"))


def outer_names(commands: Sequence[Command], script: Command) -> frozenset[str]:
    """Names that these commands may set before the script of one of them runs. Text that is run
    elsewhere (`eval`, `source`) may set any name."""
    runners = sum(_program(each) in RUNNERS for each in commands)
    is_own = _program(script) in RUNNERS
    found = {ANY_NAME} if runners > is_own else set()
    for each in commands:
        found.update(_names_set_by(each))
    return frozenset(found)


def _program(command: Command) -> str:
    texts = [word.text for word in command.words]
    while texts and texts[0] in _BEHIND:
        texts = texts[1:]
    return texts[0] if texts else ""


def _names_set_by(command: Command) -> Iterator[str]:
    yield from (each.name for each in command.assignments)
    if command.words:
        yield from (each.name for each in open_known(command.words).assignments)
    if _program(command) in SETTERS:
        for word in command.words:
            yield from _find_names(word.text)

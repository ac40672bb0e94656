"""What a command's arguments make it run, read and write. Pure.

The data stands in `data/`; `HANDLERS` are the commands whose arguments are a language.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from cellwall.parsing.shell.words import Word
from cellwall.policy.commands import (
    archives,
    awk,
    find,
    git,
    interpreters,
    processes,
    sed,
    shells,
    wrappers,
)
from cellwall.policy.commands.catalog import Model, find_model
from cellwall.policy.commands.interpret import interpret
from cellwall.policy.commands.opened import Opened
from cellwall.policy.commands.unmodelled import open_unmodelled

Handler = Callable[[Model, Sequence[Word]], Opened]

HANDLERS: Final[Mapping[str, Handler]] = {
    "alias": shells.open_alias,
    "awk": awk.open_awk,
    "env": wrappers.open_env,
    "export": shells.open_declare,
    "fd": find.open_fd,
    "find": find.open_find,
    "getopts": shells.open_getopts,
    "git": git.open_git,
    "kill": processes.open_kill,
    "let": shells.open_let,
    "mapfile": shells.open_names,
    "parallel": wrappers.open_parallel,
    "pkill": processes.open_pkill,
    "printf": shells.open_printf,
    "python": interpreters.open_python,
    "read": shells.open_names,
    "sed": sed.open_sed,
    "sh": shells.open_sh,
    "source": shells.open_source,
    "tar": archives.open_tar,
    "test": shells.open_test,
    "trap": shells.open_trap,
    "unset": shells.open_names,
    "xargs": wrappers.open_xargs,
}


def open_command(words: Sequence[Word]) -> Opened:
    """What is inside of a command; a program that has no model is opened by the general rule."""
    if not words or not words[0].is_literal:
        return Opened()
    model = find_model(words[0].text)
    if model is None:
        return open_unmodelled(words)
    return HANDLERS.get(model.name, interpret)(model, tuple(words))


open_known = lru_cache(maxsize=4096)(open_command)
"""The same for words in a tuple, which are opened once."""

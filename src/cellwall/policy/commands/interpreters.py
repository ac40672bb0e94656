"""Interpreters whose modules and scripts are programs of their own: `python -m pip`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from cellwall.parsing.shell.words import Word
from cellwall.policy.commands.arguments import scan
from cellwall.policy.commands.catalog import Model, find_model
from cellwall.policy.commands.interpret import Finds, interpret
from cellwall.policy.commands.opened import Opened

_RUNNERS = {"cProfile", "profile", "trace", "coverage", "memory_profiler", "viztracer", "scalene"}
"""Modules that run another module, which they too take behind `-m`."""


_SHELLS = {
    **dict.fromkeys(("code", "asyncio", "IPython", "ptpython", "bpython"), "python"),
    "pty": "sh",
}
"""Modules that run what they read from standard input."""
_COMMANDED = frozenset(("pdb", "ipdb", "pudb", "IPython"))
"""Modules that run the text behind `-c`."""


def open_python(model: Model, words: Sequence[Word]) -> Opened:
    """A module or a script that has a model is opened like the program of that name."""
    found = scan(model, words[1:])
    finds = Finds()
    finds.merge(interpret(model, words))
    started = (*found.values("-m"), *(found.rest or ())) if found.has("-m") else found.operands
    if not started or found.has("-c"):
        return finds.opened()
    if not started[0].is_literal:
        finds.danger("", "which code python runs is not known")
        return finds.opened()
    name = started[0].text
    inner = find_model(name) if found.has("-m") or name.endswith(".py") else None
    if inner is not None and inner is not model:
        finds.merge(interpret(inner, tuple(started)))
    if found.has("-m"):
        _open_module(finds, name, started)
    if name == "timeit":
        for word in started[1:]:
            if not word.text.startswith("-"):
                finds.code("python", word, "timeit", "timeit runs it")
    if name in _RUNNERS:
        for option, module in pairwise(started):
            if option.text in ("-m", "--module"):
                finds.apply(model.cases["modules"], module, option.text)
    return finds.opened()


def _open_module(finds: Finds, name: str, words: Sequence[Word]) -> None:
    """`python -m code`, `python -m pdb -c TEXT`."""
    if name in _SHELLS:
        finds.reads_stdin_as = _SHELLS[name]
    if name in _COMMANDED:
        for option, text in pairwise(words):
            if option.text in ("-c", "--command"):
                code = Word(text.text.removeprefix("!"), text.is_split, text.has_glob)
                finds.code("python", code, "-c", f"{name} runs it")

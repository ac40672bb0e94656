"""Programs whose arguments need code, and the table of all handlers. Pure.

`data/` describes the options of most programs; `HANDLERS` names the programs whose arguments are a
language of their own.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Final

from cellwall.parsing.shell.outputs import fits_everything
from cellwall.parsing.shell.words import UNKNOWN, Number, Origin, Word
from cellwall.policy.commands import (
    awk,
    find,
    git,
    sed,
    shells,
    wrappers,
)
from cellwall.policy.commands.arguments import Scan, scan
from cellwall.policy.commands.catalog import Model, find_model
from cellwall.policy.commands.interpret import EffectsBuilder, interpret, note_options
from cellwall.policy.commands.opened import CommandEffects
from cellwall.policy.commands.unmodelled import open_unmodelled

_MAKES = (
    *("-c", "--create", "-r", "--append", "-u", "--update"),
    *("-A", "--catenate", "--concatenate", "--delete"),
)
_replacement = re.compile(r"(?:flags=[^;]*;)?s(?P<sign>.).*?(?P=sign)(.+?)(?P=sign)").match
_TAKES = ("-x", "--extract", "--get")


def open_tar(model: Model, words: Sequence[Word]) -> CommandEffects:
    """All that runs code is in the data; this is about the paths."""
    finds = EffectsBuilder()
    found = scan(model, words[1:])
    note_options(finds, model, found)
    if any(given.option.effect.kind == "query" for given in found.given):
        return finds.build()
    for listed in found.values("-T", "--files-from"):
        finds.names(listed)
    makes = found.has(*_MAKES)
    if found.has("--force-local"):
        remote = model.cases["archive"].cases[0][1].why
        finds.dangers = [danger for danger in finds.dangers if danger.why != remote]
    for archive in found.values("-f", "--file"):
        finds.file("write" if makes else "read", archive, "the archive")
    if makes:
        # Each folder holds for the words behind it, and begins where the one before it led.
        named = [each.text for each in found.values("-C", "--directory")]
        folders = dict.fromkeys((*named, posixpath.join("", *named)) if named else ())
        for word in found.operands:
            finds.file("read", word, "it is put into the archive")
            for place in folders:
                path = replace(word, text=posixpath.join(place, word.text))
                finds.file("read", path, "it is put into the archive")
    if found.has(*_TAKES):
        _note_unpacked(finds, found)
    return finds.build()


def _note_unpacked(finds: EffectsBuilder, found: Scan) -> None:
    for expression in found.values("--transform", "--xform"):
        # Files of the archive get such a name; what would lead out of the folder tar takes away.
        if given := _replacement(expression.text):
            finds.file("write", replace(expression, text=given[2]), "tar gives files this name")
    if found.has("-O", "--to-stdout"):
        return
    for folder in found.values("-C", "--directory") or (Word("."),):
        finds.file("write", folder, "the archive is unpacked there")
        for word in found.operands:
            path = replace(word, text=posixpath.join(folder.text, word.text))
            finds.file("write", path, "it is unpacked")


# kill and pkill: which processes they end.
#
# Process -1 is every process of the caller, in whatever way the signal is given; a pattern without
# a few letters of its own fits every process as well. No rule allows either.

_FIRST_OR_GROUP = re.compile(r"\s*[-+]?0*[01]\s*\Z")
_ALL = re.compile(r"\s*-0*1\s*\Z")
_WITH_SIGNAL = frozenset(("-s", "-n", "-q", "--signal", "--queue", "--timeout"))
_EVERYTHING = "it ends every process there is"
_NOT_KNOWN = (
    "which process it ends is known only when it runs; write its number, `kill $!` or "
    "`pkill -F FILE`"
)
_NARROWS = ("-P", "--parent", "-t", "--terminal", "-g", "--pgroup", "-F", "--pidfile")


def open_kill(_model: Model, words: Sequence[Word]) -> CommandEffects:
    """The first process and all of them are nobody's to end; which others, the kernel decides."""
    finds = EffectsBuilder()
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
    return finds.build()


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


def open_pkill(model: Model, words: Sequence[Word]) -> CommandEffects:
    """As the data says, but for patterns that fit every process."""
    finds = EffectsBuilder()
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
    return finds.build()


def _ends_somebodys(found: Scan) -> bool:
    return found.has("-u", "--euid", "-U", "--uid", "-G", "--group")


# Interpreters whose modules and scripts are programs of their own: `python -m pip`.

_RUNNERS = {"cProfile", "profile", "trace", "coverage", "memory_profiler", "viztracer", "scalene"}
"""Modules that run another module, which they too take behind `-m`."""


_SHELLS = {
    **dict.fromkeys(("code", "asyncio", "IPython", "ptpython", "bpython"), "python"),
    "pty": "sh",
}
"""Modules that run what they read from standard input."""
_COMMANDED = frozenset(("pdb", "ipdb", "pudb", "IPython"))
"""Modules that run the text behind `-c`."""


def open_python(model: Model, words: Sequence[Word]) -> CommandEffects:
    """A module or a script that has a model is opened like the program of that name."""
    found = scan(model, words[1:])
    finds = EffectsBuilder()
    finds.merge(interpret(model, words))
    started = (*found.values("-m"), *(found.rest or ())) if found.has("-m") else found.operands
    if not started or found.has("-c"):
        return finds.build()
    if not started[0].is_literal:
        finds.danger("", "which code python runs is not known")
        return finds.build()
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
    return finds.build()


def _open_module(finds: EffectsBuilder, name: str, words: Sequence[Word]) -> None:
    """`python -m code`, `python -m pdb -c TEXT`."""
    if name in _SHELLS:
        finds.reads_stdin_as = _SHELLS[name]
    if name in _COMMANDED:
        for option, text in pairwise(words):
            if option.text in ("-c", "--command"):
                code = Word(text.text.removeprefix("!"), text.is_split, text.has_glob)
                finds.code("python", code, "-c", f"{name} runs it")


# What a command's arguments make it run, read and write.
#
# The data stands in `data/`; `HANDLERS` are the commands whose arguments are a language.

Handler = Callable[[Model, Sequence[Word]], CommandEffects]

HANDLERS: Final[Mapping[str, Handler]] = {
    "alias": shells.open_alias,
    "awk": awk.open_awk,
    "env": wrappers.open_env,
    "export": shells.open_declare,
    "fd": find.open_fd,
    "find": find.open_find,
    "getopts": shells.open_getopts,
    "git": git.open_git,
    "kill": open_kill,
    "let": shells.open_let,
    "mapfile": shells.open_names,
    "parallel": wrappers.open_parallel,
    "pkill": open_pkill,
    "printf": shells.open_printf,
    "python": open_python,
    "read": shells.open_names,
    "sed": sed.open_sed,
    "sh": shells.open_sh,
    "source": shells.open_source,
    "tar": open_tar,
    "test": shells.open_test,
    "trap": shells.open_trap,
    "unset": shells.open_names,
    "xargs": wrappers.open_xargs,
}


def open_command(words: Sequence[Word]) -> CommandEffects:
    """What is inside of a command; a program that has no model is opened by the general rule."""
    if not words or not words[0].is_literal:
        return CommandEffects()
    model = find_model(words[0].text)
    if model is None:
        return open_unmodelled(words)
    return HANDLERS.get(model.name, interpret)(model, tuple(words))


open_known = lru_cache(maxsize=4096)(open_command)
"""The same for words in a tuple, which are opened once."""

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
from cellwall.policy.commands import awk, git, sed, shells, wrappers
from cellwall.policy.commands.arguments import ArgumentModel, Scan, scan
from cellwall.policy.commands.catalog import find_model
from cellwall.policy.commands.effects import CommandEffects, EffectsBuilder
from cellwall.policy.commands.interpret import interpret, read_options
from cellwall.policy.commands.unmodelled import analyse_unmodelled

_MAKES = (
    *("-c", "--create", "-r", "--append", "-u", "--update"),
    *("-A", "--catenate", "--concatenate", "--delete"),
)
_replacement = re.compile(r"(?:flags=[^;]*;)?s(?P<sign>.).*?(?P=sign)(.+?)(?P=sign)").match
_TAKES = ("-x", "--extract", "--get")


def analyse_tar(model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """The data covers options that run code; this function covers the paths."""
    builder, found = read_options(model, words)
    if found.is_query:
        return builder.build()
    for listed in found.values("-T", "--files-from"):
        builder.names(listed)
    makes = found.has(*_MAKES)
    if found.has("--force-local"):
        remote = model.cases["archive"].cases[0][1].why
        builder.dangers = [danger for danger in builder.dangers if danger.why != remote]
    for archive in found.values("-f", "--file"):
        builder.file("write" if makes else "read", archive, "the archive")
    if makes:
        # Each folder applies to the words after it, and is relative to the folder before it.
        named = [each.text for each in found.values("-C", "--directory")]
        folders = dict.fromkeys((*named, posixpath.join("", *named)) if named else ())
        for word in found.operands:
            builder.file("read", word, "it is put into the archive")
            for place in folders:
                path = replace(word, text=posixpath.join(place, word.text))
                builder.file("read", path, "it is put into the archive")
    if found.has(*_TAKES):
        _note_unpacked(builder, found)
    return builder.build()


def _note_unpacked(builder: EffectsBuilder, found: Scan) -> None:
    for expression in found.values("--transform", "--xform"):
        # Files of the archive get such a name; tar removes parts that lead out of the folder.
        if match := _replacement(expression.text):
            builder.file("write", replace(expression, text=match[2]), "tar gives files this name")
    if found.has("-O", "--to-stdout"):
        return
    for folder in found.values("-C", "--directory") or (Word("."),):
        builder.file("write", folder, "the archive is unpacked there")
        for word in found.operands:
            path = replace(word, text=posixpath.join(folder.text, word.text))
            builder.file("write", path, "it is unpacked")


# kill and pkill: the processes that they signal.
#
# Process -1 is every process of the caller, however the signal is written; a pattern without two
# letters of its own matches every process as well. No rule allows either.

_FIRST_OR_GROUP = re.compile(r"\s*[-+]?0*[01]\s*\Z")
_ALL = re.compile(r"\s*-0*1\s*\Z")
_WITH_SIGNAL = frozenset(("-s", "-n", "-q", "--signal", "--queue", "--timeout"))
_EVERYTHING = "it ends every process"
_NOT_KNOWN = "the process is known only at run time; write its number, `kill $!` or `pkill -F FILE`"
_NARROWS = ("-P", "--parent", "-t", "--terminal", "-g", "--pgroup", "-F", "--pidfile")


def analyse_kill(_model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """No rule allows a signal to process 1 or to all processes; the kernel decides on others."""
    builder = EffectsBuilder()
    for word in _processes(words):
        # `kill $?` is `kill 1` as soon as something has failed.
        is_own = word.is_operand and word.origin is Origin.ENVIRONMENT
        is_process = word.number in (Number.PROCESS, Number.PROCESSES) or is_own
        if _ALL.match(word.text):
            builder.danger("", _EVERYTHING)
        elif _FIRST_OR_GROUP.match(word.text):
            builder.danger(word.text, "it ends process 1, or every process")
        elif UNKNOWN in word.text and not is_process:
            builder.danger("", _NOT_KNOWN)
    return builder.build()


def _processes(words: Sequence[Word]) -> Iterator[Word]:
    """The words after the signal: `-9`, `-KILL`, `-s KILL`, `-n 9`, `--signal KILL`, `--`."""
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


def analyse_pkill(model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """As the data says, but for patterns that match every process."""
    builder = EffectsBuilder()
    effects = interpret(model, words)
    builder.merge(effects)
    found = scan(model, words[1:])
    if found.is_query or len(words) == 1:
        return effects
    narrowed = found.has(*_NARROWS)
    if found.has("-v", "--inverse") or any(word.text.startswith("--inv") for word in found.strange):
        builder.danger("", _EVERYTHING)
    for word in found.operands:
        if not narrowed and fits_everything(word.text):
            builder.danger("", _EVERYTHING)
    if not found.operands and not narrowed and _selects_by_owner(found):
        builder.danger("", _EVERYTHING)
    return builder.build()


def _selects_by_owner(found: Scan) -> bool:
    return found.has("-u", "--euid", "-U", "--uid", "-G", "--group")


# Interpreters whose modules and scripts are programs of their own: `python -m pip`.

_RUNNERS = {"cProfile", "profile", "trace", "coverage", "memory_profiler", "viztracer", "scalene"}
"""Modules that run another module, also after `-m`."""


_SHELLS = {
    **dict.fromkeys(("code", "asyncio", "IPython", "ptpython", "bpython"), "python"),
    "pty": "sh",
}
"""Modules that run code from standard input."""
_COMMANDED = frozenset(("pdb", "ipdb", "pudb", "IPython"))
"""Modules that run the text after `-c`."""


def analyse_python(model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """A module or a script that has a model has the effects of the program of that name."""
    found = scan(model, words[1:])
    builder = EffectsBuilder()
    builder.merge(interpret(model, words))
    started = (*found.values("-m"), *(found.rest or ())) if found.has("-m") else found.operands
    if not started or found.has("-c"):
        return builder.build()
    if not started[0].is_literal:
        builder.danger("", "the code that python runs is not known")
        return builder.build()
    name = started[0].text
    inner = find_model(name) if found.has("-m") or name.endswith(".py") else None
    if inner is not None and inner is not model:
        builder.merge(interpret(inner, tuple(started)))
    if found.has("-m"):
        _analyse_module(builder, name, started)
    if name == "timeit":
        for word in started[1:]:
            if not word.text.startswith("-"):
                builder.code("python", word, "timeit", "timeit runs it")
    if name in _RUNNERS:
        for option, module in pairwise(started):
            if option.text in ("-m", "--module"):
                builder.apply(model.cases["modules"], module, option.text)
    return builder.build()


def _analyse_module(builder: EffectsBuilder, name: str, words: Sequence[Word]) -> None:
    """`python -m code`, `python -m pdb -c TEXT`."""
    if name in _SHELLS:
        builder.reads_stdin_as = _SHELLS[name]
    if name in _COMMANDED:
        for option, text in pairwise(words):
            if option.text in ("-c", "--command"):
                code = Word(text.text.removeprefix("!"), text.is_split, text.has_glob)
                builder.code("python", code, "-c", f"{name} runs it")


Handler = Callable[[ArgumentModel, Sequence[Word]], CommandEffects]

HANDLERS: Final[Mapping[str, Handler]] = {
    "alias": shells.analyse_alias,
    "awk": awk.analyse_awk,
    "env": wrappers.analyse_env,
    "export": shells.analyse_declare,
    "fd": wrappers.analyse_fd,
    "find": wrappers.analyse_find,
    "getopts": shells.analyse_getopts,
    "git": git.analyse_git,
    "kill": analyse_kill,
    "let": shells.analyse_let,
    "mapfile": shells.analyse_names,
    "parallel": wrappers.analyse_parallel,
    "pkill": analyse_pkill,
    "printf": shells.analyse_printf,
    "python": analyse_python,
    "read": shells.analyse_names,
    "sed": sed.analyse_sed,
    "sh": shells.analyse_sh,
    "source": shells.analyse_source,
    "tar": analyse_tar,
    "test": shells.analyse_test,
    "trap": shells.analyse_trap,
    "unset": shells.analyse_names,
    "xargs": wrappers.analyse_xargs,
}


def find_effects(words: Sequence[Word]) -> CommandEffects:
    """The effects of a command; a program without a model follows the general rule."""
    if not words or not words[0].is_literal:
        return CommandEffects()
    model = find_model(words[0].text)
    if model is None:
        return analyse_unmodelled(words)
    return HANDLERS.get(model.name, interpret)(model, tuple(words))


effects_of = lru_cache(maxsize=4096)(find_effects)
"""The same for words in a tuple; recent results are cached."""

"""Shells, and the built-in commands of a shell that run text or evaluate names. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from itertools import pairwise

from cellwall.parsing.shell.command import Assignment
from cellwall.parsing.shell.dialects import has_number_format
from cellwall.parsing.shell.words import UNKNOWN, Number, Origin, Word
from cellwall.policy.commands.arguments import scan
from cellwall.policy.commands.catalog import Model
from cellwall.policy.commands.interpret import EffectsBuilder, is_device, note_options
from cellwall.policy.commands.opened import CommandEffects, ShellScript

SUBSCRIPT = "the shell evaluates what stands in the brackets of a variable's name"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# A name in the brackets is evaluated in its turn, and its value can hold a command.
_ELEMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\[[0-9@*]*\]\Z")
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[0-9]*\])?\+?=")
_PLAIN_LIST = re.compile(r"\([^$`\[]*\Z")
_HARMLESS_SUM = re.compile(r"[\w\s+\-*/%=<>!&|^~?:(),]*\Z")
_STANDARD_INPUT = frozenset(("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"))


def open_sh(model: Model, words: Sequence[Word]) -> CommandEffects:
    """`sh -c TEXT`, `sh FILE`, `sh -s` or `sh`, with `-c` in any cluster and at any place."""
    finds = EffectsBuilder()
    found = scan(model, words[1:])
    note_options(finds, model, found)
    if any(given.option.effect.kind == "query" for given in found.given):
        return finds.build()
    if found.has("-n"):
        for given in found.given:
            # Each of them can take `-n` back, and then what was only to be checked is run.
            if given.is_any("-o", "-i", "--interactive") or given.spelled.startswith("+"):
                finds.danger(given.spelled, "the shell may run what it was only to check")
    # A dash alone ends the options, as `--` does.
    operands = found.operands[1:] if found.operands[:1] == [Word("-")] else found.operands
    if found.has("-c"):
        finds.scripts += [ShellScript(word, "the shell runs it") for word in operands[:1]]
        return finds.build(is_wrapper=True)
    if found.has("-s") or not operands:
        finds.reads_stdin_as = "sh"
    else:
        finds.program(operands[0], "the shell runs it", "sh")
    return finds.build()


def open_source(_model: Model, words: Sequence[Word]) -> CommandEffects:
    """A file of the folder at hand, or a virtual environment, is everyday; any other is not."""
    finds = EffectsBuilder()
    operands = words[2:] if words[1:2] == (Word("--"),) else words[1:]
    if not operands:
        return finds.build()
    path = operands[0]
    if path.text in _STANDARD_INPUT or path.text == "-":
        finds.reads_stdin_as = "sh"
        return finds.build()
    finds.file("read", path, "the shell runs what is in it")
    finds.runs.append(("sh", path))
    if not path.is_literal or is_device(path.text):
        finds.danger("", "which file the shell runs is not known; name a file of the project")
    elif not _is_near(path.text):
        finds.danger(words[0].text, "the shell runs a file from elsewhere")
    return finds.build()


def _is_near(path: str) -> bool:
    inside = not path.startswith(("/", "~")) and posixpath.normpath(path).split("/")[0] != ".."
    return inside or path.endswith("/bin/activate")


def open_trap(_model: Model, words: Sequence[Word]) -> CommandEffects:
    """`trap TEXT SIGNAL…`; a dash or an empty text runs nothing."""
    finds = EffectsBuilder()
    operands = words[2:] if words[1:2] == (Word("--"),) else words[1:]
    if operands and operands[0] not in (Word("-p"), Word("-l"), Word("-"), Word("")):
        finds.scripts.append(ShellScript(operands[0], "the shell runs it on a signal"))
    return finds.build(is_wrapper=True)


def open_alias(_model: Model, words: Sequence[Word]) -> CommandEffects:
    """A name that means something else from then on would undo what was judged by name."""
    finds = EffectsBuilder()
    for word in words[1:]:
        name, equals, _ = word.text.partition("=")
        if equals:
            finds.scripts.append(
                ShellScript(word.after(name + "="), "it is run under another name")
            )
        if equals or not word.is_literal:
            finds.danger("", "a command's name gets another meaning")
    return finds.build()


def open_declare(_model: Model, words: Sequence[Word]) -> CommandEffects:
    """`export`, `declare`, `local`, `readonly`: assignments; names with brackets are evaluated."""
    finds = EffectsBuilder()
    flags = "".join(word.text for word in words[1:] if _is_flags(word))
    for word in words[1:]:
        if _is_flags(word):
            continue
        assigned = _ASSIGNED.match(word.text)
        if word.is_split or not (assigned or is_name(word)):
            finds.danger("", SUBSCRIPT if word.is_literal else "which variable is set is not known")
        elif assigned:
            finds.assign(word)
            value = word.text[assigned.end() :]
            if "i" in flags and not _HARMLESS_SUM.match(value):
                finds.danger("", "the value is evaluated as a sum, which can run commands")
            if ("n" in flags and "[" in value) or (
                value.startswith("(") and not _PLAIN_LIST.match(value)
            ):
                finds.danger("", "the value is evaluated as a name or a list")
    return finds.build()


def _is_flags(word: Word) -> bool:
    return word.text[:1] in ("-", "+") and word.is_literal


def is_name(word: Word) -> bool:
    """Whether the shell can take it for a variable's name without evaluating anything."""
    return bool(
        UNKNOWN not in word.text
        and not word.is_split
        and (_IDENTIFIER.match(word.text) or _ELEMENT.match(word.text))
    )


def open_names(model: Model, words: Sequence[Word]) -> CommandEffects:
    """`read NAME…` and `unset NAME…`."""
    finds = EffectsBuilder()
    found = scan(model, words[1:])
    note_options(finds, model, found)
    value = Word("" if words[0].text == "unset" else UNKNOWN)
    for word in (*found.operands, *found.values("-a")):
        _set(finds, word, value)
    return finds.build()


def _set(finds: EffectsBuilder, name: Word, value: Word) -> None:
    """A variable gets a value that nobody knows, or none."""
    if is_name(name):
        finds.assignments.append(Assignment(name.text, value))
    else:
        finds.danger("", SUBSCRIPT)


def open_getopts(_model: Model, words: Sequence[Word]) -> CommandEffects:
    """`getopts LETTERS NAME`."""
    finds = EffectsBuilder()
    operands = words[2:] if words[1:2] == (Word("--"),) else words[1:]
    for word in operands[1:2]:
        _set(finds, word, Word(UNKNOWN))
    return finds.build()


def open_printf(_model: Model, words: Sequence[Word]) -> CommandEffects:
    """Only `-v NAME` does more than to print, and only as the first word."""
    finds = EffectsBuilder()
    names: tuple[Word, ...] = ()
    if len(words) < 2:
        return finds.build()
    if words[1].text.startswith("-v") and len(words[1].text) > 2:
        names = (words[1].after("-v"),)
    elif words[1] == Word("-v") or (words[1].may_be_option and not words[1].is_literal):
        names = tuple(words[2:3])
    for word in names:
        _set(finds, word, Word(UNKNOWN))
    if has_number_format(words):
        for word in words[2:]:
            is_number = word.number is not Number.NONE or word.is_operand
            if word.origin is Origin.OUTPUT and not is_number:
                finds.danger("", "zsh evaluates what printf shows as a number")
    return finds.build()


def open_let(_model: Model, words: Sequence[Word]) -> CommandEffects:
    """Sums of numbers and names; brackets and expansions are evaluated like commands."""
    finds = EffectsBuilder()
    if not all(word.is_literal or word.has_glob for word in words[1:]) or not all(
        _HARMLESS_SUM.match(word.text) for word in words[1:]
    ):
        finds.danger("", "the shell evaluates it, which can run commands")
    return finds.build()


def open_test(_model: Model, words: Sequence[Word]) -> CommandEffects:
    """`-v NAME` evaluates brackets; an expansion without quotes could become just that."""
    finds = EffectsBuilder()
    # What may become nothing brings its neighbours together.
    sure = [word for word in words[1:] if not (word.is_split and word.is_digits)]
    for word, following in (*pairwise(words[1:]), *pairwise(sure)):
        could = word == Word("-v") or word == Word("-R")
        if could and not is_name(following):
            finds.danger("", SUBSCRIPT)
    if any(word.is_split for word in sure):
        finds.danger("", "an expansion without quotes could become `-v` and a name to evaluate")
    return finds.build()

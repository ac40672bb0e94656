"""Shells, and the built-in commands of a shell that run text or evaluate names. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from itertools import pairwise

from cellwall.parsing.shell.dialects import has_number_format
from cellwall.parsing.shell.words import UNKNOWN, Assignment, Number, Origin, Word
from cellwall.policy.commands.arguments import ArgumentModel
from cellwall.policy.commands.effects import CommandEffects, EffectsBuilder, ShellScript, is_device
from cellwall.policy.commands.interpret import read_options

SUBSCRIPT = "the shell evaluates the subscript of a variable name"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# A name in a subscript is evaluated in its turn, and its value can hold a command.
_ELEMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\[[0-9@*]*\]\Z")
_ASSIGNED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\[[0-9]*\])?\+?=")
_PLAIN_LIST = re.compile(r"\([^$`\[]*\Z")
_HARMLESS_SUM = re.compile(r"[\w\s+\-*/%=<>!&|^~?:(),]*\Z")
_STANDARD_INPUT = frozenset(("/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"))


def analyse_sh(model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """`sh -c TEXT`, `sh FILE`, `sh -s` or `sh`, with `-c` in any cluster and at any place."""
    builder, found = read_options(model, words)
    if found.is_query:
        return builder.build()
    if found.has("-n"):
        for each in found.options:
            # Each of them can undo `-n`, and the shell then runs the script.
            if each.is_any("-o", "-i", "--interactive") or each.spelled.startswith("+"):
                builder.danger(each.spelled, "the shell may run the script that `-n` only checks")
    # A dash alone ends the options, as `--` does.
    operands = found.operands[1:] if found.operands[:1] == [Word("-")] else found.operands
    if found.has("-c"):
        builder.scripts += [ShellScript(word, "the shell runs it") for word in operands[:1]]
        return builder.build(is_wrapper=True)
    if found.has("-s") or not operands:
        builder.reads_stdin_as = "sh"
    else:
        builder.program(operands[0], "the shell runs it", "sh")
    return builder.build()


def analyse_source(_model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """A file below the working directory, or of a virtual environment, is ordinary."""
    builder = EffectsBuilder()
    operands = _operands(words)
    if not operands:
        return builder.build()
    path = operands[0]
    if path.text in _STANDARD_INPUT or path.text == "-":
        builder.reads_stdin_as = "sh"
        return builder.build()
    builder.file("read", path, "the shell runs what is in it")
    builder.runs.append(("sh", path))
    if not path.is_literal or is_device(path.text):
        builder.danger("", "the file that the shell runs is not known; name a file of the project")
    elif not _is_near(path.text):
        builder.danger(words[0].text, "the shell runs a file from elsewhere")
    return builder.build()


def _operands(words: Sequence[Word]) -> Sequence[Word]:
    return words[2:] if words[1:2] == (Word("--"),) else words[1:]


def _is_near(path: str) -> bool:
    inside = not path.startswith(("/", "~")) and posixpath.normpath(path).split("/")[0] != ".."
    return inside or path.endswith("/bin/activate")


def analyse_trap(_model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """`trap TEXT SIGNAL…`; a dash or an empty text runs nothing."""
    builder = EffectsBuilder()
    operands = _operands(words)
    if operands and operands[0] not in (Word("-p"), Word("-l"), Word("-"), Word("")):
        builder.scripts.append(ShellScript(operands[0], "the shell runs it on a signal"))
    return builder.build(is_wrapper=True)


def analyse_alias(_model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """An alias changes the meaning of a name, and so undoes judgements by name."""
    builder = EffectsBuilder()
    for word in words[1:]:
        name, equals, _ = word.text.partition("=")
        if equals:
            builder.scripts.append(
                ShellScript(word.after(name + "="), "it runs under another name")
            )
        if equals or not word.is_literal:
            builder.danger("", "the name of a command gets another meaning")
    return builder.build()


def analyse_declare(_model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """`export`, `declare`, `local`, `readonly`: assignments; subscripts are evaluated."""
    builder = EffectsBuilder()
    flags = "".join(word.text for word in words[1:] if _is_flags(word))
    for word in words[1:]:
        if _is_flags(word):
            continue
        assigned = _ASSIGNED.match(word.text)
        if word.is_split or not (assigned or is_name(word)):
            builder.danger("", SUBSCRIPT if word.is_literal else "it sets an unknown variable")
        elif assigned:
            builder.assign(word)
            value = word.text[assigned.end() :]
            if "i" in flags and not _HARMLESS_SUM.match(value):
                builder.danger("", "the value is evaluated as arithmetic, which can run commands")
            if ("n" in flags and "[" in value) or (
                value.startswith("(") and not _PLAIN_LIST.match(value)
            ):
                builder.danger("", "the value is evaluated as a name or a list")
    return builder.build()


def _is_flags(word: Word) -> bool:
    return word.text[:1] in ("-", "+") and word.is_literal


def is_name(word: Word) -> bool:
    """Whether the word is a variable name without an evaluated subscript."""
    return bool(
        UNKNOWN not in word.text
        and not word.is_split
        and (_IDENTIFIER.match(word.text) or _ELEMENT.match(word.text))
    )


def analyse_names(model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """`read NAME…` and `unset NAME…`."""
    builder, found = read_options(model, words)
    value = Word("" if words[0].text == "unset" else UNKNOWN)
    for word in (*found.operands, *found.values("-a")):
        _set(builder, word, value)
    return builder.build()


def _set(builder: EffectsBuilder, name: Word, value: Word) -> None:
    """Notes a variable that gets an unknown value, or none."""
    if is_name(name):
        builder.assignments.append(Assignment(name.text, value))
    else:
        builder.danger("", SUBSCRIPT)


def analyse_getopts(_model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """`getopts LETTERS NAME`."""
    builder = EffectsBuilder()
    operands = _operands(words)
    for word in operands[1:2]:
        _set(builder, word, Word(UNKNOWN))
    return builder.build()


def analyse_printf(_model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """Only `-v NAME` as the first word does more than print."""
    builder = EffectsBuilder()
    names: tuple[Word, ...] = ()
    if len(words) < 2:
        return builder.build()
    if words[1].text.startswith("-v") and len(words[1].text) > 2:
        names = (words[1].after("-v"),)
    elif words[1] == Word("-v") or (words[1].may_be_option and not words[1].is_literal):
        names = tuple(words[2:3])
    for word in names:
        _set(builder, word, Word(UNKNOWN))
    if has_number_format(words):
        for word in words[2:]:
            is_number = word.number is not Number.NONE or word.is_operand
            if word.origin is Origin.OUTPUT and not is_number:
                builder.danger("", "zsh evaluates the numbers of printf")
    return builder.build()


def analyse_let(_model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """Arithmetic of numbers and names; subscripts and expansions can run commands."""
    builder = EffectsBuilder()
    if not all(word.is_literal or word.has_glob for word in words[1:]) or not all(
        _HARMLESS_SUM.match(word.text) for word in words[1:]
    ):
        builder.danger("", "the shell evaluates the words, which can run commands")
    return builder.build()


def analyse_test(_model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """`-v NAME` evaluates a subscript; an unquoted expansion could become `-v NAME`."""
    builder = EffectsBuilder()
    # A word that may vanish makes its neighbours adjacent.
    sure = [word for word in words[1:] if not (word.is_split and word.is_digits)]
    for word, following in (*pairwise(words[1:]), *pairwise(sure)):
        could = word == Word("-v") or word == Word("-R")
        if could and not is_name(following):
            builder.danger("", SUBSCRIPT)
    if any(word.is_split for word in sure):
        builder.danger("", "an unquoted expansion could become `-v` and a subscript to evaluate")
    return builder.build()

"""awk: the commands, reads and writes of a program, by its tokens. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from cellwall.parsing.shell.words import UNKNOWN, Word
from cellwall.policy.commands.arguments import ArgumentModel
from cellwall.policy.commands.effects import Code, CommandEffects, EffectsBuilder
from cellwall.policy.commands.interpret import read_options
from cellwall.policy.commands.sed import is_closed

MAX_CHARACTERS = 65_536

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r]+|\\\r?\n|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.|\\\n)*")
      | (?P<number>\.?[0-9](?:[0-9a-fA-FxX.]|[eE][+-]?[0-9])*)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*(?:::[A-Za-z_][A-Za-z0-9_]*)?)
      | (?P<sign>\|\||&&|\|&|>>|>=|<=|==|!=|!~|\+\+|--|\*\*=?|\+=|-=|\*=|%=|\^=
          |[{}()\[\];\n,+\-*/%^!<>|?:~$=@&])""",
    re.VERBOSE,
)
_REGEX = re.compile(r"/(?:[^/\\\n]|\\.)*/")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_HEADS = frozenset(("if", "while", "for", "switch"))
# After these, awks differ in whether a slash divides or begins a regular expression.
_UNSURE = _HEADS | {
    *("print", "printf", "return", "in", "case", "do", "else", "getline", "exit", "length"),
    *("next", "nextfile", "delete", "break", "continue", "default", "function", "func"),
    *("BEGIN", "END", "BEGINFILE", "ENDFILE", "$", "++", "--", "@"),
}
_ENDS = frozenset(("", "\n", ";", "}"))
_CONTINUE = frozenset((",", "&&", "||", "?", ":"))
_OUTPUTS = frozenset(('"/dev/stdout"', '"/dev/stderr"', '"-"'))
_CHANGES = {
    "ARGV": "it changes which files are read",
    "ARGC": "it changes which files are read",
    "SYMTAB": "it reaches variables by computed names",
    "FUNCTAB": "it reaches functions by computed names",
}


@dataclass(slots=True)
class AwkEffects:
    """The effects of a program beyond its input and output."""

    runs: list[str] = field(default_factory=list)
    """Why it can start commands."""
    unclear: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)


def judge(text: str) -> AwkEffects:
    """The effects of an awk program; an ambiguous program is unclear."""
    if len(text) > MAX_CHARACTERS or UNKNOWN in text:
        return AwkEffects(unclear=["the awk program is not known, or too long"])
    tokens = _tokens(text)
    if tokens is None:
        return AwkEffects(unclear=["the awk program cannot be parsed"])
    return _AwkParser(tokens).run()


def _tokens(text: str) -> list[str] | None:
    tokens: list[str] = []
    before: list[str] = []
    """The token before each open bracket."""
    head = ""
    """The token before the bracket that was closed last."""
    at = 0
    while at < len(text):
        if text[at] == "/" and _is_unsure(tokens, head):
            return None
        is_regex = text[at] == "/" and not _is_behind_operand(tokens)
        found = (_REGEX if is_regex else _TOKEN).match(text, at)
        if found is None or (is_regex and not is_closed(found[0])):
            return None
        at = found.end()
        if found[0] == "(":
            before.append(tokens[-1] if tokens else "")
        elif found[0] == ")":
            head = before.pop() if before else ""
        if found.lastgroup != "blank":
            tokens.append(found[0])
    return tokens


def _is_behind_operand(tokens: Sequence[str]) -> bool:
    """After a value, a slash divides; elsewhere it begins a regular expression."""
    last = tokens[-1] if tokens else "\n"
    return last in (")", "]") or last[0] in '"._' or last[0].isalnum()


def _is_unsure(tokens: Sequence[str], head: str) -> bool:
    last = tokens[-1] if tokens else "\n"
    if last == ")":
        return head in _HEADS
    return last in _UNSURE or (last[0] == "/" and len(last) > 1)


class _AwkParser:
    """Walks over the tokens and detects where a `>` is a redirection."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = tokens
        self._program = AwkEffects()
        self._depth = 0
        self._printing: int | None = None
        """The depth of the brackets at which a print began."""
        self._is_getting = False
        """After `getline`, where a `<` names a file."""

    def run(self) -> AwkEffects:
        for at, sign in enumerate(self._tokens):
            self._step(at, sign)
        return self._program

    def _step(self, at: int, sign: str) -> None:
        if sign in ("(", "["):
            self._depth += 1
        elif sign in (")", "]"):
            self._depth -= 1
        elif sign in ("print", "printf"):
            self._printing = self._depth
        elif sign == "getline":
            self._is_getting = True
        elif sign in (";", "{", "}") or (sign == "\n" and self._before(at) not in _CONTINUE):
            self._printing = None
            self._is_getting = False
        elif sign in (">", ">>") and self._printing == self._depth:
            self._redirect(at, self._program.writes)
        elif sign == "<" and self._is_getting:
            self._is_getting = False
            self._redirect(at, self._program.reads)
        else:
            self._name(sign)

    def _before(self, at: int) -> str:
        return self._tokens[at - 1] if at else ""

    def _name(self, sign: str) -> None:
        bare = sign.rpartition("::")[2] if sign[:1] != '"' else sign
        if bare == "system":
            self._program.runs.append("the awk program starts commands with system()")
        elif sign in ("|", "|&"):
            self._program.runs.append("the awk program starts commands with a pipe")
        elif sign == "@":
            self._program.unclear.append("the awk program loads code, or calls by name")
        elif bare in _CHANGES:
            self._program.unclear.append(f"the awk program uses {bare}: {_CHANGES[bare]}")

    def _redirect(self, at: int, paths: list[str]) -> None:
        path = self._tokens[at + 1] if at + 1 < len(self._tokens) else ""
        behind = self._tokens[at + 2] if at + 2 < len(self._tokens) else ""
        ends = behind in _ENDS or (paths is self._program.reads and behind in (")", "&&", "||"))
        if path in _OUTPUTS and ends:
            return
        if not path.startswith('"') or not ends or "\\" in path or path.startswith('"/inet'):
            self._program.unclear.append("the awk program opens a file with an unknown name")
        else:
            paths.append(path[1:-1])


def analyse_awk(model: ArgumentModel, words: Sequence[Word]) -> CommandEffects:
    """The program is the first operand, unless an option brings it."""
    builder, found = read_options(model, words)
    if found.is_query:
        return builder.build()
    operands = found.operands
    for each in found.options:
        if each.is_any("-e", "--source") and each.value:
            _note_program(builder, each.value, each.spelled)
    for file in found.values("-f", "--file", "-E", "--exec"):
        builder.program(file, "awk runs it", "awk")
    if not found.has("-e", "--source", "-f", "--file", "-E", "--exec"):
        if operands:
            _note_program(builder, operands[0], "")
        operands = operands[1:]
    inplace = any(value.text.startswith("inplace") for value in found.values("-i"))
    for word in operands:
        if not _ASSIGNED.match(word.text):
            builder.file("read", word, "awk reads it")
            if inplace:
                builder.file("write", word, "awk edits it")
    return builder.build()


def _note_program(builder: EffectsBuilder, word: Word, option: str) -> None:
    program = judge(word.text if word.is_literal else UNKNOWN)
    builder.codes += [Code("awk", word, option, why) for why in dict.fromkeys(program.runs)]
    for why in program.unclear:
        builder.danger(option, why)
    for path in program.reads:
        builder.file("read", Word(path), "the awk program reads it")
    for path in program.writes:
        builder.file("write", Word(path), "the awk program writes it")

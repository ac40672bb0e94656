"""awk: what a program starts, reads and writes, told by its tokens. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.policy.shell.arguments import scan
from holdfast.policy.shell.catalog import Model
from holdfast.policy.shell.interpret import Finds, note_options
from holdfast.policy.shell.opened import Code, Opened
from holdfast.policy.shell.words import UNKNOWN, Word

MOST_CHARACTERS = 65_536

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\r]+|\\\r?\n|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.|\\\n)*")
      | (?P<number>\.?[0-9](?:[0-9a-fA-FxX.]|[eE][+-]?[0-9])*)
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*(?:::[A-Za-z_][A-Za-z0-9_]*)?)
      | (?P<sign>\|\||&&|\|&|>>|>=|<=|==|!=|!~|\+\+|--|\*\*=?|\+=|-=|\*=|%=|\^=|[{}()\[\];\n,+\-*%^!<>|?:~$=@&])""",
    re.VERBOSE,
)
_REGEX = re.compile(r"/(?:[^/\\\n\[]|\\.|\[\^?\]?(?:[^\]\\\n]|\\.)*\])*/")
_PLAIN_REGEX = re.compile(r"/(?:[^/\\\n]|\\.)*/")
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_WORDS = frozenset(
    "print printf return in case if while do else for getline exit next nextfile delete".split()
)
_ENDS = frozenset(("", "\n", ";", "}"))
_CONTINUE = frozenset((",", "&&", "||"))
_OUTPUTS = frozenset(('"/dev/stdout"', '"/dev/stderr"', '"-"'))
_CHANGES = {
    "ARGV": "it changes which files are read",
    "ARGC": "it changes which files are read",
    "SYMTAB": "it reaches variables by names that are put together",
    "FUNCTAB": "it reaches functions by names that are put together",
}


@dataclass(slots=True)
class Program:
    """What a program does beyond its input and output."""

    runs: list[str] = field(default_factory=list)
    """Why it can start commands."""
    unclear: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)

    def merge(self, other: Program) -> None:
        self.runs += other.runs
        self.unclear += other.unclear
        self.reads += other.reads
        self.writes += other.writes


def judge(text: str) -> Program:
    """Awks differ in where a regular expression with brackets ends: both readings count."""
    whole = Program()
    if len(text) > MOST_CHARACTERS or UNKNOWN in text:
        whole.unclear.append("the awk program is not known, or too long")
        return whole
    readings = [_tokens(text, regex) for regex in (_REGEX, _PLAIN_REGEX)]
    known = [reading for reading in readings if reading is not None]
    if not known:
        whole.unclear.append("the awk program cannot be understood")
    for tokens in known[:1] if known[0:1] == known[1:2] else known:
        whole.merge(_Reader(tokens).run())
    return whole


def _tokens(text: str, regex: re.Pattern[str]) -> list[str] | None:
    tokens: list[str] = []
    at = 0
    while at < len(text):
        if text[at] == "/" and not _is_behind_operand(tokens):
            found = regex.match(text, at)
        elif text[at] == "/":
            tokens.append("/")
            at += 1
            continue
        else:
            found = _TOKEN.match(text, at)
        if found is None:
            return None
        at = found.end()
        if found.lastgroup != "blank":
            tokens.append(found[0])
    return tokens


def _is_behind_operand(tokens: Sequence[str]) -> bool:
    """After a value, a slash divides; elsewhere it begins a regular expression."""
    if not tokens:
        return False
    last = tokens[-1]
    if last in _WORDS:
        return False
    return last in (")", "]", "$", "++", "--") or last[0] in '"._' or last[0].isalnum()


class _Reader:
    """Walks over the tokens and knows where a `>` is a redirection."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._tokens = tokens
        self._program = Program()
        self._depth = 0
        self._printing: int | None = None
        """The depth of the brackets at which a print began."""
        self._is_getting = False
        """Behind `getline`, where a `<` names a file."""

    def run(self) -> Program:
        for at, token in enumerate(self._tokens):
            self._step(at, token)
        return self._program

    def _step(self, at: int, token: str) -> None:
        if token in ("(", "["):
            self._depth += 1
        elif token in (")", "]"):
            self._depth -= 1
        elif token in ("print", "printf"):
            self._printing = self._depth
        elif token == "getline":
            self._is_getting = True
        elif token in (";", "{", "}") or (token == "\n" and self._before(at) not in _CONTINUE):
            self._printing = None
            self._is_getting = False
        elif token in (">", ">>") and self._printing == self._depth:
            self._redirect(at, self._program.writes)
        elif token == "<" and self._is_getting:
            self._is_getting = False
            self._redirect(at, self._program.reads)
        else:
            self._name(token)

    def _before(self, at: int) -> str:
        return self._tokens[at - 1] if at else ""

    def _name(self, token: str) -> None:
        bare = token.rpartition("::")[2] if token[:1] != '"' else token
        if bare == "system":
            self._program.runs.append("the awk program starts commands with system()")
        elif token in ("|", "|&"):
            self._program.runs.append("the awk program starts commands with a pipe")
        elif token == "@":
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
            self._program.unclear.append("the awk program opens a file whose name is not known")
        else:
            paths.append(path[1:-1])


def open_awk(model: Model, words: Sequence[Word]) -> Opened:
    """The program is the first operand, unless an option brings it."""
    finds = Finds()
    found = scan(model, words[1:])
    note_options(finds, model, found)
    if any(given.option.effect.kind == "query" for given in found.given):
        return finds.opened()
    operands = found.operands
    for given in found.given:
        if given.is_any("-e", "--source") and given.value:
            _note_program(finds, given.value, given.spelled)
    if not found.has("-e", "--source", "-f", "--file", "-E", "--exec"):
        if operands:
            _note_program(finds, operands[0], "")
        operands = operands[1:]
    inplace = any(value.text.startswith("inplace") for value in found.values("-i"))
    for word in operands:
        if not _ASSIGNED.match(word.text):
            finds.file("write" if inplace else "read", word, "awk works on it")
    return finds.opened()


def _note_program(finds: Finds, word: Word, option: str) -> None:
    program = judge(word.text if word.is_literal else UNKNOWN)
    finds.codes += [Code("awk", word, option, why) for why in dict.fromkeys(program.runs)]
    for why in program.unclear:
        finds.danger(option, why)
    for path in program.reads:
        finds.file("read", Word(path), "the awk program reads it")
    for path in program.writes:
        finds.file("write", Word(path), "the awk program writes it")

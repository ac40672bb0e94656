"""Reads a shell text: every command in it, with its input, working directory and files.

Every branch is read, because any branch may run. A text with one unreadable part is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from cellwall.parsing.bounded_cache import TextCache
from cellwall.parsing.shell.builtin_commands import Directories, run_builtin
from cellwall.parsing.shell.clauses import assign, declare, evaluate, read_redirections
from cellwall.parsing.shell.dialects import check_lone_input, check_numbers, check_sh
from cellwall.parsing.shell.expand import JOB, Expander
from cellwall.parsing.shell.marks import WordPosition
from cellwall.parsing.shell.names import (
    Functions,
    ShellNames,
    can_be_function,
    lines_of,
    may_be_discarded,
    names_of,
    plain_text,
)
from cellwall.parsing.shell.outputs import piped_text
from cellwall.parsing.shell.parser import Node, NotUnderstood, parse
from cellwall.parsing.shell.words import UNKNOWN, Assignment, Command, File, Stdin, Word

MAX_COMMANDS = 1000
MAX_WORDS = 4000
_MAX_DEPTH = 40
_MAX_ITEMS = 16
_MAX_ROUNDS = 500
_TIME: Node = {"Parts": [{"Type": "Lit", "Value": "time"}]}
_BODIES = frozenset(("Block", "Subshell", "IfClause", "WhileClause", "ForClause", "CaseClause"))


@dataclass(frozen=True, slots=True)
class _Context:
    """The context of one place in the text."""

    place: tuple[str, ...] = ()
    stdin: Stdin = "given"
    stdin_text: Word | None = None
    is_feeding: bool = False
    is_shared: bool = False


def read_shell(
    text: str,
    *,
    directories: Sequence[str],
    home: str,
    is_bash: bool = True,
    has_arguments: bool = True,
    outer: frozenset[str] = frozenset(),
) -> tuple[Command, ...]:
    """All commands in a text; raises `NotUnderstood`. `is_bash`: no other `sh` reads the text.
    Without arguments `$1` and `$@` have the values of the user's shell, usually none. `outer` are
    the names that the text around this one sets."""
    place = (tuple(directories), home, outer)
    return _read(text, *place, is_bash=is_bash, has_arguments=has_arguments)


@TextCache
def _read(
    text: str,
    directories: tuple[str, ...],
    home: str,
    outer: frozenset[str],
    *,
    is_bash: bool,
    has_arguments: bool,
) -> tuple[Command, ...]:
    tree = parse(text)
    try:
        if not is_bash:
            check_sh(tree)
        names = replace(names_of(tree, has_arguments=has_arguments), outer=outer)
        return _ShellReader(text.encode(), names, Directories(directories, home), is_bash).read(
            tree
        )
    except (KeyError, IndexError, TypeError):  # a form of the tree that the reader does not know
        raise NotUnderstood("the syntax tree has an unexpected form") from None


@dataclass(slots=True)
class _ShellReader:
    text: bytes
    names: ShellNames
    directories: Directories
    is_bash: bool
    here: _Context = _Context()
    commands: list[Command] = field(default_factory=list)
    depth: int = 0
    count: int = 0
    rounds: int = 0
    branches: int = 0
    functions: Functions = field(init=False)
    expander: Expander = field(init=False)

    def __post_init__(self) -> None:
        self.functions = Functions(self.names.functions)
        self.expander = Expander(self.text, self.names, self.directories, self._substituted)

    def read(self, tree: Node) -> tuple[Command, ...]:
        for line in lines_of(tree.get("Stmts", ()), self.text):
            values, defined = self.expander.values, set(self.functions.defined)
            self._statements(line)
            if may_be_discarded(line):
                self.expander.values, self.functions.defined = values, defined
        self.functions.check_recursion()
        is_made_up = self.expander.is_made_up
        commands = [replace(each, is_made_up=is_made_up) for each in self.commands]
        if self.names.functions or self.names.is_open:
            # A later call runs in any directory that the text has changed to by then.
            places = self.directories.everywhere
            commands = [replace(each, directories=places) for each in commands]
        return tuple(commands)

    # --- places

    @contextmanager
    def _in(
        self,
        label: str = "",
        stdin: Stdin | None = None,
        text: Word | None = None,
        *,
        is_feeding: bool = False,
        is_shared: bool = False,
    ) -> Iterator[None]:
        """Inside a construct; `stdin` is the input of the construct, if it has its own."""
        before, values, self.depth = self.here, self.expander.values, self.depth + 1
        if self.depth > _MAX_DEPTH:
            raise NotUnderstood("the text is nested too deeply")
        place = (*before.place, label) if label else before.place
        source = (before.stdin, before.stdin_text) if stdin is None else (stdin, text)
        is_shared = before.is_shared if stdin is None else is_shared
        is_feeding = is_feeding or before.is_feeding
        self.here = _Context(place, *source, is_feeding=is_feeding, is_shared=is_shared)
        try:
            yield
        finally:
            self.here, self.depth = before, self.depth - 1
            if label:  # an assignment that may not run is unknown afterwards
                self.expander.values = values

    def _substituted(self, statements: Sequence[Node], label: str) -> None:
        with self.directories.of_a_subshell(), self._in(label, "given", is_feeding=True):
            for each in statements:
                self._statement(each, is_value=len(statements) == 1)

    # --- statements

    def _statements(self, statements: Sequence[Node]) -> None:
        for each in statements:
            self._statement(each)

    def _statement(self, statement: Node, *, is_value: bool = False) -> None:
        """`is_value`: the only statement of `$(…)`, where `<file` is the text of the file."""
        if not is_value:
            check_lone_input(statement)
        opened = read_redirections(statement.get("Redirs", ()), self.expander, self.text)
        command = statement.get("Cmd")
        is_aside = statement.get("Background", False)
        # A redirection that fails keeps the command from running.
        values, is_redirected = self.expander.values, bool(statement.get("Redirs"))
        self.branches += is_redirected
        is_call = command is None or command["Type"] == "CallExpr"
        label = "&" if is_aside else ""
        with self._in(label, opened.stdin, opened.text, is_shared=not is_call):
            if command is None or command["Type"] == "CallExpr":
                self._call(command or {}, opened.files)
            else:
                if opened.files:
                    self._add(Command((), files=opened.files))
                self._compound(command)
        if is_redirected:
            self.branches -= 1
            self.expander.values = values
        if is_aside:
            self.expander.values = {**self.expander.values, "!": JOB}

    def _compound(self, command: Node) -> None:
        match command["Type"]:
            case "BinaryCmd":
                self._binary(command)
            case "Block":
                self._statements(command.get("Stmts", ()))
            case "Subshell":
                with self.directories.of_a_subshell(), self._in("( )"):
                    self._statements(command.get("Stmts", ()))
            case "IfClause":
                self._if(command)
            case "WhileClause":
                self._statements(command["Cond"])
                with self._in("while"):
                    self._statements(command["Do"])
            case "ForClause":
                self._for(command)
            case "CaseClause":
                self._case(command)
            case "FuncDecl":
                self._function(command)
            case "TimeClause":
                self._timed(command.get("Stmt", {}))
            case "CoprocClause":  # the parser takes some programs for the name of the coprocess
                raise NotUnderstood("coprocesses are not supported; use a pipe, or a job with &")
            case "DeclClause":
                is_in_function = any(label.endswith("()") for label in self.here.place)
                self._add(declare(command, self.expander, is_in_function=is_in_function))
            case _:
                self._evaluated(command)

    def _evaluated(self, command: Node) -> None:
        if not self.is_bash and command["Type"] in {"TestClause", "ArithmCmd"}:
            # dash runs `id` in `[[ a && id ]]` and `((id))`, and writes b in `[[ a > b ]]`.
            raise NotUnderstood("sh reads [[ and (( as commands; write [ … ], or use bash -c")
        evaluate(command, self.expander, self.text)

    def _timed(self, statement: Node) -> None:
        words = statement.get("Cmd", {}).get("Args", ())
        if words and (plain_text(words[0]) or "-").startswith("-"):
            # For bash `--` is no command, but ends the options of `time`.
            raise NotUnderstood("time has options; write the command right after time")
        if statement:
            self._statement(statement if self.is_bash else _started_by_time(statement))

    def _binary(self, command: Node, *, is_inner: bool = False) -> None:
        operator, values = command["Op"], self.expander.values
        if operator in {"|", "|&"}:
            with self.directories.of_a_subshell():
                start = len(self.commands)
                with self._in("|", is_feeding=True):
                    self._statement(command["X"])
                middle = len(self.commands)
                with self._in("|", "pipe"):
                    self._statement(_with_program_time(command["Y"]))
                is_plain = (middle - start, len(self.commands) - middle) == (1, 1)
                if is_plain and operator == "|" and _is_simple(command["X"], command["Y"]):
                    self._pipe(self.commands[start], self.commands[middle])
                places = self.directories.now
            self.directories.may_be_in(places)  # zsh runs the last command in the shell itself
            return
        first = command["X"].get("Cmd", {})
        if operator == "&&" and first.get("Op") == "&&" and "Redirs" not in command["X"]:
            self._binary(first, is_inner=True)  # its assignments hold for the next command
        else:
            self._statement(command["X"])
            values = self.expander.values
        self.branches += 1
        self._statement(command["Y"])
        self.branches -= 1
        if not is_inner:
            self.expander.values = values

    def _pipe(self, feeding: Command, fed: Command) -> None:
        """Records the input of a command whose feeding command spells its output."""
        is_known = not (feeding.files or feeding.is_function or self.names.is_open)
        text = piped_text(feeding) if is_known and fed.stdin == "pipe" else None
        if text is not None:
            self.commands[-1] = replace(fed, piped=Word(text))

    def _if(self, clause: Node) -> None:
        self._statements(clause.get("Cond", ()))
        with self._in("if"):
            self._statements(clause.get("Then", ()))
        if "Else" in clause:
            values = self.expander.values
            self.branches += 1
            self._if(clause["Else"])
            self.branches -= 1
            self.expander.values = values  # an assignment in `elif` may not have run

    def _case(self, clause: Node) -> None:
        self.expander.word(clause["Word"])
        for item in clause.get("Items", ()):
            with self._in("case"):
                for pattern in item["Patterns"]:
                    self.expander.word(pattern, WordPosition.ELEMENT)
                self._statements(item.get("Stmts", ()))

    def _function(self, command: Node) -> None:
        name = command["Name"]["Value"]
        if command["Body"].get("Cmd", {}).get("Type") not in _BODIES:
            # For bash the function ends before the pipe; the parser reads all as its body.
            raise NotUnderstood("the end of a function body is ambiguous; put the body in { …; }")
        is_split = command["Body"]["Pos"]["Line"] > command["Name"]["Pos"]["Line"]
        if command.get("RsrvWord") and (is_split or not self.is_bash):
            # dash reads `function` as a program, and the body as commands that run at once.
            raise NotUnderstood(f"sh does not know the word function; write {name}() {{ …; }}")
        # The call of a function decides its input.
        with self.functions.body_of(name), self._in(f"{name}()", "pipe"):
            self._statement(command["Body"])
        is_certain = not self.here.place and not self.branches and self.names.keeps_functions
        if is_certain and can_be_function(name):  # else it may be defined, or not
            self.functions.defined.add(name)

    def _for(self, clause: Node) -> None:
        loop, body = clause["Loop"], clause["Do"]
        if "Name" not in loop:
            for part in ("Init", "Cond", "Post"):
                self.expander.arithmetic(loop.get(part))
            items: list[Word] = []
        else:
            items = [word for node in loop.get("Items", ()) for word in self.expander.words(node)]
        name = loop.get("Name", {}).get("Value", "")
        is_known = bool(items) and len(items) <= _MAX_ITEMS and self.names.is_single(name)
        is_known = is_known and not any(item.is_split for item in items)
        if "Name" in loop:
            assignments = tuple(Assignment(name, item) for item in items[:_MAX_ITEMS])
            self._add(Command((), assignments or (Assignment(name, Word(UNKNOWN)),)))
        for item in items if is_known else (None,):
            self.rounds += 1
            if self.rounds > _MAX_ROUNDS:
                raise NotUnderstood("loops are nested too deeply")
            with self._in("for"), self._value(name, item):
                self._statements(body)

    @contextmanager
    def _value(self, name: str, word: Word | None) -> Iterator[None]:
        before = self.expander.values
        if word is not None:
            self.expander.values = {**before, name: word}
        try:
            yield
        finally:
            self.expander.values = before

    # --- commands

    def _add(self, command: Command) -> None:
        if len(self.commands) >= MAX_COMMANDS:
            raise NotUnderstood(f"the text holds more than {MAX_COMMANDS} commands")
        self.count += len(command.words) + len(command.files) + len(command.assignments)
        if self.count > MAX_WORDS:
            raise NotUnderstood(f"the text holds more than {MAX_WORDS} words")
        here = self.here
        assigned, self.expander.assigned = self.expander.assigned, []
        mentioned, self.expander.mentioned = self.expander.mentioned, []
        self.commands.append(
            replace(
                command,
                assignments=(*command.assignments, *assigned),
                mentioned=tuple(mentioned),
                place=here.place,
                directories=self.directories.use(),
                stdin=here.stdin,
                stdin_text=here.stdin_text,
                is_feeding=here.is_feeding,
                is_input_shared=here.is_shared,
            )
        )

    def _call(self, call: Node, files: tuple[File, ...]) -> None:
        nodes = call.get("Args", ())
        words = tuple(word for node in nodes for word in self.expander.words(node))
        if nodes and not words:
            raise NotUnderstood("the program of a command expands to no word")
        check_numbers(words)
        assignments = assign(call.get("Assigns", ()), self.expander, is_lasting=not words)
        name = words[0].text if words and words[0].is_literal else ""
        self.functions.call(name)
        is_function = name in self.functions.defined and not self.names.is_open
        self._add(Command(words, tuple(assignments), files, is_function=is_function))
        run_builtin(words, self.directories, self._follow)

    def _follow(self, text: str) -> None:
        """Where a text leads that a builtin runs, now or later; the text is judged by itself."""
        tree = parse(text)
        names = names_of(tree, has_arguments=self.names.has_arguments)
        names = replace(names, outer=self.names.outer)
        _ShellReader(text.encode(), names, self.directories, self.is_bash).read(tree)


def _with_program_time(statement: Node) -> Node:
    """After a pipe bash reads `time` as a program, which runs no functions and no builtins."""
    command = statement.get("Cmd") or {}
    if command.get("Type") != "TimeClause":
        return statement
    alone = {"Cmd": {"Type": "CallExpr", "Args": [_TIME]}}
    inner = _started_by_time(command["Stmt"]) if command.get("Stmt") else alone
    return {**inner, "Redirs": [*inner.get("Redirs", ()), *statement.get("Redirs", ())]}


def _started_by_time(statement: Node) -> Node:
    command = statement.get("Cmd") or {}
    words = command.get("Args", ())
    is_call = command.get("Type") == "CallExpr" and not command.get("Assigns")
    if not is_call or not words or (plain_text(words[0]) or "-").startswith("-"):
        raise NotUnderstood("time is a program after a pipe; write one plain command after time")
    return {**statement, "Cmd": {**command, "Args": [_TIME, *words]}}


def _is_simple(*statements: Node) -> bool:
    """Whether each statement is one command that runs once: no loop, group or function."""
    return all(each.get("Cmd", {}).get("Type") == "CallExpr" for each in statements)

"""Expands a word of the syntax tree to the words of the command, as far as they are known.

A word is *plain*, its value known exactly, or *unknown*: the closed set of plain forms is written
down in words.py. Expansions happen in bash's order, with one module for each step:

   (1) spelling, where bash reads text and not a tree          dialects.py
   (2) braces, which are text and make new words               marks.py
   (3) what zsh would do with the word                         dialects.py
   (4) tildes                                                  marks.py
   (5) parameters, substitutions, arithmetic; quotes removed   here, words.py
   (6) splitting and wildcards: one word, or any number        marks.py

Commands inside an expansion are read as well. Only literals, the home directory, the working
directory and variables that the text sets exactly once are resolved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cellwall.parsing.shell import dialects
from cellwall.parsing.shell.builtin_commands import Directories
from cellwall.parsing.shell.dialects import check_expansion, is_movable, is_simple, is_substitution
from cellwall.parsing.shell.marks import (
    Draft,
    Mark,
    WordPosition,
    WordToken,
    expand_braces,
    expand_tildes,
    finish,
    may_be_braced,
)
from cellwall.parsing.shell.names import ShellNames, is_name, plain_text
from cellwall.parsing.shell.outputs import (
    TEMPORARY,
    number_printed,
    prints_directory,
    prints_temporary,
)
from cellwall.parsing.shell.parser import Node, NotUnderstood, nodes_of
from cellwall.parsing.shell.words import (
    UNKNOWN,
    Assignment,
    Number,
    Origin,
    Word,
    WordPart,
    ansi,
    in_double_quotes,
    unquote_pieces,
)

GIVEN = frozenset(("@", "*", "_", "REPLY", "OPTARG", "BASH_REMATCH", "MAPFILE", "COPROC"))
"""Parameters whose value the caller or the user chooses."""


class Expander:
    """Expands the words of one text; `values` holds the variables known at this point."""

    def __init__(
        self, text: bytes, names: ShellNames, directories: Directories, read: ReadStatements
    ) -> None:
        self._text, self._names, self._directories, self._read = text, names, directories, read
        self._home = UNKNOWN if names.counts.get("HOME") else directories.home
        self._sums = Arithmetic(names, read, self._number_parameter)
        self.index, self.arithmetic = self._sums.index, self._sums.evaluate
        self.values: Mapping[str, Word] = {}
        self.is_made_up = False
        """Some word is cut or assembled from variables that the text sets."""
        self.assigned: list[Assignment] = []
        """Assignments of expansions such as `${x:=y}` since the last command."""
        self.mentioned: list[Word] = []
        """Words inside expansions, which may become words of a command."""

    def set_once(self, name: str, value: Word) -> None:
        """The variable has this value from here on, if it is assigned nowhere else."""
        if self._names.is_single(name):
            self.values = {**self.values, name: value}

    def words(self, node: Node, place: WordPosition = WordPosition.ARGUMENT) -> list[Word]:
        """All words that one expands to: braces make several, and an empty value makes none."""
        marks = self._marks(node)  # (1), (5)
        made = expand_braces(marks)  # (2)
        is_braced = may_be_braced(marks)
        found = []
        for each in made:
            dialects.check_word(each)  # (3)
            tilded = expand_tildes(each, self._home, place, is_braced=is_braced)  # (4)
            found.append(finish(tilded))  # (6)
        return [word for word in found if word is not None]

    def word(
        self, node: Node, place: WordPosition = WordPosition.VALUE, *, may_have_braces: bool = True
    ) -> Word:
        """A value or a pattern: bash makes one word, expands no braces, and splits nothing."""
        marks = self._marks(node, is_pattern=place is WordPosition.ELEMENT)
        if not may_have_braces and may_be_braced(marks):
            raise NotUnderstood("braces make several assignments; write one assignment each")
        if place is not WordPosition.ELEMENT:
            dialects.check_word(marks)
        found = finish(expand_tildes(marks, self._home, place, is_braced=False)) or Word("")
        return replace(found, is_split=False)

    def target(self, node: Node) -> Word:
        """The target of a redirection: expanded like any word, and an error in bash unless one."""
        found = self.words(node)
        if len(found) != 1:
            raise NotUnderstood("a redirection needs exactly one file; write one name")
        return replace(found[0], is_split=False)

    def here_document(self, node: Node, *, is_quoted: bool) -> Word:
        """The text of a here-document, expanded unless its delimiter was quoted."""
        draft = Draft()
        for part in node.get("Parts", ()):
            if part["Type"] == "Lit":
                text = part["Value"]
                draft.pieces.append(WordPart(text if is_quoted else in_double_quotes(text, "$`\\")))
            else:
                self._quoted_part(part, draft)
        return Word("".join(piece.text for piece in draft.pieces))

    # --- parts of words

    def _marks(self, node: Node, *, is_pattern: bool = False) -> list[Mark]:
        marks: list[Mark] = []
        parts = node.get("Parts", ())
        for part in parts:
            match part["Type"]:
                case "Lit":
                    for piece in unquote_pieces(part["Value"]):
                        marks.extend(piece.text if piece.is_active else (WordToken((piece,)),))
                case "SglQuoted":
                    text = part.get("Value", "")
                    text = ansi(text) if part.get("Dollar") else text
                    self.is_made_up = self.is_made_up or UNKNOWN in text
                    marks.append(WordToken((WordPart(text),)))
                case "ExtGlob" if is_pattern and dialects.is_plain_pattern(
                    part["Pattern"]["Value"]
                ):
                    marks.append(WordToken((WordPart(UNKNOWN),), is_movable=False))
                case "ExtGlob":
                    raise NotUnderstood(dialects.EXTENDED_GLOB)
                case "ProcSubst" if marks[-1:] not in ([], ["="]) or part is not parts[-1]:
                    raise NotUnderstood(
                        "a process substitution stands inside a word; put a blank before it"
                    )
                case _:
                    marks.append(self._token(part))
        return marks

    def _token(self, part: Node) -> WordToken:
        """The token of a part in double quotes, or of an expansion."""
        draft = Draft()
        match part["Type"]:
            case "DblQuoted":
                if part.get("Dollar"):
                    raise NotUnderstood('bash translates $"…" by locale; remove the dollar sign')
                draft.pieces.append(WordPart(""))
                inner = part.get("Parts", ())
                for each in inner:
                    self._quoted_part(each, draft)
                movable = all(e["Type"] == "Lit" or is_movable(e, self._text) for e in inner)
                return WordToken(tuple(draft.pieces), draft.is_split, is_movable=movable)
            case "ProcSubst":
                if not part.get("Stmts"):
                    raise NotUnderstood("a process substitution is empty")
                self._read(part.get("Stmts", ()), f"{part['Op']}…)")
                # The name that bash uses; a pipe in any case.
                return WordToken((WordPart("/dev/fd/63"),), is_movable=False)
            case _:
                return self._expansion(part, is_quoted=False)

    def _quoted_part(self, part: Node, draft: Draft) -> None:
        if part["Type"] == "Lit":
            draft.pieces.append(WordPart(in_double_quotes(part["Value"])))
            return
        found = self._expansion(part, is_quoted=True)
        draft.pieces.extend(found.pieces)
        draft.is_split = draft.is_split or found.is_split

    def _expansion(self, part: Node, *, is_quoted: bool) -> WordToken:
        check_expansion(part, self._text, is_quoted=is_quoted)
        draft = Draft()
        match part["Type"]:
            case "ParamExp":
                self._parameter(part, draft, is_quoted=is_quoted)
            case "CmdSubst":
                self._read(part.get("Stmts", ()), "$(…)")
                self._printed(part, draft, is_quoted=is_quoted)
            case "ArithmExp":
                self.arithmetic(part.get("X"))
                draft.number(Number.SUM, is_quoted=is_quoted)
            case other:
                raise NotUnderstood(f"the syntax node {other} is not supported")
        is_short = dialects.is_short(part)
        if is_short:
            name, end = part["Param"]["Value"], part["End"]["Offset"]
            following = self._text[end : end + 2].decode("utf-8", "replace")
            is_known = not any(UNKNOWN in piece.text for piece in draft.pieces)
            dialects.check_following(name, following, is_known=is_known)
        movable = is_movable(part, self._text)
        return WordToken(tuple(draft.pieces), draft.is_split, is_movable=movable, is_short=is_short)

    def _number_parameter(self, part: Node) -> None:
        check_expansion(part, self._text, is_quoted=True)
        self._odd_parameter(part)

    def _printed(self, part: Node, draft: Draft, *, is_quoted: bool) -> None:
        number = number_printed(part, self._names)
        if prints_directory(part, self._names) and self._is_in_one_place():
            draft.value(Word(self._directories.now[0]), is_quoted=is_quoted)
        elif prints_temporary(part, self._names):
            draft.pieces.append(WordPart(TEMPORARY, origin=Origin.OUTPUT))
        elif number is Number.NONE:
            draft.unknown(is_quoted=is_quoted, origin=Origin.OUTPUT)
        else:
            draft.number(number, is_quoted=is_quoted)

    def _parameter(self, part: Node, draft: Draft, *, is_quoted: bool) -> None:
        name = part["Param"]["Value"] if "Param" in part else ""
        is_plain = is_simple(part)
        if is_plain and name == "HOME" and self._names.counts.get("HOME", 0) == 0:
            draft.value(Word(self._home), is_quoted=is_quoted)
        elif is_plain and name == "PWD" and self._is_in_one_place():
            draft.value(Word(self._directories.now[0]), is_quoted=is_quoted)
        elif is_plain and name in self.values:
            # Split at the blanks of a file name, a value is a name that the text does not spell.
            self.is_made_up = self.is_made_up or (self.values[name].has_glob and not is_quoted)
            draft.value(self.values[name], is_quoted=is_quoted)
        elif is_plain and name in PARAMETERS and not self._names.counts.get(name):
            draft.number(PARAMETERS[name], is_quoted=is_quoted)
        else:
            if is_quoted and _holds_quotes(part):
                # Between double quotes and in here-documents bash reads ' literally here.
                raise NotUnderstood("a quoted expansion holds quotes; put its text in a variable")
            index = plain_text(part["Index"]) if _has_word_index(part) else ""
            # The elements of an array are judged one by one.
            is_spelled = name in self._names.spelled and index not in {"@", "*"}
            is_argument = name in {"@", "*"} or name.isdigit()
            is_given = is_spelled or (self._names.has_arguments if is_argument else name in GIVEN)
            self.is_made_up = self.is_made_up or is_given
            self._odd_parameter(part)
            if part.get("Length"):
                draft.number(Number.COUNT, is_quoted=is_quoted)
                return
            # Quotes prevent further splitting, but these still become many words, or none.
            is_many = name == "@" or index == "@" or part.get("Names") == "@"
            is_own = is_plain and not is_given and not self._names.may_set(name)
            origin = Origin.ENVIRONMENT if is_own else Origin.ANYWHERE
            draft.unknown(is_quoted=is_quoted and not is_many, origin=origin)

    def _is_in_one_place(self) -> bool:
        return self._directories.only is not None and not self._names.counts.get("PWD")

    def _odd_parameter(self, part: Node) -> None:
        """A parameter of unknown value; the words in its braces are read all the same."""
        is_set_here = self._names.counts.get(part.get("Param", {}).get("Value", ""), 0) > 0
        is_cut = part.keys() & {"Repl", "Slice"}  # `${HOME:0:1}etc`
        if part.get("Exp", {}).get("Word") or is_cut or (is_set_here and "Exp" in part):
            self.is_made_up = True
        if part.get("Exp", {}).get("Op") == "@":
            operator = plain_text(part["Exp"]["Word"])
            if operator not in {"Q", "E", "A", "a", "K", "k", "U", "u", "L"}:
                raise NotUnderstood("${…@P} runs the value of a variable; write the text itself")
        if part.get("Excl") and "Names" not in part:
            raise NotUnderstood(
                "${!…} takes the variable name and subscript from a value; name the variable"
            )
        if "Index" in part:
            self.index(part["Index"])
        for bound in part.get("Slice", {}).values():
            self.arithmetic(bound)
        for words in (part.get("Exp", {}), part.get("Repl", {})):
            for each in words.values():
                if isinstance(each, dict) and "Parts" in each:
                    self.mentioned.append(self.word(each))
        if part.get("Exp", {}).get("Op") in {"=", ":="}:
            value = self.word(part["Exp"]["Word"]) if "Word" in part["Exp"] else Word("")
            self.assigned.append(Assignment(part["Param"]["Value"], value))
        if "NestedParam" in part or "Modifiers" in part or "Flags" in part:
            raise NotUnderstood("an expansion of zsh is not bash; write the bash form")


def _has_word_index(part: Node) -> bool:
    return bool(part.get("Index", {}).get("Type") == "Word")


def _holds_quotes(part: Node) -> bool:
    nodes = nodes_of(part, enters=lambda node: not is_substitution(node))  # `$(…)` is read afresh
    return any(node.get("Type") == "SglQuoted" for node in nodes)


# Arithmetic, in which bash evaluates the values of variables and the subscripts in those values.
#
# Only numbers, names that hold numbers, and lengths are accepted; any other operand could run a
# command inside a value, and is refused.

ReadStatements = Callable[[Sequence[Node], str], None]
_NOT_PLAIN = "the arithmetic is not plain: use only numbers and variables that hold numbers"
_PRINTED = (
    "arithmetic would evaluate the output of a command; only `$(wc -l < FILE)`, `$(date +%s)`, "
    "`$(nproc)` and the like are known to print a number"
)
_COUNTS = (Number.COUNT, Number.COUNT_OR_NOTHING)


class Arithmetic:
    """The arithmetic of one text. `look_into` reads the word in the braces of a parameter."""

    def __init__(
        self, names: ShellNames, read: ReadStatements, look_into: Callable[[Node], None]
    ) -> None:
        self._names, self._read, self._look_into = names, read, look_into

    def index(self, node: Node) -> None:
        """The subscript of an array: arithmetic, unless it is `@`, `*` or plain text."""
        text = plain_text(node) if node.get("Type") == "Word" else None
        if text is None or not (text in {"@", "*"} or is_name(text) or text.isdigit()):
            self.evaluate(node)
        elif is_name(text):
            self._number(text)

    def evaluate(self, node: Node | None) -> None:
        """Raises `NotUnderstood` where a value could run a command."""
        if node is None:
            return
        match node.get("Type"):
            case "BinaryArithm":
                self.evaluate(node["X"])
                self.evaluate(node["Y"])
            case "UnaryArithm" | "ParenArithm":
                self.evaluate(node["X"])
            case "Word":
                is_glued = len(node["Parts"]) > 1
                if is_glued and any(part["Type"] == "CmdSubst" for part in node["Parts"]):
                    raise NotUnderstood(_NOT_PLAIN)  # `a$(nproc)` is the variable a4
                for part in node["Parts"]:
                    self._part(part)
            case other:
                raise NotUnderstood(f"the syntax node {other} is not supported")

    def _part(self, part: Node) -> None:
        match part["Type"]:
            case "Lit":
                text = part["Value"]
                if is_name(text):
                    self._number(text)
                elif not text.replace("#", "").isalnum():
                    raise NotUnderstood(_NOT_PLAIN)
            case "DblQuoted":
                for inner in part.get("Parts", ()):
                    self._part(inner)
            case "ParamExp":
                is_length = part.get("Length", False)
                self._look_into(part)
                if not is_length:
                    self._number(part.get("Param", {}).get("Value", "1"))
            case "ArithmExp":
                self.evaluate(part.get("X"))
            case "CmdSubst":
                self._read(part.get("Stmts", ()), "$(…)")
                if number_printed(part, self._names) not in _COUNTS:
                    raise NotUnderstood(_PRINTED)
            case _:
                raise NotUnderstood(_NOT_PLAIN)

    def _number(self, name: str) -> None:
        if name in PARAMETERS:
            return
        if name in self._names.vague or self._names.is_open or not is_name(name):
            raise NotUnderstood(
                f"arithmetic would evaluate the value of {name}; set {name} to a number or a "
                "sum in the same text, and nowhere else"
            )


# Parameters that always hold a number.

PARAMETERS: Mapping[str, Number] = {
    "#": Number.COUNT,
    "?": Number.COUNT,
    "$": Number.PROCESS,
    "!": Number.PROCESSES,  # one that the shell has started; nothing before the first job
    # Numbers in bash, nothing in a plain sh; none of them may be set.
    "RANDOM": Number.COUNT_OR_NOTHING,
    "SECONDS": Number.COUNT_OR_NOTHING,
    "LINENO": Number.COUNT_OR_NOTHING,
    "BASHPID": Number.COUNT_OR_NOTHING,
    "PPID": Number.COUNT_OR_NOTHING,
    "UID": Number.COUNT_OR_NOTHING,
}
JOB = Word(UNKNOWN, number=Number.PROCESS)
"""The value of `$!` after a background job."""

"""Assignments, arithmetic commands, tests and redirections. Pure."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cellwall.parsing.shell.dialects import check_assigned, check_target, source_of
from cellwall.parsing.shell.expand import GIVEN, Expander
from cellwall.parsing.shell.marks import WordPosition
from cellwall.parsing.shell.names import SHELLS_OWN, is_name, plain_text
from cellwall.parsing.shell.parser import Node, NotUnderstood
from cellwall.parsing.shell.words import UNKNOWN, Assignment, Command, File, Number, Stdin, Word

_MAX_VALUE = 4096
# After `let` the parser reads arithmetic, and bash reads words: `let x<(id)` runs id.
_is_plain_let = re.compile(rb"let(?:[ \t]+[\w$=+*/%,-]+)+").fullmatch
_ARITHMETIC_TESTS = frozenset(("-eq", "-ne", "-lt", "-le", "-gt", "-ge"))


def assign(
    nodes: Sequence[Node], expander: Expander, *, is_lasting: bool, is_declared: bool = False
) -> list[Assignment]:
    """The assignments of these nodes; the expander knows a lasting value from here on.
    `is_declared`: the assignment is a word of `export` or the like, whose braces bash expands."""
    found: list[Assignment] = []
    for node in nodes:
        is_element = bool(node.keys() & {"Index", "Array"})
        if not is_name(node["Name"]["Value"]):
            # To bash `./x=[ a` is the program `./x=[`; to the parser an assignment.
            raise NotUnderstood("the text before = is not a variable name; quote the word")
        check_assigned(node["Name"]["Value"], is_element=is_element)
        if "Index" in node:
            expander.index(node["Index"])
        for element in node.get("Array", {}).get("Elems", ()):
            if "Index" in element:
                expander.index(element["Index"])
            if "Value" in element:
                elements = _elements(element, expander)
                found += [Assignment(node["Name"]["Value"], each) for each in elements]
        value = Word("")
        if "Value" in node:
            value = expander.word(node["Value"], may_have_braces=not is_declared)
        # `export X` assigns nothing: X keeps its value.
        is_whole = not (node.keys() & {"Array", "Index", "Append", "Naked"})
        expander.is_made_up = expander.is_made_up or bool(node.get("Append"))
        name = node["Name"]["Value"]
        found.append(Assignment(name, value))
        is_chosen = name not in GIVEN and name not in SHELLS_OWN
        is_short = len(value.text) <= _MAX_VALUE and not value.has_glob and is_chosen
        if is_lasting and is_whole and is_short:
            expander.set_once(name, value)
    return found


def _elements(element: Node, expander: Expander) -> list[Word]:
    if "Index" in element:
        return [expander.word(element["Value"])]
    return expander.words(element["Value"], WordPosition.ELEMENT)


def declare(clause: Node, expander: Expander, *, is_in_function: bool) -> Command:
    """`declare`, `export` and the like: words, and assignments among the words. `local` fails
    outside a function."""
    words = [Word(clause["Variant"]["Value"])]
    assignments: list[Assignment] = []
    arguments = clause.get("Args", ())
    for node in arguments:
        if "Name" not in node and "Value" in node:
            words.extend(expander.words(node["Value"]))
    # Other flags change the value: `-l` its letters, `-i` into a number.
    is_plain = all(word.text in {"-x", "-r", "-g"} for word in words[1:])
    is_plain = is_plain and (is_in_function or words[0].text != "local")
    for node in arguments:
        if "Name" in node:
            assignments.extend(assign([node], expander, is_lasting=is_plain, is_declared=True))
    for word in words[1:]:
        if word.text.startswith(("-", "+", UNKNOWN)) and set(word.text) & set(f"nif{UNKNOWN}"):
            raise NotUnderstood(f"{words[0].text} {word.text} changes what the variable is")
    return Command(tuple(words), tuple(assignments))


def evaluate(command: Node, expander: Expander, text: bytes) -> None:
    """`((…))`, `let` and `[[ … ]]`; `text` is the whole text around the command."""
    match command["Type"]:
        case "ArithmCmd":
            expander.arithmetic(command["X"])
        case "LetClause":
            if not _is_plain_let(source_of(command, text)):
                raise NotUnderstood("let takes words, not an arithmetic expression; write ((…))")
            for each in command["Exprs"]:
                expander.arithmetic(each)
        case "TestClause":
            _test(command["X"], expander)
        case other:
            raise NotUnderstood(f"the syntax node {other} is not supported")


def _test(node: Node, expander: Expander) -> None:
    match node["Type"]:
        case "BinaryTest" if node["Op"] in _ARITHMETIC_TESTS:
            expander.arithmetic(node["X"])
            expander.arithmetic(node["Y"])
        case "BinaryTest":
            _test(node["X"], expander)
            _test(node["Y"], expander)
        case "UnaryTest" if node["Op"] == "-v":
            text = plain_text(node["X"])
            if text is None or not is_name(text):
                raise NotUnderstood("[[ -v ]] evaluates the subscript of the variable")
        case "UnaryTest" | "ParenTest":
            _test(node["X"], expander)
        case "Word":
            expander.word(node, WordPosition.ELEMENT)
        case other:
            raise NotUnderstood(f"the syntax node {other} is not supported")


# Redirections: the files that a command opens, and its standard input.

_NOWHERE = frozenset(("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty", "/dev/zero"))
_is_twice_itself = re.compile(r"-|[0-9]+-?|[A-Za-z0-9_./][A-Za-z0-9_./-]*").fullmatch
is_descriptor = re.compile(r"/dev/fd/[0-9]{1,4}").fullmatch


@dataclass(frozen=True, slots=True)
class Redirections:
    """The redirections of one statement. `stdin` is None where the statement inherits its input."""

    files: tuple[File, ...]
    stdin: Stdin | None
    text: Word | None
    """A here-document or a here-string."""


def read_redirections(nodes: Sequence[Node], expander: Expander, text: bytes) -> Redirections:
    """`text` is the whole text around the nodes."""
    files: list[File] = []
    stdin: Stdin | None = None
    stdin_text: Word | None = None
    for node in nodes:
        number, operator = node.get("N", {}).get("Value", ""), node["Op"]
        if operator in {"<<", "<<-"}:
            word = _document(node, expander, text)
        else:
            is_text = operator == "<<<"
            word = expander.word(node["Word"]) if is_text else expander.target(node["Word"])
            check_target(operator, word.text)
            if operator in {">&", "<&"}:
                _check_duplicated(word)
            files.extend(() if is_text else _opened_files(operator, word))
        if operator.startswith("<") and number in {"", "0"}:
            if stdin is not None:
                raise NotUnderstood("standard input is redirected twice; zsh reads both")
            is_file = operator == "<" and not posixpath.normpath(word.text).lstrip("/").startswith(
                ("dev/", "proc/")
            )
            source: Stdin = "file" if is_file else "pipe"
            stdin, stdin_text = ("text", word) if operator.startswith("<<") else (source, None)
    return Redirections(tuple(files), stdin, stdin_text)


def _check_duplicated(word: Word) -> None:
    """bash expands the word after `>&` a second time: `>& '$(id)'` runs id, and `>& '~/a'` is in
    the home folder. A dash ends the word, so `>& -id` runs id, too."""
    is_plain = word.is_literal and _is_twice_itself(word.text)
    if not is_plain and word.number is Number.NONE:
        raise NotUnderstood("bash expands the word after >& twice; write > FILE 2>&1")


def _document(node: Node, expander: Expander, text: bytes) -> Word:
    end = node["Word"]["Parts"]
    is_quoted = any(part["Type"] != "Lit" for part in end) or "\\" in end[0].get("Value", "")
    document = node.get("Hdoc", {})
    source = text[document["Pos"]["Offset"] : document["End"]["Offset"]] if document else b""
    if not is_quoted and b"\\\n" in source:
        # In such a document bash removes the backslash and newline even between quotes.
        raise NotUnderstood("a line of a here-document is continued with a backslash")
    return expander.here_document(document, is_quoted=is_quoted)


def _opened_files(operator: str, word: Word) -> tuple[File, ...]:
    is_number = word.text.rstrip("-").isdigit() or word.text == "-"
    if operator in {">&", "<&"} and is_number:
        return ()
    if word.text in _NOWHERE or is_descriptor(word.text):
        return ()
    if posixpath.normpath(word.text).lstrip("/").startswith(("dev/tcp/", "dev/udp/")):
        raise NotUnderstood(f"bash would open a connection to {word.text[:60]}")
    why = f"redirection {operator}"
    is_read, is_write = operator in {"<", "<&", "<>"}, operator not in {"<", "<&"}
    reads = (File("read", word, why),) if is_read else ()
    return (*reads, File("write", word, why)) if is_write else reads

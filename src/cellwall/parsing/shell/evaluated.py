"""What the shell sets or evaluates by itself, without a program: assignments, sums and tests."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cellwall.parsing.shell.certainty import SHELLS_OWN
from cellwall.parsing.shell.command import Assignment, Command
from cellwall.parsing.shell.dialects import check_assigned
from cellwall.parsing.shell.expand import GIVEN, Expander
from cellwall.parsing.shell.names import is_name, plain_text
from cellwall.parsing.shell.parser import Node, NotUnderstood
from cellwall.parsing.shell.spelling import source_of
from cellwall.parsing.shell.tildes import Place
from cellwall.parsing.shell.words import UNKNOWN, Word

_MAX_VALUE = 4096
# The parser reads arithmetic behind `let`, and bash words: `let x<(id)` runs id.
_is_plain_let = re.compile(rb"let(?:[ \t]+[\w$=+*/%,-]+)+").fullmatch
_ARITHMETIC_TESTS = frozenset(("-eq", "-ne", "-lt", "-le", "-gt", "-ge"))


def assign(
    nodes: Sequence[Node], expander: Expander, *, is_lasting: bool, is_declared: bool = False
) -> list[Assignment]:
    """What gets which value; where it lasts, the expander knows it from here on. `is_declared`: it
    is a word of `export` or the like, whose braces bash expands."""
    found: list[Assignment] = []
    for node in nodes:
        is_element = bool(node.keys() & {"Index", "Array"})
        if not is_name(node["Name"]["Value"]):
            # To bash `./x=[ a` is the program `./x=[`; to the parser an assignment.
            raise NotUnderstood("what stands before = is no name; put the word between quotes")
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
        # `export X` gives no value: it has the one that it had.
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
    return expander.words(element["Value"], Place.ELEMENT)


def declare(clause: Node, expander: Expander, *, is_in_function: bool) -> Command:
    """`declare`, `export` and their kin: words, and assignments among them. `local` fails outside
    of a function."""
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
            raise NotUnderstood(f"{words[0].text} {word.text} makes a variable stand for more")
    return Command(tuple(words), tuple(assignments))


def evaluate(command: Node, expander: Expander, text: bytes) -> None:
    """`((…))`, `let` and `[[ … ]]`; `text` is the whole text that they stand in."""
    match command["Type"]:
        case "ArithmCmd":
            expander.arithmetic(command["X"])
        case "LetClause":
            if not _is_plain_let(source_of(command, text)):
                raise NotUnderstood("let takes words, not a sum; write ((…))")
            for each in command["Exprs"]:
                expander.arithmetic(each)
        case "TestClause":
            _test(command["X"], expander)
        case other:
            raise NotUnderstood(f"it holds {other}, which is not known here")


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
                raise NotUnderstood("[[ -v ]] evaluates the index of what it asks for")
        case "UnaryTest" | "ParenTest":
            _test(node["X"], expander)
        case "Word":
            expander.word(node, Place.ELEMENT)
        case other:
            raise NotUnderstood(f"it holds {other}, which is not known here")

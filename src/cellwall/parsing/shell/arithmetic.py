"""Arithmetic, in which bash evaluates the values of variables and the subscripts in those values.

Only sums of numbers, of names that hold numbers, and of their lengths are read; all else could run
a command that stands in a value, and is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cellwall.parsing.shell.names import Names, is_name, plain_text
from cellwall.parsing.shell.numeric import PARAMETERS
from cellwall.parsing.shell.outputs import printed
from cellwall.parsing.shell.parser import Node, NotUnderstood
from cellwall.parsing.shell.words import Number

ReadStatements = Callable[[Sequence[Node], str], None]
_NOT_PLAIN = "its arithmetic is not plain: only numbers and variables that hold numbers are read"
_PRINTED = (
    "arithmetic would evaluate what a command prints; only `$(wc -l < FILE)`, `$(date +%s)`, "
    "`$(nproc)` and the like are known to print a number"
)
_COUNTS = (Number.COUNT, Number.COUNT_OR_NOTHING)


class Arithmetic:
    """Of one text. `look_into` reads what stands in the braces of a parameter."""

    def __init__(
        self, names: Names, read: ReadStatements, look_into: Callable[[Node], None]
    ) -> None:
        self._names, self._read, self._look_into = names, read, look_into

    def index(self, node: Node) -> None:
        """Of an array: arithmetic, unless it is all of it or plain text."""
        text = plain_text(node) if node.get("Type") == "Word" else None
        if text is None or not (text in {"@", "*"} or is_name(text) or text.isdigit()):
            self.evaluate(node)
        elif is_name(text):
            self._number(text)

    def evaluate(self, node: Node | None) -> None:
        """Raises `NotUnderstood` where a value could run something."""
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
                raise NotUnderstood(f"it holds {other}, which is not known here")

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
                if printed(part, self._names) not in _COUNTS:
                    raise NotUnderstood(_PRINTED)
            case _:
                raise NotUnderstood(_NOT_PLAIN)

    def _number(self, name: str) -> None:
        if name in PARAMETERS:
            return
        if name in self._names.vague or self._names.is_open or not is_name(name):
            raise NotUnderstood(
                f"arithmetic would evaluate what stands in {name}; set {name} to a number or a "
                "sum in the same text, and nowhere else"
            )

"""Variables and functions that a text sets, and where their values are certain. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from cellwall.parsing.shell.dialects import check_assigned
from cellwall.parsing.shell.parser import Node, NotUnderstood, nodes_of

is_name = re.compile(r"[A-Za-z_][A-Za-z0-9_]*").fullmatch
_is_number = re.compile(r"[0-9]{1,18}").fullmatch
_is_counting = re.compile(r"[0-9]{1,18}|\{[0-9]{1,6}\.\.[0-9]{1,6}\}").fullmatch
_EXPANDED = frozenset("{*?[")
_MAX_NODES = 40_000  # places in the text are nodes, too
SETTERS = frozenset(
    (
        *("read", "mapfile", "readarray", "printf", "getopts", "unset", "let"),
        *("declare", "typeset", "local", "export", "readonly", "compgen"),
        *("vared", "print", "integer", "float", "zparseopts", "getln", "zstat", "strftime"),
    )
)
"""Builtins whose arguments name variables."""
_REMOVERS = frozenset(("unset", "unfunction", "unhash", "disable", "autoload", "functions"))
"""Builtins (bash, zsh) that can remove a function."""
RUNNERS = frozenset(("eval", "source", ".", "trap", "alias"))
"""Builtins that run text: any variable may have any value afterwards."""


@dataclass(frozen=True, slots=True)
class ShellNames:
    """All names that one text sets, anywhere in it."""

    counts: Mapping[str, int]
    """How often a name gets a value."""
    vague: frozenset[str]
    """Names whose value may be other than a number."""
    functions: frozenset[str]
    is_open: bool
    """The text runs text: no value is known for sure."""
    spelled: frozenset[str] = frozenset()
    """Names with a value that the text spells, and not only the output of a command."""
    has_arguments: bool = True
    """The text, or its author, may choose the values of `$1` and `$@`."""

    keeps_functions: bool = True
    """No command of the text can remove a function."""
    outer: frozenset[str] = frozenset()
    """Names that the text around this one may set; `*` is any."""

    def may_set(self, name: str) -> bool:
        """Whether a command of the text, or of the text around it, could assign the name."""
        is_outer = name in self.outer or "*" in self.outer
        return self.is_open or name in self.counts or is_outer

    def is_single(self, name: str) -> bool:
        """Whether the text assigns the name exactly once."""
        return not self.is_open and self.counts.get(name, 0) == 1


def names_of(tree: Node, *, has_arguments: bool = True) -> ShellNames:
    """The names of the whole tree."""
    found = _NameCollector()
    for count, node in enumerate(nodes_of(tree)):
        if count > _MAX_NODES:
            raise NotUnderstood("the text is too long to be judged in time")
        found.see(node)
    waited = found.waited - {"!"}
    if not waited <= found.counts.keys() - found.no_jobs:  # `wait -p NAME` sets a variable
        found.is_open = True
    return ShellNames(
        found.counts,
        frozenset(found.vague),
        frozenset(found.functions),
        is_open=found.is_open,
        spelled=frozenset(found.spelled),
        has_arguments=has_arguments or found.is_open or bool(found.functions),
        keeps_functions=found.removed.isdisjoint({*found.functions, ""}),
    )


@dataclass(slots=True)
class _NameCollector:
    counts: dict[str, int] = field(default_factory=dict)
    vague: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    spelled: set[str] = field(default_factory=set)
    removed: set[str] = field(default_factory=set)
    """Functions that the text may remove; '' is any function."""
    waited: set[str] = field(default_factory=set)
    """Variables whose values are arguments of `wait`; '' is any other unknown word."""
    no_jobs: set[str] = field(default_factory=set)
    """Variables with another value than `$!`."""
    is_open: bool = False

    def see(self, node: Node) -> None:
        match node.get("Type"):
            case "FuncDecl":
                self.functions.add(node["Name"]["Value"])
            case "ForClause" if "Name" in node["Loop"]:
                items = [plain_text(item) or "" for item in node["Loop"].get("Items", ())]
                is_counting = bool(items) and all(_is_counting(item) for item in items)
                self._given(node["Loop"]["Name"]["Value"], number=is_counting)
            case "CoprocClause":
                self._given("COPROC")
            case "ParamExp" if node.get("Exp", {}).get("Op") in {"=", ":="}:
                self._given(node["Param"]["Value"])
            case "CallExpr" if node.get("Args"):
                self._called(_words_of(node["Args"]))
                self._waited_for(node["Args"])
            case "BinaryArithm" | "UnaryArithm" if node["X"].get("Type") == "Word":
                self._given(plain_text(node["X"]) or "", number=True)
            case None if "Name" in node:  # `X=` has no value in the tree
                self._given(node["Name"]["Value"], number=_gives_number(node))
                self._assigned(node["Name"]["Value"], node.get("Value", {}))
            case "DeclClause":
                for argument in node.get("Args", ()):
                    text = plain_text(argument["Value"]) if "Value" in argument else None
                    is_flag = text is not None and text.startswith(("-", "+"))
                    self.is_open = self.is_open or ("Name" not in argument and not is_flag)
            case _:
                pass

    def _assigned(self, name: str, value: Node) -> None:
        if _only_parameter(value) != "!":
            self.no_jobs.add(name)
        if not _only_prints(value):
            self.spelled.add(name)

    def _waited_for(self, words: Sequence[Node]) -> None:
        if plain_text(words[0]) == "wait":
            unclear = [word for word in words if _plain_argument(word) is None]
            self.waited.update(_only_parameter(word) for word in unclear)

    def _given(self, name: str, *, number: bool = False) -> None:
        check_assigned(name, is_element=False)
        self.counts[name] = self.counts.get(name, 0) + 1
        if not number:
            self.vague.add(name)

    def _called(self, words: list[str | None]) -> None:
        first = words[0]
        # Names in braces, and builtins after `command` or `builtin`, are not analysed.
        is_hidden = first is None or "{" in first or first in {"command", "builtin"}
        self.is_open = self.is_open or first in RUNNERS or is_hidden
        if first in _REMOVERS and words[1:2] != ["-v"]:
            is_plain = all(word is not None and is_name(word) for word in words[1:])
            self.removed.update(word or "" for word in words[1:] if is_plain)
            self.removed.update(() if is_plain else ("",))
        if first == "wait" and any((word or "").startswith("-") for word in words[1:]):
            for word in words[1:]:
                self._given((word or "").removeprefix("-p"))
        if first == "read" and any((word or "-a")[:1] == "-" and word != "-r" for word in words):
            self.is_open = True
        if first == "printf" and (words[1:2] or [""])[0] != "-v":
            self.is_open = self.is_open or ((words[1:2] or [""])[0] or "-v").startswith("-v")
        # Of the many uses of printf only `-v` names a variable.
        is_printing = words[0] == "printf" and not ([*words, ""][1] or "-v").startswith("-v")
        if words[0] in SETTERS and not is_printing:
            self.is_open = self.is_open or None in words
            for word in words[1:]:
                self._given((word or "").partition("=")[0].partition("[")[0])


def _only_parameter(word: Node) -> str:
    """The name in `$name`, quoted or not; '' for all other words."""
    parts = word.get("Parts", ())
    if len(parts) == 1 and parts[0]["Type"] == "DblQuoted":
        return _only_parameter(parts[0])
    is_one = len(parts) == 1 and parts[0]["Type"] == "ParamExp"
    is_plain = is_one and not parts[0].keys() & {"Exp", "Repl", "Slice", "Index", "Excl"}
    return str(parts[0]["Param"]["Value"]) if is_plain and "Param" in parts[0] else ""


def _words_of(nodes: Sequence[Node]) -> list[str | None]:
    """The words of a builtin; None for a word that could be another, or several: `{-v,x}`."""
    words = [plain_text(nodes[0]), *map(_plain_argument, nodes[1:])]
    if words[0] == "printf" and words[1:2] == [None] and not _may_be_option(nodes[1]):
        words[1] = "%"  # a format that no shell takes for `-v`
    return words


def _plain_argument(word: Node) -> str | None:
    texts = [part["Value"] for part in word.get("Parts", ()) if part["Type"] == "Lit"]
    return plain_text(word) if _EXPANDED.isdisjoint("".join(texts)) else None


def _may_be_option(word: Node) -> bool:
    """Whether a word could begin with a dash."""
    first: Node = next(iter(word.get("Parts", ())), {})
    if first.get("Type") == "DblQuoted" and not first.get("Dollar"):
        return _may_be_option(first)
    is_text = first.get("Type") in {"Lit", "SglQuoted"} and not first.get("Dollar")
    return not is_text or str(first.get("Value", ""))[:1] in {"", "-", "\\", *_EXPANDED}


def _only_prints(value: Node) -> bool:
    """`$(…)`, quoted or not, and nothing else."""
    parts = value.get("Parts", ())
    if len(parts) == 1 and parts[0]["Type"] == "DblQuoted":
        return _only_prints(parts[0])
    return bool(parts) and all(part["Type"] == "CmdSubst" for part in parts)


def _gives_number(assignment: Node) -> bool:
    parts = assignment.get("Value", {}).get("Parts", [])
    if "Array" in assignment or len(parts) > 1:
        return False
    if not parts:
        return True
    only = parts[0]
    is_sum = only["Type"] == "ArithmExp"
    return is_sum or (only["Type"] == "Lit" and _is_number(only["Value"]) is not None)


def plain_text(word: Node) -> str | None:
    """The text of a word that holds no escapes or expansions; None for all others."""
    texts: list[str] = []
    for part in word.get("Parts", ()):
        match part["Type"]:
            case "Lit" if "\\" not in part["Value"]:
                texts.append(part["Value"])
            case "SglQuoted" if not part.get("Dollar"):
                texts.append(part.get("Value", ""))
            case "DblQuoted" if (inner := plain_text(part)) is not None:
                texts.append(inner)
            case _:
                return None
    return "".join(texts)


# Whether a statement of a text surely takes effect.
#
# An assignment, or the definition of a function, does not happen where the shell gives up before
# it. If an expansion fails (`$((1/0))`, `${x:1:-9}`), or a readonly variable is assigned, bash
# discards the rest of the line and goes on with the next line.

SHELLS_OWN = frozenset(
    (
        *("UID", "EUID", "PPID", "GROUPS", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO", "BASHPID"),
        *("BASH_SUBSHELL", "BASH_COMMAND", "BASH_ARGC", "BASH_ARGV", "BASH_ARGV0", "BASH_SOURCE"),
        *("BASH_LINENO", "BASH_ALIASES", "BASH_CMDS", "FUNCNAME", "DIRSTACK", "PIPESTATUS"),
        *("LINENO", "RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME", "HISTCMD"),
        *("OPTIND", "PWD", "OLDPWD", "COMP_WORDBREAKS", "GID", "EGID", "USERNAME", "TTYIDLE"),
        *("status", "pipestatus", "argv", "ARGC", "signals", "funcstack", "ERRNO", "MATCH"),
    )
)
"""Variables whose value the shell sets, whatever the text assigns (bash, zsh)."""
_SPECIAL_BUILTINS = frozenset(
    (
        *("break", ":", ".", "continue", "eval", "exec", "exit", "export", "readonly", "return"),
        *("set", "shift", "times", "trap", "unset", "source", "command", "builtin"),
    )
)


def can_be_function(name: str) -> bool:
    """Whether every shell prefers a function of this name to a program or builtin."""
    is_plain = name.replace("_", "a").replace("-", "a").isalnum() and name.isascii()
    return is_plain and name not in _SPECIAL_BUILTINS


def lines_of(statements: Sequence[Node], text: bytes) -> Iterator[list[Node]]:
    """Statements that the shell reads and discards together: one line."""
    line: list[Node] = []
    for each in statements:
        between = text[line[-1]["End"]["Offset"] : each["Pos"]["Offset"]] if line else b""
        if b"\n" in between.replace(b"\\\n", b""):
            yield line
            line = []
        line.append(each)
    if line:
        yield line


def may_be_discarded(line: Sequence[Node]) -> bool:
    """Whether an error in an expansion can end a line before its last command."""
    only = line[0].get("Cmd") or {}
    if len(line) == 1 and only.get("Type", "CallExpr") in {"CallExpr", "FuncDecl"}:
        return False
    return any(_can_fail(node) for each in line for node in nodes_of(each))


def _can_fail(node: Node) -> bool:
    match node.get("Type"):
        case "ArithmExp":
            return True
        case "ParamExp":
            is_required = node.get("Exp", {}).get("Op") in {"?", ":?"}
            return is_required or bool(node.keys() & {"Slice", "Index", "Excl"})
        case "DeclClause":
            return node["Variant"]["Value"] == "readonly" or bool(node.get("Args"))
        case None if "Name" in node and "Pos" in node:
            name = node["Name"].get("Value", "") if isinstance(node["Name"], dict) else ""
            return name in SHELLS_OWN or "Index" in node
        case _:
            return False


# The functions of a text: those that are defined for sure, and their calls.


@dataclass(slots=True)
class Functions:
    """The functions of one text, recorded while the text is read from start to end."""

    names: frozenset[str]
    """All functions that the text defines anywhere."""
    defined: set[str] = field(default_factory=set)
    """Functions that are defined from here on, whatever branch was taken before."""
    _calls: dict[str, set[str]] = field(default_factory=dict)
    """Which functions a function calls; '' is the text itself."""
    _body: str = ""

    @contextmanager
    def body_of(self, name: str) -> Iterator[None]:
        """Calls in this context are calls of the named function."""
        before, self._body = self._body, name
        self._calls.setdefault(name, set())
        yield
        self._body = before

    def call(self, name: str) -> None:
        """Records a command with this name."""
        if name in self.names:
            self._calls.setdefault(self._body, set()).add(name)

    def check_recursion(self) -> None:
        """A recursive function may be a fork bomb."""
        for name in self._calls:
            seen, waiting = set[str](), [*self._calls[name]]
            while waiting:
                each = waiting.pop()
                if each == name:
                    raise NotUnderstood(f"the function {name!r} is recursive")
                if each not in seen:
                    seen.add(each)
                    waiting.extend(self._calls.get(each, ()))

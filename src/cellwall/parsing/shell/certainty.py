"""Whether a statement that stands in a text surely has its effect. Pure.

An assignment, or the definition of a function, does not happen where the shell gives up before it.
If an expansion fails (`$((1/0))`, `${x:1:-9}`), or a readonly variable is assigned, bash discards
the rest of the line and goes on with the next line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cellwall.parsing.shell.names import nodes_of
from cellwall.parsing.shell.parser import Node

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
"""Variables whose value the shell chooses, whatever the text assigns (bash, zsh)."""
_SPECIAL_BUILTINS = frozenset(
    (
        *("break", ":", ".", "continue", "eval", "exec", "exit", "export", "readonly", "return"),
        *("set", "shift", "times", "trap", "unset", "source", "command", "builtin"),
    )
)


def can_be_function(name: str) -> bool:
    """Whether every shell takes a function of this name before a program or builtin."""
    is_plain = name.replace("_", "a").replace("-", "a").isalnum() and name.isascii()
    return is_plain and name not in _SPECIAL_BUILTINS


def lines_of(statements: Sequence[Node], text: bytes) -> Iterator[list[Node]]:
    """Statements that the shell reads, and discards, together."""
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

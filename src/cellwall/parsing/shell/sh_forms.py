"""Forms that bash reads in one way and a plain sh (dash, busybox) in another. Pure.

A text behind `sh -c` is read by whatever `sh` is. dash takes these for commands, or ends a quote in
the middle of them, so that it runs what bash would not:

    echo $'\\'; id #'        in dash `$` and the quoted text `\\`; id is a command
    echo a &> b id          in dash `echo a &` and `> b id`
    x+=./a  x[0]=./a        in dash the program `x+=./a`
    declare, typeset, let   in dash programs: nothing is set
    export x=$y             older ones split $y, and set what stands in it

`[[`, `((`, `time` and `function` are looked at where they are read (reader.py). What is an error in
dash runs nothing, and is read as bash has it.
"""

from __future__ import annotations

from cellwall.parsing.shell.names import nodes_of
from cellwall.parsing.shell.parser import Node, NotUnderstood

_KNOWN = frozenset(("export", "readonly", "local"))
_SPLIT = frozenset(("ParamExp", "CmdSubst"))
_USE_BASH = "write it in another way, or use bash -c"


def check_sh(tree: Node) -> None:
    """Raises `NotUnderstood` where the text holds one of them."""
    for node in nodes_of(tree):
        match node.get("Type"):
            case "SglQuoted" if node.get("Dollar"):
                raise NotUnderstood(f"sh does not know $'…'; {_USE_BASH}")
            case "LetClause":
                raise NotUnderstood(f"sh does not know let; {_USE_BASH}")
            case "DeclClause":
                _check_declared(node)
            case None if str(node.get("Op", "")).startswith("&>"):
                raise NotUnderstood("sh takes &> for the end of a command; write > FILE 2>&1")
            case None if "Name" in node and node.keys() & {"Append", "Index", "Array"}:
                raise NotUnderstood(f"sh knows only plain assignments; {_USE_BASH}")
            case _:
                pass


def _check_declared(clause: Node) -> None:
    name = clause["Variant"]["Value"]
    if name not in _KNOWN:
        raise NotUnderstood(f"sh does not know {name}; {_USE_BASH}")
    for argument in clause.get("Args", ()):
        parts = argument.get("Value", {}).get("Parts", ())
        if any(part["Type"] in _SPLIT for part in parts):
            raise NotUnderstood(f"some sh split the words behind {name}; put them between quotes")

"""Expansions that become a number, whatever happens. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cellwall.policy.shell.names import Names, plain_text
from cellwall.policy.shell.parser import Node
from cellwall.policy.shell.words import UNKNOWN, Number, Word

PARAMETERS: Mapping[str, Number] = {
    "#": Number.COUNT,
    "?": Number.COUNT,
    "$": Number.PROCESS,
    "!": Number.COUNT_OR_NOTHING,  # nothing before the first job
    # Numbers in bash, nothing in a plain sh; none of them may be set.
    "RANDOM": Number.COUNT_OR_NOTHING,
    "SECONDS": Number.COUNT_OR_NOTHING,
    "LINENO": Number.COUNT_OR_NOTHING,
    "BASHPID": Number.COUNT_OR_NOTHING,
    "PPID": Number.COUNT_OR_NOTHING,
    "UID": Number.COUNT_OR_NOTHING,
}
JOB = Word(UNKNOWN, number=Number.PROCESS)
"""What `$!` is once something was put into the background."""
_is_plain_argument = re.compile(r"--all|--ignore=[0-9]{1,4}").fullmatch


def printed(substitution: Node, names: Names) -> Number:
    """Of `$(nproc)`: it prints one, or nothing where it is missing."""
    statements = substitution.get("Stmts", ())
    if len(statements) != 1 or statements[0].keys() - {"Pos", "End", "Position", "Cmd"}:
        return Number.NONE  # more than one command, a redirection, a `!`
    command = statements[0].get("Cmd", {})
    if command.get("Type") != "CallExpr" or command.get("Assigns"):
        return Number.NONE
    words = [plain_text(word) or "" for word in command["Args"]]
    is_meant = words[0] == "nproc" and "nproc" not in names.functions and not names.is_open
    is_plain = all(_is_plain_argument(word) for word in words[1:])
    return Number.COUNT_OR_NOTHING if is_meant and is_plain else Number.NONE

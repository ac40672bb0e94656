"""Parameters that hold a number, whatever happens. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from cellwall.parsing.shell.words import UNKNOWN, Number, Word

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
"""What `$!` is once something was put into the background."""

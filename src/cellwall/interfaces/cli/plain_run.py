"""`cellwall run [--] CMD [ARG]...` without an option, in a supervisor that runs.

Agents and scripts call this form most. It has no option to parse, so click is not imported, whose
import takes longer than such a run.
"""

# ruff: noqa: PLC0415  # late imports: only a run that the supervisor takes needs them

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` itself takes as long to import as Python takes to start
if TYPE_CHECKING:
    from collections.abc import Sequence

_INTERACTIVE = frozenset(
    {"sh", "bash", "dash", "zsh", "fish", "ksh", "python", "python3", "ipython", "node", "irb"}
)


def command_of(words: Sequence[str]) -> list[str] | None:
    """The command of a plain `run`; None where click has to read the words."""
    if words[:1] != ["run"] or "_CELLWALL_COMPLETE" in os.environ:
        return None
    has_dashes = words[1:2] == ["--"]
    command = list(words[2:] if has_dashes else words[1:])
    if not command or (command[0].startswith("-") and not has_dashes):
        return None
    return None if is_interactive(command) else command


def run_plain(command: list[str]) -> int | None:
    """The exit code; None if no supervisor takes the run, and nothing was run."""
    from cellwall.interfaces.cli.via_supervisor import open_connection, run_in_supervisor
    from cellwall.interfaces.supervisor.requests import command_message

    connection = open_connection()
    if connection is None:
        return None
    return run_in_supervisor(connection, {}, command_message(command), b"")


def is_interactive(command: Sequence[str]) -> bool:
    """Whether it is a shell or an interpreter without arguments, on a terminal."""
    is_one = len(command) == 1 and os.path.basename(command[0]) in _INTERACTIVE
    return is_one and os.isatty(0) and os.isatty(1)

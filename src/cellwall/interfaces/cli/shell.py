"""`cellwall shell`, and `cellwall run -- bash` at a terminal: when a program is interactive."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import click

from cellwall.core.errors import BadInput
from cellwall.interfaces.cli.options import SandboxOptions, sandbox_options

_INTERACTIVE = frozenset(
    {"sh", "bash", "dash", "zsh", "fish", "ksh", "python", "python3", "ipython", "node", "irb"}
)


def is_interactive(command: Sequence[str]) -> bool:
    """Whether it is a shell or an interpreter without arguments, and a person sits here."""
    is_one = len(command) == 1 and os.path.basename(command[0]) in _INTERACTIVE
    return is_one and os.isatty(0) and os.isatty(1)


@click.command(
    context_settings={"allow_interspersed_args": False},
    epilog="""\b
Examples:
  cellwall shell
  cellwall shell --here
  cellwall shell --allow-domain pypi.org -- python3
""",
)
@sandbox_options
@click.argument("command", metavar="[-- CMD [ARG]...]", nargs=-1, type=click.UNPROCESSED)
def shell(command: tuple[str, ...], **typed: Any) -> int:  # noqa: ANN401  # the shared options
    """Open a shell in a new sandbox, on a terminal; the sandbox ends with it."""
    options = SandboxOptions(**typed)
    if options.as_json or options.stdin:
        raise BadInput(
            "a shell is for a person at a terminal",
            hint="Without one, use: cellwall run -- CMD.",
            code="CW-USAGE",
        )
    if options.secret:
        raise BadInput(
            "a shell gets no secrets yet",
            hint="Use cellwall run --secret NAME -- CMD.",
            code="CW-USAGE",
        )
    return open_shell(options, command or ("bash",), "/workspace")


def open_shell(options: SandboxOptions, command: Sequence[str], cwd: str) -> int:
    """Until the program ends; returns its exit code."""
    if not (os.isatty(0) and os.isatty(1)):
        raise BadInput(
            "there is no terminal here",
            hint="Without one, use: cellwall run -- CMD.",
            code="CW-NO-TERMINAL",
        )
    from cellwall.interfaces.cli.execute import show  # noqa: PLC0415  # heavy
    from cellwall.interfaces.cli.interactive import TerminalProgram  # noqa: PLC0415  # heavy

    program = TerminalProgram(options.prepared(), tuple(command), cwd)
    return show(
        program.perform, notes=program.notes, kept=program.kept, as_json=False, relays=False
    )

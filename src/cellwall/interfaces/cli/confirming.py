"""A person confirms, at a terminal of their own, what no agent may do for itself (POL-13).

   (1) this process is not an agent's, see `runtime.agent_processes`
   (2) there is a terminal, and the question stands on it
   (3) a random word, shown on the terminal alone, is typed there: no pipe, file or option answers

There is no option that skips a step.
"""

from __future__ import annotations

import os
import secrets
import select
import sys
import termios

import click

from cellwall.core.errors import BadInput
from cellwall.core.showing import fit
from cellwall.interfaces.cli.approval_prompt import NoTerminal, open_terminal
from cellwall.interfaces.cli.terminal_input import LOOK_S, wait_for
from cellwall.runtime.agent_processes import refuse_agents

_LETTERS = "abcdefghkmnpqrstuvwxyz"
_WORD_LENGTH = 5
_MAX_LINE_BYTES = 4096
_USUAL_COLUMNS = 80
_RESET = b"\x1b[0m"


def confirm(shown: str, *, what: str) -> bool:
    """Whether the person at the terminal wants it; raises where there is none.

    `what` completes the sentence "… is for a person".
    """
    refuse_agents(what)  # (1)
    try:
        with open_terminal() as terminal:  # (2)
            return _typed(terminal, shown, what)
    except NoTerminal as problem:
        raise BadInput(
            f"{what} is for a person at a terminal: {problem.message}",
            hint="Type the command in a terminal of your own; no option takes its place.",
            code="CW-NOT-CONFIRMED",
        ) from None


def agreed(question: str) -> bool:
    """Whether the person at standard input says yes; no is the default.

    For what a person may also do by an option. Unlike `click.confirm`, a signal ends the wait at
    any moment, see `wait_for`.
    """
    while True:
        click.echo(f"{question} [y/N]: ", err=True, nl=False)
        try:
            wait_for(sys.stdin.fileno())
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            raise click.Abort from None
        if not line:
            raise click.Abort
        answer = line.strip().lower()
        if answer in ("y", "yes"):
            return True
        if answer in ("", "n", "no"):
            return False
        click.echo("Type y or n.", err=True)


def _typed(terminal: int, shown: str, what: str) -> bool:
    word = "".join(secrets.choice(_LETTERS) for _ in range(_WORD_LENGTH))
    columns = os.get_terminal_size(terminal).columns or _USUAL_COLUMNS
    asked = f"\n{shown}You confirm {what}.\nType {word} to do so (Enter alone: no): "
    # A word typed before the question was there would be an answer to something else.
    termios.tcflush(terminal, termios.TCIFLUSH)
    _write(terminal, _RESET + fit(asked, columns).encode())
    while True:  # (3)
        wait_for(terminal)
        try:
            line = os.read(terminal, _MAX_LINE_BYTES)
        except BlockingIOError:
            continue
        return line.decode("utf-8", "replace").strip().lower() == word


def _write(terminal: int, told: bytes) -> None:
    data = memoryview(told)
    while data:
        # A terminal that takes nothing (Ctrl-S): in short intervals, as for a line that is read.
        if not select.select([], [terminal], [], LOOK_S)[1]:
            continue
        try:
            data = data[os.write(terminal, data) :]
        except BlockingIOError:
            continue

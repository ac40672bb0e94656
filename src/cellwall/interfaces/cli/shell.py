"""`cellwall shell`, and `cellwall run -- bash` at a terminal: an interactive program in a sandbox.

The program has a terminal of the sandbox's own; what is typed here is written to it, what it prints
is shown here. Sequences by which a program would steer more than the screen (clipboard, window,
answers that are typed for the user) are removed on the way.
"""

from __future__ import annotations

import os
import re
import signal
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from cellwall.core.errors import BadInput
from cellwall.core.types import ProcessInfo
from cellwall.interfaces.cli.options import SandboxOptions, sandbox_options

if TYPE_CHECKING:
    from cellwall.interfaces.sdk.commands import AsyncProcess

_INTERACTIVE = frozenset(
    {"sh", "bash", "dash", "zsh", "fish", "ksh", "python", "python3", "ipython", "node", "irb"}
)
_READ_BYTES = 4096
_FOLLOW_S = 30.0
_SETTLE_S = 0.1
_MAX_SEQUENCE = 4096

# ECMA-48: strings (OSC, DCS, SOS, PM, APC) with their terminator, CSI and other escape sequences,
# C1 controls in UTF-8, and ENQ, which some terminals answer.
_SEQUENCE = re.compile(
    rb"\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"
    rb"|\x1b\[[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]|\xc2[\x80-\x9f]|\x05"
)
# What draws: cursor, erasing, colours, scrolling, modes, the cursor's shape, character sets. All
# others are removed. Among them are all reports, which come back as if they were typed.
_DRAWS = re.compile(
    rb"\x1b\[[0-9;:]*[A-HJ-MPSTXZ@`abdefgmrsu]|\x1b\[\??[0-9;]*[hlJK]|\x1b\[[0-9]* q"
    rb"|\x1b[78DEHM=>]|\x1b[()][0-9A-Z]"
)
_UNFINISHED = re.compile(rb"(?:\x1b(?:[\]PX^_][^\x07\x1b]*\x1b?|\[[0-?]*[ -/]*|[ -/]*)|\xc2)\Z")
# Colours, cursor, bracketed paste, mouse, focus, and the alternate screen: as a shell expects them.
_RESET = (
    b"\x1b[0m\x1b[?25h\x1b[?2004l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1006l"
    b"\x1b[?1l\x1b>\x1b[?1049l\r\n"
)


class ScreenFilter:
    """Passes what draws on the screen; chunks may be cut anywhere."""

    def __init__(self) -> None:
        self._waiting = b""

    def feed(self, data: bytes) -> bytes:
        text = self._waiting + data
        unfinished = _UNFINISHED.search(text)
        end = len(text) if unfinished is None else unfinished.start()
        self._waiting = text[end:]
        if len(self._waiting) > _MAX_SEQUENCE:
            self._waiting = b""  # a string without an end is not shown at all
        return _SEQUENCE.sub(_drawing, text[:end])


def _drawing(found: re.Match[bytes]) -> bytes:
    return found[0] if _DRAWS.fullmatch(found[0]) else b""


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
            mend="Without one, use: cellwall run -- CMD.",
            code="CW-USAGE",
        )
    if options.secret:
        raise BadInput(
            "a shell gets no secrets yet",
            mend="Use cellwall run --secret NAME -- CMD.",
            code="CW-USAGE",
        )
    return open_shell(options, command or ("bash",), "/workspace")


def open_shell(options: SandboxOptions, command: Sequence[str], cwd: str) -> int:
    """Until the program ends; returns its exit code."""
    if not (os.isatty(0) and os.isatty(1)):
        raise BadInput(
            "there is no terminal here",
            mend="Without one, use: cellwall run -- CMD.",
            code="CW-NO-TERMINAL",
        )
    import anyio  # noqa: PLC0415  # keeps --help quick

    return anyio.run(_interact, options.prepared(), tuple(command), cwd)


async def _interact(options: SandboxOptions, command: tuple[str, ...], cwd: str) -> int:
    import anyio  # noqa: PLC0415  # as above

    from cellwall.interfaces.sdk.asynchronous import AsyncSandbox  # noqa: PLC0415  # heavy

    async with AsyncSandbox.create(**options.for_sdk()) as sandbox:
        rows, columns = _size()
        term = os.environ.get("TERM", "xterm-256color")
        program = await sandbox.commands.terminal(
            command,
            rows=rows,
            columns=columns,
            envs={"TERM": term, **options.for_sdk()["envs"]},
            cwd=cwd,
        )
        with _raw_terminal():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_forward_typed, program)
                tasks.start_soon(_forward_size, program)
                code = await _show(program)
                tasks.cancel_scope.cancel()
            await anyio.sleep(_SETTLE_S)  # for answers of the terminal that are still on their way
    return 125 if code is None else code


async def _show(program: AsyncProcess) -> int | None:
    screen = ScreenFilter()
    while True:
        done = await program.follow(_FOLLOW_S)
        _write(screen.feed(done.outcome.stdout_bytes))
        info = done.outcome.payload
        if not isinstance(info, ProcessInfo) or not info.is_running:
            done = await program.read()
            _write(screen.feed(done.outcome.stdout_bytes))
            return done.exit_code


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


async def _forward_typed(program: AsyncProcess) -> None:
    import anyio  # noqa: PLC0415  # as above

    while True:
        await anyio.wait_readable(0)
        typed = os.read(0, _READ_BYTES)
        if not typed:
            return
        await program.send_stdin(typed)


async def _forward_size(program: AsyncProcess) -> None:
    import anyio  # noqa: PLC0415  # as above

    with anyio.open_signal_receiver(signal.SIGWINCH) as changes:
        async for _ in changes:
            await program.resize(*_size())


def _size() -> tuple[int, int]:
    columns, rows = os.get_terminal_size(1)
    return rows or 24, columns or 80


@contextmanager
def _raw_terminal() -> Iterator[None]:
    """Every key goes inside, Ctrl-C too; afterwards the terminal is as before."""
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        yield
    finally:
        # What is still unread was typed for the program, or is an answer that it asked for.
        termios.tcsetattr(0, termios.TCSAFLUSH, before)
        _write(_RESET)

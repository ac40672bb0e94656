"""A program in a sandbox on the user's terminal.

The program has a terminal of the sandbox's own: keys typed outside are written to the terminal
inside, and the output of the program is shown outside, filtered by `ScreenFilter`.

The filter is an allowlist: printable text, nine C0 controls, and whole escape sequences that are
named here. Every other control character is dropped. So the terminal's parser is in its ground
state between two emitted pieces, and the pieces around a dropped sequence cannot join.
"""

from __future__ import annotations

import codecs
import os
import re
import signal
import termios
import tty
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import anyio

from cellwall.core.errors import BadInput, CellwallError, SandboxFailed
from cellwall.core.limits import LimitName
from cellwall.core.outcomes import NOT_STARTED, Outcome, Status
from cellwall.core.types import ProcessInfo, WorkspaceMode
from cellwall.interfaces.cli.run_output import RunRenderer
from cellwall.interfaces.outcome_text import finding_lines, kept_line, limit_line
from cellwall.interfaces.sandbox_options import SandboxOptions, parse_workspace
from cellwall.interfaces.sdk.asynchronous import AsyncSandbox
from cellwall.interfaces.sdk.commands import AsyncProcess
from cellwall.interfaces.terminal import write_all
from cellwall.runtime.wiring import shared_app

_READ_BYTES = 4096
_FOLLOW_S = 30.0
_SETTLE_S = 0.1
_RESTORE_S = 1.0
_MAX_SIDE = 9_999
_BELL = b"\a"
_EXIT_WALL = 124


class TerminalProgram:
    """One program on the user's terminal, from its start to its end."""

    def __init__(self, options: SandboxOptions, command: tuple[str, ...], cwd: str) -> None:
        self._options = options
        self._command = command
        self._cwd = cwd
        self._screen = ScreenFilter()
        self._sandbox_id: str | None = None
        self._is_terminal_gone = False

    async def perform(self, _renderer: RunRenderer) -> Outcome:
        typed = self._options.for_sdk()
        async with AsyncSandbox.create(**typed) as sandbox:
            self._sandbox_id = sandbox.id
            rows, columns = _size()
            program = await sandbox.commands.terminal(
                self._command,
                rows=rows,
                columns=columns,
                envs={"TERM": os.environ.get("TERM") or "xterm-256color", **typed["envs"]},
                cwd=self._cwd,
            )
            async with _raw_terminal(self._screen):
                outcome = await self._until_end(program)
                # Mouse reports may be in flight; the outer shell must not get them as keys.
                await anyio.sleep(_SETTLE_S)
        for finding in outcome.findings:
            if finding.category == NOT_STARTED:
                raise BadInput(finding.message, code=finding.rule)
        if outcome.exit_code is None and outcome.limit is None:
            raise SandboxFailed(
                "the sandbox ended before the program did",
                hint="A limit of memory or disk ends a whole sandbox; raise --memory or --disk.",
                code="CW-SANDBOX-GONE",
            )
        return outcome

    async def _until_end(self, program: AsyncProcess) -> Outcome:
        ended: list[Outcome] = []
        failed: list[Exception] = []
        with anyio.move_on_after(self._options.timeout):
            async with anyio.create_task_group() as tasks:

                async def only(work: Callable[[AsyncProcess], Awaitable[Outcome | None]]) -> None:
                    """The first task that ends or fails ends all three."""
                    try:
                        outcome = await work(program)
                        ended.extend([outcome] if outcome else [])
                    except Exception as error:  # noqa: BLE001  # raised below, not as a group
                        failed.append(error)
                    tasks.cancel_scope.cancel()

                for work in (self._show, self._forward_typed, _forward_size):
                    tasks.start_soon(only, work)
        if ended:
            return ended[0]
        # The kernel sends SIGCONT on a hang-up, too; termios has its own exception class.
        if failed and not isinstance(failed[0], OSError | termios.error):
            raise failed[0]
        if failed or self._is_terminal_gone:
            raise CellwallError("the terminal was closed", code="CW-NO-TERMINAL")
        return Outcome(
            status=Status.LIMIT, action_id="", exit_code=_EXIT_WALL, limit=LimitName.WALL
        )

    async def _show(self, program: AsyncProcess) -> Outcome:
        while True:
            done = await program.follow(_FOLLOW_S)
            await self._write(done.outcome.stdout_bytes)
            info = done.outcome.payload
            if not isinstance(info, ProcessInfo) or not info.is_running:
                done = await program.read()
                await self._write(done.outcome.stdout_bytes)
                return done.outcome

    async def _write(self, data: bytes) -> None:
        # In a thread: a blocked terminal must not delay signals and limits.
        shown = self._screen.feed(data)
        await anyio.to_thread.run_sync(write_all, 1, shown, abandon_on_cancel=True)

    async def _forward_typed(self, program: AsyncProcess) -> None:
        while True:
            await anyio.wait_readable(0)
            typed = os.read(0, _READ_BYTES)
            if not typed:
                self._is_terminal_gone = True
                return
            try:
                await program.send_stdin(typed)
            except CellwallError as error:
                if (
                    error.code == "CW-NO-STDIN"
                ):  # the program has ended; `_show` still shows its output
                    await anyio.sleep_forever()
                if error.code != "CW-STDIN-SLOW":
                    raise
                await self._write(_BELL)  # the input queue inside is full, as on a real terminal

    def notes(self, outcome: Outcome) -> list[str]:
        notes = finding_lines(outcome.findings)
        if outcome.limit is not None:
            notes.append(limit_line(outcome.limit))
        kept = self.kept()
        return notes if kept is None else [*notes, kept_line(kept)]

    def kept(self) -> str | None:
        """The id of copy-on-write changes that the program has made."""
        if self._sandbox_id is None:
            return None
        options = self._options
        request = parse_workspace(options.workspace)
        if request.mode is not WorkspaceMode.COPY_ON_WRITE:
            return None
        with suppress(CellwallError):  # removed with the sandbox: nothing was changed
            app = shared_app(options.config, options.profile)
            return app.store.session(self._sandbox_id).id
        return None


async def _forward_size(program: AsyncProcess) -> None:
    with anyio.open_signal_receiver(signal.SIGWINCH, signal.SIGCONT) as changes:
        async for number in changes:
            if number == signal.SIGCONT:  # the outer shell used the terminal meanwhile
                # TCSANOW: a blocked terminal must not delay the limits.
                tty.setraw(0, termios.TCSANOW)
            await program.resize(*_size())


def _size() -> tuple[int, int]:
    columns, rows = os.get_terminal_size(1)
    return min(rows or 24, _MAX_SIDE), min(columns or 80, _MAX_SIDE)


@asynccontextmanager
async def _raw_terminal(screen: ScreenFilter) -> AsyncIterator[None]:
    """Raw mode, so that every key goes inside, including Ctrl-C; restored afterwards."""
    before = termios.tcgetattr(0)
    try:
        tty.setraw(0, termios.TCSADRAIN)  # keys typed ahead go to the program
        yield
    finally:
        with suppress(OSError, termios.error):  # the terminal may be gone
            # Bounded: the terminal may be blocked.
            with anyio.move_on_after(_RESTORE_S, shield=True):
                restore = partial(write_all, 1, screen.finish())
                await anyio.to_thread.run_sync(restore, abandon_on_cancel=True)
            # Unread input was meant for the program, or is a mouse report.
            termios.tcflush(0, termios.TCIFLUSH)
            termios.tcsetattr(0, termios.TCSANOW, before)


_NUMBERS = r"[0-9]{0,5}(?:[;:][0-9]{0,5}){0,31}"
# DEC private modes: cursor keys, reverse video, origin, wrap, cursor, alternate screen, mouse,
# focus, bracketed paste, synchronised output. Not: VT52 (2), width (3), reports of size or colours.
_DEC_MODES = (
    *("1", "5", "6", "7", "12", "25", "47", "1047", "1048", "1049"),
    *("1000", "1002", "1003", "1004", "1005", "1006", "1015", "2004", "2026"),
)
_ON_AT_START = frozenset({"7", "25"})
_CURSOR_ONLY = "1048"
"""Saves and restores the cursor; nothing stays on."""
_DEC_MODE = "|".join(_DEC_MODES)

# ECMA-48: control strings (OSC, DCS, SOS, PM, APC), CSI and other escape sequences, controls. A
# string ends with BEL, ST, CAN or SUB, or where another sequence begins.
_TOKEN = re.compile(
    r"\x1b[\]PX^_][^\x07\x18\x1a\x1b\x9c]*(?:[\x07\x18\x1a\x9c]|\x1b\\)?"
    r"|\x1b\[[0-?]{0,200}[ -/]{0,4}[@-~]"
    r"|\x1b[ -/]{0,4}[0-~]"
    r"|[\x00-\x06\x10-\x1f\x7f-\x9f]"
)
_UNFINISHED = re.compile(
    r"\x1b(?:([\]PX^_])[^\x07\x18\x1a\x1b\x9c]*(\x1b?)|\[[0-?]{0,200}[ -/]{0,4}|[ -/]{0,4})\Z"
)
# Cursor, erasing, colours, scrolling, insert mode, the cursor's shape, character sets, keypad.
# Reports are not among them: their answers come back as if the user had typed them.
_DRAWS = re.compile(
    rf"\x1b\[{_NUMBERS}[A-HJ-MPSTXZ@`abdefgmrsu]|\x1b\[\?[0-9]{{0,5}}[JK]|\x1b\[[0-9]? q"
    r"|\x1b[78DEHM=>]|\x1b[()][0-9A-Z]"
)
_SETS_MODES = re.compile(rf"\x1b\[(?:4|\?(?P<modes>(?:{_DEC_MODE})(?:;(?:{_DEC_MODE}))*))[hl]")
_CHANGES_REGION = re.compile(r"\x1b\[[0-9;:]+r")
_CHANGES_CURSOR = re.compile(r"\x1b\[[0-9]* q")


class ScreenFilter:
    """Passes text and sequences that draw; chunks may be split anywhere."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting = ""
        self._is_mid_line = False
        self._modes: set[str] = set()
        """Modes that differ from the start, and other persistent states."""

    def feed(self, data: bytes) -> bytes:
        text = self._waiting + self._decoder.decode(data)
        unfinished = _UNFINISHED.search(text)
        end = len(text) if unfinished is None else unfinished.start()
        self._waiting = text[end:]
        if unfinished is not None and unfinished[1] is not None:
            # A control string is dropped, however long: only its introducer is kept.
            self._waiting = f"\x1b{unfinished[1]}{unfinished[2]}"
        shown = _TOKEN.sub(self._filter_sequence, text[:end]).encode()
        self._is_mid_line = not shown.endswith(b"\n") if shown else self._is_mid_line
        return shown

    def finish(self) -> bytes:
        """Sequences that restore the screen for the shell after a program was killed."""
        states, self._modes, self._waiting = self._modes, set(), ""
        undone = [
            f"\x1b[?{mode}{'h' if mode in _ON_AT_START else 'l'}"
            for mode in _DEC_MODES
            if mode in states
        ]
        # Leaving the alternate screen moves the cursor, so it is left only if it was entered.
        undone += [done for state, done in _OTHERS_UNDONE.items() if state in states]
        line_end = "\r\n" if self._is_mid_line else ""
        return ("".join(undone) + f"\x1b(B\x0f\x1b[0m{line_end}").encode()

    def _filter_sequence(self, match: re.Match[str]) -> str:
        sequence = match[0]
        if (modes := _SETS_MODES.fullmatch(sequence)) is not None:
            is_on = sequence.endswith("h")
            for mode in (modes["modes"] or "insert").split(";"):
                if mode != _CURSOR_ONLY:
                    self._note(mode, changed=is_on is not (mode in _ON_AT_START))
            return sequence
        if _DRAWS.fullmatch(sequence) is None:
            return ""
        if sequence.endswith("r"):
            self._note("region", changed=_CHANGES_REGION.fullmatch(sequence) is not None)
        elif _CHANGES_CURSOR.fullmatch(sequence) is not None:
            self._note("shape", changed=sequence not in {"\x1b[ q", "\x1b[0 q"})
        elif sequence in {"\x1b=", "\x1b>"}:
            self._note("keypad", changed=sequence == "\x1b=")
        return sequence

    def _note(self, state: str, *, changed: bool) -> None:
        self._modes.add(state) if changed else self._modes.discard(state)


_OTHERS_UNDONE = {
    "insert": "\x1b[4l",
    "region": "\x1b7\x1b[r\x1b8",  # a new region moves the cursor
    "shape": "\x1b[0 q",
    "keypad": "\x1b>",
}

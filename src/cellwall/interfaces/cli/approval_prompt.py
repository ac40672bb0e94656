"""Approval questions at this terminal (POL-8).

The prompt opens the terminal itself, never standard input: that may belong to the program, and a
file or an agent would answer for the person. Input typed before the question appears is discarded.
"""

# ruff: noqa: PLC0415  # late imports: most runs ask no question

from __future__ import annotations

import os
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

import anyio

from cellwall.core.approvals import Answer, AnswerKind, Question
from cellwall.core.errors import CellwallError
from cellwall.core.showing import MIN_WIDTH, block, fit
from cellwall.core.types import Principal
from cellwall.interfaces.cli.output import say

_MAX_TRIES = 5
_MAX_LINE_BYTES = 4096
_USUAL_COLUMNS = 80
_LOOK_EVERY_S = 0.1
_OVER = b"\nNo answer is needed any more.\n"
# The program may have left a colour on that makes our text invisible.
_RESET = b"\x1b[0m"

Hush = Callable[[], AbstractContextManager[None]]
"""Keeps the spinner off the terminal for a block."""


class TerminalApprover:
    """Implements `ApproverPort` on the terminal that this process was started from."""

    name = "terminal"

    def __init__(self, who: Principal, *, hush: Hush = nullcontext) -> None:
        self._who = who
        self._hush = hush
        self._turn = anyio.Lock()

    async def ask(self, question: Question) -> Answer:
        """The answer typed; raises where no person can see the question and answer."""
        async with self._turn:
            try:
                _refuse_agents()
                with open_terminal() as terminal, self._hush():
                    return await _Prompt(terminal, question, self._who).ask()
            except NoTerminal:
                say(waiting_line(question))
                raise


class NoTerminal(CellwallError):
    """There is no terminal, or none that can show a question."""

    default_code = "CW-NO-TERMINAL"


def _refuse_agents() -> None:
    """An agent could create a terminal and answer on it (POL-13)."""
    from cellwall.runtime.agent_processes import find_agent

    why = find_agent(os.getpid())
    if why is not None:
        raise NoTerminal(f"a person must answer, and this is an agent's shell: {why}")


def waiting_line(question: Question) -> str:
    """How to answer the question in another terminal."""
    left_s = max(0.0, question.deadline_s - time.time())
    return (
        f"a question waits {left_s:.0f} s for an answer; "
        f"in another terminal: cellwall approvals show {question.id}"
    )


def fit_to_stream(text: str, *, stream: int) -> str:
    """Text folded to the width of a terminal, which must not wrap it itself, see `core.showing`."""
    if not os.isatty(stream):
        return text
    columns = os.get_terminal_size(stream).columns or _USUAL_COLUMNS
    if columns < MIN_WIDTH:
        raise NoTerminal(
            "the terminal is too narrow",
            hint=f"Make it {MIN_WIDTH} columns wide or more, or use --json.",
        )
    return fit(text, columns)


class _Prompt:
    """One question on one terminal."""

    def __init__(self, terminal: int, question: Question, who: Principal) -> None:
        self._terminal = terminal
        self._question = question
        self._who = who
        self._columns = os.get_terminal_size(terminal).columns or _USUAL_COLUMNS

    async def ask(self) -> Answer:
        try:
            return await self._ask()
        except BaseException:
            with suppress(OSError):
                os.write(self._terminal, _OVER)
            raise

    async def _ask(self) -> Answer:
        question = self._question
        has_session = question.takes(AnswerKind.SESSION)
        menu = ["  y  allow it, this once\n"]
        if has_session:
            menu.append("  s  allow exactly this, until the session ends\n")
        if question.proposals:
            menu.append("  r  allow it, and write a rule\n")
        menu.append("  n  deny it (Enter alone, too)\n")
        keys = "y" + "s" * has_session + "r" * bool(question.proposals) + "N"
        await self._send(_RESET)
        await self._put(f"\ncellwall asks you ({question.id}):\n{question.shown}{''.join(menu)}")
        # Input typed before the question appeared answers something else.
        termios.tcflush(self._terminal, termios.TCIFLUSH)
        for _ in range(_MAX_TRIES):
            left_s = max(0.0, question.deadline_s - time.time())
            match await self._line(f"Within {left_s:.0f} s [{'/'.join(keys)}]: "):
                case None | "" | "n" | "no" | "deny":
                    return self._answer(AnswerKind.DENY)
                case "y" | "yes" | "once":
                    return self._answer(AnswerKind.ONCE)
                case "s" | "session" if has_session:
                    return self._answer(AnswerKind.SESSION)
                case "r" | "rule" if question.proposals:
                    rule = await self._rule()
                    if rule is not None:
                        return self._answer(AnswerKind.RULE, rule=rule)
                case _:
                    await self._put("Unknown answer.\n")
        return self._answer(AnswerKind.DENY, reason="no valid answer")

    async def _rule(self) -> str | None:
        """The proposed rule to write; None: back to the question."""
        proposals = self._question.proposals
        for number, proposal in enumerate(proposals, start=1):
            await self._put(
                f"Rule {number}, for all that follows:\n{block(proposal.rule)}"
                f"It would also allow:\n{block(proposal.also_allows)}"
            )
        chosen = await self._line("Write which one? Its number, or Enter to go back: ")
        numbers = {str(number): each for number, each in enumerate(proposals, start=1)}
        selected = numbers.get(chosen or "")
        return None if selected is None else selected.rule

    def _answer(self, kind: AnswerKind, *, rule: str = "", reason: str = "") -> Answer:
        return Answer(kind=kind, by=self._who, via="terminal", rule=rule, reason=reason)

    async def _put(self, text: str) -> None:
        # The terminal must not wrap lines itself: see `core.showing`.
        await self._send(fit(text, self._columns).encode())

    async def _send(self, text: bytes) -> None:
        data = memoryview(text)
        while data:
            await anyio.wait_writable(self._terminal)
            with suppress(BlockingIOError):
                data = data[os.write(self._terminal, data) :]

    async def _line(self, prompt: str) -> str | None:
        """The line typed, in lower case; None at the end of input."""
        await self._put(prompt)
        while True:
            await anyio.wait_readable(self._terminal)
            with suppress(BlockingIOError):
                typed = os.read(self._terminal, _MAX_LINE_BYTES)
                return typed.decode("utf-8", "replace").strip().lower() if typed else None


@contextmanager
def open_terminal() -> Iterator[int]:
    """The controlling terminal in line mode; its settings are restored afterwards."""
    if not (os.isatty(0) or os.isatty(2)):
        raise NoTerminal("no person is at a terminal")
    try:
        # A descriptor of its own: O_NONBLOCK then affects no other process.
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        raise NoTerminal("there is no terminal to ask at") from None
    try:
        if os.tcgetpgrp(terminal) != os.getpgrp():
            # Reading from it would stop this process with SIGTTIN, as any background job.
            raise NoTerminal("the terminal belongs to another foreground program")
        if 0 < os.get_terminal_size(terminal).columns < MIN_WIDTH:
            raise NoTerminal("the terminal is too narrow to show a question")
        with _for_lines(terminal):
            yield terminal
    except termios.error:
        raise NoTerminal("the terminal is gone") from None
    finally:
        os.close(terminal)


@contextmanager
def _for_lines(terminal: int) -> Iterator[None]:
    before = termios.tcgetattr(terminal)
    lines = list(before)
    lines[0] = (lines[0] | termios.ICRNL) & ~(termios.IGNCR | termios.INLCR)
    lines[1] |= termios.OPOST | termios.ONLCR
    # ECHOCTL: control characters are echoed as ^X and have no effect.
    lines[3] |= termios.ICANON | termios.ECHO | termios.ECHOE | termios.ECHOCTL | termios.ISIG
    termios.tcsetattr(terminal, termios.TCSANOW, lines)
    try:
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSANOW, before)


async def answer_from_here(
    question_id: str, config: str | None, profile: str | None, hush: Hush = nullcontext
) -> None:
    """Ask a queued question of a run in the supervisor, and put the answer into the queue."""
    from cellwall.admin.approvals import ApprovalInbox
    from cellwall.runtime.home import local_principal

    who = local_principal("cli")
    answering = ApprovalInbox(who, config=config, profile=profile)
    with suppress(
        CellwallError
    ):  # answered already, or no person is here: it can be answered elsewhere
        question = answering.read(question_id)
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                while any(each.id == question_id for each in answering.waiting()):  # noqa: ASYNC110  # files
                    await anyio.sleep(_LOOK_EVERY_S)
                tasks.cancel_scope.cancel()

            async def ask() -> None:
                with suppress(CellwallError, OSError):
                    answer = await TerminalApprover(who, hush=hush).ask(question)
                    answering.answer(question, answer.kind, rule=answer.rule)
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            tasks.start_soon(ask)

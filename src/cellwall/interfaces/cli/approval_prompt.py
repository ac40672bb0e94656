"""Asks the person at this terminal (POL-8).

The terminal itself is opened, never standard input: that may be the program's, and then a file or
an agent would answer for the person. What was typed before the question was seen is thrown away.
"""

from __future__ import annotations

import os
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

import anyio

from cellwall.core.approvals import Answer, AnswerKind, Question
from cellwall.core.errors import CellwallError
from cellwall.core.showing import MIN_WIDTH, block, fit
from cellwall.interfaces.cli.output import say

if TYPE_CHECKING:
    from cellwall.core.types import Principal

_MAX_TRIES = 5
_MAX_LINE_BYTES = 4096
_USUAL_COLUMNS = 80
_LOOK_EVERY_S = 0.1
_OVER = b"\nNo answer is needed any more.\n"
# What ran before may have left a colour on in which our words are not seen.
_RESET = b"\x1b[0m"

Hush = Callable[[], AbstractContextManager[None]]
"""Keeps others from writing to the terminal meanwhile."""


class TerminalApprover:
    """Keeps `ApproverPort`: the terminal that this process was started from."""

    name = "terminal"

    def __init__(self, who: Principal, *, hush: Hush = nullcontext) -> None:
        self._who = who
        self._hush = hush
        self._turn = anyio.Lock()

    async def ask(self, question: Question) -> Answer:
        """What was typed; raises where no person can see and answer it."""
        async with self._turn:
            try:
                _refuse_agents()
                with open_terminal() as terminal, self._hush():
                    return await _Prompt(terminal, question, self._who).ask()
            except NoTerminal:
                say(waiting_line(question))
                raise


class NoTerminal(CellwallError):
    """There is none, or not one that can show a question."""

    default_code = "CW-NO-TERMINAL"


def _refuse_agents() -> None:
    """An agent can make a terminal and answer on it (POL-13)."""
    from cellwall.runtime.agent_processes import agent_behind  # noqa: PLC0415  # only where asked

    why = agent_behind(os.getpid())
    if why is not None:
        raise NoTerminal(f"a person has to answer, and this is an agent's shell: {why}")


def waiting_line(question: Question) -> str:
    """Where else the question can be answered."""
    left_s = max(0.0, question.deadline_s - time.time())
    return (
        f"a question waits {left_s:.0f} s for an answer; "
        f"in another terminal: cellwall approvals show {question.id}"
    )


def fit_to_stream(text: str, *, stream: int) -> str:
    """For what a stream leads to: a terminal must have nothing to wrap, see `core.showing`."""
    if not os.isatty(stream):
        return text
    columns = os.get_terminal_size(stream).columns or _USUAL_COLUMNS
    if columns < MIN_WIDTH:
        raise NoTerminal(
            "the terminal is too narrow to show it",
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
        # An answer typed before the question was there is an answer to something else.
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
                    await self._put("That is none of the answers.\n")
        return self._answer(AnswerKind.DENY, reason="no answer could be understood")

    async def _rule(self) -> str | None:
        """Which of the proposed rules is to be written; None to think again."""
        proposals = self._question.proposals
        for number, proposal in enumerate(proposals, start=1):
            await self._put(
                f"Rule {number}, for all that follows:\n{block(proposal.rule)}"
                f"It would also allow:\n{block(proposal.also_allows)}"
            )
        chosen = await self._line("Write which one? Its number, or Enter to go back: ")
        numbers = {str(number): each for number, each in enumerate(proposals, start=1)}
        found = numbers.get(chosen or "")
        return None if found is None else found.rule

    def _answer(self, kind: AnswerKind, *, rule: str = "", reason: str = "") -> Answer:
        return Answer(kind=kind, by=self._who, via="terminal", rule=rule, reason=reason)

    async def _put(self, text: str) -> None:
        # Never by the terminal's own wrapping: see `core.showing`.
        await self._send(fit(text, self._columns).encode())

    async def _send(self, told: bytes) -> None:
        data = memoryview(told)
        while data:
            await anyio.wait_writable(self._terminal)
            with suppress(BlockingIOError):
                data = data[os.write(self._terminal, data) :]

    async def _line(self, prompt: str) -> str | None:
        """What was typed, in lower case; None at the end of input."""
        await self._put(prompt)
        while True:
            await anyio.wait_readable(self._terminal)
            with suppress(BlockingIOError):
                typed = os.read(self._terminal, _MAX_LINE_BYTES)
                return typed.decode("utf-8", "replace").strip().lower() if typed else None


@contextmanager
def open_terminal() -> Iterator[int]:
    """The terminal, in the state in which people type lines; as it was afterwards."""
    if not (os.isatty(0) or os.isatty(2)):
        raise NoTerminal("nobody is at a terminal")
    try:
        # Its own opening, so that not waiting for it is our affair alone.
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        raise NoTerminal("there is no terminal to ask at") from None
    try:
        if os.tcgetpgrp(terminal) != os.getpgrp():
            # Reading from it would stop us like any job in the background.
            raise NoTerminal("the terminal belongs to another program now")
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
    # ECHOCTL: what is typed is shown, and steers nothing.
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
    """For a run in the supervisor: the question lies in the queue, and there goes the answer."""
    from cellwall.runtime.answering import Answering  # noqa: PLC0415  # heavy, seldom
    from cellwall.runtime.wiring import principal  # noqa: PLC0415  # heavy, seldom

    who = principal("cli")
    answering = Answering(who, config=config, profile=profile)
    with suppress(CellwallError):  # it waits no more, or nobody is here: others may answer it
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

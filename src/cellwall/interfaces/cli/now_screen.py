"""The screen of `cellwall top`, by Textual.

Every text is a `rich.text.Text` of escaped characters: neither markup nor escape sequences of an
agent's command are interpreted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult, SuspendNotSupported
from textual.containers import VerticalScroll
from textual.widgets import Footer, Static

from cellwall.core.approvals import AnswerKind, Question
from cellwall.core.errors import CellwallError
from cellwall.core.showing import fit, one_line
from cellwall.interfaces.cli.approvals import allow_question
from cellwall.interfaces.cli.now_view import NowReader, NowView

_EVERY_S = 1.0
_COLOURS = {"allow": "green", "ask": "yellow", "deny": "bold red", "limit": "magenta"}
_MAX_NOTICE = 300


class NowScreen(App[None]):
    """Live sandboxes, questions and decisions."""

    CSS = """
    #tiles { height: auto; text-style: bold; }
    #sandboxes { height: auto; max-height: 30%; }
    #latencies { height: auto; max-height: 20%; }
    #questions { height: auto; max-height: 40%; }
    #events { height: 1fr; }
    """
    BINDINGS: ClassVar = [
        ("j,down", "select(1)", "Next"),
        ("k,up", "select(-1)", "Previous"),
        ("a", "allow", "Allow once"),
        ("d", "deny", "Deny"),
        ("q", "quit", "Quit"),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, reader: NowReader) -> None:
        super().__init__()
        self._reader = reader
        self._view: NowView | None = None
        self._selected_id = ""

    def compose(self) -> ComposeResult:
        yield Static(id="tiles", markup=False)
        for name in ("sandboxes", "latencies", "questions", "events"):
            with VerticalScroll(id=name, can_focus=False):
                yield Static(id=f"{name}-text", markup=False)
        yield Footer()

    async def on_mount(self) -> None:
        await self.poll()
        self.set_interval(_EVERY_S, self.poll)

    async def poll(self) -> None:
        """Read and show the state; an error is shown, and the next attempt follows."""
        try:
            view = await asyncio.to_thread(self._reader.read)
        except CellwallError as error:
            self._put("tiles", Text(f"{one_line(error.message, most=200)} [{error.code}]"))
            return
        self._view = view
        self._show(view)

    def _show(self, view: NowView) -> None:
        columns = self.size.width
        self._put("tiles", Text(view.tiles(columns)))
        self._put("sandboxes-text", _lines((line, "") for line in view.sandbox_lines(columns)))
        self._put("latencies-text", _lines((line, "cyan") for line in view.latency_lines(columns)))
        self._put("questions-text", self._questions(view))
        events = view.event_lines(columns)
        self._put("events-text", _lines((line, _COLOURS.get(word, "")) for word, line in events))

    def _put(self, name: str, text: Text) -> None:
        text.no_wrap = True
        self.query_one(f"#{name}", Static).update(text)

    def _questions(self, view: NowView) -> Text:
        chosen = self._chosen()
        if chosen is None:
            return Text("no questions are waiting")
        styled = [
            (line, "reverse" if each.id == chosen.id else "")
            for each, line in zip(view.questions, view.question_lines(self.size.width), strict=True)
        ]
        return _lines([*styled, (fit(chosen.shown, self.size.width - 2), "")])

    def _chosen(self) -> Question | None:
        questions = () if self._view is None else self._view.questions
        named = (each for each in questions if each.id == self._selected_id)
        return next(named, questions[0] if questions else None)

    def action_select(self, step: int) -> None:
        chosen, view = self._chosen(), self._view
        if chosen is None or view is None:
            return
        index = view.questions.index(chosen) + step
        self._selected_id = view.questions[max(0, min(index, len(view.questions) - 1))].id
        self._show(view)

    async def action_allow(self) -> None:
        await self._answer(AnswerKind.ONCE)

    async def action_deny(self) -> None:
        await self._answer(AnswerKind.DENY)

    async def _answer(self, kind: AnswerKind) -> None:
        chosen = self._chosen()
        if chosen is None:
            self._tell("no questions are waiting")
            return
        # Fixed from here on: the answer is to the question that the person has seen.
        self._selected_id = chosen.id
        try:
            self._tell(self._answered(chosen, kind))
        except CellwallError as error:
            self._tell(f"{error.message}. {error.hint}", is_bad=True)
        except SuspendNotSupported:
            self._tell("an approval needs a terminal of a person", is_bad=True)
        await self.poll()

    def _answered(self, question: Question, kind: AnswerKind) -> str:
        if kind is AnswerKind.DENY:
            self._reader.inbox.answer(question, kind)
            return f"{question.id} was denied"
        self._reader.inbox.check(question, kind)
        # The same confirmation as that of `cellwall approvals allow`, on the plain terminal.
        with self.suspend():
            answer = allow_question(self._reader.inbox, question, kind)
        return "not answered" if answer is None else f"{question.id} was allowed"

    def _tell(self, text: str, *, is_bad: bool = False) -> None:
        shown = one_line(text, most=_MAX_NOTICE)
        self.notify(shown, severity="error" if is_bad else "information", markup=False)


def _lines(lines: Iterable[tuple[str, str]]) -> Text:
    text = Text()
    for line, style in lines:
        text.append(f"{line}\n", style=style or None)
    return text

"""Conversations that a text imitates: turns of a person and of an assistant, line by line.

One pair of turns makes a model believe it has agreed to something already. Many of them are an
attack of their own: after enough examples of an obedient assistant a model becomes one (many-shot).
Keys of YAML and fields of logs look alike in one line, not in their order. Questions and answers
are what every FAQ has, so even many of them are only told, not acted on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cellwall.guard.ctext.library import LineHeads, byte_set
from cellwall.guard.detect.sweep import Spot, Sweep, as_word
from cellwall.parsing.matching import Pattern

_PEOPLE = ("human", "user", "utilisateur", "benutzer", "usuario", "пользователь", "用户",
           "ユーザー")  # fmt: skip
_MACHINES = ("assistant", "ai", "chatgpt", "claude", "gemini", "llm", "asistente", "assistent",
             "ассистент", "助手", "アシスタント", "어시스턴트", "المساعد")  # fmt: skip
_TURN_WORDS = tuple(
    as_word(word)
    for word in (
        *(name + end for name in _MACHINES if name != "ai" for end in (":", "]", "**", ">")),
        "\nai:",
        "**ai:",
        "[ai]",
    )
)
_QUESTION_WORDS = tuple(as_word(word) for word in ("\nq:", "*q:", "\nq1", "question:"))
WORDS = (*_TURN_WORDS, *_QUESTION_WORDS)
_MAX_ORNAMENTS = 6
_BEFORE = rf"(?m)^[ \t>*_#\[<(|\-]{{0,{_MAX_ORNAMENTS}}}"
_AFTER = r"(?:[ \t]*\(?\d{0,3}\)?)[\])>*_]{0,3}[ \t]*[:>\]][*_ \t]{0,3}"
_TURN = Pattern(rf"{_BEFORE}(?:{'|'.join(_PEOPLE)}|{'|'.join(_MACHINES)}){_AFTER}[^\s:{{}}\[\]]")
_QUESTION = Pattern(rf"{_BEFORE}(?:q|question|a|answer)[ \t]?\d{{0,3}}[\])*_]{{0,3}}[:.] ?\S")
_ORNAMENTS = b" \t>*_#[<(|-"
_QUESTION_LINES = LineHeads(
    ornaments=byte_set(_ORNAMENTS),
    max_ornaments=_MAX_ORNAMENTS,
    words=(b"q", b"question", b"a", b"answer"),
    follow=byte_set(b" \t0123456789])*_:."),
)
_FEW_LINES = 1000
"""Looked at one by one; for more of them it is quicker to go through all of the text."""
_NEAR_BYTES = 4000
"""Between two turns of one conversation."""
_MANY = 12
"""Turns that are no sample of a conversation any more."""
_MANY_QUESTIONS = 40
_PEOPLE_NAMES = tuple(name.encode() for name in _PEOPLE)
_ASKING_NAMES = (b"q",)


@dataclass(slots=True)
class _Run:
    """A conversation as far as it was read."""

    start: int
    end: int
    is_person: bool
    """Who spoke last."""
    count: int = 1


def find(sweep: Sweep) -> Iterator[Spot]:
    """Runs of turns in which one speaks and the other answers."""
    if sweep.has(_TURN_WORDS):
        for run in _runs(sweep.data, _TURN.spans(sweep.data), _PEOPLE_NAMES):
            yield from _conversation(run)
    if sweep.has(_QUESTION_WORDS):
        for run in _runs(sweep.data, _questions(sweep.data), _ASKING_NAMES):
            if run.count >= _MANY_QUESTIONS:
                yield Spot(
                    category="many-shot",
                    severity="low",
                    rule="turns.questions",
                    message="many questions with their answers",
                    start=run.start,
                    end=run.end,
                    score=0.2,
                )


def _questions(data: bytes) -> Iterator[tuple[int, int]]:
    """Lines that begin a question or an answer."""
    lines = _QUESTION_LINES.of(data, _FEW_LINES)
    if lines is None:
        yield from _QUESTION.spans(data)
        return
    for start in lines:
        if span := _QUESTION.at(data, start):
            yield span


def _runs(
    data: bytes, spans: Iterable[tuple[int, int]], people: tuple[bytes, ...]
) -> Iterator[_Run]:
    run: _Run | None = None
    for start, end in spans:
        is_person = data[start:end].lstrip(_ORNAMENTS).startswith(people)
        if run is None or start - run.end > _NEAR_BYTES:
            if run is not None:
                yield run
            run = _Run(start, end, is_person)
        elif run.is_person != is_person:
            run.end, run.is_person, run.count = end, is_person, run.count + 1
    if run is not None:
        yield run


def _conversation(run: _Run) -> Iterator[Spot]:
    if run.count < 2:
        return
    is_many = run.count >= _MANY
    yield Spot(
        category="many-shot" if is_many else "role-marker",
        severity="high" if is_many else "medium",
        rule="turns.many" if is_many else "turns.pair",
        message=(
            "many made-up turns of a conversation"
            if is_many
            else "imitates turns of a conversation with an assistant"
        ),
        start=run.start,
        end=run.end,
        score=0.75 if is_many else 0.5,
    )

"""The dialog of a client for a question of Cellwall to a person.

Text from the agent stands behind bars, and the whole question is indented: a client that renders
Markdown shows it literally, and no text from the agent starts at the left edge. Only an explicit
choice allows. A client without elicitation, a decline, a cancel, an unknown answer and a time-out
are denials (POL-8).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from mcp_types import ElicitRequestFormParams, ElicitResult

from cellwall.core.approvals import NOBODY, Answer, AnswerKind, Question
from cellwall.core.showing import fit

if TYPE_CHECKING:
    from mcp_types import ClientCapabilities

    from cellwall.core.types import Principal

CHANNEL = "elicitation"
_FIELD = "answer"
_ONCE = "allow once"
_SESSION = "allow exactly this until the session ends"
_DENY = "deny"
_COLUMNS = 72  # dialogs wrap longer lines, and the rest would start at the left edge
_INDENT = "    "

Put = Callable[[ElicitRequestFormParams], Awaitable[object]]
"""Shows a form to the person and returns the reply; any exception is a denial."""


def can_ask(capabilities: ClientCapabilities | None) -> bool:
    """Whether the client declares form elicitation; a bare `elicitation: {}` means forms."""
    elicitation = None if capabilities is None else capabilities.elicitation
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


class Elicitation:
    """Implements `ApproverPort` with the client of one call."""

    name = CHANNEL

    def __init__(self, who: Callable[[], Principal], put: Put | None) -> None:
        self._who = who
        self._put = put
        """None: this client has no elicitation."""

    async def ask(self, question: Question) -> Answer:
        if self._put is None:
            return _deny("the client does not support elicitation, so no person can be asked")
        try:
            reply = await self._put(form_of(question))
        except Exception:  # noqa: BLE001  # a failure of the client is no approval
            return _deny("the client failed to ask a person")
        return answer_of(question, reply, who=self._who())


def form_of(question: Question) -> ElicitRequestFormParams:
    """The form that the client shows."""
    shown = "\n".join(_INDENT + line for line in fit(question.shown, _COLUMNS).splitlines())
    message = (
        f"Cellwall asks you ({question.id}). Text behind a bar (|) comes from others, such as "
        f"the agent, and may be false.\n\n{shown}\n\nAllow it?"
    )
    choices = [_ONCE, *([_SESSION] if question.takes(AnswerKind.SESSION) else []), _DENY]
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            _FIELD: {"type": "string", "title": "Your answer", "enum": choices},
        },
        "required": [_FIELD],
    }
    return ElicitRequestFormParams(message=message, requested_schema=schema)


def answer_of(question: Question, reply: object, *, who: Principal) -> Answer:
    """Strict: of all replies only two allow."""
    if not isinstance(reply, ElicitResult):
        return _deny("the client's reply is not a valid answer")
    if reply.action != "accept":
        word = "declined" if reply.action == "decline" else "closed"
        return Answer(kind=AnswerKind.DENY, by=who, via=CHANNEL, reason=f"the question was {word}")
    match reply.content:
        case {"answer": str(chosen), **others} if not others:
            pass
        case _:
            return _deny("the answer is not one of the choices")
    if chosen == _ONCE:
        return Answer(kind=AnswerKind.ONCE, by=who, via=CHANNEL)
    if chosen == _SESSION and question.takes(AnswerKind.SESSION):
        return Answer(kind=AnswerKind.SESSION, by=who, via=CHANNEL)
    if chosen == _DENY:
        return Answer(kind=AnswerKind.DENY, by=who, via=CHANNEL)
    return _deny("the answer is not one of the choices")


def _deny(reason: str) -> Answer:
    return Answer(kind=AnswerKind.DENY, by=NOBODY, via=CHANNEL, reason=reason)
